"""Progress where nobody draws a bar: dated lines on stderr, few of them, none for quick work."""

from __future__ import annotations

import threading
import time

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


def test_what_began_at_once_and_lasts_is_told_after_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("building") as shown:
        shown.update("step 1")
        shown.update("step 2")
        time.sleep(progress.QUIET_S + 0.5)
    assert capsys.readouterr().err == "[   1 s] building: step 2\n"


def test_a_line_replaces_the_one_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("building") as shown:
        shown.update("step 1")
        time.sleep(progress.QUIET_S + 0.5)
        shown.update("step 1")
        shown.update("step 2")
    assert capsys.readouterr().err.splitlines() == ["[   1 s] building: step 1", "[   2 s] building: step 2"]


def test_nothing_waits_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("building") as shown:
        shown.update("step 1")
    time.sleep(progress.QUIET_S + 0.2)
    assert capsys.readouterr().err == ""
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]


def test_without_another_thread_the_work_goes_on(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    with Progress("examining") as shown:
        clock[0] += 2
        shown.update("system")
    assert capsys.readouterr().err == "[   2 s] examining: system\n"


def test_a_reader_that_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    class Full:
        def isatty(self) -> bool:
            return False

        def write(self, _: str) -> int:
            go_on.wait(20)
            return 0

        def flush(self) -> None:
            pass

    monkeypatch.setattr(progress.sys, "stderr", Full())
    began = time.monotonic()
    with Progress("building") as shown:
        shown.update("step 1")
        time.sleep(progress.QUIET_S + 0.3)
    assert time.monotonic() - began < progress.QUIET_S + 3
    go_on.set()
