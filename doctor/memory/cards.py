"""Cards to judge: from a name, from figures, or from the machine itself."""

from __future__ import annotations

from doctor.catalogue.gpus import GpuModel, capability_tuple, lookup, models
from doctor.catalogue.loader import table
from doctor.errors import DoctorError
from doctor.facts import GpuFacts
from doctor.memory.predict import Card
from doctor.memory.start_check import GIB


def named_cards(name: str, vram_gib: float | None, free_gib: float | None) -> list[Card]:
    """The card of this name, once for every memory size it is sold with unless ``vram_gib`` says which."""
    model = lookup(name)
    if model is None:
        import difflib  # only to help a typo

        near = difflib.get_close_matches(name.lower(), [m.pattern.lower() for m in models()], n=1, cutoff=0.4)
        hint = f"; the nearest known one is {near[0]!r}" if near else ""
        if vram_gib is None:
            raise DoctorError(f"--gpu {name!r} is not in the table of cards{hint}; give --vram GiB as well")
        return [plain_card(vram_gib, free_gib, name)]
    sizes = [vram_gib] if vram_gib is not None else [float(s) for s in model.vram_gib]
    if not sizes:
        raise DoctorError(f"--gpu {name!r}: its memory is not known here; give --vram GiB as well")
    return [_card(model, size, free_gib, exact=vram_gib is not None) for size in sizes]


def _card(model: GpuModel, size: float, free_gib: float | None, exact: bool) -> Card:
    # the nominal size is more than CUDA reports on Linux; a given one is taken as CUDA's
    share = 1.0 if exact else float(table("decoding")["cuda_share"]["linux"])
    return Card(
        f"{model.pattern} {size:g} GB" if len(model.vram_gib) > 1 or exact else model.pattern,
        int(size * share * GIB),
        int(free_gib * GIB) if free_gib is not None else None,
        capability_tuple(model.capability),
        model.bandwidth_gbs * 1e9 if model.bandwidth_gbs else None,
    )


def plain_card(vram_gib: float, free_gib: float | None, name: str = "") -> Card:
    """A card of which only the memory is known."""
    return Card(name or f"card with {vram_gib:g} GiB", int(vram_gib * GIB),
                int(free_gib * GIB) if free_gib is not None else None)  # fmt: skip


def local_cards() -> list[Card]:
    """The cards of this machine, as the driver tells; [] when there is none or no driver."""
    from doctor.host import LocalHost
    from doctor.host.examine import Options
    from doctor.host.gpu import probe

    try:
        gpus = probe(LocalHost(), Options()).get("gpus", ())
    except (OSError, RuntimeError, TimeoutError):
        return []
    return [card for card in map(card_of, gpus) if card is not None]


def card_of(gpu: GpuFacts) -> Card | None:
    """A card as the driver describes it; None when it does not tell its memory."""
    total = gpu.cuda_total_bytes or gpu.total_bytes
    if not total:
        return None
    # NVML's free memory does not yet hold vLLM's own context, CUDA's does
    free = gpu.cuda_free_bytes
    if free is None and gpu.free_bytes is not None:
        context: int = table("decoding")["context_bytes"]
        free = max(0, gpu.free_bytes - context)
    known = lookup(gpu.name)
    bandwidth = known.bandwidth_gbs * 1e9 if known and known.bandwidth_gbs else None
    capability = capability_tuple(gpu.compute_capability or (known.capability if known else None))
    return Card(gpu.name or f"GPU {gpu.index}", total, free, capability, bandwidth)
