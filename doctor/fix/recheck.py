"""What the same checks say after a repair: fixed, still there, new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from doctor.checks.registry import Judgement
from doctor.finding import Finding
from doctor.fix.plan import Plan


@dataclass(frozen=True)
class Comparison:
    """Finding ids. ``waiting``: repaired, and seen only after what the steps' ``needs`` say has happened."""

    fixed: tuple[str, ...] = ()
    still_there: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()  # repaired, and the check could not look now: unknown is not fixed
    new: tuple[str, ...] = ()


def compare(before: Judgement, after: Judgement, plan: Plan) -> Comparison:
    """Compares two judgements of the same machine with the same checks."""
    now, was = set(_ids(after.findings)), set(_ids(before.findings))
    unknown = {s.id for s in after.skipped}
    waiting = {c for a in plan.actions if a.needs for c in a.causes}
    by_hand = {c for a in plan.actions if a.manual for c in a.causes}
    repaired = list(dict.fromkeys(c for a in plan.actions if not a.manual for c in a.causes))
    left = [c for c in repaired if c in now]
    return Comparison(
        fixed=tuple(c for c in repaired if c not in now and c not in unknown),
        not_judged=tuple(c for c in repaired if c not in now and c in unknown),
        still_there=tuple(c for c in left if c not in waiting and c not in by_hand),
        waiting=tuple(c for c in left if c in waiting and c not in by_hand),
        by_hand=tuple(c for c in _ids(after.findings) if c in by_hand),
        new=tuple(c for c in _ids(after.findings) if c not in was),
    )


def _ids(findings: Iterable[Finding]) -> list[str]:
    """All ids, those folded below another too: a symptom that comes up on its own is not new."""
    return [i for f in findings for i in (f.id, *_ids(f.symptoms))]
