"""The GPU probe: NVML as planned, the CUDA child as a planned program."""

from __future__ import annotations

import ctypes
import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from doctor.codec import encode
from doctor.facts import GpuFacts
from doctor.host import cuda_child
from doctor.host import gpu as gpu_probe
from doctor.host.access import LocalHost, RunResult
from doctor.host.examine import Options
from doctor.host.gpu import probe
from tests.host.fake_nvml import (
    GIB,
    LIBRARY_NOT_FOUND,
    MIB,
    NOT_SUPPORTED,
    FakeNvml,
    NVMLError,
    card,
    failing,
    memory,
    process,
    rtx_2080_ti,
)
from tests.host.gpu_hosts import GpuHost, bare, healthy, wsl2


def cards(host: GpuHost, **options: Any) -> tuple[GpuFacts, ...]:
    gpus = probe(host, Options(**options))["gpus"]
    assert isinstance(gpus, tuple)
    return gpus


def test_everything_of_a_healthy_card(tmp_path: Path) -> None:
    library = card()
    (g,) = cards(healthy(tmp_path, library))
    assert library.unplanned == []
    assert (g.name, g.compute_capability, g.uuid) == (
        "NVIDIA H200",
        "9.0",
        "GPU-0b2a4c3e-1111-2222-3333-444455556666",
    )
    assert (g.total_bytes, g.reserved_bytes, g.free_bytes) == (150_754_820_096, 644_939_776, 150_109_880_320)
    assert g.cuda_total_bytes == 150_109_880_320  # measured: what CUDA itself reported on that card
    assert g.cuda_source == "NVML total minus reserved"
    assert g.used_bytes == 0
    assert (g.ecc, g.mig, g.persistence, g.display_attached, g.display_active) == (True, False, True, True, False)
    assert (g.pcie_gen, g.pcie_gen_max, g.pcie_width, g.pcie_width_max) == (5, 5, 16, 16)
    assert (g.power_limit_w, g.power_default_w, g.temperature_c) == (700.0, 700.0, 32)
    assert (g.sm_clock_mhz, g.sm_clock_max_mhz, g.mem_clock_mhz, g.mem_clock_max_mhz) == (345, 1980, 3201, 3201)
    assert (g.throttle_reasons, g.processes, g.unreadable) == (("gpu_idle",), (), ())
    assert g.sources["free_bytes"] == "NVML nvmlDeviceGetMemoryInfo v2"


def test_under_wsl2_cuda_sees_nvmls_total_and_nothing_is_invented(tmp_path: Path) -> None:
    (g,) = cards(wsl2(tmp_path, rtx_2080_ti(free=round(20.81 * GIB))))
    assert g.cuda_total_bytes == g.total_bytes == 22528 * MIB
    assert "WSL2" in (g.cuda_source or "")
    assert (g.ecc, g.mig, g.processes) == (None, None, None)  # an empty list says nothing there
    assert {"ecc", "mig", "processes"} <= set(g.unreadable)


def test_a_driver_without_the_second_memory_call(tmp_path: Path) -> None:
    (g,) = cards(healthy(tmp_path, card(nvmlDeviceGetMemoryInfo=memory(24576 * MIB, 24000 * MIB))))
    assert (g.total_bytes, g.free_bytes, g.reserved_bytes, g.cuda_total_bytes) == (
        24576 * MIB,
        24000 * MIB,
        None,
        None,
    )
    assert (g.cuda_source or "").startswith("not known")


def test_no_nvml_no_cards(tmp_path: Path) -> None:
    assert probe(bare(tmp_path, failing(LIBRARY_NOT_FOUND)), Options()) == {}
    assert probe(healthy(tmp_path / "x", FakeNvml()), Options(inside_image=True)) == {}


def test_a_lost_card_does_not_hide_the_other(tmp_path: Path) -> None:
    def handle(index: int) -> str:
        if index == 0:
            raise NVMLError(15, "GPU is lost")
        return "h"

    first, second = cards(healthy(tmp_path, card(nvmlDeviceGetCount=2, nvmlDeviceGetHandleByIndex=handle)))
    assert (first.unreadable, first.sources["error:handle"]) == (("*",), "NVML GpuIsLost: GPU is lost")
    assert second.name == "NVIDIA H200"


def test_capability_by_name_when_the_driver_does_not_tell(tmp_path: Path) -> None:
    library = card(nvmlDeviceGetCudaComputeCapability=NOT_SUPPORTED, nvmlDeviceGetName=b"NVIDIA GeForce RTX 3090")
    (g,) = cards(healthy(tmp_path, library))
    assert (g.name, g.compute_capability) == ("NVIDIA GeForce RTX 3090", "8.6")
    assert g.sources["compute_capability"] == "table of cards, by name"


