"""GPUs, one object each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a card. ``name`` is the program, never its arguments."""

    pid: int
    used_bytes: int | None = None
    name: str | None = None
    kind: str = "compute"  # or "graphics"
    age_s: float | None = None
    user: str | None = None


@dataclass(frozen=True)
class GpuFacts:
    """One card as NVML (or the evidence) describes it. Memory in bytes.

    ``total_bytes`` is NVML's; ``cuda_total_bytes`` is what CUDA (and so vLLM) will see: NVML v2 total
    minus reserved, or measured through libcuda with ``--deep`` (``cuda_source`` says which).
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    compute_capability: str | None = None  # "7.5"
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    cuda_total_bytes: int | None = None
    cuda_free_bytes: int | None = None
    cuda_context_bytes: int | None = None  # measured size of a fresh CUDA context (--deep)
    cuda_source: str | None = None
    cuda_error: str | None = None  # what CUDA itself answered to a first call (--deep), None when it worked
    cuda_error_code: int | None = None
    processes: tuple[GpuProcess, ...] | None = None  # None: the driver does not tell (WSL2)
    ecc: bool | None = None
    mig: bool | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    mem_clock_mhz: int | None = None
    mem_clock_max_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    display_attached: bool | None = None
    display_active: bool | None = None
    persistence: bool | None = None
    unreadable: tuple[str, ...] = ()  # fields that the driver answered "not supported" to
    sources: Mapping[str, str] = field(default_factory=dict)
