"""Examines a fake host with some probes and asks one check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from doctor.checks.registry import Judgement, judge, registered
from doctor.finding import Finding, Skipped
from doctor.host import Host
from doctor.host.examine import PROBES, Options, examine
from doctor.snapshot import Snapshot, dumps, loads

#: Probes whose hosts are in tests/host/linux_hosts.py.
OURS = ("system", "wsl", "storage", "network")


def snapshot(host: Host, options: Options | None = None, **more: Any) -> Snapshot:
    """What the probes find, and facts of other probes as given. Saved and loaded once, as a colleague would."""
    seen = examine(host, options, tuple(p for p in PROBES if p.name in OURS))
    assert [p.name for p in seen.probes if p.status == "ok"] == list(OURS)
    return loads(dumps(replace(seen, **more)))


def judged(cause: str, seen: Snapshot) -> Judgement:
    """The judgement of the facts check of one cause."""
    checks = [c for c in registered() if c.id == cause and c.kind == "facts"]
    assert checks, cause
    return judge(seen, checks)


def finding(cause: str, seen: Snapshot) -> Finding | None:
    """The finding, or None when the check passed. A check that was skipped is an error here."""
    result = judged(cause, seen)
    assert not result.skipped, result.skipped
    return result.findings[0] if result.findings else None


def found(cause: str, seen: Snapshot) -> Finding:
    """The finding that must be there."""
    result = finding(cause, seen)
    assert result is not None, cause
    assert result.summary.endswith(".")
    assert result.evidence
    assert all(e.value and e.source for e in result.evidence)
    return result


def skipped(cause: str, seen: Snapshot) -> Skipped:
    """The record of a check that could not be judged."""
    result = judged(cause, seen)
    assert len(result.skipped) == 1, result
    return result.skipped[0]
