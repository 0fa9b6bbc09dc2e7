"""What several checks ask of a card."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.catalogue.gpus import capability_tuple, lookup
from doctor.facts import GpuFacts
from doctor.memory.start_check import GIB
from doctor.snapshot import Snapshot


def label(gpu: GpuFacts) -> str:
    """ "GPU 0 (NVIDIA GeForce RTX 2080 Ti)"."""
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"


def capability(gpu: GpuFacts) -> tuple[int, int] | None:
    """As the driver reports it, else by the card's name; None when neither is known."""
    known = capability_tuple(gpu.compute_capability)
    if known is None:
        model = lookup(gpu.name)
        known = capability_tuple(model.capability) if model else None
    return known


def visible(snapshot: Snapshot) -> tuple[GpuFacts, ...]:
    """The cards that a process started from this environment sees; all when nothing hides any."""
    gpus = snapshot.gpus or ()
    wanted = snapshot.driver.env.get("CUDA_VISIBLE_DEVICES") if snapshot.driver else None
    if wanted is None:
        return gpus
    chosen: list[GpuFacts] = []
    for item in (part.strip() for part in wanted.split(",")):
        match = [
            g for g in gpus if item == str(g.index) or (item[:4] == "GPU-" and (g.uuid or "").startswith(item))
        ]
        if not match:
            break  # CUDA ignores everything after the first entry it does not know
        chosen += match[:1]
    return tuple(chosen)


@dataclass(frozen=True)
class Room:
    """Memory of one card as vLLM's start check will see it, in bytes.

    ``with_context`` is true when ``free`` was measured inside a CUDA context, as vLLM measures it;
    otherwise vLLM will see less by what a context takes.
    """

    gpu: GpuFacts
    total: int
    free: int
    with_context: bool
    total_field: str
    free_field: str

    @property
    def context(self) -> tuple[int, int]:
        """The share of vLLM's own CUDA context that ``free`` does not yet reflect: lowest and highest."""
        return (0, 0) if self.with_context else (0, CONTEXT_BYTES)

    @property
    def left(self) -> int:
        """Free bytes that vLLM is sure to find once it has made its own context."""
        return self.free - self.context[1]

    def figures(self) -> str:
        """ "20.81 of 22.00 GiB"."""
        return f"{self.free / GIB:.2f} of {self.total / GIB:.2f} GiB"


#: The largest share of a fresh CUDA context seen: an H200 had 139.80 GiB free before, 139.29 GiB in a bare
#: context and in vLLM's first measurement alike. Other cards may differ; ``check --deep`` measures it.
CONTEXT_BYTES = round(0.51 * GIB)


def room(gpu: GpuFacts) -> Room | None:
    """Total and free memory of a card, the best figures known; None when one is missing."""
    total, total_field = gpu.cuda_total_bytes, "cuda_total_bytes"
    if total is None:
        total, total_field = gpu.total_bytes, "total_bytes"
    with_context = gpu.cuda_free_bytes is not None
    free = gpu.cuda_free_bytes if with_context else gpu.free_bytes
    if total is None or free is None or total <= 0:
        return None
    field = "cuda_free_bytes" if with_context else "free_bytes"
    return Room(gpu, total, min(free, total), with_context, total_field, field)


def position(snapshot: Snapshot, gpu: GpuFacts) -> int:
    """The place of a card in ``snapshot.gpus``, for evidence paths."""
    return (snapshot.gpus or ()).index(gpu)


def hours(seconds: float) -> str:
    """ "3 h", "12 min", "5 d"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86400:.0f} d"
