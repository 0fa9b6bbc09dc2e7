"""Line plots as SVG, in a file of their own or inside a page: no script, light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

#: Units of the picture; a page scales it to its width. Wide enough for six labels, narrow enough for a phone.
WIDTH, HEIGHT = 480, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 14, 12, 46
_LEGEND = 20

#: Colours by class; a page brings its own for its own background.
STYLE = (
    ".plot text{fill:#1f2328}.plot .soft{fill:#57606a}.plot .grid{stroke:#d8dee4}.plot .back{fill:#ffffff}"
    ".plot .c0{stroke:#1f6feb}.plot .c1{stroke:#c2410c}.plot .c2{stroke:#15803d}.plot .c3{stroke:#7c3aed}"
    ".plot .d0{fill:#1f6feb}.plot .d1{fill:#c2410c}.plot .d2{fill:#15803d}.plot .d3{fill:#7c3aed}"
    "@media(prefers-color-scheme:dark){.plot text{fill:#e6e9f0}.plot .soft{fill:#9aa4b6}"
    ".plot .grid{stroke:#323a49}.plot .back{fill:#12161e}"
    ".plot .c0{stroke:#6ea0ff}.plot .c1{stroke:#ffa657}.plot .c2{stroke:#58c98a}.plot .c3{stroke:#b794ff}"
    ".plot .d0{fill:#6ea0ff}.plot .d1{fill:#ffa657}.plot .d2{fill:#58c98a}.plot .d3{fill:#b794ff}}"
)


@dataclass(frozen=True)
class Curve:
    """Points in the order of x. ``colour`` 0 to 3; ``dashed`` without dots: a prediction, not a measurement."""

    label: str
    points: tuple[tuple[float, float], ...]
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Plot:
    """``logarithmic``: the x axis has powers of two, such as context lengths."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Maps [low, high] onto [start, end], to a tenth of a unit."""
    span = (high - low) or 1.0
    return lambda value: round(start + (value - low) / span * (end - start), 1)


def ticks(most: float) -> list[float]:
    """Round values from 0 up to ``most``, about five."""
    raw = most / 5 or 1
    magnitude = 10 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw)
    return [step * i for i in range(int(most / step) + 1)]


def polyline(points: Sequence[tuple[float, float]]) -> str:
    """The ``points`` attribute of an SVG polyline."""
    return " ".join(f"{px},{py}" for px, py in points)


def short(value: float) -> str:
    """An axis label: 393216 as "393K", 0.25 as "0.25"."""
    if value >= 10_000_000:
        return f"{value / 1e6:,.0f}M"
    if value >= 10_000:
        return f"{value / 1000:,.0f}K"
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def context(value: float) -> str:
    """A context length: 8192 as "8K"."""
    return f"{value / 1024:g}K" if value >= 1024 else f"{value:g}"


def svg(plot: Plot, *, inline: bool = False) -> str:
    """The picture; ``inline`` leaves out title, style and background, which the page has."""
    values = [point for curve in plot.curves for point in curve.points]
    if not values:
        return ""
    head = 0 if inline else 30
    top = head + _TOP + _LEGEND * len(plot.curves)
    height = HEIGHT + _LEGEND * len(plot.curves) + head
    across = math.log2 if plot.logarithmic else float
    xs = sorted({x for x, _ in values})
    at_x = scale(across(xs[0]), across(xs[-1]), _LEFT + 12, WIDTH - _RIGHT - 12)
    most = max(y for _, y in values)
    bottom = height - _BOTTOM
    at_y = scale(0, most * 1.05 or 1.0, bottom, top)
    title = escape(plot.title)
    space = "" if inline else ' xmlns="http://www.w3.org/2000/svg"'
    out = [
        f'<svg class="plot"{space} viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{title}" font-family="system-ui,sans-serif" font-size="14">'
    ]
    if not inline:
        out += [
            f"<title>{title}</title><style>{STYLE}</style>",
            f'<rect class="back" width="{WIDTH}" height="{height}"/>',
            f'<text x="12" y="22" font-weight="600">{title}</text>',
        ]
    out += _legend(plot, head + 14)
    for value in ticks(most):
        y = at_y(value)
        out.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{WIDTH - _RIGHT}" y2="{y}"/>')
        out.append(f'<text class="soft" x="{_LEFT - 8}" y="{y + 5}" text-anchor="end">{short(value)}</text>')
    for x in _spread(xs):
        shown = context(x) if plot.logarithmic else short(x)
        out.append(
            f'<text class="soft" x="{at_x(across(x))}" y="{bottom + 18}" text-anchor="middle">{shown}</text>'
        )
    middle = (top + bottom) / 2
    out.append(
        f'<text class="soft" transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(plot.y_label)}</text>"
    )
    out.append(
        f'<text class="soft" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{bottom + 38}" text-anchor="middle">'
        f"{escape(plot.x_label)}</text>"
    )
    for curve in plot.curves:
        out += _curve(curve, [(at_x(across(x)), at_y(y)) for x, y in curve.points])
    return "".join([*out, "</svg>"]) + ("" if inline else "\n")


def _spread(xs: Sequence[float]) -> Sequence[float]:
    """At most eight labels, the first and the last among them."""
    if len(xs) <= 8:
        return xs
    step = math.ceil((len(xs) - 1) / 7)
    return [*xs[:-1:step], xs[-1]]


def _legend(plot: Plot, top: int) -> list[str]:
    out = []
    for number, curve in enumerate(plot.curves):
        y = top + _LEGEND * number
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        out.append(
            f'<line class="c{curve.colour % 4}" x1="{_LEFT}" y1="{y}" x2="{_LEFT + 26}" y2="{y}" '
            f'stroke-width="2.5"{dash}/>'
        )
        out.append(f'<text x="{_LEFT + 34}" y="{y + 5}">{escape(curve.label)}</text>')
    return out


def _curve(curve: Curve, at: Sequence[tuple[float, float]]) -> list[str]:
    colour = curve.colour % 4
    dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
    out = [
        f'<polyline class="c{colour}" points="{polyline(at)}" fill="none" stroke-width="2.5" '
        f'stroke-linejoin="round"{dash}/>'
    ]
    if not curve.dashed:
        out += [f'<circle class="d{colour}" cx="{x}" cy="{y}" r="4"/>' for x, y in at]
    return out
