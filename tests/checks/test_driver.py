"""Each cause of the area driver from what the probes make of a host: once found, once silent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from doctor.checks.registry import Judgement, judge
from doctor.facts import PythonFacts, SystemFacts, WslFacts
from doctor.finding import Confidence, Finding, Severity, Verdict
from doctor.host.access import RunResult
from doctor.snapshot import ProbeStatus, Snapshot
from tests.host.fake_nvml import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    MISMATCH,
    UNKNOWN,
    NVMLError,
    card,
    failing,
    rtx_2080_ti,
)
from tests.host.gpu_hosts import KERNEL, LIB, add_card, add_libraries, bare, healthy, snapshot, wsl2

NATIVE = {
    "system": SystemFacts(in_container=False, os_id="ubuntu", kernel=KERNEL, uid=1000, groups=("alice",)),
    "wsl": WslFacts(version=0),
}
CONTAINER = {
    "system": SystemFacts(in_container=True, container_kind="docker", os_id="debian", uid=0),
    "wsl": WslFacts(version=0),
}
WSL = {"system": SystemFacts(in_container=False, os_id="ubuntu"), "wsl": WslFacts(version=2, dxg=True)}


def top(judgement: Judgement, cause: str) -> Finding:
    """The finding, which must stand on its own and not below another."""
    for finding in judgement.findings:
        if finding.id == cause:
            return finding
    raise AssertionError(f"{cause} is not among {[f.id for f in judgement.findings]}")


def everything(judgement: Judgement) -> set[str]:
    """All ids found, folded ones too."""
    return {f.id for x in judgement.findings for f in (x, *x.symptoms)}


def blockers(judgement: Judgement) -> list[str]:
    return [f.id for f in judgement.findings if f.severity is Severity.BLOCKER]


# --- nothing there ------------------------------------------------------------------------------------------


def test_no_driver_on_a_native_host_is_exactly_one_blocker(tmp_path: Path) -> None:
    j = judge(snapshot(bare(tmp_path, failing(LIBRARY_NOT_FOUND)), **NATIVE))
    assert blockers(j) == ["nvidia-driver-missing"]
    finding = top(j, "nvidia-driver-missing")
    assert finding.confidence is Confidence.PROVEN
    assert j.verdict is Verdict.BLOCKED
    assert "no NVIDIA device on the PCI bus either" in finding.summary
    assert ("sudo", "ubuntu-drivers", "install") in [c for f in finding.fixes for c in f.commands]
    assert {"nvml-library-missing", "nvidia-kernel-module-not-loaded", "nvml-init-failed"} <= set(j.passed)


def test_a_card_on_the_bus_is_named_and_none_is_claimed_otherwise(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(LIBRARY_NOT_FOUND))
    host.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    host.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    host.write("/sys/bus/pci/devices/0000:01:00.0/device", "0x1e07\n")
    finding = top(judge(snapshot(host, **NATIVE)), "nvidia-driver-missing")
    assert "PCI" not in finding.summary
    assert ("driver.pci_nvidia", "0000:01:00.0 10de:1e07") in [(e.fact, e.value) for e in finding.evidence]


@pytest.mark.parametrize("place", [CONTAINER, WSL])
def test_a_container_and_wsl_have_no_driver_of_their_own(tmp_path: Path, place: dict[str, Any]) -> None:
    j = judge(snapshot(bare(tmp_path, failing(LIBRARY_NOT_FOUND)), **place))
    assert "nvidia-driver-missing" not in everything(j)


def test_where_it_runs_is_not_known_then_it_is_only_likely(tmp_path: Path) -> None:
    j = judge(snapshot(bare(tmp_path, failing(LIBRARY_NOT_FOUND))))
    assert top(j, "nvidia-driver-missing").confidence is Confidence.LIKELY


def test_a_probe_that_fails_makes_the_verdict_unknown() -> None:
    probes = (
        ProbeStatus("driver", "timeout", 5.0, "no answer within 5 s"),
        ProbeStatus("gpus", "failed", 1.0, "x"),
    )
    j = judge(Snapshot(probes=probes, **NATIVE))
    assert j.verdict is Verdict.UNKNOWN
    assert {s.id for s in j.skipped if s.essential} >= {"nvidia-driver-missing", "usable-vram-fraction"}
    assert "no answer within 5 s" in next(s.why for s in j.skipped if s.id == "nvidia-driver-missing")


def test_an_image_build_needs_no_gpu(tmp_path: Path) -> None:
    j = judge(snapshot(bare(tmp_path, failing(LIBRARY_NOT_FOUND)), inside_image=True, **CONTAINER))
    assert blockers(j) == []
    assert not [s for s in j.skipped if s.essential and s.id in ("nvidia-driver-missing", "usable-vram-fraction")]


def test_a_healthy_machine_has_no_finding_of_the_driver(tmp_path: Path) -> None:
    j = judge(snapshot(healthy(tmp_path, card()), **NATIVE))
    assert [f.id for f in j.findings if f.area == "driver"] == []
    assert "nvidia-driver-missing" in j.passed


# --- half a driver ------------------------------------------------------------------------------------------


def test_libraries_without_module_on_a_native_host(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(DRIVER_NOT_LOADED))
    add_libraries(host, "580.159.03")
    host.write("/lib/modules/6.8.0-45-generic/modules.dep", "kernel/fs/ext4.ko:\n")
    j = judge(snapshot(host, **NATIVE))
    assert blockers(j) == ["nvidia-kernel-module-not-loaded"]
    finding = top(j, "nvidia-kernel-module-not-loaded")
    assert finding.confidence is Confidence.PROVEN
    assert f"no nvidia.ko for kernel {KERNEL}" in finding.summary
    commands = [c for f in finding.fixes for c in f.commands]
    assert ("sudo", "apt-get", "install", f"linux-headers-{KERNEL}") in commands


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        ({"/sys/module/nouveau/x": "1"}, "nouveau holds the card"),
        (
            {
                f"/lib/modules/{KERNEL}/modules.dep": "updates/dkms/nvidia.ko.zst:\n",
                "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\x06\0\0\0\x01",
            },
            "Secure Boot refuses",
        ),
    ],
)
def test_why_the_module_does_not_run(tmp_path: Path, prepare: dict[str, Any], said: str) -> None:
    host = bare(tmp_path, failing(DRIVER_NOT_LOADED))
    add_libraries(host)
    for path, text in prepare.items():
        host.write(path, text)
    assert said in top(judge(snapshot(host, **NATIVE)), "nvidia-kernel-module-not-loaded").summary


def test_a_container_shares_the_kernel_of_its_host(tmp_path: Path) -> None:
    """Measured: a library from the image, no driver, an ordinary user: NVML 9. As root: 999."""
    host = bare(tmp_path, failing(DRIVER_NOT_LOADED))
    add_libraries(host, "535.261.03", names=("nvidia-ml",))
    j = judge(snapshot(host, **CONTAINER))
    assert blockers(j) == ["nvidia-kernel-module-not-loaded"]
    assert "of this container's host" in top(j, "nvidia-kernel-module-not-loaded").summary
    host = bare(tmp_path / "root", failing(UNKNOWN))
    add_libraries(host, "535.261.03", names=("nvidia-ml",))
    j = judge(snapshot(host, **CONTAINER))
    assert blockers(j) == ["container-gpu-not-exposed"]
    assert "nvidia-kernel-module-not-loaded" not in everything(j)


def test_nvml_library_missing_beside_libcuda(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(LIBRARY_NOT_FOUND))
    add_card(host)
    add_libraries(host, names=("cuda",))
    host.program(
        "/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=12, stdout="couldn't find library")
    )
    j = judge(snapshot(host, **NATIVE))
    finding = top(j, "nvml-library-missing")
    assert blockers(j) == ["nvml-library-missing"]
    assert finding.confidence is Confidence.PROVEN
    assert f"{LIB}/libcuda.so.580.159.03" in finding.summary
    assert ("sudo", "apt-get", "install", "libnvidia-compute-580") in [
        c for f in finding.fixes for c in f.commands
    ]


def test_a_damaged_nvml_library_is_named(tmp_path: Path) -> None:
    host = healthy(tmp_path, failing(LIBRARY_NOT_FOUND))
    host.program(
        "/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=12, stdout="couldn't find library")
    )
    j = judge(snapshot(host, **NATIVE))
    assert blockers(j) == ["nvml-library-missing"]
    assert "cannot be loaded" in top(j, "nvml-library-missing").summary


def test_in_a_container_without_a_gpu_the_missing_library_is_a_symptom(tmp_path: Path) -> None:
    """Measured: nvidia-smi from Debian without libnvidia-ml1 ends with 12."""
    host = bare(tmp_path, failing(LIBRARY_NOT_FOUND))
    said = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=12, stdout=said))
    j = judge(snapshot(host, **CONTAINER))
    assert blockers(j) == ["container-gpu-not-exposed"]
    assert "nvml-library-missing" in everything(j)


def test_module_and_libraries_of_different_versions(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(MISMATCH))
    add_card(host)
    add_libraries(host, "580.178.04")
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.178\n"
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=18, stdout=said))
    j = judge(snapshot(host, **NATIVE))
    finding = top(j, "driver-library-version-mismatch")
    assert blockers(j) == ["driver-library-version-mismatch"]
    assert finding.confidence is Confidence.PROVEN
    assert "580.159.03" in finding.summary
    assert "580.178.04" in finding.summary
    assert ("sudo", "apt-mark", "hold", "nvidia-driver-580") in [c for f in finding.fixes for c in f.commands]


def test_a_shortened_version_is_no_mismatch(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(UNKNOWN))
    add_card(host)
    add_libraries(host, "580.159")
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=255, stdout="Unknown Error"))
    assert "driver-library-version-mismatch" not in everything(judge(snapshot(host, **NATIVE)))


def test_an_error_nothing_else_explains(tmp_path: Path) -> None:
    host = healthy(tmp_path, failing(NVMLError(15, "GPU is lost")))
    said = "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error\n"
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=255, stdout=said))
    j = judge(snapshot(host, **NATIVE))
    assert blockers(j) == ["nvml-init-failed"]
    assert "GpuIsLost (15)" in top(j, "nvml-init-failed").summary
    host.write("/dev/kmsg", "4,1,2,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
    j = judge(snapshot(host, **NATIVE))
    assert blockers(j) == ["xid-errors-in-kernel-log"]
    assert "nvml-init-failed" in everything(j)


def test_a_missing_binding_is_no_fault_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_host: object) -> None:
        raise ImportError("No module named 'pynvml'")

    monkeypatch.setattr("doctor.host.nvml._library", missing)
    host = healthy(tmp_path, card())
    host.program("/usr/bin/nvidia-smi", "ok")
    j = judge(snapshot(host, **NATIVE))
    assert blockers(j) == []
    assert j.verdict is Verdict.UNKNOWN  # no card could be asked


def test_a_driver_that_lists_no_card(tmp_path: Path) -> None:
    j = judge(snapshot(healthy(tmp_path, card(nvmlDeviceGetCount=0)), **NATIVE))
    assert blockers(j) == ["no-gpu-visible"]
    assert "0000:01:00.0 10de:2335" in top(j, "no-gpu-visible").summary


def test_nodes_of_another_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = healthy(tmp_path, failing(NVMLError(4, "Insufficient Permissions")))
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=4, stdout="no permission"))
    monkeypatch.setattr(host, "access", lambda path, _mode: not path.startswith("/dev/nvidia"))
    j = judge(snapshot(host, **NATIVE))
    assert blockers(j) == ["device-node-permission-denied"]
    assert "/dev/nvidiactl" in top(j, "device-node-permission-denied").summary
    assert "nvml-init-failed" in everything(j)


@pytest.mark.parametrize("value", ["", "-1", "7", "NoDevFiles", "GPU-ffffffff"])
def test_a_variable_that_hides_every_card(tmp_path: Path, value: str) -> None:
    j = judge(snapshot(healthy(tmp_path, card(), env={"CUDA_VISIBLE_DEVICES": value}), **NATIVE))
    assert blockers(j) == ["cuda-visible-devices-hides-gpu"]


@pytest.mark.parametrize("value", ["0", "0,1", "GPU-0b2a4c3e", " 0"])
def test_a_variable_that_names_a_card(tmp_path: Path, value: str) -> None:
    j = judge(snapshot(healthy(tmp_path, card(), env={"CUDA_VISIBLE_DEVICES": value}), **NATIVE))
    assert "cuda-visible-devices-hides-gpu" in j.passed


# --- driver and CUDA build ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "cuda", "build", "place", "old"),
    [
        ("570.86.10", 12080, "13.0", NATIVE, True),
        ("580.65.06", 13000, "13.0", NATIVE, False),
        ("580.65.05", 13000, "13.0", NATIVE, True),
        ("610.43.02", 13030, "13.0", NATIVE, False),
        ("535.183.01", 12020, "12.8", NATIVE, False),  # minor version compatibility
        ("470.256.02", 11040, "12.1", NATIVE, True),
        ("572.61", 12080, "13.0", WSL, True),
        ("581.57", 13000, "13.0", WSL, False),
        ("528.33", 12000, "12.8", WSL, False),
        ("526.98", 12000, "12.8", WSL, True),
    ],
)
def test_driver_against_the_cuda_release_of_torch(
    tmp_path: Path, driver: str, cuda: int, build: str, place: dict[str, Any], old: bool
) -> None:
    library = card(nvmlSystemGetDriverVersion=driver, nvmlSystemGetCudaDriverVersion_v2=cuda)
    host = wsl2(tmp_path, library) if place is WSL else healthy(tmp_path, library)
    python = PythonFacts(torch=f"2.11.0+cu{build.replace('.', '')}", torch_cuda=build)
    j = judge(snapshot(host, python=python, **place))
    if not old:
        assert "driver-too-old-for-cuda-build" in j.passed
        return
    finding = top(j, "driver-too-old-for-cuda-build")
    assert finding.confidence is Confidence.PROVEN
    assert driver in finding.summary
    if place is WSL:
        assert "in Windows" in finding.fixes[0].summary
        assert finding.fixes[0].commands == ()


def test_a_cpu_build_of_torch_asks_for_no_driver(tmp_path: Path) -> None:
    python = PythonFacts(torch="2.11.0+cpu", torch_cuda="")
    j = judge(snapshot(healthy(tmp_path, card(nvmlSystemGetDriverVersion="470.1")), python=python, **NATIVE))
    assert "driver-too-old-for-cuda-build" in j.passed


# --- CUDA's first call --------------------------------------------------------------------------------------


def with_error(tmp_path: Path, code: int, **place: Any) -> Judgement:
    reply = json.dumps({"error_code": code, "error": "cuInit"})
    host = healthy(tmp_path, rtx_2080_ti(20 << 30), programs={sys.executable: reply})
    return judge(snapshot(host, deep=True, **{**NATIVE, **place}))


@pytest.mark.parametrize(
    ("code", "cause", "confidence"),
    [
        (804, "cuda-forward-compat-unsupported", Confidence.PROVEN),
        (803, "driver-library-version-mismatch", Confidence.PROVEN),
        (802, "fabric-manager-not-running", Confidence.LIKELY),
        (999, "cuda-init-failed", Confidence.PROVEN),
        (100, "cuda-init-failed", Confidence.PROVEN),
    ],
)
def test_each_error_of_cuda_has_its_cause(tmp_path: Path, code: int, cause: str, confidence: Confidence) -> None:
    j = with_error(tmp_path, code)
    assert [f for f in blockers(j) if f != "util-above-free-memory"] == [cause]
    assert top(j, cause).confidence is confidence
    assert f"(error {code}" in str(top(j, cause).evidence)


def test_without_deep_nothing_is_said_of_cuda(tmp_path: Path) -> None:
    j = judge(snapshot(healthy(tmp_path, card()), **NATIVE))
    assert "CUDA itself is only asked with --deep" in [s.why for s in j.skipped if s.id == "cuda-init-failed"]


def test_a_compat_library_on_a_consumer_card(tmp_path: Path) -> None:
    compat = "/usr/local/cuda/compat"
    host = healthy(
        tmp_path, card(nvmlDeviceGetName="NVIDIA GeForce RTX 3090"), env={"LD_LIBRARY_PATH": f"/opt/x:{compat}"}
    )
    host.write(f"{compat}/libcuda.so.610.43.02", b"\x7fELF")
    host.link(f"{compat}/libcuda.so.1", "libcuda.so.610.43.02")
    finding = top(judge(snapshot(host, **NATIVE)), "cuda-forward-compat-unsupported")
    assert finding.confidence is Confidence.LIKELY
    assert "export LD_LIBRARY_PATH=/opt/x" in finding.fixes[1].summary
    host = healthy(tmp_path / "dc", card(), env={"LD_LIBRARY_PATH": compat})
    host.write(f"{compat}/libcuda.so.610.43.02", b"\x7fELF")
    host.link(f"{compat}/libcuda.so.1", "libcuda.so.610.43.02")
    assert "cuda-forward-compat-unsupported" in judge(snapshot(host, **NATIVE)).passed


def test_an_nvswitch_machine_without_its_service(tmp_path: Path) -> None:
    host = healthy(tmp_path, card())
    host.write("/sys/bus/pci/devices/0000:05:00.0/vendor", "0x10de\n")
    host.write("/sys/bus/pci/devices/0000:05:00.0/class", "0x068000\n")
    host.program("/usr/bin/systemctl", lambda argv: RunResult(argv, returncode=3, stdout="inactive\n"))
    finding = top(judge(snapshot(host, **NATIVE)), "fabric-manager-not-running")
    assert ("sudo", "apt-get", "install", "nvidia-fabricmanager-580") in finding.fixes[0].commands
    host.program("/usr/bin/systemctl", "active\n")
    assert "fabric-manager-not-running" in judge(snapshot(host, **NATIVE)).passed


def test_a_container_with_half_of_the_nodes(tmp_path: Path) -> None:
    host = healthy(tmp_path, card())
    for name in ("nvidia-uvm", "nvidia-uvm-tools"):
        Path(f"{tmp_path}/dev/{name}").unlink()
    assert "nvidia-uvm-device-missing" in blockers(judge(snapshot(host, **CONTAINER)))
    assert "nvidia-uvm-device-missing" in judge(snapshot(host, **NATIVE)).passed


def test_under_wsl2_a_driver_error_is_repaired_in_windows(tmp_path: Path) -> None:
    result = judge(snapshot(wsl2(tmp_path, failing(DRIVER_NOT_LOADED)), **WSL))
    item = top(result, "nvml-init-failed")
    assert item.fixes[0].commands == (("wsl.exe", "--shutdown"),)
    assert not any("dmesg" in c for r in item.fixes for c in r.commands)


def test_equal_versions_are_not_called_different(tmp_path: Path) -> None:
    """The library was replaced on disk after the module was loaded and then put back, or two of them are there."""
    host = healthy(tmp_path, failing(MISMATCH))
    item = top(judge(snapshot(host, **NATIVE)), "driver-library-version-mismatch")
    assert item.summary == "The driver says that module and libraries differ, though both name 580.159.03 on disk"
