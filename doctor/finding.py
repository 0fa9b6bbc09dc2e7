"""What a check says: a finding with its evidence and remedies, and the verdict over all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How much a cause costs: ``blocker`` stops vLLM, ``degrades`` costs speed or memory, ``note`` nothing."""

    BLOCKER = "blocker"
    DEGRADES = "degrades"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class Confidence(str, Enum):
    """How sure: ``proven`` by the evidence alone, ``likely`` the usual cause, ``hint`` only seen together."""

    PROVEN = "proven"
    LIKELY = "likely"
    HINT = "hint"

    @property
    def rank(self) -> int:
        """0 for the surest."""
        return list(Confidence).index(self)


class Risk(str, Enum):
    """Whether a remedy may run unattended: ``safe``, with ``caution``, or only by hand (``manual``)."""

    SAFE = "safe"
    CAUTION = "caution"
    MANUAL = "manual"


class Verdict(str, Enum):
    """The one word a person reads first."""

    READY = "ready"
    DEGRADED = "degraded"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Evidence:
    """One observed fact. ``fact`` names it, ``value`` is printable, ``source`` says where it was read."""

    fact: str
    value: str
    source: str


@dataclass(frozen=True)
class Remedy:
    """One way out.

    ``commands`` are argv lists that may be shown and run as they are; ``verify`` are argv lists or
    sentences that tell afterwards whether it worked. ``automatic`` is true when a tool can do it
    safely on this host.
    """

    summary: str
    automatic: bool = False
    commands: tuple[tuple[str, ...], ...] = ()
    risk: Risk = Risk.MANUAL
    verify: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A cause that the snapshot shows.

    ``summary`` is the sentence with this machine's figures; ``title`` and ``cause`` are the
    catalogue's. ``symptoms`` are findings this one explains: they are never listed beside it.
    """

    id: str
    area: str
    severity: Severity
    confidence: Confidence
    title: str
    cause: str
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()
    excludes: tuple[str, ...] = ()
    fixes: tuple[Remedy, ...] = ()
    symptoms: tuple[Finding, ...] = ()

    @property
    def docs(self) -> str:
        """The section of the troubleshooting guide for this cause."""
        return f"docs/troubleshooting.md#{self.id}"

    @property
    def blocks(self) -> bool:
        """True when this finding alone makes the verdict ``blocked``."""
        return self.severity is Severity.BLOCKER and self.confidence is not Confidence.HINT


@dataclass(frozen=True)
class Skipped:
    """A check that could not be judged. Unknown is never ok: it is counted and named."""

    id: str
    why: str
    essential: bool = False


def order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorts by severity, then confidence; stable otherwise."""
    return tuple(sorted(findings, key=lambda f: (f.severity.rank, f.confidence.rank)))


def verdict(findings: Iterable[Finding], skipped: Iterable[Skipped] = ()) -> Verdict:
    """The verdict over findings: a proven or likely blocker blocks, an essential unknown is never ready.

    A blocker that is only a hint, and anything that degrades with more than a hint, means degraded.
    """
    found = tuple(findings)
    if any(f.blocks for f in found):
        return Verdict.BLOCKED
    if any(s.essential for s in skipped):
        return Verdict.UNKNOWN
    if any(
        f.severity is Severity.BLOCKER or (f.severity is Severity.DEGRADES and f.confidence is not Confidence.HINT)
        for f in found
    ):
        return Verdict.DEGRADED
    return Verdict.READY


#: Exit code for each verdict: 0 ready, 1 degraded or unknown, 2 blocked (3 is the doctor's own failure).
EXIT_CODES: dict[Verdict, int] = {
    Verdict.READY: 0,
    Verdict.DEGRADED: 1,
    Verdict.UNKNOWN: 1,
    Verdict.BLOCKED: 2,
}
