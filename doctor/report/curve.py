"""Context length against KV pool and concurrency, with and without MTP: as an SVG file and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

from doctor.memory.fit import Fit
from doctor.memory.kv import size_pool
from doctor.report.plot import polyline, scale, ticks

#: Shortest context drawn, tokens.
SHORTEST = 1024


@dataclass(frozen=True)
class Point:
    """One context length. ``fits`` is false beyond the card's limit."""

    length: int
    tokens: int
    concurrency: float
    fits: bool


@dataclass(frozen=True)
class Line:
    """One curve; ``limit`` is the longest context that fits."""

    label: str
    points: tuple[Point, ...]
    limit: int


def lengths(longest: int) -> list[int]:
    """Powers of two and their midpoints up to the model's own limit."""
    out = []
    step = SHORTEST
    while step < longest:
        out += [step, step * 3 // 2]
        step *= 2
    return [n for n in out if n < longest] + [longest]


def lines(fit: Fit) -> list[Line]:
    """The curve without drafts and, where the model has a draft head, with them."""
    from doctor.memory.settings import both_starts

    drafts = [0]
    if fit.model.shape.has_mtp:
        drafts.append(fit.options.draft_tokens or 2)
    out = []
    for k in drafts:
        options = replace(fit.options, draft_tokens=k)
        available = fit.pool.available_bytes
        if fit.card and fit.start and fit.later and k != fit.options.draft_tokens:
            other = both_starts(fit.model, fit.card, fit.start, options, fit.version)[1]
            same = both_starts(fit.model, fit.card, fit.start, fit.options, fit.version)[1]
            # what a calibration moved stays moved
            available = max(0, other.available.likely + fit.pool.available_bytes - same.available.likely)
        points = []
        longest = fit.model.shape.max_positions
        whole = size_pool(fit.model.shape, available, replace(options, max_model_len=longest), fit.version)
        limit = whole.highest_context
        # the curve ends exactly at the card's limit
        for length in sorted({*lengths(longest), *([limit] if limit > SHORTEST else [])}):
            pool = size_pool(fit.model.shape, available, replace(options, max_model_len=length), fit.version)
            points.append(Point(length, pool.capacity_tokens, pool.max_concurrency, pool.fits))
        out.append(Line(f"MTP {k}" if k else "without MTP", tuple(points), limit))
    return out


# -- text ------------------------------------------------------------------------------------------------


def text(curves: Sequence[Line], width: int = 30, ascii_only: bool = False) -> str:
    """A table with bars; the bar is the concurrency on a logarithmic scale."""
    block = "#" if ascii_only else "█"
    top = max((p.concurrency for line in curves for p in line.points if p.fits), default=1.0)
    rows = []
    for line in curves:
        rows.append(f"{line.label}: up to {line.limit:,} tokens of context")
        rows.append(f"{'context':>9} {'KV tokens':>11} {'requests':>9}")
        for p in line.points:
            if p.length & (p.length - 1) and p is not line.points[-1] and p.length != line.limit:
                continue  # midpoints are for the drawing
            if not p.fits:
                rows.append(f"{p.length:>9,} {'does not fit':>21}")
                continue
            share = math.log2(max(1.0, p.concurrency) + 1) / math.log2(top + 1)
            rows.append(
                f"{p.length:>9,} {p.tokens:>11,} {p.concurrency:>9.2f} {block * max(1, round(share * width))}"
            )
        rows.append("")
    return "\n".join(rows)


# -- SVG -------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _PLOT_W, _PLOT_H, _GAP = 760, 640, 86, 64, 630, 220, 64
_COLOURS = ("#1f6feb", "#d1730f")


def svg(curves: Sequence[Line], title: str, subtitle: str) -> str:
    """Two panels over one logarithmic context axis: KV tokens above, full requests below."""
    longest = max(p.length for line in curves for p in line.points)
    x = scale(math.log2(SHORTEST), math.log2(longest), _LEFT, _LEFT + _PLOT_W)
    most = max((p.tokens for line in curves for p in line.points if p.fits), default=1)
    busiest = max((p.concurrency for line in curves for p in line.points if p.fits), default=1.0)
    first, second = _TOP, _TOP + _PLOT_H + _GAP
    tokens_y = scale(0, most * 1.08, first + _PLOT_H, first)
    requests_y = scale(0, math.log2(max(2.0, busiest) * 1.2), second + _PLOT_H, second)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui,sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="16" font-weight="600" fill="#1f2328">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="44" fill="#57606a">{escape(subtitle)}</text>',
    ]
    out += _frame(first, "KV cache, tokens", ticks(most), tokens_y, lambda v: f"{v / 1000:,.0f}K")
    powers = [float(2**i) for i in range(int(math.log2(max(2.0, busiest))) + 1)]
    out += _frame(
        second, "requests of full length", powers, lambda v: requests_y(math.log2(v)), lambda v: f"{v:g}x"
    )
    for top in (first, second):
        out += _context_axis(top, longest, x)
    for i, line in enumerate(curves):
        colour = _COLOURS[i % len(_COLOURS)]
        shown = [p for p in line.points if p.fits]
        out.append(_path([(x(math.log2(p.length)), tokens_y(p.tokens)) for p in shown], colour))
        out.append(_path([(x(math.log2(p.length)), requests_y(math.log2(max(1.0, p.concurrency)))) for p in shown],
                         colour))  # fmt: skip
        out += _limit(line, longest, x, first, second, colour, i)
        at = _LEFT + 8 + i * 220
        out.append(f'<line x1="{at}" y1="{first - 8}" x2="{at + 22}" y2="{first - 8}" stroke="{colour}" '
                   'stroke-width="2.5"/>')  # fmt: skip
        out.append(f'<text x="{at + 28}" y="{first - 4}" fill="#1f2328">{escape(line.label)}, '
                   f'up to {line.limit:,}</text>')  # fmt: skip
    out.append(f'<text x="{_LEFT + _PLOT_W / 2}" y="{second + _PLOT_H + 38}" text-anchor="middle" '
               'fill="#57606a">context length (max-model-len), tokens</text>')  # fmt: skip
    return "\n".join([*out, "</svg>", ""])


