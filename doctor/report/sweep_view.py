"""What a person sees of a sweep: the plan before it, a table and plots after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from doctor.report.plot import Curve, Plot

if TYPE_CHECKING:
    from rich.console import Console

    from doctor.sweep.run import SweepResult

Row = Mapping[str, Any]


def _figure(value: Any, digits: int) -> str:
    """A figure for a cell; "" when there is none."""
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return f"{value:,.{digits}f}"


def _of(name: str, digits: int = 0) -> Callable[[Row], str]:
    return lambda row: _figure(row.get(name), digits)


def _setting(name: str) -> Callable[[Row], str]:
    return lambda row: _figure((row.get("settings") or {}).get(name), 0)


def _predicted(name: str, digits: int = 0) -> Callable[[Row], str]:
    return lambda row: _figure((row.get("predicted") or {}).get(name), digits)


def _difference(row: Row) -> str:
    value = (row.get("predicted") or {}).get("difference_percent")
    return f"{value:+.2f}" if isinstance(value, (int, float)) else ""


def _outcome(row: Row) -> str:
    return str(row.get("outcome")) + (f": {row['cause']}" if row.get("cause") else "")


def _acceptance(row: Row) -> str:
    rates = row.get("acceptance_per_position")
    return " / ".join(f"{r:.0%}" for r in rates.values()) if isinstance(rates, Mapping) else ""


def _cached(row: Row) -> str:
    values = row.get("cached_tokens")
    return ", ".join(_figure(v, 0) or "?" for v in values) if isinstance(values, list) else ""


COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("model", _of("model")),
    ("context", _setting("max_model_len")),
    ("MTP", _setting("draft_tokens")),
    ("sequences", _setting("max_num_seqs")),
    ("batched", _setting("max_num_batched_tokens")),
    ("outcome", _outcome),
    ("compile", _of("compile")),
    ("ready s", _of("ready_s", 1)),
    ("weights GiB", _of("weights_gib", 2)),
    ("peak GiB", _of("peak_activation_gib", 2)),
    ("KV GiB", _of("kv_gib", 2)),
    ("KV tokens", _of("kv_tokens")),
    ("predicted", _predicted("kv_tokens")),
    ("difference %", _difference),
    ("concurrency", _of("concurrency", 2)),
    ("block", _of("block_size")),
    ("prefill tok/s", _of("prefill_tokens_per_s", 0)),
    ("TTFT s", _of("ttft_s", 3)),
    ("decode tok/s", _of("decode_tokens_per_s", 1)),
    ("together tok/s", _of("together_tokens_per_s", 1)),
    ("accepted", _acceptance),
    ("cached tokens", _cached),
    ("memory GiB", _of("memory_used_gib", 2)),
)


def table(rows: Sequence[Row]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Head and cells; columns that no row fills are left out."""
    cells = [[show(row) for _, show in COLUMNS] for row in rows]
    kept = [n for n in range(len(COLUMNS)) if any(line[n] for line in cells)]
    head = tuple(COLUMNS[n][0] for n in kept)
    return head, tuple(tuple(line[n] or "–" for n in kept) for line in cells)


