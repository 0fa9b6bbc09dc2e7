"""The cards: what NVML tells of each, and with --deep what CUDA itself says. Nothing is changed or invented."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from doctor.catalogue.gpus import lookup
from doctor.facts import GpuFacts
from doctor.host import cuda_child, nvml
from doctor.host.access import Host
from doctor.host.examine import Options
from doctor.host.gpu_processes import processes_of

T = TypeVar("T")

#: Seconds that all questions to NVML may take together, after it was opened.
QUESTIONS_S = 3.5

#: Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), in the words of nvidia-smi -q.
THROTTLE_REASONS: dict[int, str] = {
    0x001: "gpu_idle", 0x002: "applications_clocks_setting", 0x004: "sw_power_cap", 0x008: "hw_slowdown",
    0x010: "sync_boost", 0x020: "sw_thermal_slowdown", 0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown", 0x100: "display_clocks_setting",
}  # fmt: skip

#: field, function of NVML, its further arguments, how the answer is read.
_SIMPLE: tuple[tuple[str, str, tuple[Any, ...], Callable[[Any], Any]], ...] = (
    ("name", "nvmlDeviceGetName", (), nvml.text),
    ("uuid", "nvmlDeviceGetUUID", (), nvml.text),
    ("compute_capability", "nvmlDeviceGetCudaComputeCapability", (), lambda v: _pair(v)),
    ("ecc", "nvmlDeviceGetEccMode", (), lambda v: nvml.flag(v[0])),
    ("mig", "nvmlDeviceGetMigMode", (), lambda v: nvml.flag(v[0])),
    ("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", (), nvml.number),
    ("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", (), nvml.number),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), nvml.number),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", (), nvml.number),
    ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), lambda v: nvml.number(v) / 1000),
    ("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", (), lambda v: nvml.number(v) / 1000),
    ("temperature_c", "nvmlDeviceGetTemperature", (0,), nvml.number),
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", (1,), nvml.number),
    ("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (1,), nvml.number),
    ("mem_clock_mhz", "nvmlDeviceGetClockInfo", (2,), nvml.number),
    ("mem_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (2,), nvml.number),
    ("throttle_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", (), lambda v: _reasons(v)),
    ("display_attached", "nvmlDeviceGetDisplayMode", (), nvml.flag),
    ("display_active", "nvmlDeviceGetDisplayActive", (), nvml.flag),
    ("persistence", "nvmlDeviceGetPersistenceMode", (), nvml.flag),
)


class Card:
    """The questions to one card; what it refuses is listed as unreadable."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self.lib = lib
        self.handle = handle
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.unreadable: list[str] = []

    def ask(self, field: str, function: str, arguments: tuple[Any, ...], convert: Callable[[Any], T]) -> T | None:
        """One question; None (and the field noted as unreadable) when there is no sound answer."""
        try:
            value = convert(getattr(self.lib, function)(self.handle, *arguments))
        except Exception:  # noqa: BLE001  not supported, lost, odd: all mean not known
            self.unreadable.append(field)
            return None
        self.values[field] = value
        self.sources[field] = f"NVML {function}"
        return value


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """Returns {"gpus": (GpuFacts, ...)}; nothing when NVML is not available (the driver probe says why).

    Raises TimeoutError when NVML opens but then does not answer.
    """
    if options.inside_image:
        return {}
    connection = nvml.connect(host)
    if connection.lib is None:
        return {}
    scale = options.deadline_scale
    began = time.monotonic()
    try:
        gpus = nvml.bounded(lambda: _cards(host, connection.lib), QUESTIONS_S * scale)
    except TimeoutError:
        raise TimeoutError(f"NVML opened, but did not answer for {time.monotonic() - began:.1f} s") from None
    if options.deep:
        gpus = _with_cuda(gpus, cuda_child.ask(host, cuda_child.DEADLINE_S * scale))
    return {"gpus": gpus}


def _cards(host: Host, lib: Any) -> tuple[GpuFacts, ...]:
    count = nvml.number(lib.nvmlDeviceGetCount())
    wsl = _is_wsl(host)
    return tuple(_card(host, lib, index, wsl) for index in range(min(count, 64)))


def _is_wsl(host: Host) -> bool:
    return "microsoft" in (host.read("/proc/version", 1024) or "").lower() or host.exists("/dev/dxg")