def test_processes_with_age_and_owner_but_no_arguments(tmp_path: Path) -> None:
    library = card(
        nvmlDeviceGetComputeRunningProcesses=[process(4711, 14 * GIB), process(4712, None)],
        nvmlDeviceGetGraphicsRunningProcesses=[process(900, 300 * MIB), process(4711, 14 * GIB)],
    )
    host = healthy(tmp_path, library)
    host.write("/proc/stat", "cpu 1 2\nbtime 1799990000\n")
    host.write("/proc/4711/comm", "VLLM::EngineCor\n")
    host.write("/proc/4711/cmdline", "vllm\0serve\0--api-key\0hunter2\0")
    host.write("/proc/4711/stat", "4711 (VLLM::Engine Cor)) S " + " ".join(["1"] * 18) + " 100000 7\n")
    host.write("/proc/900/comm", b"\xff\xfebad\x00name\n")
    (g,) = cards(host)
    server, desktop, unnamed = g.processes or ()
    assert (server.pid, server.used_bytes, server.name, server.kind) == (
        4711,
        14 * GIB,
        "VLLM::EngineCor",
        "compute",
    )
    assert server.age_s == pytest.approx(10_000 - 1000, abs=1)
    assert server.user == "yours"
    assert (desktop.kind, unnamed.used_bytes, unnamed.name, unnamed.age_s) == ("graphics", None, None, None)
    assert "hunter2" not in json.dumps(encode(g))
    assert (desktop.name or "").isprintable()


def test_in_a_container_an_empty_list_is_not_nobody(tmp_path: Path) -> None:
    host = healthy(tmp_path, card())
    host.write("/.dockerenv", "")
    assert cards(host)[0].processes is None
    host = healthy(tmp_path / "x", card(nvmlDeviceGetComputeRunningProcesses=[process(1, GIB)]))
    host.write("/.dockerenv", "")
    host.write("/proc/1/comm", "sh\n")
    assert [(p.pid, p.name) for p in cards(host)[0].processes or ()] == [(1, None)]


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0, ()),
        (0x4, ("sw_power_cap",)),
        (0x48, ("hw_slowdown", "hw_thermal_slowdown")),
        (0xFFFF_0000, ()),
    ],
)
def test_throttle_reasons(tmp_path: Path, bits: int, reasons: tuple[str, ...]) -> None:
    assert (
        cards(healthy(tmp_path, card(nvmlDeviceGetCurrentClocksThrottleReasons=bits)))[0].throttle_reasons
        == reasons
    )


def test_a_call_that_never_returns_ends_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(gpu_probe, "QUESTIONS_S", 0.2)
    host = healthy(tmp_path, card(nvmlDeviceGetMemoryInfo=lambda *_: release.wait(30)))
    with pytest.raises(TimeoutError, match="NVML opened, but did not answer"):
        probe(host, Options())
    release.set()


# --- CUDA itself -----------------------------------------------------------------------------------------

ANSWER = {
    "devices": [
        {
            "uuid": "0b2a4c3e-1111-2222-3333-444455556666",
            "name": "NVIDIA H200",
            "capability": "9.0",
            "total": 150_109_880_320,
            "free": 149_562_523_648,
            "context": 547_356_672,
        }
    ]
}


def deep(tmp_path: Path, reply: Any, nvml: FakeNvml | None = None) -> GpuFacts:
    host = healthy(tmp_path, nvml or card(), programs={sys.executable: reply})
    return cards(host, deep=True)[0]


def test_deep_confirms_with_cuda(tmp_path: Path) -> None:
    g = deep(tmp_path, "warning: something\n" + json.dumps(ANSWER) + "\n")
    assert (g.cuda_total_bytes, g.cuda_free_bytes, g.cuda_context_bytes) == (
        150_109_880_320,
        149_562_523_648,
        547_356_672,
    )
    assert g.cuda_source == "cuMemGetInfo in a child process, its own context included"
    assert (g.cuda_error, g.cuda_error_code) == (None, None)
    assert g.sources["cuda_free_bytes"] == "libcuda in a child process"


def test_deep_records_the_error_of_a_first_call(tmp_path: Path) -> None:
    g = deep(tmp_path, json.dumps({"error_code": 804, "error": "cuInit: forward compatibility was attempted"}))
    assert g.cuda_error_code == 804
    assert g.cuda_error == (
        "cuInit: forward compatibility was attempted (error 804: forward compatibility on unsupported hardware)"
    )
    assert g.cuda_total_bytes == 150_109_880_320  # what NVML says stays


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (RunResult(("x",), timed_out=True), "CUDA did not answer within 20 s"),
        (RunResult(("x",), returncode=-11), "the CUDA trial ended without an answer (exit status -11)"),
        (
            RunResult(("x",), error="Permission denied"),
            "the CUDA trial ended without an answer (Permission denied)",
        ),
        ("{not json", "the CUDA trial ended without an answer (exit status 0)"),
        ("[1, 2]", "the CUDA trial ended without an answer (exit status 0)"),
        ('{"error": "libcuda.so.1 cannot be loaded"}', "libcuda.so.1 cannot be loaded"),
    ],
)
def test_deep_survives_a_child_that_hangs_dies_or_babbles(tmp_path: Path, reply: Any, said: str) -> None:
    g = deep(tmp_path, reply)
    assert (g.cuda_error, g.cuda_error_code, g.cuda_free_bytes) == (said, None, None)


