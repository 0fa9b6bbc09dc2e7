"""The list of checks and the loop over them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from doctor import catalogue
from doctor.finding import Confidence, Evidence, Finding, Remedy, Severity, Skipped, Verdict, order, verdict
from doctor.snapshot import Snapshot

Result = Finding | Skipped | None
CheckFunction = Callable[[Snapshot], Result]

#: Modules that register checks when they are imported, in the order findings of equal weight are shown.
MODULES: tuple[str, ...] = (
    "doctor.checks.driver",
    "doctor.checks.cuda",
    "doctor.checks.gpu",
    "doctor.checks.wsl_settings",
    "doctor.checks.wsl",
    "doctor.checks.container",
    "doctor.checks.docker_engine",
    "doctor.checks.cuda_toolkit",
    "doctor.checks.compiler",
    "doctor.checks.python_env",
    "doctor.checks.memory",
    "doctor.checks.host",
    "doctor.checks.storage",
    "doctor.checks.network",
    "doctor.checks.serving",
    "doctor.checks.container_way",
    "doctor.checks.evidence.driver",
    "doctor.checks.evidence.gpu",
    "doctor.checks.evidence.wsl",
    "doctor.checks.evidence.compiler",
    "doctor.checks.evidence.toolkit",
    "doctor.checks.evidence.container",
    "doctor.checks.evidence.image",
    "doctor.checks.evidence.python_env",
    "doctor.checks.evidence.memory",
    "doctor.checks.evidence.host",
    "doctor.checks.evidence.network",
    "doctor.checks.evidence.model",
)


@dataclass(frozen=True)
class Check:
    """One check. ``needs`` names Snapshot fields without which it cannot judge.

    ``kind`` is "facts" (judges facts of a host) or "evidence" (judges events of a text); a cause may
    have one of each, whose results are merged. ``essential`` checks make the verdict ``unknown`` when
    they cannot be judged on a live host.
    """

    id: str
    function: CheckFunction
    needs: tuple[str, ...]
    essential: bool = False
    kind: str = "facts"

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


@dataclass(frozen=True)
class Judgement:
    """What all checks said of one snapshot."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    waived: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # the checks that were chosen; empty: all


_CHECKS: dict[tuple[str, str], Check] = {}


def check(
    cause: str, *, needs: Iterable[str], essential: bool = False, kind: str = "facts"
) -> Callable[[CheckFunction], CheckFunction]:
    """Registers a function as the check of one cause. The id must be in the catalogue."""

    def register(function: CheckFunction) -> CheckFunction:
        if (cause, kind) in _CHECKS:
            raise ValueError(f"two {kind} checks for {cause}")
        catalogue.cause(cause)  # raises KeyError for an id that the catalogue lacks
        _CHECKS[cause, kind] = Check(cause, function, tuple(needs), essential, kind)
        return function

    return register


def registered() -> tuple[Check, ...]:
    """All checks, imported on first use, in the order of :data:`MODULES` whoever imported one of them before."""
    for module in MODULES:
        importlib.import_module(module)
    return tuple(sorted(_CHECKS.values(), key=lambda c: MODULES.index(c.function.__module__)))


def found(
    cause: str,
    confidence: Confidence,
    summary: str,
    evidence: Iterable[Evidence] = (),
    *,
    severity: Severity | None = None,
    fixes: Iterable[Remedy] | None = None,
    excludes: Iterable[str] = (),
) -> Finding:
    """A finding with title, cause, severity and fixes of the catalogue unless given here."""
    entry = catalogue.cause(cause)
    return Finding(
        id=cause,
        area=entry.area,
        severity=severity or entry.severity,
        confidence=confidence,
        title=entry.title,
        cause=entry.cause,
        summary=summary,
        evidence=tuple(evidence),
        excludes=tuple(excludes),
        fixes=tuple(fixes) if fixes is not None else entry.remedies,
    )


