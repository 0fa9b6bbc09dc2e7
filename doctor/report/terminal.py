"""What a person sees: verdict, what blocks, what to do, then the rest. Plain text when piped."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from doctor.checks.registry import Check, Judgement
from doctor.finding import Confidence, Finding, Remedy, Severity, Verdict
from doctor.report.console import console as console  # other reports take it from here
from doctor.report.machine import machine_rows
from doctor.snapshot import Snapshot

_VERDICT = {
    Verdict.READY: ("✓", "ok", "READY", "bold green"),
    Verdict.DEGRADED: ("!", "!!", "DEGRADED", "bold yellow"),
    Verdict.UNKNOWN: ("?", "??", "UNKNOWN", "bold yellow"),
    Verdict.BLOCKED: ("✗", "XX", "BLOCKED", "bold red"),
}
_SEVERITY = {
    Severity.BLOCKER: ("✗", "X", "red"),
    Severity.DEGRADES: ("!", "!", "yellow"),
    Severity.NOTE: ("·", "-", "cyan"),
}
_SURE = {Confidence.PROVEN: "proven", Confidence.LIKELY: "likely", Confidence.HINT: "only a hint"}

#: Fixes shown for one finding without ``-v``.
SHOWN_FIXES = 3


def print_judgement(
    judgement: Judgement, snapshot: Snapshot, *, verbose: bool = False, out: Console | None = None
) -> None:
    """Prints the whole answer of ``check``."""
    out = out or console()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    out.print(headline(judgement, ascii_only))
    shown = (
        judgement.findings if verbose else tuple(f for f in judgement.findings if f.severity is not Severity.NOTE)
    )
    for item in shown:
        out.print()
        out.print(finding_view(item, verbose, ascii_only))
    notes = () if verbose else tuple(f for f in judgement.findings if f.severity is Severity.NOTE)
    if notes:
        out.print()
        for note in notes:
            out.print(_note(note, ascii_only))
    rows = machine_rows(snapshot)
    if rows:
        out.print()
        out.print(_machine(rows))
    out.print()
    out.print(_counts(judgement, verbose), style="dim")
    if verbose:
        _print_lists(judgement, out)


def headline(judgement: Judgement, ascii_only: bool = False) -> Text:
    """The verdict and its reason in one line."""
    icon, plain, word, style = _VERDICT[judgement.verdict]
    text = Text.assemble((f"{plain if ascii_only else icon} {word}", style), "  ")
    blockers = [f for f in judgement.findings if f.blocks]
    if judgement.verdict is Verdict.BLOCKED:
        text.append(f"{_plural(len(blockers), 'cause')} that {'stops' if len(blockers) == 1 else 'stop'} vLLM: ")
        text.append("; ".join(f.title for f in blockers[:2]) + (" ..." if len(blockers) > 2 else ""), style="bold")
    elif judgement.verdict is Verdict.DEGRADED:
        costly = [f for f in judgement.findings if f.severity is not Severity.NOTE]
        text.append(f"nothing proven stops vLLM, {_plural(len(costly), 'finding')} to look at")
    elif judgement.verdict is Verdict.UNKNOWN:
        unjudged = [s for s in judgement.skipped if s.essential]
        named = "; ".join(f"{s.id} ({s.why})" for s in unjudged[:2])
        more = f" and {len(unjudged) - 2} more" if len(unjudged) > 2 else ""
        if named:
            text.append(f"could not be judged: {named}{more}")
        elif judgement.waived and not (judgement.passed or judgement.skipped):
            text.append(f"nothing was judged: --skip waives {', '.join(judgement.waived)}")
        else:
            text.append("nothing here could be judged")
    else:
        text.append(_ready(judgement))
    return text


def _ready(judgement: Judgement) -> str:
    if judgement.only:
        ran = len(judgement.passed) + len(judgement.findings)
        return f"{_plural(ran, 'chosen check')} found nothing that stops vLLM"
    if any(f.id == "vllm-not-installed" for f in judgement.findings):
        return "nothing found that would stop vLLM; vLLM itself is not installed in the Python that was found"
    return "nothing found that stops or slows vLLM"


def verdict_mark(verdict: Verdict, ascii_only: bool = False) -> Text:
    """The verdict's sign and word."""
    icon, plain, word, style = _VERDICT[verdict]
    return Text(f"{plain if ascii_only else icon} {word}", style)


