"""What a person sees of a warm-up: each shape's first time against the later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from doctor.report.terminal import console, finding_view, verdict_mark

if TYPE_CHECKING:
    from doctor.smoke.warmup import WarmupResult


def print_warmup(result: WarmupResult, *, out: Console | None = None) -> None:
    """Prints the whole answer of ``warmup``."""
    out = out or console()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    headline = verdict_mark(result.judgement.verdict, ascii_only)
    out.print(headline.append_text(Text(f"  {_reason(result)}")))
    if result.times:
        out.print()
        out.print(_table(result))
    if result.kernels is not None:
        first, later = result.kernels
        out.print()
        out.print(Text(f"kernels compiled during the first requests: {', '.join(first) or 'none'}"))
        out.print(Text(f"kernels compiled during the later requests: {', '.join(later) or 'none'}"))
    for item in result.judgement.findings:
        out.print()
        out.print(finding_view(item, False, ascii_only))
    for note in result.notes:
        out.print(Text(f"note: {note}"))


def _reason(result: WarmupResult) -> str:
    server = result.server
    if result.findings:
        return f"{server.url} is not warm"
    name = f"{server.model} at {server.url}" + (f" (vLLM {server.version})" if server.version else "")
    spikes = len(result.spikes)
    if not spikes:
        return f"{name}: no first request was clearly slower than the later ones"
    return f"{name}: {spikes} of {len(result.times)} shapes were slow the first time and are warm now"


def _table(result: WarmupResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("shape")
    for name in ("prompt", "answer", "first s", "later s", "first token s", "later s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in result.times:
        later = sorted(one.later_ttft_s)
        table.add_row(
            one.shape.name,
            str(one.shape.tokens),
            f"{one.shape.at_once}x{one.shape.answer}" if one.shape.at_once > 1 else str(one.shape.answer),
            _seconds(one.first_s),
            _seconds(one.usual_s),
            _seconds(one.first_ttft_s),
            _seconds(later[len(later) // 2] if later else None),
            one.error or ("spike" if one.spike else ""),
        )
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
