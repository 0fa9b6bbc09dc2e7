"""docs/troubleshooting.md says what the catalogue and the checks say."""

from __future__ import annotations

import re
from pathlib import Path

from doctor import catalogue
from doctor.catalogue.render import document, messages

FILE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"


def test_document_is_fresh() -> None:
    wanted = document()
    assert FILE.read_text(encoding="utf-8") == wanted, (
        "run: python -m doctor.catalogue.render > docs/troubleshooting.md"
    )


def test_every_cause_has_a_section_that_links_can_reach() -> None:
    text = FILE.read_text(encoding="utf-8")
    anchors = set(re.findall(r'<a id="([a-z0-9-]+)">', text))
    assert anchors == {c.id for c in catalogue.all_causes()}
    assert set(re.findall(r"\]\(#([a-z0-9-]+)\)", text)) - {"by-message", "by-symptom", "causes"} <= anchors


def test_symptoms_name_causes_of_the_catalogue() -> None:
    for row in catalogue.table("symptoms"):
        for cause_id in row["causes"]:
            assert catalogue.cause(cause_id)


def test_most_messages_lead_to_one_cause() -> None:
    rows = messages()
    assert len(rows) > 250
    assert sum(len(answers) == 1 for _, _, answers in rows) > 0.8 * len(rows)