@pytest.mark.parametrize("devices", [None, 3, {}, [], [None, 1, "x"], [{"uuid": 5, "total": "9", "free": True}]])
def test_deep_ignores_devices_of_the_wrong_shape(tmp_path: Path, devices: Any) -> None:
    g = deep(tmp_path, json.dumps({"devices": devices}))
    assert (g.cuda_free_bytes, g.cuda_error) == (None, None)


def test_the_child_program_runs_for_real_without_a_driver() -> None:
    """Started with this interpreter: it must end with one JSON object whatever the machine has."""
    answer = cuda_child.ask(LocalHost())
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert answer.error == "libcuda.so.1 cannot be loaded"
    else:
        assert answer.devices or answer.error


FAKE_LIBCUDA = r"""
#include <string.h>
#include <stddef.h>
int cuInit(unsigned f) { return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetUuid_v2(char *u, int d) { for (int i = 0; i < 16; i++) u[i] = (char)(0x10 + i); return 0; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, "Fake\xff GPU", n); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 7 : 5; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)0x1234567890ULL; return 0; }
int cuCtxSetCurrent(void *c) { return c == (void *)0x1234567890ULL ? 0 : 201; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 22344525250ULL; *t = 23622320128ULL; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
int cuGetErrorString(int e, const char **s) { *s = "said"; return 0; }
"""


@pytest.fixture
def fake_libcuda(tmp_path: Path) -> Path:
    compiler = LocalHost().which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in for libcuda")
    source = tmp_path / "cuda.c"
    source.write_text(FAKE_LIBCUDA)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)], check=True)
    return tmp_path


def test_the_child_program_with_a_compiled_stand_in(fake_libcuda: Path) -> None:
    host = LocalHost(env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(fake_libcuda)})
    (device,) = cuda_child.ask(host).devices
    assert device.uuid == "10111213-1415-1617-1819-1a1b1c1d1e1f"
    assert (device.name, device.capability) == ("Fake\ufffd GPU", "7.5")
    assert (device.total_bytes, device.free_bytes) == (23_622_320_128, 22_344_525_250)
    assert device.error is None


# --- odd answers -----------------------------------------------------------------------------------------


class Evil:
    """Raises whatever is done with it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __iter__(self) -> Any:
        raise RuntimeError("iter")


def test_garbage_in_every_answer_never_escapes(tmp_path: Path) -> None:
    names = [n for n in card()._answers if n.startswith("nvmlDevice") and n != "nvmlDeviceGetCount"]
    odd: list[Any] = [
        None, b"\xff\xfe\x00", "", "\x1b[31m", -1, 2**80, float("nan"), [], [1], (), {}, True, Evil(), object(),
        RuntimeError("boom"), NVMLError(15, "GPU is lost"), NVMLError(77, ""), MemoryError(), "x" * 100_000,
        [Evil()],
        [process(-1, "a"), process("b", None)],  # type: ignore[arg-type]
    ]  # fmt: skip
    generator = random.Random(7)
    for round_number in range(150):
        answers = {name: generator.choice(odd) for name in names if generator.random() < 0.7}
        host = healthy(tmp_path / str(round_number % 10) / str(round_number), card(**answers))
        for g in cards(host):
            text = json.dumps(encode(g))
            assert len(text) < 20_000
            assert "\\u001b" not in text
            assert g.total_bytes is None or g.total_bytes > 0


@pytest.mark.parametrize("count", [None, "2", -1, b"1", True])
def test_a_senseless_count_is_an_error_of_the_probe(tmp_path: Path, count: Any) -> None:
    with pytest.raises(TypeError):
        probe(healthy(tmp_path, card(nvmlDeviceGetCount=count)), Options())


def test_figures_that_contradict_each_other_are_not_used(tmp_path: Path) -> None:
    (g,) = cards(healthy(tmp_path, card(nvmlDeviceGetMemoryInfo=memory(GIB, 2 * GIB, 0))))
    assert (g.total_bytes, g.free_bytes, g.cuda_total_bytes) == (None, None, None)
    assert "free_bytes" in g.unreadable
