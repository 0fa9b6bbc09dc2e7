"""The comparison vLLM makes before it loads anything: is the fraction asked for really free?

Read in vLLM's ``request_memory`` (the same in 0.19.1 to 0.33): it asks for
``ceil(total * gpu_memory_utilization)`` bytes and refuses when fewer are free. ``total`` and ``free``
are CUDA's (cuMemGetInfo), taken after the process made its own CUDA context. Weights play no part.
"""

from __future__ import annotations

import math

GIB = 1 << 30

#: Bytes to leave free beyond what the start check wants: vLLM allocates after profiling too (sampler
#: buffers, captured graphs), and a desktop on the same card needs room to move.
RESERVE_BYTES = GIB // 2


def requested_bytes(total_bytes: int, utilization: float) -> int:
    """Bytes that vLLM asks for at this fraction, in the same floating point steps as vLLM."""
    return math.ceil(total_bytes * utilization)


def starts(total_bytes: int, free_bytes: int, utilization: float) -> bool:
    """True when the start check passes; exactly enough passes."""
    return free_bytes >= requested_bytes(total_bytes, utilization)


def highest_utilization(total_bytes: int, free_bytes: int) -> float:
    """The highest two-digit fraction that passes the start check, at most 1.0; 0.0 when 0.01 does not."""
    if total_bytes <= 0 or free_bytes <= 0:
        return 0.0
    hundredths = min(100, free_bytes * 100 // total_bytes + 1)
    while hundredths > 0 and not starts(total_bytes, free_bytes, hundredths / 100):
        hundredths -= 1
    return hundredths / 100


def recommended_utilization(total_bytes: int, free_bytes: int, reserve_bytes: int = RESERVE_BYTES) -> float:
    """The highest two-digit fraction that still leaves ``reserve_bytes`` free; 0.0 when there is none."""
    return highest_utilization(total_bytes, free_bytes - reserve_bytes)


def default_utilization(vllm_version: str | None) -> float:
    """vLLM's default fraction: 0.9 up to 0.19.x, 0.92 from 0.20.0 and when the version is not known."""
    if vllm_version:
        from packaging.version import InvalidVersion, Version

        try:
            return 0.9 if Version(vllm_version) < Version("0.20.0.dev0") else 0.92
        except InvalidVersion:
            pass
    return 0.92
