"""A probe that crashes, hangs or is missing is a recorded fact and costs only itself."""

from __future__ import annotations

import sys
import threading
import time
import types
from pathlib import Path

import pytest

from doctor.facts import SystemFacts
from doctor.host.examine import PROBES, Options, Probe, examine
from tests.fakes import FakeHost


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    forever = threading.Event()

    def good(host: object, options: Options) -> dict[str, object]:
        return {"system": SystemFacts(os_id="debian")}

    def crash(host: object, options: Options) -> dict[str, object]:
        raise RuntimeError("binary junk " * 100)

    def hang(host: object, options: Options) -> dict[str, object]:
        forever.wait(30)
        return {"system": SystemFacts(os_id="too late")}

    out = {}
    for name, function in {"good": good, "crash": crash, "hang": hang}.items():
        module = types.ModuleType(f"fake_{name}")
        module.probe = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        out[name] = module
    return out


def test_bad_probes_never_end_the_run(tmp_path: Path, modules: dict[str, types.ModuleType]) -> None:
    probes = (
        Probe("system", "fake_good", 2.0),
        Probe("wsl", "fake_crash", 2.0),
        Probe("driver", "fake_hang", 0.3),
        Probe("gpus", "no_such_module", 2.0),
    )
    seen: list[str] = []
    began = time.monotonic()
    snapshot = examine(FakeHost(tmp_path), probes=probes, on_done=lambda s: seen.append(s.name))
    assert time.monotonic() - began < 2
    assert [p.status for p in snapshot.probes] == ["ok", "failed", "timeout", "failed"]
    assert snapshot.system == SystemFacts(os_id="debian")
    assert snapshot.wsl is None
    assert snapshot.probes[1].detail.startswith("RuntimeError: binary junk")
    assert len(snapshot.probes[1].detail) <= 300
    assert snapshot.probes[2].detail == "no answer within 0.3 s"
    assert seen == ["system", "wsl", "driver", "gpus"]


def test_probes_run_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(host: object, options: Options) -> dict[str, object]:
        time.sleep(0.3)
        return {}

    module = types.ModuleType("fake_slow")
    module.probe = slow  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_slow", module)
    began = time.monotonic()
    examine(FakeHost(tmp_path), probes=tuple(Probe(f"p{i}", "fake_slow", 5.0) for i in range(6)))
    assert time.monotonic() - began < 1.2


def test_the_list_of_probes_names_snapshot_fields() -> None:
    from dataclasses import fields

    from doctor.snapshot import Snapshot

    assert {p.name for p in PROBES} <= {f.name for f in fields(Snapshot)}


def test_threads_that_cannot_start_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a small `ulimit -u` or `ulimit -v`."""

    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    seen = examine(FakeHost(tmp_path), Options())
    assert {p.status for p in seen.probes} == {"failed"}
    assert len(seen.probes) == len(PROBES)
    assert "limits of memory or processes" in seen.probes[0].detail
