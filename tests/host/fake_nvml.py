"""NVML as a list of planned answers. A function that was not planned is refused and remembered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30
MIB = 1 << 20


class NVMLError(Exception):
    """An error as the binding raises it: the code is ``value``."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


NOT_SUPPORTED = NVMLError(3, "Not Supported")
LIBRARY_NOT_FOUND = NVMLError(12, "NVML Shared Library Not Found")
DRIVER_NOT_LOADED = NVMLError(9, "Driver Not Loaded")
MISMATCH = NVMLError(18, "RM has detected an NVML/RM version mismatch.")
UNKNOWN = NVMLError(999, "Unknown Error")


def memory(total: int, free: int, reserved: int | None = None) -> Callable[..., SimpleNamespace]:
    """nvmlDeviceGetMemoryInfo: with a version it knows ``reserved``, without it does not."""

    def answer(_handle: object, version: int | None = None) -> SimpleNamespace:
        if version is None:
            return SimpleNamespace(total=total, free=free, used=total - free)
        if reserved is None:
            raise NVMLError(13, "Function Not Found")
        return SimpleNamespace(total=total, reserved=reserved, free=free, used=total - free - reserved)

    return answer


class FakeNvml:
    """``answers``: function name -> value, exception to raise, or callable. ``initialised`` counts."""

    nvmlMemory_v2 = 0x02000028

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.unplanned: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if name not in self._answers:
            self.unplanned.append(name)
            raise AttributeError(f"unplanned: {name}")
        answer = self._answers[name]

        def call(*arguments: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call


def failing(error: Exception) -> FakeNvml:
    """A library that cannot be opened."""
    return FakeNvml(nvmlInit=error)


def card(**changes: Any) -> FakeNvml:
    """A healthy, idle H200 on Linux; memory figures as measured on one (driver 580.159.03)."""
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlSystemGetDriverVersion": "580.159.03",
        "nvmlSystemGetCudaDriverVersion_v2": 13000,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": lambda index: f"handle-{index}",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetUUID": "GPU-0b2a4c3e-1111-2222-3333-444455556666",
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetMemoryInfo": memory(150_754_820_096, 150_109_880_320, 644_939_776),
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetTemperature": 32,
        "nvmlDeviceGetClockInfo": lambda _h, kind: {1: 345, 2: 3201}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda _h, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,
        "nvmlDeviceGetDisplayMode": 1,
        "nvmlDeviceGetDisplayActive": 0,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
    }
    return FakeNvml(**{**answers, **changes})


def rtx_2080_ti(free: int, **changes: Any) -> FakeNvml:
    """An RTX 2080 Ti with 22 GB under WSL2, where much is not supported."""
    return card(
        nvmlSystemGetDriverVersion="581.57",
        nvmlDeviceGetName="NVIDIA GeForce RTX 2080 Ti",
        nvmlDeviceGetCudaComputeCapability=(7, 5),
        nvmlDeviceGetMemoryInfo=memory(22528 * MIB, free, 0),
        nvmlDeviceGetEccMode=NOT_SUPPORTED,
        nvmlDeviceGetMigMode=NOT_SUPPORTED,
        nvmlDeviceGetCurrPcieLinkGeneration=3,
        nvmlDeviceGetMaxPcieLinkGeneration=3,
        nvmlDeviceGetEnforcedPowerLimit=250_000,
        nvmlDeviceGetPowerManagementDefaultLimit=250_000,
        nvmlDeviceGetDisplayActive=1,
        nvmlDeviceGetGraphicsRunningProcesses=NOT_SUPPORTED,
        **changes,
    )


def process(pid: int, used: int | None) -> SimpleNamespace:
    """One row of a process list."""
    return SimpleNamespace(pid=pid, usedGpuMemory=used)
