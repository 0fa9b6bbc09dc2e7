"""Before the start: what one card leaves for the KV cache, and what vLLM will print about it."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.memory.kv import KvPool, size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.overhead import Compile, Overhead, Span, overhead
from doctor.memory.shape import ModelShape
from doctor.memory.start_check import requested_bytes
from doctor.memory.versions import Switches
from doctor.memory.weights import Weights


@dataclass(frozen=True)
class Card:
    """One GPU. ``total_bytes`` as CUDA sees it; ``free_bytes`` None when nothing else is known to use it."""

    name: str
    total_bytes: int
    free_bytes: int | None = None
    capability: tuple[int, int] | None = None
    bandwidth: float | None = None  # bytes a second


@dataclass(frozen=True)
class Start:
    """How vLLM is started, beyond what the pool's layout depends on."""

    utilization: float
    compiled: Compile = Compile.WARM
    vision: bool = False


@dataclass(frozen=True)
class Prediction:
    """One start. ``available`` is the KV pool's size; its pools are those of low, likely and high.

    ``calibrated``: the overhead was measured on this machine, so the three are equal.
    """

    requested_bytes: int
    weights_bytes: int
    overhead: Overhead
    available: Span
    low: KvPool
    likely: KvPool
    high: KvPool
    calibrated: bool = False


def predict(shape: ModelShape, weights: Weights, card: Card, start: Start, options: KvOptions,
            version: Switches) -> Prediction:  # fmt: skip
    """Predicts one start on one card."""
    vision = start.vision and shape.vision is not None
    extra = overhead(shape, weights, options, version, compiled=start.compiled, vision=vision,
                     capability=card.capability)  # fmt: skip
    resident = weights.resident(vision=vision, draft=options.draft_tokens > 0) // options.tp
    requested = requested_bytes(card.total_bytes, start.utilization)
    left = requested - resident
    total = extra.total
    available = Span(left - total.high, left - total.likely, left - total.low)
    low, likely, high = (
        size_pool(shape, max(0, value), options, version)
        for value in (available.low, available.likely, available.high)
    )
    return Prediction(requested, resident, extra, available, low, likely, high)
