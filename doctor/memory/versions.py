"""What changed between vLLM versions, read from a table: no version is compared anywhere else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from doctor.catalogue.loader import table
from doctor.errors import DoctorError


@dataclass(frozen=True)
class Switches:
    """How one vLLM version sizes memory.

    ``capacity_rule``: "concurrency" prints ``int(concurrency * max_model_len)`` as the KV cache size,
    "blocks" printed whole blocks of one group. ``checks_null_block``: one block is taken off before it is
    asked whether one request fits. ``in_flight_batches`` batches hold tokens outside a sliding window.
    """

    version: str
    default_utilization: float
    capacity_rule: str
    checks_null_block: bool
    estimates_cudagraphs: bool
    hybrid_prefix_caching: bool
    state_mode_all: bool
    mamba2_checkpoint_blocks: int
    in_flight_batches: int
    merges_mergeable_specs: bool
    checks_sequences_against_states: bool
    size_log: str
    extrapolated: bool = False


@lru_cache(maxsize=32)
def switches(version: str | None = None) -> Switches:
    """The switches of a version; of the one the project's image carries when ``version`` is None.

    ``extrapolated`` is true outside the range of versions whose source was read.
    """
    from packaging.version import InvalidVersion, Version

    data: dict[str, Any] = table("vllm_memory")
    name = version or data["assumed"]
    try:
        wanted = Version(name.split("+")[0])
    except InvalidVersion:
        raise DoctorError(f"--vllm {name!r} is not a version; give one like {data['newest_read']}") from None
    values: dict[str, Any] = {}
    for row in data["switches"]:
        # .dev0: a pre-release of a version already has its switches
        if wanted >= Version(f"{row['since']}.dev0"):
            values.update(row["set"])
    outside = not Version(data["oldest_read"]) <= wanted <= Version(data["newest_read"])
    return Switches(version=name, extrapolated=outside, **values)
