"""The reference points: what vLLM printed somewhere, and what the memory model says about the same pool."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.memory.support import HERE, pool


@dataclass(frozen=True)
class Point:
    """One reported start. ``gib`` is known to two decimals when it was printed or inferred."""

    case: str
    gib: float
    inferred: bool
    refused: bool
    reported_tokens: int | None
    reported_blocks: int | None
    reported_text: str | None
    reported_about: int | None  # a rounded figure
    predicted_tokens: int
    predicted_blocks: int
    predicted_fits: bool
    possible_tokens: frozenset[int]  # for every pool that prints as this many GiB


@cache
def points() -> tuple[Point, ...]:
    """All points of reference_points.json with today's predictions."""
    return tuple(_point(row) for row in json.loads((HERE / "reference_points.json").read_text())["points"])


def _point(row: dict[str, Any]) -> Point:
    options = {k: row[k] for k in ("mtp", "tp", "kv_cache_dtype", "prefix_caching") if k in row}

    def at(gib: float) -> Any:
        return pool(row["model"], gib, row["length"], row["vllm"], **options)

    exact = at(row["gib"])
    low, high = at(row["gib"] - 0.005).num_blocks, at(row["gib"] + 0.005).num_blocks
    step = exact.layout.bytes_per_block / (1 << 30)
    possible = frozenset(at((n + 0.5) * step).capacity_tokens for n in range(low, high + 1))
    tokens = row.get("tokens")
    predicted = exact
    if row.get("inferred") and tokens in possible:
        predicted = next(p for n in range(low, high + 1) if (p := at((n + 0.5) * step)).capacity_tokens == tokens)
    return Point(
        row["case"], row["gib"], row.get("inferred", False), row.get("refused", False), tokens, row.get("blocks"),
        row.get("reported"), row.get("about"), predicted.capacity_tokens, predicted.num_blocks, predicted.fits,
        possible,
    )  # fmt: skip
