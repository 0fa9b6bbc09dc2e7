"""Other programs, versions and figures that report the known causes: found, and as sure as they may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.checks.registry import judge, registered
from doctor.evidence import read_evidence
from doctor.finding import Confidence
from tests.cases.support import Case, score, variants

CASES = variants(Path(__file__).parent / "variants")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_variant(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "paste.log"
    file.write_text(case.text, encoding="utf-8")
    judgement = judge(read_evidence([str(file)]).snapshot, registered())
    assert score(case, judgement) == []


def test_every_cause_of_the_catalogue_has_evidence_of_its_own() -> None:
    """At least one case in this folder or among the handed ones shows each cause that a text can show."""
    from doctor import catalogue
    from tests.cases.support import handed

    shown = {i for c in (*CASES, *handed()) for wanted, _ in c.expect for i in wanted}
    live_only = {c.id for c in catalogue.all_causes()} - {i.id for i in registered() if i.kind == "evidence"}
    missing = {c.id for c in catalogue.all_causes()} - shown - live_only
    assert missing <= NOT_SHOWN


#: Causes whose evidence check repeats a live one and is tested with it.
NOT_SHOWN: set[str] = set()


def test_confidence_words_are_known() -> None:
    assert {sure for c in CASES for _, sure in c.expect} <= {c.value for c in Confidence}
