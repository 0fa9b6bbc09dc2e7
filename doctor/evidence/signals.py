"""The signals: what a program prints when something telling happens, as data.

One JSON file an area in ``doctor/catalogue/signals``. A signal has ``any`` (literals, one of which must
be in the line: they make the search fast), ``match`` (patterns; the first that fits gives the values),
``source`` (whose wording it is and where it was looked up) and ``examples`` (lines that must match: the
tests run them all) and, where look-alikes exist, ``not_examples``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parent.parent / "catalogue" / "signals"


@dataclass(frozen=True)
class Signal:
    """``window``: this many following lines belong to the message and are searched with it.

    ``fact`` signals feed the facts of the snapshot and are not kept as events. ``each``: every place counts,
    because it divides a log into runs; other repetitions are folded into one event with a count.
    """

    name: str
    literals: tuple[str, ...]
    expressions: tuple[str, ...]
    source: str
    window: int = 0
    fact: bool = False
    case: bool = False
    each: bool = False
    examples: tuple[str, ...] = ()
    not_examples: tuple[str, ...] = ()

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Compiled on first use: one text needs few of them."""
        return tuple(re.compile(e, re.RegexFlag(0) if self.case else re.IGNORECASE) for e in self.expressions)

    def search(self, text: str) -> tuple[dict[str, str], int] | None:
        """What the signal captures from this text and where it begins, or None when it is not in it."""
        for pattern in self.patterns:
            found = pattern.search(text)
            if found:
                return {k: v.strip() for k, v in found.groupdict().items() if v is not None}, found.start()
        return None


@cache
def all_signals() -> tuple[Signal, ...]:
    """Every signal of every area. Names are unique."""
    signals: dict[str, Signal] = {}
    for path in sorted(_FOLDER.glob("*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8"))["signals"]:
            signal = _signal(entry)
            if signal.name in signals:
                raise ValueError(f"{path.name}: two signals are called {signal.name}")
            signals[signal.name] = signal
    return tuple(signals.values())


def _signal(entry: dict[str, Any]) -> Signal:
    literals = tuple(entry["any"])
    return Signal(
        name=entry["name"],
        literals=literals,
        expressions=tuple(entry.get("match") or (re.escape(literal) for literal in literals)),
        source=entry.get("source", ""),
        window=entry.get("window", 0),
        fact=entry.get("fact", False),
        case=entry.get("case", False),
        each=entry.get("each", False),
        examples=tuple(entry.get("examples", ())),
        not_examples=tuple(entry.get("not_examples", ())),
    )
