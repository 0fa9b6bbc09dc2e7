"""What a text is, and which of its lines say most."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from doctor.evidence.builder import FactBuilder
from doctor.evidence.scan import Scan
from doctor.evidence.strip import Line
from doctor.snapshot import Event


@dataclass(frozen=True)
class Kind:
    """One kind of text, the line where it was first seen, and a detail such as a version."""

    label: str
    line: int
    detail: str = ""


#: Signal -> what the text is called.
_LABELS = {
    "kind.vllm-log": "vLLM log",
    "kind.environment-report": "environment report",
    "kind.nvidia-smi": "nvidia-smi",
    "kind.traceback": "Python traceback",
    "kind.docker": "docker",
    "kind.kernel-log": "kernel log",
    "kind.pip-output": "pip or uv output",
    "kind.apt-output": "apt output",
    "kind.compiler-output": "compiler output",
    "kind.nccl-log": "NCCL log",
    "kind.kubernetes": "Kubernetes",
}


def recognise(result: Scan, facts: FactBuilder) -> tuple[Kind, ...]:
    """All kinds of text in it, in order of appearance."""
    first: dict[str, int] = {}
    for event in result.facts:
        if event.signal in _LABELS:
            first.setdefault(_LABELS[event.signal], event.line or 0)
    version = facts.get("serving", "vllm")
    return tuple(
        Kind(label, number, str(version) if label == "vLLM log" and version else "")
        for label, number in first.items()
    )


_ERROR = re.compile(
    r"^\s*(?:[\w.]{1,120}(?:Error|Exception|Exit|Interrupt|Warning)\b: ?.{3,}|(?:fatal|FATAL|"
    r"Fatal)[: ].{3,}|\w{0,40}\s?(?:error|Error|ERROR): .{3,}"
    r"|.{0,200}\b(?:Segmentation fault|core dumped|SIGSEGV|SIGKILL|Killed|Aborted|cannot|failed|"
    r"Failed|not found|No such file)\b.{0,200})"
)
_EMPTY = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineCore encountered|See "
    r"stack trace|EngineDeadError|"
    r"The above exception was the direct|During handling of the above|EngineCore encountered an "
    r"issue|asynchronously reported|"
    r"For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|^\s*File \"|^Traceback|"
    r"UserWarning|FutureWarning|DeprecationWarning"
)


def telling(result: Scan, most: int = 8) -> tuple[Event, ...]:
    """The lines that say most when nothing is known: first errors, without the ones that only repeat others."""
    chosen: list[Event] = []
    seen: set[str] = set()
    for line in _candidates(result.ends):
        key = re.sub(r"\d+", "#", line.text.strip())[:120]
        if key in seen:
            continue
        seen.add(key)
        chosen.append(Event("telling", f"{result.name}:{line.number}", line.text.strip()[:300], line.number))
    errors = [e for e in chosen if re.match(r"\s*[\w.]*(?:Error|Exception)\b", e.text)]
    picked = (errors or chosen)[:most]
    return tuple(sorted(picked, key=lambda e: e.line or 0))


#: Cheap to look for: a line with none of these says nothing of a failure.
_WORDS = ("rror", "xception", "Exit", "nterrupt", "atal", "ault", "SIG", "illed", "bort", "annot", "ailed",
          "ot found", "No such", "dumped")  # fmt: skip


def _candidates(lines: Iterable[Line]) -> Iterable[Line]:
    for line in lines:
        told = line.level in ("ERROR", "CRITICAL") or any(word in line.text for word in _WORDS)
        if not told or _EMPTY.search(line.text):
            continue
        if _ERROR.match(line.text) or (line.level in ("ERROR", "CRITICAL") and line.text.strip()):
            yield line
