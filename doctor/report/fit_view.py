"""What ``fit`` shows a person: does it fit, why, and how to start it; a table for several."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from doctor.catalogue.loader import table as data
from doctor.memory.emit import serve_text
from doctor.memory.fit import Fit
from doctor.memory.predict import Prediction
from doctor.memory.start_check import GIB
from doctor.report.console import console
from doctor.report.narrow import Column, print_columns

_VERDICT = {True: ("✓", "ok", "FITS", "bold green"), None: ("?", "??", "CLOSE", "bold yellow"),
            False: ("✗", "XX", "DOES NOT FIT", "bold red")}  # fmt: skip


def print_fit(fit: Fit, *, purpose: str | None, out: Console | None = None) -> None:
    """One model on one card, or one pool."""
    out = out or console()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    out.print(_headline(fit, ascii_only))
    for warning in fit.warnings:
        out.print(Text(f"{'!!' if ascii_only else '!'} {warning}", style="yellow"))
    out.print(_rows(fit))
    if fit.profile and fit.card and not fit.profile.later.high.fits:
        out.print("  no settings for this card make it fit")
    elif fit.profile and fit.card:
        out.print()
        out.print(Text(f"Settings for {purpose or 'chat'} on one card", style="bold"))
        out.print(serve_text(fit.model, fit.profile).rstrip(), soft_wrap=True, markup=False)
        if fit.profile.reasons:
            table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
            for name, reason in fit.profile.reasons.items():
                table.add_row(f"  {name.replace('_', '-')}", reason)
            out.print(table)
        later = fit.profile.later.likely
        out.print(
            f"  gives {fit.profile.first.likely.capacity_tokens:,} KV tokens on the first start, "
            f"{later.capacity_tokens:,} afterwards ({later.max_concurrency:.2f} requests of full length)"
        )
        for warning in fit.profile.warnings:
            out.print(Text(f"{'!!' if ascii_only else '!'} {warning}", style="yellow"))


def _headline(fit: Fit, ascii_only: bool) -> Text:
    sign, plain, word, style = _VERDICT[fit.fits]
    where = f" on {fit.card.name}" if fit.card else f" in {fit.pool.available_bytes / GIB:.2f} GiB of KV cache"
    text = Text(f"{plain if ascii_only else sign} {word}", style=style)
    text.append(f"  {fit.model.shape.name}{where}, vLLM {fit.version.version}", style="bold")
    if fit.why:
        text.append(f"\n  {fit.why}", style="not bold")
    return text


def _rows(fit: Fit) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    shape, weights, options, layout = fit.model.shape, fit.model.weights, fit.options, fit.pool.layout
    table.add_row("  model", f"{shape.family}, {fit.support.title} ({fit.support.why})")
    drafts = options.draft_tokens > 0
    resident = weights.resident(vision=bool(fit.start and fit.start.vision), draft=drafts) // options.tp
    left_out = [n for n, size, used in (("image encoder", weights.vision, bool(fit.start and fit.start.vision)),
                                        ("MTP head", weights.draft, drafts)) if size and not used]  # fmt: skip
    without = f", without {' and '.join(left_out)}" if left_out else ""
    table.add_row("  weights", f"{resident / GIB:.2f} GiB resident{without} (from {weights.source})")
    if fit.first and fit.later and fit.card and fit.start:
        table.add_row("  card", _card(fit))
        table.add_row("  first start", _start(fit.first))
        if fit.later is not fit.first:
            table.add_row("  later starts", _start(fit.later))
    pool = fit.pool
    if pool.num_blocks == 0:
        return table
    table.add_row(
        "  KV cache",
        f"{pool.num_blocks:,} blocks of {layout.block_size} tokens and {layout.bytes_per_block / 1e6:.2f} MB: "
        f"{pool.capacity_tokens:,} tokens, {pool.max_concurrency:.2f}x {options.max_model_len:,} tokens",
    )
    table.add_row("  context", f"{pool.highest_context:,} tokens is the longest that fits in this pool")
    if pool.prefix_hit_step:
        table.add_row(
            "  prefix caching",
            f"hits in steps of {pool.prefix_hit_step} tokens, from {pool.smallest_prefix_hit:,} tokens on",
        )
    else:
        table.add_row("  prefix caching", "off")
    if fit.draft:
        table.add_row("  MTP", _draft(fit))
    short, full = fit.ceiling_short, fit.ceiling_full
    if short and full and short.tokens_per_s and full.tokens_per_s:
        likely, where = short.likely_tokens_per_s or 0, data("decoding")["efficiency_card"]
        table.add_row(
            "  decoding",
            f"at most {short.tokens_per_s:.1f} tokens/s ({short.step_bytes / 1e9:.2f} GB a step), "
            f"{full.tokens_per_s:.1f} at {options.max_model_len:,} tokens of context; about {likely:.0f} at the "
            f"{likely / short.tokens_per_s:.0%} of it that were measured on an {where}",
        )
    if fit.version.extrapolated:
        table.add_row("  note", f"the source of vLLM {fit.version.version} was not read: nearest rules are used")
    return table


def _card(fit: Fit) -> str:
    assert fit.card is not None  # noqa: S101  the caller checked
    assert fit.start is not None  # noqa: S101
    free = f", {fit.card.free_bytes / GIB:.2f} free" if fit.card.free_bytes is not None else ""
    return (
        f"{fit.card.total_bytes / GIB:.2f} GiB{free}; fraction {fit.start.utilization:g} asks for "
        f"{fit.first.requested_bytes / GIB if fit.first else 0:.2f}; highest {fit.max_utilization or 0:.2f}, "
        f"recommended {fit.recommended_utilization or 0:.2f}"
    )


def _start(p: Prediction) -> str:
    if p.available.high <= 0:
        return f"no room for a KV cache: {-p.available.likely / GIB:.2f} GiB short"
    how = (
        "measured on this machine"
        if p.calibrated
        else f"{p.available.low / GIB:.2f} to {p.available.high / GIB:.2f}"
    )
    return (
        f"{p.available.likely / GIB:.2f} GiB of KV cache ({how}): {p.likely.capacity_tokens:,} tokens; "
        f"peak activation {p.overhead.activation.likely / GIB:.2f} GiB"
    )


def _draft(fit: Fit) -> str:
    d = fit.draft
    assert d is not None  # noqa: S101  the caller checked
    loss = 1 - d.kv_tokens_with / d.kv_tokens_without if d.kv_tokens_without else 0.0
    gain = f"; up to {d.speedup:.2f}x at measured acceptance" if d.speedup else ""
    return (
        f"{d.tokens} drafts cost {loss:.0%} of the KV tokens ({d.kv_tokens_without:,} to {d.kv_tokens_with:,}) "
        f"and {d.weights_bytes / GIB:.2f} GiB{gain}; pays above {d.break_even:.2f} tokens a step"
    )


#: What a narrow terminal leaves out first says least about whether it fits.
_COLUMNS = (
    Column("model", words=True),
    Column("card", words=True),
    Column("size", right=True, rank=3, low=True),
    Column("format", words=True, rank=2, low=True),
    Column("arch", rank=1, low=True),
    Column("fits"),
    Column("KV tokens", right=True),
    Column("longest", right=True),
    Column("tok/s", right=True, rank=4),
)


def print_table(rows: Sequence[tuple[str, str, Fit | str]], out: Console | None = None) -> None:
    """Several models and cards: model, card, and the fit or the reason why there is none."""
    out = out or console()
    table: list[Sequence[str | Text]] = []
    notes = []
    for model, card, result in rows:
        where = f" on {_short(card)}" if card else ""
        if isinstance(result, str):
            known = "unknown" if "architecture" in result else "?"
            table.append((model, _short(card), "", "", known, Text("no", style="red"), "", "", ""))
            notes.append(result if result.startswith(model) else f"{model}{where}: {result}")
            continue
        if result.why:
            notes.append(f"{model}{where}: {result.why}")
        word = {
            True: Text("yes", style="green"),
            None: Text("close", style="yellow"),
            False: Text("no", style="red"),
        }
        resident = result.model.weights.resident(vision=False, draft=result.options.draft_tokens > 0)
        format_text = result.support.title if result.support.ok is not False else f"{result.support.title}: no"
        speed = result.ceiling_short.tokens_per_s if result.ceiling_short else None
        holds = result.pool.num_blocks > 0
        table.append((
            model, _short(card), f"{resident / GIB:.1f} GiB", format_text, "known", word[result.fits],
            f"{result.pool.capacity_tokens:,}" if holds else "",
            f"{result.pool.highest_context:,}" if holds else "",
            f"{speed:.0f}" if speed and holds else "",
        ))  # fmt: skip
    print_columns(out, _COLUMNS, table, "bold")
    for note in notes:
        out.print(Text(note, style="dim"))


def _short(card: str) -> str:
    return card.removeprefix("GeForce ").removeprefix("NVIDIA ")
