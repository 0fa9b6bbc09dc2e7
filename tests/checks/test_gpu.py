"""Each cause of the area gpu from probe output: once found, once silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from doctor.checks.gpu import serves
from doctor.checks.registry import judge
from doctor.facts import GpuFacts, PythonFacts, ServingFacts
from doctor.finding import Confidence, Finding, Severity, Verdict
from doctor.snapshot import Snapshot
from tests.checks.test_driver import NATIVE, everything, top
from tests.host.fake_nvml import card, rtx_2080_ti
from tests.host.gpu_hosts import healthy, snapshot

CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
CU124 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


def of(tmp_path: Path, name: str, capability: tuple[int, int], **python: Any) -> Snapshot:
    library = card(nvmlDeviceGetName=name, nvmlDeviceGetCudaComputeCapability=capability)
    facts = {"python": PythonFacts(**python)} if python else {}
    return snapshot(healthy(tmp_path, library), **NATIVE, **facts)


def gpu_causes(s: Snapshot) -> list[str]:
    return [f.id for f in judge(s).findings if f.area == "gpu"]


def one(s: Snapshot, cause: str) -> Finding:
    return top(judge(s), cause)


@pytest.mark.parametrize(
    ("arches", "capability", "runs"),
    [
        (("sm_80",), (8, 6), True),  # machine code runs within its major
        (("sm_86",), (8, 0), False),
        (("sm_90",), (10, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_100f",), (10, 3), True),
        (("compute_90",), (12, 0), True),  # PTX is translated for later cards
        (("compute_90",), (8, 9), False),
        (("sm_120",), (12, 1), True),
        ((), (8, 0), False),
        (("garbage", "sm_x"), (8, 0), False),
    ],
)
def test_which_code_runs_where(arches: tuple[str, ...], capability: tuple[int, int], runs: bool) -> None:
    assert serves(arches, capability) is runs


def test_blackwell_with_an_older_torch(tmp_path: Path) -> None:
    s = of(
        tmp_path, "NVIDIA GeForce RTX 5090", (12, 0), torch="2.5.1+cu124", torch_cuda="12.4", torch_arches=CU124
    )
    finding = one(s, "gpu-too-new-for-torch-build")
    assert (finding.severity, finding.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
    assert "sm_120" in finding.summary
    assert gpu_causes(s) == ["gpu-too-new-for-torch-build"]


def test_blackwell_without_the_list_is_only_likely(tmp_path: Path) -> None:
    s = of(tmp_path, "NVIDIA GeForce RTX 5090", (12, 0), torch="2.5.1+cu124", torch_cuda="12.4")
    assert one(s, "gpu-too-new-for-torch-build").confidence is Confidence.LIKELY


def test_a_card_that_torch_knows(tmp_path: Path) -> None:
    for at, (name, capability) in enumerate(
        [("NVIDIA GeForce RTX 5090", (12, 0)), ("NVIDIA GeForce RTX 4090", (8, 9)), ("NVIDIA H200", (9, 0))]
    ):
        s = of(tmp_path / str(at), name, capability, torch="2.11.0+cu130", torch_cuda="13.0", torch_arches=CU130)
        assert gpu_causes(s) == []
        assert {"gpu-too-new-for-torch-build", "gpu-dropped-by-cuda13"} <= set(judge(s).passed)


def test_volta_with_a_cuda_13_build(tmp_path: Path) -> None:
    s = of(tmp_path, "Tesla V100-SXM2-32GB", (7, 0), torch="2.11.0+cu130", torch_cuda="13.0", torch_arches=CU130)
    finding = one(s, "gpu-dropped-by-cuda13")
    assert finding.confidence is Confidence.PROVEN
    assert "gpu-too-new-for-torch-build" not in everything(judge(s))
    s = of(
        tmp_path / "x", "Tesla V100-SXM2-32GB", (7, 0), torch="2.11.0+cu126", torch_cuda="12.6", torch_arches=CU124
    )
    assert "gpu-dropped-by-cuda13" in judge(s).passed


def test_pascal(tmp_path: Path) -> None:
    s = of(
        tmp_path, "NVIDIA GeForce GTX 1080 Ti", (6, 1), torch="2.7.0+cu126", torch_cuda="12.6", torch_arches=CU124
    )
    finding = one(s, "gpu-compute-capability-unsupported")
    assert finding.confidence is Confidence.PROVEN
    assert "6.1" in finding.summary
    assert gpu_causes(s) == ["gpu-compute-capability-unsupported"]


def test_evidence_that_names_the_card_only() -> None:
    gpus = (GpuFacts(0, name="NVIDIA GeForce GTX 1080 Ti", sources={"name": "collect_env.txt:12"}),)
    finding = one(Snapshot(origin="evidence", gpus=gpus), "gpu-compute-capability-unsupported")
    assert finding.evidence[0].value == "6.1 (by the name NVIDIA GeForce GTX 1080 Ti)"
    assert finding.evidence[0].source == "collect_env.txt:12"
    assert gpu_causes(Snapshot(origin="evidence", gpus=(GpuFacts(0, name="NVIDIA GeForce RTX 2080 Ti"),))) == []
    assert gpu_causes(Snapshot(origin="evidence", gpus=(GpuFacts(0, name="Some new card"),))) == []


def test_turing_has_no_bfloat16(tmp_path: Path) -> None:
    s = snapshot(healthy(tmp_path, rtx_2080_ti(21 << 30)), **NATIVE)
    note = one(s, "bfloat16-unsupported-gpu")
    assert (note.severity, note.confidence) == (Severity.NOTE, Confidence.HINT)
    assert "--dtype half" in note.summary
    assert judge(s).verdict is not Verdict.BLOCKED
    s = snapshot(
        healthy(tmp_path / "b", rtx_2080_ti(21 << 30)), serving=ServingFacts(dtype="torch.bfloat16"), **NATIVE
    )
    assert one(s, "bfloat16-unsupported-gpu").confidence is Confidence.LIKELY
    s = snapshot(healthy(tmp_path / "c", rtx_2080_ti(21 << 30)), serving=ServingFacts(dtype="half"), **NATIVE)
    assert "bfloat16-unsupported-gpu" in judge(s).passed
    assert "bfloat16-unsupported-gpu" in judge(snapshot(healthy(tmp_path / "d", card()), **NATIVE)).passed


def test_a_divided_card(tmp_path: Path) -> None:
    assert one(
        snapshot(healthy(tmp_path, card(nvmlDeviceGetMigMode=[1, 1])), **NATIVE), "mig-enabled"
    ).severity is (Severity.NOTE)


def test_heat(tmp_path: Path) -> None:
    library = card(nvmlDeviceGetCurrentClocksThrottleReasons=0x48, nvmlDeviceGetTemperature=91)
    finding = one(snapshot(healthy(tmp_path, library), **NATIVE), "gpu-thermal-or-power-throttled")
    assert "hw_slowdown, hw_thermal_slowdown at 91 °C, 345 of 1980 MHz" in finding.summary
    assert finding.severity is Severity.DEGRADES
    library = card(nvmlDeviceGetCurrentClocksThrottleReasons=0x4)  # the power cap under load is normal
    passed = judge(snapshot(healthy(tmp_path / "x", library), **NATIVE)).passed
    assert "gpu-thermal-or-power-throttled" in passed


def test_a_lowered_power_limit(tmp_path: Path) -> None:
    s = snapshot(healthy(tmp_path, card(nvmlDeviceGetEnforcedPowerLimit=500_000)), **NATIVE)
    finding = one(s, "gpu-power-limit-lowered")
    assert finding.summary.endswith("is limited to 500 W, its default is 700 W")
    assert ("sudo", "nvidia-smi", "-i", "0", "-pl", "700") in finding.fixes[0].commands
    s = snapshot(healthy(tmp_path / "x", card(nvmlDeviceGetEnforcedPowerLimit=690_000)), **NATIVE)
    assert "gpu-power-limit-lowered" in judge(s).passed


def test_fewer_lanes_are_a_hint_and_an_idle_generation_is_nothing(tmp_path: Path) -> None:
    s = snapshot(healthy(tmp_path, card(nvmlDeviceGetCurrPcieLinkWidth=4)), **NATIVE)
    finding = one(s, "pcie-link-degraded")
    assert (finding.confidence, "x4 of x16" in finding.summary) == (Confidence.HINT, True)
    assert finding.severity is Severity.NOTE  # it costs time at loading only
    assert judge(s).verdict is Verdict.READY
    s = snapshot(healthy(tmp_path / "x", card(nvmlDeviceGetCurrPcieLinkGeneration=1)), **NATIVE)
    assert "pcie-link-degraded" in judge(s).passed


@pytest.mark.parametrize(
    ("code", "severity", "confidence"),
    [
        (48, Severity.DEGRADES, Confidence.LIKELY),
        (79, Severity.DEGRADES, Confidence.LIKELY),
        (31, Severity.NOTE, Confidence.HINT),
        (4242, Severity.NOTE, Confidence.HINT),
    ],
)
def test_xids(tmp_path: Path, code: int, severity: Severity, confidence: Confidence) -> None:
    host = healthy(tmp_path, card())
    host.write("/dev/kmsg", f"4,1,2,-;NVRM: Xid (PCI:0000:01:00): {code}, pid=1, name=python3, text\n")
    finding = one(snapshot(host, **NATIVE), "xid-errors-in-kernel-log")
    assert (finding.severity, finding.confidence) == (severity, confidence)


def test_a_log_that_cannot_be_read_is_not_a_clean_one(tmp_path: Path) -> None:
    j = judge(snapshot(healthy(tmp_path, card()), **NATIVE))
    assert "xid-errors-in-kernel-log" in [s.id for s in j.skipped]
    host = healthy(tmp_path / "x", card())
    host.write("/dev/kmsg", "6,1,2,-;hello\n")
    assert "xid-errors-in-kernel-log" in judge(snapshot(host, **NATIVE)).passed
