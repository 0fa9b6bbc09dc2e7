"""What all evidence checks share: finding events, looking around them, quoting them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps

from doctor.checks.registry import CheckFunction, Result, check, found
from doctor.finding import Confidence, Evidence, Finding, Remedy, Severity, Skipped
from doctor.snapshot import Event, Snapshot

PROVEN, LIKELY, HINT = Confidence.PROVEN, Confidence.LIKELY, Confidence.HINT
SILENT = "the text does not speak of it"


def rule(cause: str, *, start: bool = True) -> Callable[[CheckFunction], CheckFunction]:
    """Registers an evidence check. Silence of a text proves nothing, so "nothing found" becomes "not judged".

    ``start`` says that the cause stops a start: what happened in an earlier start of a server that later
    served is less sure to matter.
    """

    def register(function: CheckFunction) -> CheckFunction:
        @wraps(function)
        def judged(s: Snapshot) -> Result:
            result = function(s)
            if result is None:
                return Skipped(cause, SILENT)
            if isinstance(result, Finding) and start:
                return _earlier_start(s, result)
            return result

        return check(cause, needs=("events",), kind="evidence")(judged)

    return register


def events(s: Snapshot, *names: str) -> tuple[Event, ...]:
    """All events of these signals, in order."""
    return tuple(e for e in s.events if e.signal in names)


def first(s: Snapshot, *names: str) -> Event | None:
    """The first event of these signals; of a traceback the error itself, not the line of code that raised it."""
    found = next((e for e in s.events if e.signal in names), None)
    if found and found.text.lstrip().startswith("raise "):
        same = (e for e in s.events if e.signal == found.signal and e.values == found.values)
        return next((e for e in same if not e.text.lstrip().startswith("raise ")), found)
    return found


def has(s: Snapshot, *names: str) -> bool:
    """Whether any of these signals was met."""
    return first(s, *names) is not None


def file_of(event: Event) -> str:
    """The text that an event is from."""
    return event.source.rpartition(":")[0]


def near(s: Snapshot, event: Event, names: Iterable[str], before: int = 60, after: int = 12) -> Event | None:
    """The nearest event of these signals within so many lines of the same text."""
    wanted = set(names)
    at, file = event.line or 0, file_of(event)
    around = [
        e
        for e in s.events
        if e.signal in wanted and file_of(e) == file and at - before <= (e.line or 0) <= at + after
    ]
    return min(around, key=lambda e: abs((e.line or 0) - at), default=None)


def last_before(s: Snapshot, event: Event, *names: str) -> Event | None:
    """The last event of these signals before this one in the same text."""
    return next(
        (
            e
            for e in reversed(s.events)
            if e.signal in names and file_of(e) == file_of(event) and (e.line or 0) < (event.line or 0)
        ),
        None,
    )


def quote(event: Event, value: str | None = None) -> Evidence:
    """An event as evidence: its words, and where they stand."""
    times = f" (and {event.count - 1} times more)" if event.count > 1 else ""
    return Evidence("text", (value or event.text)[:300] + times, event.source)


def quotes(*given: Event | None, most: int = 5) -> list[Evidence]:
    """Several events as evidence, without those that are missing."""
    return [quote(e) for e in given if e is not None][:most]


def say(
    cause: str,
    sure: Confidence,
    summary: str,
    *evidence: Event | Evidence | None,
    fixes: Iterable[Remedy] | None = None,
    severity: Severity | None = None,
    excludes: Iterable[str] = (),
) -> Finding:
    """A finding; events among the evidence are quoted."""
    rows = [quote(e) if isinstance(e, Event) else e for e in evidence if e is not None]
    return found(cause, sure, summary, dict.fromkeys(rows), fixes=fixes, severity=severity, excludes=excludes)


def together(s: Snapshot, *parts: Event | Evidence | None) -> Confidence:
    """How sure several passages are that prove something only together.

    Proven when all are of one text and nothing shows that the text was put together from several machines or
    installations; likely otherwise. Without a part (None) it is likely too.
    """
    if any(p is None for p in parts) or has(s, "contradiction"):
        return LIKELY
    files = {p.source.rpartition(":")[0] for p in parts if p is not None}
    return PROVEN if len(files) == 1 else LIKELY


def number(text: str | None) -> float | None:
    """A figure with thousands commas, or None."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def gib(event: Event, name: str) -> float | None:
    """A size that was captured with its unit (``free`` and ``free_unit``), in GiB."""
    value = number(event.values.get(name))
    if value is None:
        return None
    unit = event.values.get(f"{name}_unit", "GiB").lower()
    return value * {"k": 2.0**-20, "m": 2.0**-10, "g": 1.0}.get(unit[:1], 2.0**-30)


def wsl_sign(s: Snapshot) -> Event | Evidence | None:
    """What shows that this is WSL, or None."""
    warned = first(s, "wsl.pin-memory-off")
    if warned:
        return warned
    if s.is_wsl:
        return s.evidence("wsl.version", f"WSL {s.wsl.version if s.wsl else ''}".strip())
    return None


def container_sign(s: Snapshot) -> Event | None:
    """What shows that the program ran in a container, or None."""
    return first(s, "container.inside", "container.pid1", "container.no-driver-banner")


def ranks(s: Snapshot) -> int:
    """Ranks that the run used or was asked for; 1 when nothing says."""
    seen = [int(e.values["size"]) for e in events(s, "network.world-size")]
    asked = (s.serving.tensor_parallel or 1) * (s.serving.pipeline_parallel or 1) if s.serving else 1
    return max([asked, *seen])


def lower(finding: Finding, why: str, evidence: Evidence | None = None) -> Finding:
    """The finding one step less sure, and why."""
    step = {PROVEN: LIKELY, LIKELY: HINT, HINT: HINT}[finding.confidence]
    rows = (*finding.evidence, evidence) if evidence else finding.evidence
    return replace(finding, confidence=step, summary=f"{finding.summary} ({why})", evidence=rows)


def _earlier_start(s: Snapshot, finding: Finding) -> Finding:
    """Less sure when everything it rests on belongs to a start that failed before a later one served."""
    if finding.confidence is HINT:
        return finding
    places = [_place(row.source) for row in finding.evidence]
    lines = [p for p in places if p is not None]
    if not lines:
        return finding
    file = lines[0][0]
    last = max(line for name, line in lines if name == file)
    served = [e for e in s.events if e.signal == "vllm.started" and file_of(e) == file]
    starts = [e.line or 0 for e in s.events if e.signal == "vllm.start" and file_of(e) == file]
    if any((e.line or 0) < last for e in served):
        return finding  # it happened to a server that ran already
    later = next((e for e in served if (e.line or 0) > last), None)
    if later is None or not any(last < line < (later.line or 0) for line in starts):
        return finding
    return lower(finding, "an earlier start; a later one in the same text served", quote(later))


def _place(source: str) -> tuple[str, int] | None:
    name, _, line = source.rpartition(":")
    return (name, int(line)) if name and line.isdigit() else None