def _frame(top: int, label: str, values: Sequence[float], y: Callable[[float], float],
           show: Callable[[float], str]) -> list[str]:  # fmt: skip
    out = [f'<text transform="translate(20 {top + _PLOT_H / 2}) rotate(-90)" text-anchor="middle" '
           f'fill="#57606a">{label}</text>']  # fmt: skip
    for value in values:
        at = y(value)
        out.append(f'<line x1="{_LEFT}" y1="{at}" x2="{_LEFT + _PLOT_W}" y2="{at}" stroke="#d8dee4"/>')
        out.append(f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end" fill="#57606a">{show(value)}</text>')
    return out


def _context_axis(top: int, longest: int, x: Callable[[float], float]) -> list[str]:
    out, length = [], SHORTEST
    while length <= longest:
        at = x(math.log2(length))
        out.append(f'<line x1="{at}" y1="{top}" x2="{at}" y2="{top + _PLOT_H}" stroke="#eef1f4"/>')
        out.append(f'<text x="{at}" y="{top + _PLOT_H + 16}" text-anchor="middle" fill="#57606a">'
                   f'{length // 1024}K</text>')  # fmt: skip
        length *= 2
    return out


def _path(points: Sequence[tuple[float, float]], colour: str) -> str:
    drawn = polyline(points)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>'


def _limit(line: Line, longest: int, x: Callable[[float], float], first: int, second: int, colour: str,
           index: int) -> list[str]:  # fmt: skip
    """The card's limit, where it is below the model's own."""
    if not SHORTEST <= line.limit < longest:
        return []
    at = x(math.log2(line.limit))
    return [
        *(f'<line x1="{at}" y1="{top}" x2="{at}" y2="{top + _PLOT_H}" stroke="{colour}" stroke-dasharray="5 4"/>'
          for top in (first, second)),
        f'<text x="{at - 5}" y="{second + 14 + 16 * index}" text-anchor="end" fill="{colour}">card limit '
        f'{line.limit:,}</text>',
    ]  # fmt: skip