def finding_view(item: Finding, verbose: bool, ascii_only: bool = False) -> Group:
    """One finding: cause, proof, what to do."""
    # a hint stops nothing by itself, so it never looks as if it did
    severity = Severity.DEGRADES if item.severity is Severity.BLOCKER and not item.blocks else item.severity
    icon, plain, style = _SEVERITY[severity]
    title = Text.assemble((f"{plain if ascii_only else icon} {item.title}", f"bold {style}"))
    title.append(f"  [{item.id}, {_SURE[item.confidence]}]", style="dim")
    parts: list[Text | Padding] = [title, _indent(Text(item.summary or item.cause))]
    if verbose and item.summary:
        parts.append(_indent(Text(item.cause, style="dim")))
    fixes = item.fixes if verbose else item.fixes[:SHOWN_FIXES]
    for number, remedy in enumerate(fixes, 1):
        parts.extend(_remedy(number, remedy))
    hidden = len(item.fixes) - len(fixes)
    if hidden > 0:
        parts.append(_indent(Text(f"{_plural(hidden, 'more way')} with -v", style="dim"), 4))
    if verbose:
        for piece in item.evidence:
            row = Text(f"{piece.fact} = {piece.value}")
            parts.append(_indent(row.append(f"  ({piece.source})", style="dim"), 4))
        for excluded in item.excludes:
            parts.append(_indent(Text(f"not: {excluded}", style="dim"), 4))
    for symptom in item.symptoms:
        parts.append(_indent(Text(f"explains: {symptom.title} [{symptom.id}]", style="dim")))
    return Group(*parts)


def _remedy(number: int, remedy: Remedy) -> list[Text | Padding]:
    by_hand = "" if remedy.automatic else "  (by hand)"
    parts: list[Text | Padding] = [_indent(Text.assemble(f"{number}. {remedy.summary}", (by_hand, "dim")))]
    for command in remedy.commands:
        parts.append(_indent(Text(f"$ {shlex.join(command)}", style="bold"), 7))
    return parts


def _note(item: Finding, ascii_only: bool) -> Text:
    icon, plain, style = _SEVERITY[Severity.NOTE]
    text = Text.assemble((f"{plain if ascii_only else icon} ", style), item.summary or item.title)
    return text.append(f"  [{item.id}]", style="dim")


def _machine(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, Text(value))
    return table


def _counts(judgement: Judgement, verbose: bool) -> Text:
    parts = [f"{_plural(len(judgement.passed), 'check')} passed", f"{len(judgement.skipped)} not judged"]
    if judgement.waived:
        parts.append(f"{len(judgement.waived)} waived")
    tail = "" if verbose else "; -v shows the evidence and every check, --json the whole answer"
    return Text(", ".join(parts) + tail)


def _print_lists(judgement: Judgement, out: Console) -> None:
    if judgement.passed:
        out.print(_indent(Text("passed: " + ", ".join(judgement.passed), style="dim")))
    if judgement.waived:
        out.print(_indent(Text("waived: " + ", ".join(judgement.waived), style="dim")))
    by_reason: dict[str, list[str]] = {}
    for item in judgement.skipped:
        by_reason.setdefault(item.why, []).append(item.id)
    for why, ids in by_reason.items():
        out.print(_indent(Text(f"not judged, {why}: {', '.join(ids)}", style="dim")))


def check_list(checks: Iterable[Check]) -> str:
    """All checks as two aligned columns."""
    first: dict[str, str] = {}
    for item in checks:
        first.setdefault(item.id, item.summary)
    width = max((len(i) for i in first), default=0)
    return "".join(f"{cause:<{width}}  {summary}\n" for cause, summary in first.items())


def _indent(text: Text, columns: int = 2) -> Padding:
    return Padding(text, (0, 0, 0, columns))


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
