"""Logs of real starts: nothing is found in the healthy ones, the one cause in the others."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from doctor.checks.registry import judge, registered
from doctor.evidence import read_evidence
from doctor.finding import Confidence, Severity
from doctor.report.explain_view import print_explanation
from doctor.report.redact import Redactor

REAL = Path(__file__).parent / "real"
HEALTHY = [*sorted(p.name for p in REAL.glob("*healthy.log")), "0.26.0-16-sequences-ended-by-sigterm.log"]
FAILED = {
    "0.26.0-fp8-kv-align-block.log": "mamba-align-block-exceeds-batched-tokens",
    "0.26.0-fp8-kv-float16.log": "fp8-kv-cache-needs-bfloat16",
    "0.26.0-own-script-without-guard.log": "spawn-without-main-guard",
}


def shown(name: str) -> str:
    reading = read_evidence([str(REAL / name)])
    out = Console(file=io.StringIO(), width=100)
    print_explanation(judge(reading.snapshot, registered()), reading, Redactor(), verbose=False, out=out)
    return out.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_start_is_called_one(name: str) -> None:
    judgement = judge(read_evidence([str(REAL / name)]).snapshot, registered())
    assert [f.id for f in judgement.findings if f.blocks] == []
    assert [f.id for f in judgement.findings if f.severity is Severity.BLOCKER] == []
    assert "healthy start" in shown(name)


@pytest.mark.parametrize(("name", "cause"), FAILED.items())
def test_a_failed_start_has_its_one_cause(name: str, cause: str) -> None:
    judgement = judge(read_evidence([str(REAL / name)]).snapshot, registered())
    blockers = [f for f in judgement.findings if f.blocks]
    assert [(f.id, f.confidence) for f in blockers] == [(cause, Confidence.PROVEN)]
    assert blockers[0].title in " ".join(shown(name).split())


def test_an_engine_that_dies_by_itself_is_no_healthy_start(tmp_path: Path) -> None:
    text = (REAL / "0.26.0-16-sequences-ended-by-sigterm.log").read_text()
    kept = "\n".join(line for line in text.splitlines() if "[shutdown]" not in line)
    file = tmp_path / "died.log"
    file.write_text(kept)
    reading = read_evidence([str(file)])
    out = Console(file=io.StringIO(), width=100)
    print_explanation(judge(reading.snapshot, registered()), reading, Redactor(), verbose=False, out=out)
    assert "healthy start" not in out.file.getvalue()  # type: ignore[attr-defined]


def test_standard_input_is_read() -> None:
    text = (REAL / "0.26.0-fp8-kv-float16.log").read_text()
    argv = [sys.executable, "-m", "doctor", "explain", "-", "--json"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["findings"][0]["id"] == "fp8-kv-cache-needs-bfloat16"