def comparison(rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """Predicted beside measured: label, start, predicted tokens with their range, measured, difference."""
    out = []
    for row in rows:
        known = row.get("predicted") or {}
        if known.get("kv_tokens") is None or row.get("kv_tokens") is None:
            continue
        low, high = known.get("kv_tokens_range") or (None, None)
        span = f" ({low:,} to {high:,})" if low is not None and low != high else ""
        start = str(known.get("start")) if row.get("compile") in ("cold", "warm") else "any"
        out.append(
            (
                str(row.get("label")),
                start,
                f"{known['kv_tokens']:,}{span}",
                f"{row['kv_tokens']:,}",
                _difference(row),
            )
        )
    return tuple(out)


def plots(rows: Sequence[Row]) -> list[Plot]:
    """Pool against context, speed against sequences, pool and prefill against batched tokens."""
    found = (
        _plot(rows, "pool", "KV pool against context length", "context", "max_model_len",
              "context length, tokens", "KV pool, tokens", "kv_tokens", predicted=True),
        _plot(rows, "speed", "Decode speed against sequences", "sequences", "max_num_seqs",
              "sequences at once", "tokens/s together", "together_tokens_per_s"),
        _plot(rows, "batched-pool", "KV pool against batched tokens", "batched", "max_num_batched_tokens",
              "max batched tokens", "KV pool, tokens", "kv_tokens", predicted=True),
        _plot(rows, "batched-prefill", "Prefill speed against batched tokens", "batched", "max_num_batched_tokens",
              "max batched tokens", "prompt tokens/s", "prefill_tokens_per_s"),
    )  # fmt: skip
    return [plot for plot in found if plot is not None]


def _plot(rows: Sequence[Row], name: str, title: str, axis: str, setting: str, x_label: str, y_label: str,
          figure: str, *, predicted: bool = False) -> Plot | None:  # fmt: skip
    """One plot, a curve for every model and number of draft tokens; None with less than two points."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        several = groups.setdefault((str(row.get("model")), int(row["settings"]["draft_tokens"])), [])
        if axis in (row.get("axes") or ()):
            several.append(row)
    models = {model for (model, _), several in groups.items() if several}
    curves = []
    # a curve has the same colour in every plot
    for colour, ((model, drafts), several) in enumerate(groups.items()):
        label = (f"{model}, " if len(models) > 1 else "") + (f"MTP {drafts}" if drafts else "without MTP")
        curves.append(Curve(label, _points(several, setting, lambda r: r.get(figure)), colour))
        if predicted:
            guess = _points(several, setting, lambda r: (r.get("predicted") or {}).get(figure))
            curves.append(Curve(f"{label}, predicted", guess, colour, dashed=True))
    curves = [c for c in curves if c.points]
    if len({x for c in curves for x, _ in c.points}) < 2:
        return None
    return Plot(name, title, x_label, y_label, tuple(curves), logarithmic=setting != "max_num_seqs")


def _points(rows: Sequence[Row], setting: str, figure: Callable[[Row], Any]) -> tuple[tuple[float, float], ...]:
    known = {float(r["settings"][setting]): figure(r) for r in rows}
    return tuple((x, float(y)) for x, y in sorted(known.items()) if isinstance(y, (int, float)))


def markdown(title: str, rows: Sequence[Row], skipped: Sequence[tuple[str, str]], notes: Sequence[str]) -> str:
    """OUT/sweep.md: the table, the plots beside it, what was not started."""
    out = [f"# Sweep: {title}", ""]
    if rows:
        head, cells = table(rows)
        out += [_line(head), "|" + "---|" * len(head), *(_line(c) for c in cells), ""]
    out += [f"![{p.title}]({p.name}.svg)\n" for p in plots(rows)]
    compared = comparison(rows)
    if compared:
        out += ["## Predicted and measured", "", _line(COMPARED), "|" + "---|" * len(COMPARED)]
        out += [*(_line(c) for c in compared), ""]
    failed = [r for r in rows if r.get("why")]
    if failed:
        out += ["## What did not work", "", *(f"- {r.get('label')}: {r['why']}" for r in failed), ""]
    if skipped:
        out += ["## Not started", "", *(f"- {label}: {why}" for label, why in skipped), ""]
    out += [f"- {note}" for note in notes]
    return "\n".join(out).rstrip() + "\n"


COMPARED = ("point", "start", "predicted KV tokens", "measured", "difference %")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def print_plan(result: SweepResult, estimate: str, *, edges: bool, out: Console | None = None) -> None:
    """The points, what is predicted of each, and how long it will take."""
    from rich.text import Text

    from doctor.report.console import console
    from doctor.report.narrow import Column, print_columns
    from doctor.report.terminal import finding_view

    out = out or console()
    done = {str(r.get("key")) for r in result.rows}
    names = dict.fromkeys(item.point.name for item in result.prepared.items)
    columns = (
        Column("model", words=True, rank=0 if len(names) > 1 else 1, low=True),
        *(Column(name, right=True) for name in ("context", "MTP", "seqs", "batched")),
        Column("KV tokens first start", right=True, rank=2),
        Column("later", right=True, rank=3),
        Column("predicted", words=True),
    )
    view = []
    for item in result.prepared.items:
        point, guess = item.point, item.forecast
        view.append((
            point.name, f"{point.max_model_len:,}", str(point.draft_tokens), str(point.max_num_seqs),
            f"{point.max_num_batched_tokens:,}", f"{guess.first.tokens:,}" if guess.first else "–",
            f"{guess.later.tokens:,}" if guess.later else "–",
            "done" if item.key in done else _expected(guess.fits, edges),
        ))  # fmt: skip
    out.print(Text(f"plan for {result.prepared.setup.title}: {', '.join(names)}"))
    for note in result.notes:
        out.print(Text(f"note: {note}"))
    print_columns(out, columns, view, "dim")
    for item, why in result.skipped:
        out.print(Text(f"not started: {item.point.label}: {why}"))
    if result.skipped:
        out.print(Text("--edges starts them too"))
    for finding in result.judgement.findings:
        out.print()
        out.print(finding_view(finding, False, not (out.encoding or "").lower().startswith("utf")))
    out.print(Text(estimate))


def _expected(fits: bool | None, edges: bool) -> str:
    if fits is False:
        return "does not fit" + (", started all the same" if edges else ", not started")
    return "fits" if fits else "not certain"


#: Columns that fit into 80 characters, and what they are called there.
_TERMINAL = {
    "context": "context", "MTP": "MTP", "sequences": "seqs", "batched": "batch", "outcome": "outcome",
    "ready s": "ready s", "KV tokens": "KV tokens", "difference %": "diff %", "decode tok/s": "tok/s",
    "together tok/s": "all tok/s",
}  # fmt: skip
#: Which of them a narrower terminal leaves out first; sweep.md has all.
_RANKS = {"ready s": 1, "difference %": 2, "together tok/s": 3}


def print_sweep(result: SweepResult, files: Sequence[str], *, out: Console | None = None) -> None:
    """Verdict, one line a point, findings, where the files are."""
    from rich.text import Text

    from doctor.report.console import console
    from doctor.report.narrow import Column, print_columns
    from doctor.report.terminal import finding_view, verdict_mark

    out = out or console()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    judgement = result.judgement
    ran = len(judgement.passed)
    again = f", {result.resumed} of them from before" if result.resumed else ""
    text = f"  {ran} of {len(result.rows)} points measured{again}: {result.prepared.setup.title}"
    out.print(verdict_mark(judgement.verdict, ascii_only).append_text(Text(text)))
    if result.rows:
        several = len({r.get("model") for r in result.rows}) > 1
        shown = [c for c in COLUMNS if c[0] in _TERMINAL or (several and c[0] == "model")]
        columns = [
            Column(_TERMINAL.get(name) or name, words=name == "model", right=name not in ("model", "outcome"),
                   rank=_RANKS.get(name, 0))
            for name, _ in shown
        ]  # fmt: skip
        # causes are told below the table
        view = [[str(r.get("outcome")) if name == "outcome" else show(r) for name, show in shown]
                for r in result.rows]  # fmt: skip
        print_columns(out, columns, view, "dim")
    for item in judgement.findings:
        out.print()
        out.print(finding_view(item, False, ascii_only))
    for left, why in result.skipped:
        out.print(Text(f"not started: {left.point.label}: {why}"))
    if result.skipped:
        out.print(Text("--edges starts them too"))
    for note in result.notes:
        out.print(Text(f"note: {note}"))
    for name in files:
        out.print(Text(f"written: {name}", style="dim"), soft_wrap=True)
