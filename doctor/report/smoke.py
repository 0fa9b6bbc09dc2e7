"""What a person sees of a smoke test: verdict, one table of what was measured, advice."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from doctor.finding import Verdict
from doctor.report.redact import Redactor
from doctor.report.terminal import console, finding_view, verdict_mark

if TYPE_CHECKING:
    from doctor.smoke.probes import Result
    from doctor.smoke.run import SmokeResult

_STATUS = {
    "pass": ("✓", "ok", "green"),
    "advise": ("!", "!", "yellow"),
    "fail": ("✗", "X", "red"),
    "abstain": ("·", "-", "dim"),
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
        out.print(_table(result, ascii_only))
    for item in judgement.findings:
        out.print()
        out.print(finding_view(item, verbose, ascii_only))
    advice = [r for r in result.results if r.status == "advise"]
    if advice or result.notes:
        out.print()
        for one in advice:
            out.print(Text(f"advice: {one.why}"))
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


def _table(result: SmokeResult, ascii_only: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    ready = result.readiness
    if ready is not None:
        session = result.attached.session if result.attached else None
        facts = result.follower.facts if result.follower else session.server if session else None
        pool = f"; KV cache {facts.kv_tokens:,} tokens" if facts and facts.kv_tokens else ""
        block = f", block {facts.block_size}" if facts and facts.block_size else ""
        table.add_row(
            _mark("pass", ascii_only),
            *(
                ("server", f"running{pool}{block}")
                if session
                else ("start", f"healthy after {ready.seconds:.0f} s{pool}{block}")
            ),
        )
    for one in result.results:
        table.add_row(_mark(one.status, ascii_only), one.name, f"{one.why}{_figures(one)}")
    return table


def _figures(one: Result) -> str:
    measured: dict[str, Any] = dict(one.measured)
    if one.name == "liveness" and measured.get("second_ttft_s") is not None:
        return f"; first token after {measured['first_ttft_s']} s, then {measured['second_ttft_s']} s"
    if one.name == "prefix_cache" and measured.get("ttft_s"):
        return "; first token after " + ", ".join(f"{t} s" for t in measured["ttft_s"])
    if one.name == "speculative" and measured.get("decode_tokens_per_s"):
        speeds = [s for s in measured["decode_tokens_per_s"] if s is not None]
        return f"; {min(speeds)} to {max(speeds)} tokens/s" if speeds else ""
    return ""


def _mark(status: str, ascii_only: bool) -> Text:
    icon, plain, style = _STATUS[status]
    return Text(plain if ascii_only else icon, style=style)


def _print_tail(result: SmokeResult, out: Console, verbose: bool) -> None:
    lines = []
    if verbose and result.command is not None:
        env = " ".join(f"{k}={shlex.quote(v)}" for k, v in result.command.env.items())
        lines.append(f"command: {env} {shlex.join(result.command.argv)}")
    if result.log is not None and result.log.exists():
        lines.append(f"log: {Redactor.of_this_host().text(str(result.log))}")
    if lines:
        out.print()
        for line in lines:
            out.print(Text(line, style="dim"), soft_wrap=True)
