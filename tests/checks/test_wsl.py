"""Checks of the area wsl on what the probes find."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.facts import (
    CompileTrial,
    DriverFacts,
    GpuFacts,
    KernelEvent,
    PythonFacts,
    ServingFacts,
    ToolchainFacts,
    WslFacts,
)
from doctor.finding import Confidence, Severity, Verdict
from doctor.host import network
from doctor.host.examine import Options
from doctor.snapshot import Snapshot
from tests.checks.judging import finding, found, judged, skipped, snapshot
from tests.fakes import FakeHost
from tests.host import linux_hosts

CAUSES = (
    "wsl1-no-gpu",
    "wsl2-kernel-outdated",
    "wsl2-windows-without-gpu-support",
    "wsl2-linux-driver-installed",
    "wsl2-libcuda-not-on-loader-path",
    "wsl2-uva-unavailable",
    "wsl2-pin-memory-off",
    "wsl2-expandable-segments",
    "wsl2-multi-gpu-p2p-unreliable",
    "wsl2-model-on-windows-drive",
    "wsl2-memory-limit-small",
)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: "")


@pytest.mark.parametrize("cause", CAUSES)
def test_a_native_host_passes_all_of_them(tmp_path: Path, cause: str) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "LD_LIBRARY_PATH": "/opt/lib"}
    seen = snapshot(
        linux_hosts.native(tmp_path, env),
        python=PythonFacts(vllm="0.26.0", env=env),
        gpus=(GpuFacts(0), GpuFacts(1)),
    )
    assert finding(cause, seen) is None


@pytest.mark.parametrize("cause", CAUSES)
def test_nothing_is_judged_when_it_is_not_known_whether_this_is_wsl(cause: str) -> None:
    empty = Snapshot(origin="evidence")
    assert skipped(cause, empty)
    assert skipped(cause, replace(empty, wsl=WslFacts(kernel="5.15.1-microsoft-x")))


def test_a_healthy_wsl2_is_not_degraded(tmp_path: Path) -> None:
    seen = snapshot(linux_hosts.wsl2(tmp_path), python=PythonFacts(vllm="0.21.0", env={}), gpus=(GpuFacts(0),))
    for cause in set(CAUSES) - {"wsl2-pin-memory-off", "wsl2-memory-limit-small"}:
        assert finding(cause, seen) is None
    note = judged("wsl2-pin-memory-off", seen)
    assert note.verdict is Verdict.READY
    assert (note.findings[0].severity, note.findings[0].confidence) == (Severity.NOTE, Confidence.HINT)


def test_wsl1(tmp_path: Path) -> None:
    result = found("wsl1-no-gpu", snapshot(linux_hosts.wsl1(tmp_path)))
    assert result.confidence is Confidence.PROVEN
    assert ("wsl.exe", "--set-version", "Ubuntu", "2") in result.fixes[0].commands
    unsure = Snapshot(origin="evidence", wsl=WslFacts(version=1, kernel="4.4.0-19041-Microsoft"))
    assert found("wsl1-no-gpu", unsure).confidence is Confidence.LIKELY
    assert finding("wsl1-no-gpu", snapshot(linux_hosts.wsl2(tmp_path / "2"))) is None


@pytest.mark.parametrize(
    ("release", "old"),
    [
        ("5.10.16.3-microsoft-standard-WSL2", True),
        ("4.19.104-microsoft-standard", True),
        ("5.15.90.1-microsoft-standard-WSL2", False),
        ("6.6.87.2-microsoft-standard-WSL2", False),
    ],
)
def test_old_kernels(tmp_path: Path, release: str, old: bool) -> None:
    result = finding("wsl2-kernel-outdated", snapshot(linux_hosts.wsl2(tmp_path, release=release)))
    assert (result is not None) is old
    if result:
        assert (result.confidence, result.severity) == (Confidence.PROVEN, Severity.DEGRADES)


# ---- wsl2-windows-without-gpu-support


def without_libraries(tmp_path: Path, windows: str | None = None) -> FakeHost:
    host = linux_hosts.wsl2(tmp_path)
    shutil.rmtree(host._path("/usr/lib/wsl/lib"))
    host._programs["/sbin/ldconfig"] = linux_hosts.ldconfig()
    if windows:
        host.program("/mnt/c/Windows/System32/cmd.exe", f"\r\nMicrosoft Windows [Version 10.0.{windows}]\r\n")
    return host


def test_an_old_windows_is_proven_and_missing_libraries_alone_are_likely(tmp_path: Path) -> None:
    cause = "wsl2-windows-without-gpu-support"
    old = found(cause, snapshot(without_libraries(tmp_path / "a", "19042.1288")))
    assert old.confidence is Confidence.PROVEN
    assert "build 19042" in old.summary
    assert found(cause, snapshot(without_libraries(tmp_path / "b", "22631.1"))).confidence is Confidence.LIKELY
    assert found(cause, snapshot(without_libraries(tmp_path / "c"))).confidence is Confidence.LIKELY


def test_the_gpu_switched_off_in_wslconfig_is_named(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    os.unlink(host._path("/dev/dxg"))
    host.write("/mnt/c/Users/Ana Lima/.wslconfig", "[wsl2]\ngpuSupport=false\n")
    assert "gpuSupport=false" in found("wsl2-windows-without-gpu-support", snapshot(host)).summary


def test_a_container_without_a_gpu_grant_says_nothing_of_windows(tmp_path: Path) -> None:
    host = without_libraries(tmp_path)
    host.write("/.dockerenv", "")
    assert finding("wsl2-windows-without-gpu-support", snapshot(host)) is None


def test_nvml_blocked_by_the_system(tmp_path: Path) -> None:
    nvml = DriverFacts(nvml_error="Failed to initialize NVML: GPU access blocked by the operating system")
    seen = snapshot(linux_hosts.wsl2(tmp_path), driver=nvml)
    assert found("wsl2-windows-without-gpu-support", seen).confidence is Confidence.PROVEN


# ---- wsl2-linux-driver-installed


def test_driver_packages_with_the_commands_that_remove_them(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    host.write("/var/lib/dpkg/status", linux_hosts.dpkg("libnvidia-compute-535", "nvidia-utils-535", "zlib1g"))
    result = found("wsl2-linux-driver-installed", snapshot(host))
    assert result.confidence is Confidence.PROVEN
    packages = ("libnvidia-compute-535", "nvidia-utils-535")
    assert result.fixes[0].commands == (("apt-get", "--simulate", "purge", *packages),)
    assert result.fixes[1].commands == (("sudo", "apt-get", "purge", *packages),)


def resolving_to(tmp_path: Path, folder: str) -> FakeHost:
    host = linux_hosts.wsl2(tmp_path)
    host._programs["/sbin/ldconfig"] = linux_hosts.ldconfig(folder, "/usr/lib/wsl/lib")
    host.write(f"{folder}/libcuda.so.1", "")
    host.write(f"{folder}/libnvidia-ml.so.1", "")
    return host


def test_a_library_that_hides_the_one_of_windows(tmp_path: Path) -> None:
    cause = "wsl2-linux-driver-installed"
    result = found(cause, snapshot(resolving_to(tmp_path / "a", "/usr/lib/x86_64-linux-gnu")))
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in result.summary
    assert finding(cause, snapshot(resolving_to(tmp_path / "b", "/usr/local/cuda-13.0/compat"))) is None
    assert finding(cause, snapshot(resolving_to(tmp_path / "c", "/usr/lib/wsl/drivers/nv_dispi.inf"))) is None
    container = resolving_to(tmp_path / "d", "/usr/lib/x86_64-linux-gnu")
    container.write("/.dockerenv", "")
    assert finding(cause, snapshot(container)) is None


# ---- wsl2-libcuda-*


def test_a_loader_that_does_not_know_the_folder(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    host._programs["/sbin/ldconfig"] = linux_hosts.ldconfig()
    result = found("wsl2-libcuda-not-on-loader-path", snapshot(host))
    assert (result.confidence, result.severity) == (Confidence.PROVEN, Severity.DEGRADES)
    assert ("sudo", "ldconfig") in result.fixes[0].commands


def test_a_library_path_without_the_folder_is_a_hint(tmp_path: Path) -> None:
    cause = "wsl2-libcuda-not-on-loader-path"
    env = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}
    assert found(cause, snapshot(linux_hosts.wsl2(tmp_path / "a", env))).confidence is Confidence.HINT
    env = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64:/usr/lib/wsl/lib/"}
    assert finding(cause, snapshot(linux_hosts.wsl2(tmp_path / "b", env))) is None


def linking(output: str, ok: bool | None = False) -> ToolchainFacts:
    argv = ("gcc", "-shared", "x.c", "-lcuda")
    return ToolchainFacts(
        trials=(CompileTrial("link-cuda", argv, ok, 1, output, error=None if output else "no gcc"),)
    )


def test_the_link_name(tmp_path: Path) -> None:
    cause = "wsl2-libcuda-link-name-missing"
    text = "/usr/bin/ld: cannot find -lcuda: No such file or directory\ncollect2: error: ld returned 1 exit status"
    seen = snapshot(linux_hosts.wsl2(tmp_path / "a"), toolchain=linking(text))
    assert found(cause, seen).confidence is Confidence.HINT  # Triton links by the other name
    lost = linux_hosts.wsl2(tmp_path / "b")
    lost._programs["/sbin/ldconfig"] = linux_hosts.ldconfig()
    assert found(cause, snapshot(lost, toolchain=linking(text))).confidence is Confidence.PROVEN
    other = linking("/usr/bin/ld: cannot find Scrt1.o: No such file or directory")
    assert finding(cause, replace(seen, toolchain=other)) is None
    assert finding(cause, replace(seen, toolchain=linking("", True))) is None
    assert "no gcc" in skipped(cause, replace(seen, toolchain=linking("", None))).why


# ---- settings of vLLM


@pytest.mark.parametrize(
    ("vllm", "env", "fires"),
    [
        ("0.26.0", {}, True),
        ("0.24.0", {}, True),
        ("0.21.0", {}, False),
        ("0.26.0", {"VLLM_WSL2_ENABLE_PIN_MEMORY": "1"}, False),
        ("0.26.0", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, False),
        ("", {}, False),
    ],
)
def test_the_v2_runner(tmp_path: Path, vllm: str, env: dict[str, str], fires: bool) -> None:
    seen = snapshot(linux_hosts.wsl2(tmp_path, env), python=PythonFacts(vllm=vllm, env=env))
    result = finding("wsl2-uva-unavailable", seen)
    assert (result is not None) is fires
    if result:
        assert result.confidence is Confidence.HINT
        assert [f.summary for f in result.fixes if "kernel" in f.summary] == []


def test_the_v2_runner_on_an_old_kernel_needs_another_kernel(tmp_path: Path) -> None:
    env = {"VLLM_WSL2_ENABLE_PIN_MEMORY": "1"}
    host = linux_hosts.wsl2(tmp_path, env, "4.19.104-microsoft-standard")
    result = found("wsl2-uva-unavailable", snapshot(host, python=PythonFacts(vllm="0.26.0", env=env)))
    assert all("kernel" in f.summary for f in result.fixes)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments(tmp_path: Path, name: str) -> None:
    cause = "wsl2-expandable-segments"
    env = {name: "max_split_size_mb:128,expandable_segments:True"}
    seen = snapshot(linux_hosts.wsl2(tmp_path), python=PythonFacts(env=env))
    alone = found(cause, seen)
    assert alone.confidence is Confidence.HINT
    assert alone.fixes[0].summary == f"Set {name}=max_split_size_mb:128"
    text = "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12"
    refused = DriverFacts(kernel_events=(KernelEvent("dxg-make-resident", text),))
    assert found(cause, replace(seen, driver=refused)).confidence is Confidence.LIKELY
    off = PythonFacts(env={name: "expandable_segments:False"})
    assert finding(cause, replace(seen, python=off, driver=refused)) is None


def test_two_cards(tmp_path: Path) -> None:
    cause = "wsl2-multi-gpu-p2p-unreliable"
    seen = snapshot(linux_hosts.wsl2(tmp_path), gpus=(GpuFacts(0), GpuFacts(1)))
    assert found(cause, seen).confidence is Confidence.HINT
    assert finding(cause, replace(seen, gpus=(GpuFacts(0),))) is None
    assert finding(cause, replace(seen, serving=ServingFacts(tensor_parallel=1))) is None
    off = PythonFacts(env={"NCCL_P2P_DISABLE": "1"})
    assert finding(cause, replace(seen, python=off)) is None


# ---- model and memory


def test_a_model_on_a_windows_drive(tmp_path: Path) -> None:
    cause = "wsl2-model-on-windows-drive"
    host = linux_hosts.wsl2(tmp_path)
    host.write("/mnt/c/models/q/config.json", "{}")
    result = found(cause, snapshot(host, Options(model="/mnt/c/models/q")))
    assert result.confidence is Confidence.HINT
    assert "/mnt/c/models/q" in result.summary
    host.write("/home/ana/q/config.json", "{}")
    assert finding(cause, snapshot(host, Options(model="/home/ana/q"))) is None


def test_a_model_cache_linked_to_a_windows_drive(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    host.write("/mnt/c/hub/.keep", "")
    host.link("/home/ana/.cache/huggingface/hub", "/mnt/c/hub")
    assert "model cache" in found("wsl2-model-on-windows-drive", snapshot(host)).summary


def test_less_memory_than_weights(tmp_path: Path) -> None:
    cause = "wsl2-memory-limit-small"
    host = linux_hosts.wsl2(tmp_path)
    host.write("/home/ana/q/config.json", "{}")
    host.write("/home/ana/q/model.gguf", b"")
    os.truncate(host._path("/home/ana/q/model.gguf"), 21 << 30)
    result = found(cause, snapshot(host, Options(model="/home/ana/q")))
    assert result.confidence is Confidence.HINT
    assert "memory=16GB in .wslconfig" in result.summary
    os.truncate(host._path("/home/ana/q/model.gguf"), 9 << 30)
    assert finding(cause, snapshot(host, Options(model="/home/ana/q"))) is None
    assert "--model" in skipped(cause, snapshot(host)).why
