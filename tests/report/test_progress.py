"""Progress where nobody draws a bar: dated lines on stderr, few of them, none for quick work."""

from __future__ import annotations

import pytest

from doctor.report import progress
from doctor.report.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_quick_work_leaves_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("examining", total=2) as shown:
        clock[0] += 0.5
        shown.advance("system")
        shown.update("more")
    assert capsys.readouterr() == ("", "")


def test_units_of_work_are_at_least_a_second_apart(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("examining", total=9) as shown:
        clock[0] += 1.2
        for name in ("a", "b", "c"):
            shown.advance(name)
        clock[0] += 1.1
        shown.advance("d")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "[   1 s] examining: a\n[   2 s] examining: d\n"


def test_every_phase_is_told_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("smoke") as shown:
        clock[0] += 2
        for text in ("loading", "loading", "compiling"):
            shown.update(text)
    assert capsys.readouterr().err == "[   2 s] smoke: loading\n[   2 s] smoke: compiling\n"