def _card(host: Host, lib: Any, index: int, wsl: bool) -> GpuFacts:
    try:
        handle = lib.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:  # noqa: BLE001  one lost card must not hide the others
        name, _, message = nvml.describe(error)
        return GpuFacts(index, unreadable=("*",), sources={"error:handle": f"NVML {name}: {message}"[:200]})
    card = Card(lib, handle)
    for field, function, arguments, convert in _SIMPLE:
        card.ask(field, function, arguments, convert)
    if "compute_capability" not in card.values:
        model = lookup(card.values.get("name"))
        if model:
            card.values["compute_capability"] = model.capability
            card.sources["compute_capability"] = "table of cards, by name"
    _memory(card, wsl)
    held = processes_of(host, card.lib, card.handle, wsl)
    if held is None:
        card.unreadable.append("processes")
    else:
        card.values["processes"] = held
        card.sources["processes"] = "NVML nvmlDeviceGetComputeRunningProcesses, /proc"
    return GpuFacts(index, **card.values, unreadable=tuple(card.unreadable), sources=card.sources)


def _memory(card: Card, wsl: bool) -> None:
    """Memory in bytes; CUDA's total by the rule that was measured.

    Native Linux: NVML's total minus what it calls reserved (exact on an H200). WSL2: the two totals
    agree (22,528 MiB and 22.0 GiB on one card, 32,607 MiB and 31.84 GiB on another).
    """
    version = getattr(card.lib, "nvmlMemory_v2", None)
    memory = card.ask("reserved_bytes", "nvmlDeviceGetMemoryInfo", (version,), _memory_v2) if version else None
    how = "NVML nvmlDeviceGetMemoryInfo v2"
    if memory is None:
        memory = card.ask("total_bytes", "nvmlDeviceGetMemoryInfo", (), _memory_v1)
        how = "NVML nvmlDeviceGetMemoryInfo"
    for field in ("reserved_bytes", "total_bytes"):
        card.values.pop(field, None)
    if memory is None:
        card.unreadable += ["free_bytes", "used_bytes"]
        return
    for field, value in memory.items():
        card.values[field] = value
        card.sources[field] = how
    if wsl:
        card.values["cuda_total_bytes"] = memory["total_bytes"]
        card.values["cuda_source"] = "NVML total (under WSL2 CUDA reports the same)"
    elif "reserved_bytes" in memory:
        card.values["cuda_total_bytes"] = memory["total_bytes"] - memory["reserved_bytes"]
        card.values["cuda_source"] = "NVML total minus reserved"
    else:
        card.values["cuda_source"] = "not known: this driver does not tell what it reserves"


def _memory_v2(answer: Any) -> dict[str, int]:
    return {**_memory_v1(answer), "reserved_bytes": nvml.number(answer.reserved)}


def _memory_v1(answer: Any) -> dict[str, int]:
    total, free, used = (nvml.number(getattr(answer, n)) for n in ("total", "free", "used"))
    if total == 0 or free > total or used > total:
        raise TypeError(f"memory figures contradict each other: {total} {free} {used}")
    return {"total_bytes": total, "free_bytes": free, "used_bytes": used}


def _pair(answer: Any) -> str:
    major, minor = answer
    return f"{nvml.number(major)}.{nvml.number(minor)}"


def _reasons(answer: Any) -> tuple[str, ...]:
    bits = nvml.number(answer)
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


def _with_cuda(gpus: tuple[GpuFacts, ...], answer: cuda_child.CudaAnswer) -> tuple[GpuFacts, ...]:
    """Puts what CUDA measured beside what NVML told; cards are matched by UUID."""
    by_uuid = {d.uuid: d for d in answer.devices if d.uuid}
    return tuple(_confirmed(gpu, by_uuid.get((gpu.uuid or "").removeprefix("GPU-")), answer) for gpu in gpus)


def _confirmed(gpu: GpuFacts, device: cuda_child.CudaDevice | None, answer: cuda_child.CudaAnswer) -> GpuFacts:
    source = "libcuda in a child process"
    if device is None:
        if answer.error is None:
            return gpu  # hidden from CUDA, for example by CUDA_VISIBLE_DEVICES
        sources = {**gpu.sources, "cuda_error": source, "cuda_error_code": source}
        return replace(gpu, cuda_error=answer.error, cuda_error_code=answer.error_code, sources=sources)
    sources = dict(gpu.sources)
    changes: dict[str, Any] = {"cuda_error": device.error, "cuda_error_code": device.error_code}
    if device.total_bytes is not None and device.free_bytes is not None:
        changes["cuda_total_bytes"] = device.total_bytes
        changes["cuda_free_bytes"] = device.free_bytes
        changes["cuda_source"] = "cuMemGetInfo in a child process, its own context included"
    if device.context_bytes is not None:
        changes["cuda_context_bytes"] = device.context_bytes
    if device.capability is not None:
        changes["compute_capability"] = device.capability
    for field, value in changes.items():
        if value is not None:
            sources[field] = source
    return replace(gpu, **changes, sources=sources)
