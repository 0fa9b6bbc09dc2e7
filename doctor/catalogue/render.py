"""The catalogue as a document: ``python -m doctor.catalogue.render > docs/troubleshooting.md``.

People search by the message on their screen or by what they see happening; both lists lead to one section a
cause. The list of messages is not written by hand: each signal's examples are judged, and what the doctor
answers is what the document says.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator

from doctor.catalogue.loader import AREAS, Cause, all_causes, cause, table
from doctor.finding import Confidence

_AREA_TITLES = {
    "host": "Host", "wsl": "WSL2", "compiler": "Compilers and CUDA toolkit", "driver": "Driver", "gpu": "GPU",
    "memory": "GPU memory", "container": "Containers", "image": "Images", "python": "Python environment",
    "network": "Network and hub", "storage": "Storage", "model": "Model and speculative decoding",
    "serving": "Serving",
}  # fmt: skip
_SEVERITY = {
    "blocker": "stops vLLM",
    "degrades": "works, but costs speed, memory or quality",
    "note": "worth knowing",
}
_SURE = {Confidence.PROVEN: "proves it", Confidence.LIKELY: "makes it likely", Confidence.HINT: "is only a hint"}
_LONGEST = 150  # characters of a message

_HEAD = """# Troubleshooting vLLM on one NVIDIA card

Every cause the doctor knows, found by [message](#by-message), by [symptom](#by-symptom) or by
[area](#causes). `vllm-doctor explain FILE` finds them in a log, `vllm-doctor explain CAUSE-ID` prints one
section of this document, `vllm-doctor check` looks for them on this machine.

Generated from the catalogue by `python -m doctor.catalogue.render`; do not edit by hand.
"""


def messages() -> list[tuple[str, str, list[tuple[str, Confidence]]]]:
    """(program, message, [(cause, how sure)]) of each signal whose message alone says something."""
    from doctor.checks.registry import judge, registered
    from doctor.evidence.scan import scan
    from doctor.evidence.signals import all_signals
    from doctor.snapshot import Snapshot

    rows = []
    for signal in all_signals():
        if signal.fact:
            continue
        for example in signal.examples:
            if example.startswith("$ "):
                continue  # a command with its answer: no message that anybody would look for
            events = tuple(e for e in scan([example.encode() + b"\n"], "message").events)
            judgement = judge(Snapshot(origin="evidence", events=events), registered())
            answers = [(f.id, f.confidence) for f in judgement.findings]
            if answers:
                rows.append((_program(signal.source), _shorten(example), answers))
    return rows


def messages_of(cause_id: str) -> list[tuple[str, Confidence]]:
    """(message, how sure) of the messages that name this cause, the surest first."""
    rows = {message: sure for _, message, answers in messages() for i, sure in answers if i == cause_id}
    return sorted(rows.items(), key=lambda row: row[1].rank)


#: What a signal's source starts with -> heading. The first that fits counts.
_PROGRAMS = (
    (r"vLLM", "vLLM"),
    (r"torch|MapAllocator", "torch"),
    (r"triton", "Triton"),
    (r"flashinfer|DeepGEMM", "FlashInfer and DeepGEMM"),
    (r"NCCL", "NCCL"),
    (r"transformers|huggingface|safetensors", "transformers, huggingface_hub, safetensors"),
    (
        r"moby|docker|Docker|runc|podman|containerd|container-device|buildkit|libnvidia-container|Kubernetes",
        "Docker, podman, Kubernetes and the NVIDIA hook",
    ),
    (r"NVIDIA|nvidia-smi|NVRM|kmod|lsmod|NVML", "NVIDIA driver"),
    (r"CUDA|nvcc|ptxas|cudafe", "CUDA and nvcc"),
    (r"GCC|gcc|clang|GNU ld|CMake|LLVM|command lines of Triton", "Compilers and linkers"),
    (r"glibc|loader", "The loader"),
    (r"apt", "apt"),
    (r"requests|urllib3|httpx|Python ssl", "Network libraries"),
    (r"pip|uv|argparse|numpy|Python|CPython", "Python and pip"),
    (r"Linux|kernel|Microsoft|systemd|errno", "Linux and WSL2"),
)


def _program(source: str) -> str:
    """Whose message it is, for the headings."""
    return next((title for pattern, title in _PROGRAMS if re.match(pattern, source)), "Shells and settings")


def _shorten(text: str) -> str:
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= _LONGEST else line[: _LONGEST - 4].rstrip() + " ..."


def document() -> str:
    """The whole document."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "## By message"
    yield ""
    by_program: dict[str, list[str]] = {}
    for program, message, answers in messages():
        links = ", ".join(f"[{i}](#{i}) ({_SURE[sure]})" for i, sure in answers)
        by_program.setdefault(program, []).append(f"- `{message.replace('`', chr(39))}`: {links}")
    for program in sorted(by_program, key=str.lower):
        yield f"### {program}"
        yield ""
        yield from dict.fromkeys(by_program[program])
        yield ""
    yield "## By symptom"
    yield ""
    for row in table("symptoms"):
        yield f"- **{row['symptom']}**: " + ", ".join(f"[{cause(i).title}](#{i})" for i in row["causes"])
    yield ""
    yield "## Causes"
    yield ""
    for area in AREAS:
        entries = [c for c in all_causes() if c.area == area]
        if entries:
            yield f"### {_AREA_TITLES[area]}"
            yield ""
            for entry in entries:
                yield from section(entry)


def section(entry: Cause) -> Iterator[str]:
    """One cause as Markdown lines."""
    yield f'<a id="{entry.id}"></a>'
    yield f"#### {entry.title}"
    yield ""
    yield f"`{entry.id}`, {_SEVERITY[entry.severity.value]}" + _versions(entry)
    yield ""
    yield entry.cause
    yield ""
    yield from _list("What proves it:", entry.decisive)
    yield from _list("What is seen with it and proves nothing:", entry.hints_only)
    if entry.remedies:
        yield "What to do:"
        yield ""
        for number, remedy in enumerate(entry.remedies, 1):
            yield f"{number}. {remedy.summary}" + ("" if remedy.automatic else " (by hand)")
            for command in remedy.commands:
                yield f"   `{shlex.join(command)}`"
        yield ""
    yield from _list("What does not help:", entry.wrong_fixes)
    if entry.look_alikes:
        yield "Easily confused with: " + ", ".join(f"[{i}](#{i})" for i in entry.look_alikes)
        yield ""
    yield from _list("Sources:", entry.sources)


def _versions(entry: Cause) -> str:
    since = f"since {entry.since}" if entry.since else ""
    until = f"until {entry.until}" if entry.until else ""
    both = " ".join(part for part in (since, until) if part)
    return f", {both}" if both else ""


def _list(title: str, lines: tuple[str, ...]) -> Iterator[str]:
    if lines:
        yield title
        yield ""
        for line in lines:
            yield f"- {line}"
        yield ""


if __name__ == "__main__":
    sys.stdout.write(document())