def judge(
    snapshot: Snapshot,
    checks: Iterable[Check] | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
) -> Judgement:
    """Runs the checks on a snapshot and folds symptoms under their causes.

    ``only`` and ``skip`` are ids; skipped ones are recorded as waived. A check that raises is
    recorded as skipped with the error, never as passed. What ``only`` names must be judged: it is essential.
    """
    wanted, unwanted = set(only), set(skip)
    results: dict[str, list[Result]] = {}
    waived: list[str] = []
    for item in checks if checks is not None else registered():
        if item.kind == "evidence" and "events" in item.needs and not snapshot.events:
            continue  # a live host has no text to judge
        if wanted and item.id not in wanted:
            continue
        if item.id in unwanted:
            if item.id not in waived:
                waived.append(item.id)
            continue
        results.setdefault(item.id, []).append(_run(item, snapshot))
    merged = {cause_id: _merge(several) for cause_id, several in results.items()}
    findings = [r for r in merged.values() if isinstance(r, Finding)]
    skipped = [r for r in merged.values() if isinstance(r, Skipped)]
    if wanted:
        skipped = [replace(s, essential=True) for s in skipped]
        unread = sorted(wanted - merged.keys() - unwanted)
        skipped += [Skipped(i, "it judges a log or another text, and there is none", True) for i in unread]
    passed = [cause_id for cause_id, r in merged.items() if r is None]
    shown = fold(order(findings))
    judged = bool(shown or passed)
    return Judgement(
        _verdict(snapshot, shown, skipped, judged),
        shown,
        tuple(passed),
        tuple(skipped),
        tuple(waived),
        tuple(sorted(wanted)),
    )


def _verdict(snapshot: Snapshot, shown: tuple[Finding, ...], skipped: list[Skipped], judged: bool) -> Verdict:
    """Nothing judged is unknown, and a text without findings is ready only when it shows a server that served."""
    answer = verdict(shown, skipped)
    started = snapshot.serving.started if snapshot.serving else None
    if answer is Verdict.READY and (not judged or (snapshot.origin == "evidence" and not started)):
        return Verdict.UNKNOWN
    return answer


def _merge(results: list[Result]) -> Result:
    """The surest finding with everybody's evidence; passed beats skipped only when something was judged."""
    findings = sorted((r for r in results if isinstance(r, Finding)), key=lambda f: f.confidence.rank)
    if findings:
        evidence = dict.fromkeys(e for f in findings for e in f.evidence)
        return replace(findings[0], evidence=tuple(evidence))
    if None in results:
        return None
    return next(r for r in results if isinstance(r, Skipped))


def _run(item: Check, snapshot: Snapshot) -> Result:
    missing = [n for n in item.needs if getattr(snapshot, n) in (None, ())]
    if missing:
        return Skipped(item.id, _why(snapshot, missing[0]), essential=_essential(item, snapshot))
    try:
        result = item.function(snapshot)
    except Exception as error:  # noqa: BLE001  a check that crashes is a result, not the end
        return Skipped(item.id, f"the check itself failed: {type(error).__name__}: {error}", item.essential)
    if isinstance(result, Skipped) and _essential(item, snapshot):
        return replace(result, essential=True)
    if isinstance(result, Finding) and item.kind == "facts" and snapshot.origin == "evidence":
        from doctor.checks.evidence.policy import limit

        return limit(result, snapshot)
    return result


def _essential(item: Check, snapshot: Snapshot) -> bool:
    """Only a live host must be able to answer, and an image build need not know of any GPU."""
    if not item.essential or snapshot.origin != "host":
        return False
    return not (snapshot.inside_image and {"driver", "gpus"} & set(item.needs))


def _why(snapshot: Snapshot, name: str) -> str:
    status = snapshot.probe(name)
    if status is None:
        return f"no {name} facts in the evidence" if snapshot.origin == "evidence" else f"no {name} facts"
    if status.status == "ok":
        return f"the {name} probe found nothing to judge"
    return f"the {name} probe ended with {status.status}: {status.detail}"


def fold(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Puts each finding that the catalogue lists as a symptom of another found cause below that cause.

    A cause folds only what it is at least as sure of as the symptom's own claim of being the cause,
    so a hint never hides a proven finding.
    """
    by_id = {f.id: f for f in findings}
    parent: dict[str, str] = {}
    for finding in findings:
        for cause_id in catalogue.cause(finding.id).symptom_of:
            cause_finding = by_id.get(cause_id)
            if cause_finding and cause_finding.confidence.rank <= finding.confidence.rank:
                parent[finding.id] = cause_id
                break
    top = []
    for finding in findings:
        if _rooted(finding.id, parent):
            continue
        below = tuple(f for f in findings if f.id != finding.id and _root(f.id, parent) == finding.id)
        top.append(replace(finding, symptoms=below) if below else finding)
    return tuple(top)


def _root(cause_id: str, parent: dict[str, str]) -> str:
    seen = set()
    while cause_id in parent and cause_id not in seen:
        seen.add(cause_id)
        cause_id = parent[cause_id]
    return cause_id


def _rooted(cause_id: str, parent: dict[str, str]) -> bool:
    return _root(cause_id, parent) != cause_id
