"""Bytes -> events with line numbers, plus the lines at both ends of the text. Constant memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice

from doctor.evidence.multi import Finder
from doctor.evidence.signals import Signal, all_signals
from doctor.evidence.strip import LONGEST, Line, strip
from doctor.snapshot import Event

#: Bytes kept whole at the beginning and at the end: reports and tables are read from these.
KEEP = 1 << 19
#: Different passages remembered of one signal; more are only counted.
DISTINCT = 40
#: After this many passages of one signal it is not looked for any more (but in the last lines): repetition says
#: nothing new.
ENOUGH = 200
#: The same for literals that are met all the time without their message.
TOO_COMMON = 3000
#: Bytes on each side of a hit that are looked at in a line longer than ``LONGEST``.
_NEAR = 1024
#: Characters of a line that are kept; a line longer than ``_SHOWN`` is cut ``_BEFORE`` the message.
_KEPT, _SHOWN, _BEFORE = 400, 160, 60
_LINES_AFTER = 12  # most lines that a signal's window may span


@dataclass
class Scan:
    """What one text held. ``head`` and ``tail`` are its lines (``tail`` is empty when ``head`` is everything)."""

    name: str
    events: list[Event] = field(default_factory=list)
    facts: list[Event] = field(default_factory=list)
    head: list[Line] = field(default_factory=list)
    tail: list[Line] = field(default_factory=list)
    lines: int = 0

    @property
    def ends(self) -> Iterator[Line]:
        """The kept lines in order."""
        yield from self.head
        yield from self.tail


def excerpt(text: str, at: int) -> str:
    """The part of a line that is kept as evidence: its beginning, or what stands around the message."""
    text, at = text.strip(), at - (len(text) - len(text.lstrip()))
    if at > _BEFORE and len(text) > _SHOWN:
        begin = text.rfind(" ", at - _BEFORE, at - _BEFORE // 2) + 1 or at - _BEFORE // 2
        text = "..." + text[begin:]
    return text[:_KEPT]


class _Collector:
    """Runs the signals on candidate lines and folds repetitions."""

    def __init__(self, name: str, signals: Iterable[Signal]) -> None:
        self.name = name
        self.signals = tuple(signals)
        self.owners: list[int] = []  # literal -> signal
        literals: list[bytes] = []
        for number, signal in enumerate(self.signals):
            for literal in signal.literals:
                literals.append(literal.encode())
                self.owners.append(number)
        self.finder = Finder(literals)
        self.hits = [0] * len(self.signals)
        self.dropped: set[int] = set()
        self.found: dict[str, dict[tuple[str, ...], Event]] = {}
        self.totals: dict[str, int] = {}

    def line(self, numbers: set[int], text: str, after: Callable[[int], str], line: int) -> None:
        """Tries the signals whose literals are in this line."""
        for number in sorted(numbers):
            signal = self.signals[number]
            found = signal.search(text + after(signal.window) if signal.window else text)
            if found is not None:
                self.add(signal, found[0], excerpt(text, found[1]), line)

    def add(self, signal: Signal, values: dict[str, str], text: str, line: int) -> None:
        """Remembers one passage, or counts it when it is known already."""
        known = self.found.setdefault(signal.name, {})
        self.totals[signal.name] = self.totals.get(signal.name, 0) + 1
        key = tuple(f"{k}={v}" for k, v in values.items()) if values else (text[:80],)
        if signal.each or signal.fact:
            key += (str(line),)
            if len(known) >= DISTINCT:
                del known[next(islice(known, 1, None))]  # the first and the latest say most
        if key in known:
            known[key] = replace(known[key], count=known[key].count + 1)
        elif len(known) < DISTINCT:
            known[key] = Event(signal.name, f"{self.name}:{line}", text, line, values)

    def complete(self, signal: Signal, values: dict[str, str], text: str, line: int) -> None:
        """A passage found in joined lines: new, or one known from its first line alone that now says more."""
        known = self.found.setdefault(signal.name, {})
        for key, event in known.items():
            if line <= (event.line or 0) < line + _WRAPPED_LINES:
                if len(values) > len(event.values) and event.line == line:
                    known[key] = replace(event, values=values, text=text)
                return
        self.add(signal, values, text, line)

    def saturate(self) -> None:
        """Literals of signals met often enough are dropped from the search."""
        full = {
            n
            for n, signal in enumerate(self.signals)
            if self.totals.get(signal.name, 0) > ENOUGH or self.hits[n] > TOO_COMMON
        }
        self.dropped |= full
        if full:
            self.finder.drop(i for i, owner in enumerate(self.owners) if owner in full)

    def revive(self) -> None:
        """Looks for the dropped signals again, and for nothing else: before the last lines."""
        self.finder = Finder(self.finder.literals)
        self.finder.drop(i for i, owner in enumerate(self.owners) if owner not in self.dropped)
        for number in self.dropped:
            self.hits[number] = self.totals[self.signals[number].name] = 0

    def results(self) -> tuple[list[Event], list[Event]]:
        """(events, facts), each in order of appearance."""
        facts = {s.name for s in self.signals if s.fact}
        every = sorted((e for known in self.found.values() for e in known.values()), key=lambda e: e.line or 0)
        return [e for e in every if e.signal not in facts], [e for e in every if e.signal in facts]


def scan(blocks: Iterable[bytes], name: str, on_block: Callable[[int], None] | None = None) -> Scan:
    """Reads the blocks of :func:`doctor.evidence.decode.chunks` once."""
    collector = _Collector(name, all_signals())
    result = Scan(name)
    head: list[tuple[int, bytes]] = []
    tail: deque[tuple[int, bytes]] = deque()
    head_size = tail_size = 0
    line, ended = 1, True
    for block in blocks:
        _block(collector, block, line)
        collector.saturate()
        if head_size < KEEP and not tail:
            head.append((line, block))
            head_size += len(block)
        else:
            tail.append((line, block))
            tail_size += len(block)
            while tail_size - len(tail[0][1]) > KEEP:
                tail_size -= len(tail.popleft()[1])
        line += block.count(b"\n")
        ended = block.endswith(b"\n") if block else ended
        if on_block:
            on_block(len(block))
    result.lines = line - 1 if ended else line
    if collector.dropped and tail:
        collector.revive()
        for start, block in tail:
            _block(collector, block, start)
    result.head = [item for start, block in head for item in _lines(block, start)]
    result.tail = [item for start, block in tail for item in _lines(block, start)]
    _joined(collector, result.head)
    _joined(collector, result.tail)
    result.events, result.facts = collector.results()
    return result


def _block(collector: _Collector, block: bytes, first_line: int) -> None:
    hits = collector.finder.find(block)
    if not hits:
        return
    line, counted_to = first_line, 0
    start = end = -1
    numbers: set[int] = set()
    for at, literal in hits:
        owner = collector.owners[literal]
        collector.hits[owner] += 1
        if collector.totals.get(collector.signals[owner].name, 0) > ENOUGH:
            continue
        if not start < at <= end:
            if numbers:
                _candidate(collector, block, start, end, numbers, line)
            start, end = _bounds(block, at)
            line += block.count(b"\n", counted_to, start)
            counted_to = start
            numbers = set()
        numbers.add(owner)
    if numbers:
        _candidate(collector, block, start, end, numbers, line)


def _bounds(block: bytes, at: int) -> tuple[int, int]:
    """The line around an offset, or the part of a very long line that is near it."""
    low, high = max(0, at - LONGEST), min(len(block), at + LONGEST)
    start = max(block.rfind(b"\n", low, at - 1), block.rfind(b"\r", low, at - 1)) + 1 or low
    ends = [e for e in (block.find(b"\n", at, high), block.find(b"\r", at, high)) if e >= 0]
    end = min(ends) if ends else high
    if end - start > LONGEST:
        start, end = max(start, at - _NEAR), min(end, at + _NEAR)
    return start, end


def _candidate(collector: _Collector, block: bytes, start: int, end: int, numbers: set[int], line: int) -> None:
    item = strip(block[start:end].decode("utf-8", "replace"), line)

    def after(count: int) -> str:
        low = block.find(b"\n", end) + 1
        if not low:
            return ""
        text = block[low : low + 2 * LONGEST].decode("utf-8", "replace")
        following = text.split("\n")[: min(count, _LINES_AFTER)]
        return "\n" + "\n".join(strip(raw).text for raw in following)

    collector.line(numbers, item.text, after, line)


def _lines(block: bytes, first: int) -> Iterator[Line]:
    for number, raw in enumerate(block.split(b"\n"), first):
        if raw or number == first:
            yield strip(raw[: 4 * LONGEST].decode("utf-8", "replace"), number)


#: Texts with more lines than this are logs written by programs, not pastes that a terminal or a mailer wrapped.
_MOST_WRAPPED = 20_000
_WRAPPED_LINES = 6
_SHORTEST_WRAPPED = 50  # characters; a shorter line was not broken by the width


def _joined(collector: _Collector, lines: list[Line]) -> None:
    """Looks for messages that a narrow terminal or a mailer broke into two, three or four lines."""
    if len(lines) > _MOST_WRAPPED:
        return
    joined = list(_windows(lines))
    encoded = [text.replace("\n", " ").encode("utf-8", "replace") for _, text in joined]
    starts = list(accumulate((len(text) + 1 for text in encoded), initial=0))
    tried: set[tuple[int, int]] = set()
    for at, literal in collector.finder.find(b"\n".join(encoded)):
        window, owner = bisect_left(starts, at) - 1, collector.owners[literal]
        if (window, owner) in tried:
            continue  # a literal that is repeated in the same lines
        tried.add((window, owner))
        item, text = joined[window]
        signal = collector.signals[owner]
        found = signal.search(text[:LONGEST])
        if found is not None:
            collector.complete(signal, found[0], excerpt(text, found[1]), item.number)


def _windows(lines: list[Line]) -> Iterator[tuple[Line, str]]:
    """Lines joined with those that follow and do not start a message of their own, with and without a blank."""
    for position, item in enumerate(lines):
        parts = [item.text.rstrip()[:1000]]
        before = item
        for following in lines[position + 1 : position + _WRAPPED_LINES]:
            if following.prefixed or not following.text.strip() or len(before.raw.rstrip()) < _SHORTEST_WRAPPED:
                break
            parts.append(following.text.strip()[:1000])
            before = following
            yield item, " ".join(parts)
            yield item, "".join(parts)
