"""Checks of the area host on what the probes find."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.facts import DriverFacts, KernelEvent, PythonFacts
from doctor.finding import Confidence, Severity, Verdict
from doctor.host import network
from doctor.host.examine import Options
from doctor.snapshot import Snapshot
from tests.checks.judging import finding, found, judged, skipped, snapshot
from tests.fakes import FakeHost
from tests.host import linux_hosts

KILL = (
    "Out of memory: Killed process 6154 (python) total-vm:18109076kB, anon-rss:14095848kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:1000 pgtables:29036kB oom_score_adj:0"
)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: "")


def log(*names: str) -> DriverFacts:
    events = tuple(
        KernelEvent("oom-kill", KILL.replace("python", n), process=n, source="/dev/kmsg") for n in names
    )
    return DriverFacts(kernel_events=events)


def weights(host: FakeHost, size: int) -> Options:
    """A model of one sparse file."""
    host.write("/models/q/config.json", "{}")
    host.write("/models/q/model.gguf", b"")
    os.truncate(host._path("/models/q/model.gguf"), size)
    return Options(model="/models/q")


# ---- host-memory-oom-killed


def test_a_killed_vllm_is_proven_and_a_killed_python_likely(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    result = found("host-memory-oom-killed", snapshot(host, driver=log("python", "VLLM::EngineCor")))
    assert result.confidence is Confidence.PROVEN
    assert "VLLM::EngineCor" in result.summary
    assert "31.2 GiB and 2 GiB of swap" in result.summary
    assert [f.summary.split(":")[0] for f in result.fixes][1:] == ["Native host"]
    assert found("host-memory-oom-killed", snapshot(host, driver=log("python3"))).confidence is Confidence.LIKELY


def test_another_killed_program_is_no_finding(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    assert finding("host-memory-oom-killed", snapshot(host, driver=log("chrome", "Xorg"))) is None
    assert finding("host-memory-oom-killed", snapshot(host, driver=log())) is None


def test_the_kill_counter_of_a_container_is_a_hint(tmp_path: Path) -> None:
    result = found("host-memory-oom-killed", snapshot(linux_hosts.docker_container(tmp_path)))
    assert result.confidence is Confidence.HINT
    assert "2 out-of-memory kills" in result.summary
    assert any("Container" in f.summary for f in result.fixes)
    assert not any("WSL2" in f.summary for f in result.fixes)


def test_a_file_above_ram_is_a_hint(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    seen = snapshot(host, weights(host, 40 << 30), driver=log())
    assert found("host-memory-oom-killed", seen).confidence is Confidence.HINT


def test_an_unreadable_log_is_not_a_clean_one(tmp_path: Path) -> None:
    seen = snapshot(linux_hosts.native(tmp_path), driver=DriverFacts())
    assert "kernel log" in skipped("host-memory-oom-killed", seen).why


# ---- mmap-overcommit-refused


@pytest.mark.parametrize(
    ("mode", "size_gib", "confidence"),
    [
        ("0", 34, Confidence.PROVEN),  # above 31.25 GiB RAM and 2 GiB swap
        ("0", 20, Confidence.HINT),  # above what is left of a limit that mode 0 does not enforce
        ("0", 10, None),
        ("1", 40, None),
        ("2", 20, Confidence.PROVEN),
        ("2", 10, None),
    ],
)
def test_mapping_a_big_file(tmp_path: Path, mode: str, size_gib: int, confidence: Confidence | None) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/proc/sys/vm/overcommit_memory", mode)
    result = finding("mmap-overcommit-refused", snapshot(host, weights(host, size_gib << 30)))
    assert (result.confidence if result else None) == confidence
    if confidence is Confidence.PROVEN and result:
        assert result.fixes[0].commands == (("sudo", "sysctl", "-w", "vm.overcommit_memory=1"),)


def test_mapping_without_a_model_is_not_judged(tmp_path: Path) -> None:
    assert "--model" in skipped("mmap-overcommit-refused", snapshot(linux_hosts.native(tmp_path))).why


# ---- glibc-too-old


def centos7(tmp_path: Path) -> FakeHost:
    host = linux_hosts.native(tmp_path)
    host.write("/etc/os-release", 'ID="centos"\nVERSION_ID="7"\nPRETTY_NAME="CentOS Linux 7 (Core)"\n')
    host.write(
        "/lib/x86_64-linux-gnu/libc.so.6", b"GNU C Library (GNU libc) stable release version 2.17, by Roland"
    )
    return host


@pytest.mark.parametrize(
    ("vllm", "glibc", "confidence"),
    [
        ("0.26.0", "2.17", Confidence.PROVEN),
        ("0.26.0", "2.28", None),
        ("0.19.1", "2.28", Confidence.PROVEN),
        ("0.19.1", "2.31", None),
        ("0.20.2", "2.31", Confidence.PROVEN),
        ("0.20.2+cu129", "2.35", None),
        ("0.5.2", "2.17", Confidence.LIKELY),  # its tag says nothing, the level was measured on another version
        ("", "2.17", Confidence.LIKELY),  # not installed: what the current wheel needs
        ("", "2.39", None),
    ],
)
def test_the_c_library(tmp_path: Path, vllm: str, glibc: str, confidence: Confidence | None) -> None:
    host = centos7(tmp_path)
    host.write("/lib/x86_64-linux-gnu/libc.so.6", f"GNU C Library (x) stable release version {glibc}.")
    result = finding("glibc-too-old", snapshot(host, python=PythonFacts(vllm=vllm)))
    assert (result.confidence if result else None) == confidence
    if result:
        assert f"this distribution has {glibc}" in result.summary


def test_musl_and_builds_of_ones_own(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    os.unlink(host._path("/lib/x86_64-linux-gnu/libc.so.6"))
    host.write("/lib/ld-musl-x86_64.so.1", "")
    assert "musl" in found("glibc-too-old", snapshot(host, python=PythonFacts(vllm="0.26.0"))).summary
    own = snapshot(linux_hosts.native(tmp_path / "b"), python=PythonFacts(vllm="0.26.1.dev3+g0123abc"))
    assert "build of its own" in skipped("glibc-too-old", own).why


# ---- cpu-governor-powersave, nofile-limit-low, clock-wrong


def governed(tmp_path: Path, governor: str, driver: str) -> FakeHost:
    host = linux_hosts.native(tmp_path)
    host.write("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", governor + "\n")
    host.write("/sys/devices/system/cpu/cpufreq/policy0/scaling_driver", driver + "\n")
    return host


def test_governors(tmp_path: Path) -> None:
    slow = found("cpu-governor-powersave", snapshot(governed(tmp_path / "a", "powersave", "acpi-cpufreq")))
    assert (slow.confidence, slow.severity) == (Confidence.HINT, Severity.DEGRADES)
    assert " of acpi-cpufreq" in slow.summary
    usual = found("cpu-governor-powersave", snapshot(governed(tmp_path / "b", "powersave", "intel_pstate")))
    assert (usual.confidence, usual.severity) == (Confidence.HINT, Severity.NOTE)
    assert (
        finding("cpu-governor-powersave", snapshot(governed(tmp_path / "c", "performance", "intel_pstate")))
        is None
    )
    assert finding("cpu-governor-powersave", snapshot(linux_hosts.native(tmp_path / "virtual"))) is None


def test_a_hint_of_the_governor_leaves_the_machine_ready(tmp_path: Path) -> None:
    seen = snapshot(governed(tmp_path, "powersave", "acpi-cpufreq"))
    assert judged("cpu-governor-powersave", seen).verdict is Verdict.READY


@pytest.mark.parametrize(("hard", "fires"), [("4096", True), ("65535", False), ("unlimited", False)])
def test_open_files(tmp_path: Path, hard: str, fires: bool) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/proc/self/limits", f"Max open files            1024                 {hard}            files\n")
    result = finding("nofile-limit-low", snapshot(host))
    assert (result is not None) is fires
    if result:
        assert (result.severity, result.confidence) == (Severity.NOTE, Confidence.PROVEN)


def clock(tmp_path: Path, ahead: float) -> Snapshot:
    host = linux_hosts.native(tmp_path)
    for path in ("/etc/passwd", "/etc/ld.so.cache"):
        host.write(path, "")
        os.utime(host._path(path), (host.time() - 9e6, host.time() - 9e6))
    host.write("/sys/class/rtc/rtc0/since_epoch", f"{host.time() + ahead:.0f}")
    return snapshot(host)


def test_the_clock(tmp_path: Path) -> None:
    behind = found("clock-wrong", clock(tmp_path / "a", 3 * 86_400))
    assert behind.confidence is Confidence.LIKELY
    assert "3 days behind" in behind.summary
    assert found("clock-wrong", clock(tmp_path / "b", 5_000)).confidence is Confidence.HINT
    assert finding("clock-wrong", clock(tmp_path / "c", 1)) is None
    assert skipped("clock-wrong", clock(tmp_path / "local time", 3600)).why


def test_wsl2_sets_its_clock_from_windows(tmp_path: Path) -> None:
    seen = clock(tmp_path / "a", 3 * 86_400)
    wsl = snapshot(linux_hosts.wsl2(tmp_path / "w")).wsl
    assert "wsl --shutdown" in found("clock-wrong", replace(seen, wsl=wsl)).fixes[0].summary


def test_nothing_is_ok_when_nothing_is_known() -> None:
    empty = Snapshot(origin="evidence")
    for cause in (
        "host-memory-oom-killed",
        "glibc-too-old",
        "clock-wrong",
        "nofile-limit-low",
        "cpu-governor-powersave",
    ):
        assert skipped(cause, empty)
