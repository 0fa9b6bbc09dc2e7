"""Verdicts, merging and folding."""

from __future__ import annotations

import pytest

from doctor.checks import registry
from doctor.checks.registry import Check, found, judge
from doctor.facts import SystemFacts
from doctor.finding import EXIT_CODES, Confidence, Evidence, Finding, Severity, Skipped, Verdict, order, verdict
from doctor.snapshot import ProbeStatus, Snapshot

S = Snapshot(system=SystemFacts(os_id="debian"))


def finding(severity: Severity, confidence: Confidence, cause: str = "x") -> Finding:
    return Finding(cause, "host", severity, confidence, "title", "cause")


@pytest.mark.parametrize(
    ("severity", "confidence", "expected"),
    [
        (Severity.BLOCKER, Confidence.PROVEN, Verdict.BLOCKED),
        (Severity.BLOCKER, Confidence.LIKELY, Verdict.BLOCKED),
        (Severity.BLOCKER, Confidence.HINT, Verdict.DEGRADED),
        (Severity.DEGRADES, Confidence.PROVEN, Verdict.DEGRADED),
        (Severity.DEGRADES, Confidence.HINT, Verdict.READY),
        (Severity.NOTE, Confidence.PROVEN, Verdict.READY),
    ],
)
def test_verdict_of_one_finding(severity: Severity, confidence: Confidence, expected: Verdict) -> None:
    assert verdict([finding(severity, confidence)]) is expected


def test_essential_unknown_is_never_ready_and_a_blocker_still_blocks() -> None:
    unknown = Skipped("nvidia-driver-missing", "probe timed out", essential=True)
    assert verdict([], [unknown]) is Verdict.UNKNOWN
    assert verdict([], [Skipped("x", "why")]) is Verdict.READY
    assert verdict([finding(Severity.BLOCKER, Confidence.PROVEN)], [unknown]) is Verdict.BLOCKED


def test_exit_codes_follow_the_contract() -> None:
    assert {v.value: c for v, c in EXIT_CODES.items()} == {"ready": 0, "degraded": 1, "unknown": 1, "blocked": 2}


def test_order_is_worst_and_surest_first() -> None:
    rows = [
        finding(Severity.NOTE, Confidence.PROVEN, "c"),
        finding(Severity.BLOCKER, Confidence.HINT, "b"),
        finding(Severity.BLOCKER, Confidence.PROVEN, "a"),
    ]
    assert [f.id for f in order(rows)] == ["a", "b", "c"]


def as_check(cause: str, result: object, kind: str = "facts", needs: tuple[str, ...] = ("system",)) -> Check:
    def function(_: Snapshot) -> object:
        """Does what the test says."""
        if isinstance(result, Exception):
            raise result
        return result

    return Check(cause, function, needs, kind=kind)  # type: ignore[arg-type]


def test_facts_and_evidence_checks_of_one_cause_are_merged_to_the_surest() -> None:
    hint = found("disk-full", Confidence.HINT, "room is low", [Evidence("a", "1", "df")])
    sure = found("disk-full", Confidence.PROVEN, "no room", [Evidence("b", "2", "log:3")])
    result = judge(S, [as_check("disk-full", hint), as_check("disk-full", sure, "evidence")])
    (merged,) = result.findings
    assert merged.confidence is Confidence.PROVEN
    assert {e.fact for e in merged.evidence} == {"a", "b"}
    skipped = as_check("port-in-use", Skipped("port-in-use", "no events"), "evidence")
    assert judge(S, [as_check("port-in-use", None), skipped]).passed == ("port-in-use",)
    assert judge(S, [skipped]).skipped[0].why == "no events"


def test_a_crashing_check_is_not_a_pass() -> None:
    result = judge(S, [as_check("disk-full", ValueError("boom"))])
    assert not result.passed
    assert "ValueError: boom" in result.skipped[0].why


def test_missing_facts_skip_with_the_reason_of_the_probe() -> None:
    broken = Snapshot(probes=(ProbeStatus("system", "timeout", 3.0, "no answer within 3 s"),))
    result = judge(broken, [as_check("disk-full", None)])
    assert result.skipped[0].why == "the system probe ended with timeout: no answer within 3 s"
    assert not result.passed


def test_only_and_skip() -> None:
    checks = [as_check("disk-full", None), as_check("port-in-use", None)]
    assert judge(S, checks, only=["disk-full"]).passed == ("disk-full",)
    waived = judge(S, checks, skip=["disk-full"])
    assert (waived.passed, waived.waived) == (("port-in-use",), ("disk-full",))


@pytest.fixture
def symptom(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from doctor import catalogue

    real = catalogue.cause

    def fake(cause_id: str) -> catalogue.Cause:
        entry = real(cause_id)
        links = {"port-in-use": ("disk-full",), "disk-full": ("mmap-overcommit-refused",)}
        return replace(entry, symptom_of=links.get(cause_id, ()))

    monkeypatch.setattr(registry.catalogue, "cause", fake)


@pytest.mark.usefixtures("symptom")
def test_symptoms_fold_under_their_root_cause() -> None:
    rows = order(
        [
            found("port-in-use", Confidence.PROVEN, "p"),
            found("disk-full", Confidence.PROVEN, "d"),
            found("mmap-overcommit-refused", Confidence.PROVEN, "m"),
        ]
    )
    (top,) = registry.fold(rows)
    assert top.id == "mmap-overcommit-refused"
    assert {s.id for s in top.symptoms} == {"disk-full", "port-in-use"}


@pytest.mark.usefixtures("symptom")
def test_a_hint_never_hides_a_proven_finding() -> None:
    rows = order([found("port-in-use", Confidence.PROVEN, "p"), found("disk-full", Confidence.HINT, "d")])
    assert {f.id for f in registry.fold(rows)} == {"port-in-use", "disk-full"}


def test_every_registered_check_is_documented_and_in_the_catalogue() -> None:
    from doctor import catalogue

    for item in registry.registered():
        assert catalogue.cause(item.id)
        assert len(item.summary) > 10, item.id
        assert item.needs, item.id


def test_symptoms_and_look_alikes_name_existing_causes() -> None:
    from doctor import catalogue

    known = {c.id for c in catalogue.all_causes()}
    for cause in catalogue.all_causes():
        assert set(cause.symptom_of) <= known, cause.id
        assert set(cause.look_alikes) <= known, cause.id
        assert cause.id not in cause.symptom_of


def test_the_way_to_the_card_is_told_before_what_is_compiled() -> None:
    """Who has neither GPU nor compiler in a container repairs the GPU first."""
    facts = [c.id for c in registry.registered() if c.kind == "facts"]
    assert facts.index("nvidia-driver-missing") < facts.index("container-gpu-not-exposed")
    assert facts.index("container-gpu-not-exposed") < facts.index("c-compiler-missing")
