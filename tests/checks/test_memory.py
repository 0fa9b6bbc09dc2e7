"""The start check as the doctor judges it, from probe output of cards with known figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from doctor.checks.registry import judge
from doctor.facts import GpuFacts, PythonFacts, ServingFacts, StorageFacts, WslFacts
from doctor.finding import Confidence, Severity, Verdict
from doctor.snapshot import Snapshot
from tests.checks.test_driver import NATIVE, WSL, blockers, everything, top
from tests.host.fake_nvml import GIB, MIB, NOT_SUPPORTED, card, memory, process, rtx_2080_ti
from tests.host.gpu_hosts import healthy, snapshot, wsl2

FREE = round(20.81 * GIB)


def busy(tmp_path: Path, free: int, processes: list[Any], **fields: Any) -> Snapshot:
    library = card(
        nvmlDeviceGetName="NVIDIA GeForce RTX 3090",
        nvmlDeviceGetCudaComputeCapability=(8, 6),
        nvmlDeviceGetMemoryInfo=memory(24576 * MIB, free, 430 * MIB),
        nvmlDeviceGetComputeRunningProcesses=processes,
        nvmlDeviceGetDisplayActive=1,
    )
    host = healthy(tmp_path, library)
    host.write("/proc/4711/comm", "VLLM::EngineCor\n")
    host.write("/proc/stat", "btime 1799990000\n")
    host.write("/proc/4711/stat", "4711 (VLLM) S " + " ".join(["1"] * 18) + " 100 7\n")
    return snapshot(host, **{**NATIVE, **fields})


def test_the_22_gb_card_under_wsl2(tmp_path: Path) -> None:
    s = snapshot(wsl2(tmp_path, rtx_2080_ti(FREE)), **WSL)
    j = judge(s)
    finding = top(j, "usable-vram-fraction")
    assert finding.summary == (
        "20.81 of 22.00 GiB free: 0.94 is the highest --gpu-memory-utilization that starts (or 0.92: vLLM's own "
        "CUDA context takes up to 0.51 GiB of it, check --deep measures it), 0.89 is recommended"
    )
    assert finding.severity is Severity.NOTE
    assert ("highest fraction", "0.94") in [(e.fact, e.value) for e in finding.evidence]
    assert "util-above-free-memory" not in [
        f.id for f in j.findings if f.severity is Severity.BLOCKER and f.blocks
    ]


def test_095_is_refused_there_as_people_saw(tmp_path: Path) -> None:
    asked = ServingFacts(gpu_memory_utilization=0.95)
    j = judge(snapshot(wsl2(tmp_path, rtx_2080_ti(FREE)), serving=asked, **WSL))
    finding = top(j, "util-above-free-memory")
    assert finding.confidence is Confidence.PROVEN
    assert finding.summary.startswith(
        "GPU 0 (NVIDIA GeForce RTX 2080 Ti): the --gpu-memory-utilization 0.95 asked for wants 20.90 GiB and does "
        "not start now, 20.81 of 22.00 GiB are free (short of 0.09 GiB); 0.94 may, 0.89 is recommended"
    )
    assert any("Windows" in f.summary for f in finding.fixes)


def test_a_note_never_lowers_the_verdict(tmp_path: Path) -> None:
    j = judge(snapshot(healthy(tmp_path, card()), **NATIVE))
    assert [f.id for f in j.findings] == ["usable-vram-fraction"]
    assert j.verdict is Verdict.READY
    assert "139.80 of 139.80 GiB free: 1.00 is the highest" in j.findings[0].summary
    assert "(or 0.99: vLLM's own CUDA context takes up to 0.51 GiB of it" in j.findings[0].summary


@pytest.mark.parametrize(
    ("version", "free", "starts"),
    [("0.19.1", 21.3, True), ("0.19.1", 21.2, False), ("0.20.0", 21.3, False), ("0.32.0", 21.75, True)],
)
def test_the_default_fraction_of_the_version(tmp_path: Path, version: str, free: float, starts: bool) -> None:
    """Total 23.58 GiB as CUDA counts it: 0.9 wants 21.22, 0.92 wants 21.69."""
    s = busy(tmp_path, round(free * GIB), [process(4711, 5 * MIB)], python=PythonFacts(vllm=version))
    sure = [f.id for f in judge(s).findings if f.confidence is Confidence.PROVEN]
    assert ("util-above-free-memory" not in sure) is starts


def test_a_desktop_takes_what_the_default_needs(tmp_path: Path) -> None:
    s = busy(tmp_path, round(20.6 * GIB), [], python=PythonFacts(vllm="0.32.0"))
    j = judge(s)
    assert blockers(j) == ["util-above-free-memory"]
    finding = top(j, "util-above-free-memory")
    assert "the default 0.92 of vLLM 0.32.0 wants 21.69 GiB and does not start now" in finding.summary
    assert "0.87 may, 0.83 is recommended" in finding.summary
    assert finding.fixes[0].summary.startswith("Start vLLM with --gpu-memory-utilization 0.83: leaves 0.5 GiB")
    assert "a display runs on this card" in finding.fixes[1].summary
    assert j.verdict is Verdict.BLOCKED


def test_the_process_that_holds_it_is_the_cause(tmp_path: Path) -> None:
    s = busy(tmp_path, 9 * GIB, [process(4711, 14 * GIB), process(4712, 300 * MIB)])
    j = judge(s)
    assert blockers(j) == ["gpu-memory-held-by-other-process"]
    finding = top(j, "gpu-memory-held-by-other-process")
    assert finding.confidence is Confidence.PROVEN
    assert "PID 4711 (VLLM::EngineCor, yours, running for 3 h) holds 14.00 GiB" in finding.summary
    assert "does not start, 0.38 does" in finding.summary
    assert ("kill", "4711") in [c for f in finding.fixes for c in f.commands]
    assert "util-above-free-memory" in everything(j)


def test_without_a_process_list_a_half_empty_card_is_a_hint(tmp_path: Path) -> None:
    s = snapshot(wsl2(tmp_path, rtx_2080_ti(9 * GIB)), **WSL)
    finding = top(judge(s), "gpu-memory-held-by-other-process")
    assert finding.confidence is Confidence.HINT
    assert "no process list says how much" in finding.summary


def test_an_idle_card_is_held_by_nobody(tmp_path: Path) -> None:
    passed = judge(snapshot(healthy(tmp_path, card()), **NATIVE)).passed
    assert {"gpu-memory-held-by-other-process", "util-above-free-memory"} <= set(passed)


def test_deep_counts_the_context_and_says_what_it_costs(tmp_path: Path) -> None:
    device = {
        "uuid": "0b2a4c3e-1111-2222-3333-444455556666",
        "total": 150_109_880_320,
        "free": 149_562_523_648,
        "context": 547_356_672,
    }
    host = healthy(tmp_path, card(), programs={sys.executable: json.dumps({"devices": [device]})})
    finding = top(judge(snapshot(host, deep=True, **NATIVE)), "usable-vram-fraction")
    assert "139.29 of 139.80 GiB free: 0.99 is the highest" in finding.summary
    facts = {e.fact: e.value for e in finding.evidence}
    assert facts["gpus[0].cuda_context_bytes"] == "0.51 GiB"
    assert facts["context"] == "measured inside a CUDA context, as vLLM measures"


def test_a_context_that_may_not_fit_is_a_hint(tmp_path: Path) -> None:
    s = busy(tmp_path, round(21.75 * GIB), [])
    finding = top(judge(s), "util-above-free-memory")
    assert finding.confidence is Confidence.HINT
    assert "vLLM's own CUDA context" in finding.summary


def test_a_second_card_with_room_is_the_way_out(tmp_path: Path) -> None:
    figures = {"a": memory(24576 * MIB, 2 * GIB, 0), "b": memory(24576 * MIB, 24576 * MIB, 0)}
    library = card(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=lambda i: "ab"[i],
        nvmlDeviceGetMemoryInfo=lambda h, *v: figures[h](h, *v),
    )
    j = judge(snapshot(healthy(tmp_path, library), **NATIVE))
    finding = top(j, "util-above-free-memory")
    assert finding.confidence is Confidence.HINT
    assert finding.fixes[0].summary == "Start vLLM with CUDA_VISIBLE_DEVICES=1"
    assert j.verdict is not Verdict.BLOCKED
    assert top(j, "usable-vram-fraction").summary.count("is the highest") == 2
    hidden = healthy(tmp_path / "x", library, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert top(judge(snapshot(hidden, **NATIVE)), "util-above-free-memory").confidence is Confidence.PROVEN


def test_a_card_that_does_not_tell_its_memory_is_not_fine(tmp_path: Path) -> None:
    j = judge(snapshot(healthy(tmp_path, card(nvmlDeviceGetMemoryInfo=NOT_SUPPORTED)), **NATIVE))
    assert j.verdict is Verdict.UNKNOWN
    assert "usable-vram-fraction" in [s.id for s in j.skipped if s.essential]


def test_figures_in_a_text_are_of_another_moment() -> None:
    gpus = (GpuFacts(0, name="NVIDIA H200", total_bytes=150 * GIB, free_bytes=GIB),)
    j = judge(Snapshot(origin="evidence", gpus=gpus, wsl=WslFacts(version=0)))
    assert [f.id for f in j.findings if f.area == "memory"] == []


@pytest.mark.parametrize(
    ("weights", "confidence"), [(30.0, Confidence.PROVEN), (23.3, Confidence.LIKELY), (10.22, None)]
)
def test_weights_against_the_card(tmp_path: Path, weights: float, confidence: Confidence | None) -> None:
    storage = StorageFacts(model_path="/m", model_weights_bytes=round(weights * GIB))
    j = judge(busy(tmp_path, round(23.1 * GIB), [process(4711, MIB)], storage=storage))
    if confidence is None:
        assert "weights-exceed-vram" in j.passed
    else:
        assert top(j, "weights-exceed-vram").confidence is confidence


@pytest.mark.parametrize("free", [0, 1, 5 * MIB])
def test_a_full_card(tmp_path: Path, free: int) -> None:
    j = judge(busy(tmp_path, free, []))
    assert "no fraction does" in top(j, "gpu-memory-held-by-other-process").summary or "util-above" in str(j)
    assert top(j, "usable-vram-fraction").fixes == ()


def test_no_fraction_is_recommended_where_nothing_is_left(tmp_path: Path) -> None:
    finding = top(judge(snapshot(wsl2(tmp_path, rtx_2080_ti(GIB)), **WSL)), "usable-vram-fraction")
    assert finding.summary.endswith("which leaves no room to serve")
    assert not finding.fixes
