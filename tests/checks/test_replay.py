"""Saved snapshots judged again: verdict and findings equal what is committed beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.checks.registry import judge
from doctor.snapshot import dumps, loads

FOLDER = Path(__file__).parents[1] / "fixtures" / "snapshots"
FILES = sorted(p.name for p in FOLDER.glob("*.json") if p.name != "expected.json")


def replay(name: str) -> dict[str, Any]:
    """Verdict, and the findings with the figures that a person reads first."""
    j = judge(loads((FOLDER / name).read_text(encoding="utf-8"), name))
    findings = [
        {"id": f.id, "severity": f.severity.value, "confidence": f.confidence.value, "summary": f.summary}
        for f in j.findings
    ]
    return {"verdict": j.verdict.value, "findings": findings}


@pytest.mark.parametrize("name", FILES)
def test_the_findings_are_the_committed_ones(name: str) -> None:
    expected = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
    assert replay(name) == expected[name]


@pytest.mark.parametrize("name", FILES)
def test_a_saved_snapshot_is_stable(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert dumps(loads(dumps(loads(text)))) == dumps(loads(text))


def test_the_22_gb_card_answers_094() -> None:
    summaries = [f["summary"] for f in replay("2080ti-wsl2-22gb.json")["findings"]]
    assert any("0.94 is the highest --gpu-memory-utilization that starts" in s for s in summaries)


if __name__ == "__main__":
    print(json.dumps({name: replay(name) for name in FILES}, indent=1, ensure_ascii=False))
