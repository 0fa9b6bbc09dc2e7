"""Checks of the area network, and the serving port, on what the probes find."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from doctor.finding import Confidence, Severity, Verdict
from doctor.host import network
from doctor.host.examine import Options
from doctor.snapshot import Snapshot
from tests.checks.judging import finding, found, judged, skipped, snapshot
from tests.host import linux_hosts
from tests.host.test_network import busy
from tests.host.test_storage import model

HUB = Options(model="QuantTrio/Qwen3.5-9B-AWQ")
CAUSE = "hub-name-resolution-failed"


@pytest.fixture(autouse=True)
def unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: "Temporary failure in name resolution")


def test_a_hub_model_without_name_resolution(tmp_path: Path) -> None:
    result = found(CAUSE, snapshot(linux_hosts.native(tmp_path), HUB))
    assert (result.confidence, result.severity) == (Confidence.PROVEN, Severity.BLOCKER)
    assert "Temporary failure in name resolution" in result.summary


def test_an_isolated_machine_without_a_model_named_is_not_blocked(tmp_path: Path) -> None:
    seen = snapshot(linux_hosts.native(tmp_path))
    assert found(CAUSE, seen).severity is Severity.DEGRADES
    assert judged(CAUSE, seen).verdict is Verdict.DEGRADED


def test_who_needs_no_name_resolution(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    assert finding(CAUSE, snapshot(host, Options(model=model(host)))) is None
    offline = linux_hosts.native(tmp_path / "o", {"HF_HUB_OFFLINE": "1"})
    assert finding(CAUSE, snapshot(offline, HUB)) is None
    proxied = linux_hosts.native(tmp_path / "p", {"https_proxy": "http://proxy.example:3128"})
    assert finding(CAUSE, snapshot(proxied, HUB)) is None


def test_a_name_that_resolves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: "")
    assert finding(CAUSE, snapshot(linux_hosts.native(tmp_path), HUB)) is None


def test_silent_name_servers_are_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: time.sleep(20) or "")
    monkeypatch.setattr(network, "RESOLVE_DEADLINE_S", 0.1)
    result = found(CAUSE, snapshot(linux_hosts.native(tmp_path), HUB))
    assert result.confidence is Confidence.HINT


def test_where_to_repair_it(tmp_path: Path) -> None:
    wsl = found(CAUSE, snapshot(linux_hosts.wsl2(tmp_path / "w"), HUB))
    assert "wsl.conf" in wsl.fixes[1].summary
    container = found(CAUSE, snapshot(linux_hosts.docker_container(tmp_path / "c"), HUB))
    assert "docker daemon" in container.fixes[1].summary


def test_nothing_known_is_not_judged() -> None:
    assert skipped(CAUSE, Snapshot(origin="evidence"))
    assert skipped("port-in-use", Snapshot(origin="evidence"))
    assert skipped("hub-access-denied", Snapshot(origin="evidence"))


def test_gated_models(tmp_path: Path) -> None:
    cause = "hub-access-denied"
    gated = Options(model="meta-llama/Llama-3.1-8B-Instruct")
    result = found(cause, snapshot(linux_hosts.native(tmp_path / "a"), gated))
    assert result.confidence is Confidence.HINT
    assert finding(cause, snapshot(linux_hosts.native(tmp_path / "b"), HUB)) is None
    with_token = linux_hosts.native(tmp_path / "c", {"HF_TOKEN": "hf_x"})
    assert finding(cause, snapshot(with_token, gated)) is None


def test_a_taken_port(tmp_path: Path) -> None:
    cause = "port-in-use"
    host = busy(tmp_path / "a", "/usr/bin/python3", "-m", "http.server", "8000")
    result = found(cause, snapshot(host))
    assert (result.confidence, result.severity) == (Confidence.PROVEN, Severity.BLOCKER)
    assert result.summary == "Port 8000 is taken by python3 -m http.server (pid 4711, for 6 hours)."
    assert finding(cause, snapshot(host, Options(port=8001))) is None


def test_a_server_that_already_runs(tmp_path: Path) -> None:
    host = busy(tmp_path, "/srv/venv/bin/python3", "/srv/venv/bin/vllm", "serve", comm="vllm")
    assert found("port-in-use", snapshot(host)).severity is Severity.NOTE
    wanted = found("port-in-use", snapshot(host, Options(port=8000)))
    assert wanted.severity is Severity.BLOCKER
    assert wanted.fixes[1].commands == (("kill", "4711"),)


def test_a_port_of_another_user(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/proc/net/tcp", linux_hosts.TCP)
    assert "another user" in found("port-in-use", snapshot(host)).summary
