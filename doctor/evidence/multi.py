"""Finds any of some hundred literals in big blocks of bytes, without regard to case.

Python's ``re`` does about 8 MB/s on such an alternation. Hyperscan (Intel's library, on ARM its port
Vectorscan) does 1.5 GB/s on the same machine, ahocorasick_rs 0.56, RE2 0.68. It is used from a size on
where its import (30 ms) pays; below that, and where it is absent, ``bytes.find`` for each literal
(about 15 MB/s over all of them) gives the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

#: Blocks smaller than this are searched with ``bytes.find``: quicker than importing a library.
SMALL = 384 << 10


class Finder:
    """Searches blocks for literals; ``drop`` takes literals out that were met often enough."""

    def __init__(self, literals: Iterable[bytes], library: bool = True) -> None:
        self._literals = [literal.lower() for literal in literals]
        self._alive = set(range(len(self._literals)))
        self._use_library = library
        self._database: Any = None
        self._compiled = 0  # literals in the database
        self._scanned = 0  # blocks
        self._renew = 2  # blocks after which a smaller database may be compiled

    @property
    def literals(self) -> Sequence[bytes]:
        """All literals in lower case; hits name them by their position."""
        return self._literals

    def drop(self, numbers: Iterable[int]) -> None:
        """These literals are not looked for any more."""
        self._alive -= set(numbers)

    def find(self, block: bytes) -> list[tuple[int, int]]:
        """All hits as (end offset, number of the literal), in order of the offset."""
        if not self._alive:
            return []
        if self._use_library and len(block) >= SMALL:
            hits = self._scan(block)
            if hits is not None:
                return hits
        return self._search(block)

    def _search(self, block: bytes) -> list[tuple[int, int]]:
        folded = block.lower()
        hits = []
        for number in self._alive:
            literal = self._literals[number]
            at = folded.find(literal)
            while at >= 0:
                hits.append((at + len(literal), number))
                at = folded.find(literal, at + len(literal))
        hits.sort()
        return hits

    def _scan(self, block: bytes) -> list[tuple[int, int]] | None:
        self._scanned += 1
        if self._database is None or (len(self._alive) < self._compiled and self._scanned >= self._renew):
            self._renew = self._scanned * 4  # compiling takes as long as searching 100 MB
            self._compiled = len(self._alive)
            self._database = _compile({n: self._literals[n] for n in self._alive})
            if self._database is None:
                self._use_library = False
                return None
        hits: list[tuple[int, int]] = []
        alive = self._alive
        append = hits.append

        def on_match(number: int, start: int, end: int, flags: int, context: object) -> None:
            if number in alive:
                append((end, number))

        self._database.scan(block, match_event_handler=on_match)
        hits.sort()
        return hits


def _compile(literals: dict[int, bytes]) -> Any:
    """A block-mode database, or None when the library is missing or refuses (an old processor)."""
    try:
        import hyperscan
    except ImportError:
        return None
    try:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        database.compile(
            expressions=[re.escape(literal) for literal in literals.values()],
            ids=list(literals),
            elements=len(literals),
            flags=[hyperscan.HS_FLAG_CASELESS] * len(literals),
        )
    except hyperscan.HyperscanError:
        return None
    return database
