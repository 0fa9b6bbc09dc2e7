"""What ``explain`` shows: the cause first, what to do next, then what was read. Plain text when piped."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from doctor import catalogue
from doctor.checks.registry import Judgement
from doctor.evidence.load import Reading
from doctor.evidence.load import Text as ReadText
from doctor.finding import Confidence, Finding, Severity, Verdict
from doctor.report import terminal
from doctor.report.machine import machine_rows
from doctor.report.redact import Redactor

#: Notes and harmless remarks that are kept for -v.
_BENIGN = {
    "wsl2-pin-memory-off": "harmless: vLLM always says so under WSL2 unless VLLM_WSL2_ENABLE_PIN_MEMORY=1",
    "triton-jit-first-request": "harmless: the first request of each shape compiles",
    "pynvml-shim-installed": "harmless: a deprecated name of nvidia-ml-py",
    "eager-mode-enabled": "no fault: CUDA graphs were switched off",
    "hybrid-kv-pool-accounting": "no fault: how vLLM counts the pool of hybrid models",
}
#: Kinds of text that describe a machine rather than a run.
_REPORTS = {"environment report", "nvidia-smi", "pip or uv output"}
#: Characters of a line that are shown as what was seen.
_QUOTED = 160
#: Messages shown on the page of a cause.
_MESSAGES = 12
#: Other findings shown beside the causes without -v.
_OTHERS = 4


def print_explanation(
    judgement: Judgement,
    reading: Reading,
    redactor: Redactor,
    *,
    verbose: bool = False,
    out: Console | None = None,
) -> None:
    """Prints the whole answer of ``explain`` for a text."""
    out = out or terminal.console()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    findings = list(judgement.findings)
    causes = [f for f in findings if f.blocks]
    rest = [f for f in findings if not f.blocks]
    if causes:
        for number, item in enumerate(causes):
            if number:
                out.print()
            _print_cause(item, out, verbose, ascii_only)
    else:
        _print_no_cause(judgement, reading, redactor, rest, out)
    _print_rest(rest, out, verbose, ascii_only, bool(causes))
    out.print()
    for text in reading.texts:
        out.print(Text(redactor.text(_read_line(text)), style="dim"))
        for damage in text.damage:
            out.print(Text(redactor.text(f"  {damage}"), style="dim"))
    if verbose and judgement.skipped:
        out.print(
            Text(
                f"not spoken of: {len(judgement.skipped)} causes; judged and not found: {len(judgement.passed)}",
                style="dim",
            )
        )
    elif not verbose:
        out.print(
            Text(
                "-v shows the evidence and harmless warnings; vllm-doctor explain CAUSE-ID its whole page",
                style="dim",
            )
        )


def _print_cause(item: Finding, out: Console, verbose: bool, ascii_only: bool) -> None:
    out.print(terminal.finding_view(item, verbose, ascii_only))
    if not verbose and item.evidence:
        row = item.evidence[0]
        words = row.value if len(row.value) <= _QUOTED else row.value[:_QUOTED].rstrip() + "..."
        out.print(_indent(f"seen: {words}  ({row.source})"))
    wrong = catalogue.cause(item.id).wrong_fixes
    if wrong:
        out.print(_indent(f"does not help: {'; '.join(wrong)}"))


def _indent(text: str) -> Padding:
    """Small print under a cause; what does not fit in a line stays under its beginning."""
    return Padding(Text(text, style="dim"), (0, 0, 0, 2), expand=False)


def _print_no_cause(
    judgement: Judgement, reading: Reading, redactor: Redactor, rest: list[Finding], out: Console
) -> None:
    snapshot = reading.snapshot
    if snapshot.serving and snapshot.serving.started and not _failed(reading):
        version = f" vLLM {snapshot.serving.vllm}" if snapshot.serving.vllm else " The server"
        out.print(
            Text(
                f"A healthy start:{version} reported that it serves, and nothing after it failed.",
                style="bold green",
            )
        )
        return
    if rest and any(f.severity is Severity.BLOCKER for f in rest):
        out.print(Text("No cause is sure. What follows was only seen together:", style="bold yellow"))
        return
    if rest and judgement.verdict is Verdict.DEGRADED:
        out.print(Text("Nothing in the text stops vLLM. What costs speed or quality:", style="bold yellow"))
        return
    report_only = all(k.label in _REPORTS for t in reading.texts for k in t.kinds) and any(
        t.kinds for t in reading.texts
    )
    unknown = (
        "Nothing in this report explains a failure; the server's log may."
        if report_only
        else "The cause is not known from this text."
    )
    out.print(Text(unknown, style="bold yellow"))
    for label, value in machine_rows(snapshot):
        out.print(Text(redactor.text(f"  {label}: {value}")))
    lines = [e for t in reading.texts for e in t.telling]
    if lines:
        out.print("The lines that say most:")
        for event in lines[:8]:
            out.print(Text(redactor.text(f"  {event.source}: {event.text[:200]}")))
    out.print("What to run next:")
    for step in next_steps(reading):
        out.print(Text(f"  $ {step}", style="bold"))


def _failed(reading: Reading) -> bool:
    """Whether an error follows the last sign of service; what an ended server logs in its teardown is none."""

    def lines(signal: str) -> list[int]:
        return [e.line or 0 for e in reading.snapshot.events if e.signal == signal]

    served = max(lines("vllm.started"), default=0)
    ended = min((n for n in lines("vllm.asked-to-end") if n > served), default=1 << 60)
    return any(served < n < ended for n in lines("vllm.engine-failed"))


def next_steps(reading: Reading) -> list[str]:
    """Commands that would tell more, by what is missing."""
    snapshot = reading.snapshot
    steps = []
    if snapshot.python is None or snapshot.driver is None:
        steps.append("vllm-doctor check            (on the machine itself)")
    if any(e.signal == "vllm.engine-failed" for e in snapshot.events):
        steps.append(
            "vllm serve ... 2>&1 | tee server.log     (the cause stands above the last error: keep the whole log)"
        )
    if any(e.signal == "network.nccl-error" for e in snapshot.events):
        steps.append("NCCL_DEBUG=WARN vllm serve ...   (the line with NCCL WARN says what failed)")
    steps.append("VLLM_LOGGING_LEVEL=DEBUG vllm serve ...")
    steps.append("sudo dmesg -T | tail -50      (was something killed, did the GPU report an error?)")
    return steps


def _print_rest(rest: list[Finding], out: Console, verbose: bool, ascii_only: bool, after_causes: bool) -> None:
    """Hints and what only degrades: one line each without -v."""
    harmless = [f for f in rest if f.id in _BENIGN]
    others = [f for f in rest if f.id not in _BENIGN]
    if verbose:
        for item in others:
            out.print(terminal.finding_view(item, True, ascii_only))
            out.print()
        for item in harmless:
            out.print(Text(f"  {item.id}: {_BENIGN[item.id]}", style="dim"))
        return
    for item in others[:_OTHERS]:
        sure = "a hint" if item.confidence is Confidence.HINT else item.confidence.value
        line = Text("  also: " if after_causes else "  ", style="yellow")
        line.append(f"{item.title} [{item.id}, {sure}]: ")
        line.append(item.summary or item.cause, style="dim")
        out.print(line)
        if not after_causes and item.fixes:
            out.print(Text(f"    1. {item.fixes[0].summary}"))


def _read_line(text: ReadText) -> str:
    kinds = (
        ", ".join(k.label + (f" ({k.detail})" if k.detail else "") for k in text.kinds) or "no kind of text I know"
    )
    packed = f", {' + '.join(text.layers)}" if text.layers else ""
    return f"read {text.name}: {kinds}; {text.lines:,} line{'' if text.lines == 1 else 's'}{packed}"


def print_page(cause_id: str, out: Console | None = None) -> None:
    """The page of one cause for a person."""
    from doctor.catalogue.render import messages_of

    out = out or terminal.console()
    entry = catalogue.cause(cause_id)
    out.print(Text(f"{entry.title}  [{entry.id}]", style="bold"))
    versions = "".join(f", {word} {v}" for word, v in (("since", entry.since), ("until", entry.until)) if v)
    out.print(Text(f"{entry.area}, {entry.severity.value}{versions}", style="dim"))
    out.print(entry.cause)
    _list(out, "What proves it:", entry.decisive)
    _list(out, "What is seen with it and proves nothing:", entry.hints_only)
    known = messages_of(cause_id)
    _list(out, "Messages of this cause:", tuple(f"{text}  ({sure.value})" for text, sure in known[:_MESSAGES]))
    if entry.remedies:
        out.print()
        out.print(Text("What to do:", style="bold"))
        for number, remedy in enumerate(entry.remedies, 1):
            out.print(Text(f"  {number}. {remedy.summary}{'' if remedy.automatic else '  (by hand)'}"))
            for command in remedy.commands:
                out.print(Text(f"     $ {shlex.join(command)}", style="bold"))
    _list(out, "What does not help:", entry.wrong_fixes)
    _list(out, "Easily confused with:", entry.look_alikes)
    _list(out, "Sources:", entry.sources)


def _list(out: Console, title: str, lines: tuple[str, ...]) -> None:
    if lines:
        out.print()
        out.print(Text(title, style="bold"))
        for line in lines:
            out.print(Padding(Text(f"- {line}"), (0, 0, 0, 2), expand=False))
