"""Pieces of a report that both HTML and Markdown draw: tables, bar charts, figures as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bars:
    """A small chart: a label, and a value for each of the series; None = not measured."""

    title: str
    unit: str
    series: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]


@dataclass(frozen=True)
class Table:
    """Rows of texts under a heading."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def plain(value: Any) -> str:
    """A figure or text for a cell."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in a list of an answer; [] for anything else."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """A figure of an answer; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
