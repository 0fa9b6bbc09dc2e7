"""What a person sees of a smoke test: verdict, one table of what was measured, advice."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from doctor.finding import Verdict
from doctor.report.redact import Redactor
from doctor.report.smoke_settings import settings_table, total
from doctor.report.terminal import console, finding_view, verdict_mark

if TYPE_CHECKING:
    from doctor.smoke.ladder import Ladder
    from doctor.smoke.probes import Result
    from doctor.smoke.run import SmokeResult

_STATUS = {
    "pass": ("✓", "ok", "green"),
    "advise": ("!", "!", "yellow"),
    "fail": ("✗", "X", "red"),
    "abstain": ("·", "-", "dim"),
}


#: What each probe expects, in a few words. A figure of ``Result.expected`` takes the place of {}.
_EXPECTED = {
    "liveness": ("whole answers", ""),
    "first_requests": ("as fast as later ones", ""),
    "chat_template": ("as the template renders it", ""),
    "stop_and_length": ("exact lengths, no stop text", ""),
    "streaming": ("piece by piece, same text", ""),
    "structured_output": ("JSON by its schema", ""),
    "tool_call": ("a call with valid arguments", ""),
    "sampling_limits": ("both have an effect", ""),
    "prefix_cache": ("{} tokens from the cache", "cached_tokens"),
    "speculative": ("drafts accepted", ""),
    "consistency": ("the same text", ""),
    "needle": ("as cold, so repeated", ""),
    "decode_speed": ("{} of the ceiling", "share_of_ceiling"),
    "prefill_speed": ("{} times decoding", "times_decode"),
    "concurrency": ("more together than alone", ""),
    "memory": ("growth {} MiB", "growth_mib"),
    "prediction": ("in the predicted range", ""),
    "correctness": ("differences {} nats", "difference_nats"),
    "mtp_speed": ("faster than without", ""),
}


def print_smoke(result: SmokeResult, *, verbose: bool = False, out: Console | None = None) -> None:
    """Prints the whole answer of ``smoke``."""
    out = out or console()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    judgement = result.judgement
    headline = verdict_mark(judgement.verdict, ascii_only)
    out.print(headline.append_text(Text(f"  {_reason(result)}")))
    if result.results and result.readiness is not None and result.readiness.state == "healthy":
        out.print()
        out.print(_table(result, ascii_only, verbose))
        figures = _figures_table(result, ascii_only)
        if figures is not None:
            out.print()
            out.print(figures)
    settings = settings_table(result)
    if settings is not None:
        out.print()
        out.print(settings)
    if result.ladder is not None:
        out.print()
        out.print(_ladder(result.ladder, ascii_only))
    for item in judgement.findings:
        out.print()
        out.print(finding_view(item, verbose, ascii_only))
    if result.notes:
        out.print()
        for note in result.notes:
            out.print(Text(f"note: {note}"))
    _print_tail(result, out, verbose)


def _reason(result: SmokeResult) -> str:
    verdict = result.judgement.verdict
    if result.attached:
        where = f"vLLM {result.environment.vllm}".strip() + f" at {result.attached.url}"
        if result.readiness is None:
            return f"{where} cannot be asked"
        if verdict is Verdict.READY:
            return f"{where} answers, with {result.attached.model}"
    if result.readiness is None:
        return "no server was started: " + "; ".join(f.title for f in result.judgement.findings)
    if verdict is Verdict.READY:
        return f"a real vLLM {result.environment.vllm} answers on this machine"
    if verdict is Verdict.UNKNOWN:
        return "could not be judged: " + "; ".join(
            f"{s.id} ({s.why})" for s in result.judgement.skipped if s.essential
        )
    titles = "; ".join(f.title for f in result.judgement.findings[:2])
    return f"the server answers, but: {titles}" if verdict is Verdict.DEGRADED else titles


def _table(result: SmokeResult, ascii_only: bool, verbose: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("probe", no_wrap=True)
    table.add_column("measured", overflow="fold", ratio=3)
    table.add_column("expected", overflow="fold", ratio=1, style="dim")
    ready = result.readiness
    if ready is not None:
        session = result.attached.session if result.attached else None
        facts = result.follower.facts if result.follower else session.server if session else None
        pool = f"; KV cache {facts.kv_tokens:,} tokens" if facts and facts.kv_tokens else ""
        block = f", block {facts.block_size}" if facts and facts.block_size else ""
        name, what = ("server", "running") if session else ("start", f"healthy after {ready.seconds:.0f} s")
        table.add_row(_mark("pass", ascii_only), name, f"{what}{pool}{block}")
    # what was not asked at all comes last and takes no more room than it needs
    asked = [r for r in result.results if r.status != "abstain" or r.asked or r.measured]
    for one in asked:
        quiet = "dim" if one.status == "abstain" else ""
        measured = Text(f"{one.why}{_figures(one)}", style=quiet)
        table.add_row(_mark(one.status, ascii_only), one.name, measured, _expected(one))
        if verbose and one.measured:
            figures = "; ".join(f"{k} {_short(v)}" for k, v in one.measured.items() if k not in ("rows", "shapes"))
            table.add_row("", "", Text(figures, style="dim"))
    for one in result.results:
        if one not in asked:
            table.add_row(_mark("abstain", ascii_only), one.name, Text(one.why, style="dim"))
    return table


def _expected(one: Result) -> str:
    text, key = _EXPECTED.get(one.name, ("", ""))
    if one.status == "abstain":
        return ""
    return text.format(_short(one.expected.get(key))) if key and key in one.expected else text.partition("{")[0]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _figures_table(result: SmokeResult, ascii_only: bool) -> Table | None:
    """vLLM's own figures beside what was predicted for this start."""
    rows = next((r.measured.get("rows") for r in result.results if r.name == "prediction"), None)
    if not rows:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("vLLM says")
    for name in ("measured", "predicted", "range"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        unit = row["unit"]
        span = "" if row["low"] == row["high"] else f"{_number(row['low'], unit)} - {_number(row['high'], unit)}"
        table.add_row(
            _mark("pass" if row["within"] else "advise", ascii_only),
            f"{row['figure']}{f' ({unit})' if unit else ''}",
            _number(row["measured"], unit),
            _number(row["predicted"], unit),
            span,
        )
    return table


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit == "tokens" else f"{value:,.2f}"


def _ladder(ladder: Ladder, ascii_only: bool) -> Table:
    """What was tried after the failure, and what came of it."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("tried after that", overflow="fold", ratio=2)
    table.add_column("seconds", justify="right")
    table.add_column("", overflow="fold", ratio=2)
    for step in ladder.steps:
        again = " (second start)" if step.again else ""
        changes = f"{', '.join(step.changes)}{again}"
        mark = _mark("pass" if step.passed else "fail", ascii_only)
        table.add_row(mark, changes, f"{step.seconds:.0f}", Text(step.why, style="dim"))
    return table


def _figures(one: Result) -> str:
    measured: dict[str, Any] = dict(one.measured)
    if one.name == "liveness" and measured.get("second_ttft_s") is not None:
        return f"; first token after {measured['first_ttft_s']} s, then {measured['second_ttft_s']} s"
    if one.name == "prefix_cache" and measured.get("ttft_s"):
        ratio = f" ({measured['ttft_ratio']} times)" if measured.get("ttft_ratio") else ""
        return "; first token after " + ", ".join(f"{t} s" for t in measured["ttft_s"]) + ratio
    return ""


def _mark(status: str, ascii_only: bool) -> Text:
    icon, plain, style = _STATUS[status]
    return Text(plain if ascii_only else icon, style=style)


def _print_tail(result: SmokeResult, out: Console, verbose: bool) -> None:
    lines = []
    if verbose and result.command is not None:
        env = " ".join(f"{k}={shlex.quote(v)}" for k, v in result.command.env.items())
        lines.append(f"command: {env} {shlex.join(result.command.argv)}")
    if took := total(result):
        lines.append(took)
    if result.log is not None and result.log.exists():
        lines.append(f"log: {Redactor.of_this_host().text(str(result.log))}")
    if lines:
        out.print()
        for line in lines:
            out.print(Text(line, style="dim"), soft_wrap=True)
