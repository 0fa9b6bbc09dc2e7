"""Without --out the logs lie in a temporary folder, which stays only for an answer that names them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.smoke.run import SmokeResult


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_an_interruption_leaves_none(
    smoke: Callable[..., SmokeResult], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def interrupted(*_: object) -> None:
        seen.extend(temporary.glob("*/server.log"))
        raise KeyboardInterrupt

    monkeypatch.setattr("doctor.smoke.attempt.wait_healthy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smoke(out=None)
    assert len(seen) == 1
    assert list(temporary.iterdir()) == []


def test_a_failure_keeps_the_log_that_it_names(smoke: Callable[..., SmokeResult], temporary: Path) -> None:
    result = smoke("die:nothing", out=None)
    assert result.log is not None
    assert list(temporary.glob("*/server.log")) == [result.log]
