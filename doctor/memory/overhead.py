"""What vLLM needs beside weights and KV cache, as a range: activations, runtime, CUDA graphs.

vLLM measures this by running one full batch through the model before it sizes the pool. It cannot be
computed exactly, so every figure here is (low, likely, high); after one real start the measured value
replaces it (see :mod:`doctor.memory.calibration`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from doctor.catalogue.loader import table
from doctor.memory.layout import KvOptions
from doctor.memory.shape import ModelShape
from doctor.memory.versions import Switches
from doctor.memory.weights import Weights


class Compile(str, Enum):
    """State of the torch.compile cache: the first start of a configuration profiles a larger peak."""

    COLD = "cold"
    WARM = "warm"
    EAGER = "eager"


@dataclass(frozen=True)
class Span:
    """Bytes, as low, likely and high."""

    low: int
    likely: int
    high: int

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def largest(self, other: Span) -> Span:
        """The larger of both at each point: stages that do not happen at the same time."""
        return Span(max(self.low, other.low), max(self.likely, other.likely), max(self.high, other.high))


def _span(values: list[float], factor: float = 1.0) -> Span:
    low, likely, high = (int(v * factor) for v in values)
    return Span(low, likely, high)


@dataclass(frozen=True)
class Overhead:
    """Bytes by cause. ``rounding`` belongs to what vLLM logs as model weights: the allocator's rounding
    and the matrix library's workspace; the other three to what it logs as peak activation, non-torch
    and CUDA graph memory."""

    activation: Span
    runtime: Span
    graphs: Span
    rounding: Span

    @property
    def total(self) -> Span:
        """Everything that is neither weights nor KV cache."""
        return self.activation + self.runtime + self.graphs + self.rounding


def overhead(
    shape: ModelShape,
    weights: Weights,
    options: KvOptions,
    version: Switches,
    *,
    compiled: Compile,
    vision: bool,
    capability: tuple[int, int] | None,
) -> Overhead:
    """The range for one start. ``vision``: the image encoder is loaded and profiled too."""
    data: dict[str, Any] = table("overhead")
    return Overhead(
        activation=_activation(data, shape, weights, options, version, compiled, vision),
        runtime=_span(data["runtime_bytes"])
        + _span(data["quantised_kv_bytes"] if _quantised(options) else [0, 0, 0]),
        graphs=_graphs(data, options, version, compiled),
        rounding=_rounding(data, options, capability),
    )


def _quantised(options: KvOptions) -> bool:
    return options.kv_cache_dtype not in ("auto", "bfloat16", "float16", "half")


def _activation(data: dict[str, Any], shape: ModelShape, weights: Weights, options: KvOptions, version: Switches,
                compiled: Compile, vision: bool) -> Span:  # fmt: skip
    tokens, hidden_bytes = options.max_num_batched_tokens, shape.hidden * 2
    constant = data["eager_constant_bytes" if compiled is Compile.EAGER else "forward_constant_bytes"]
    forward = _span(data["forward_copies"], tokens * shape.widest * 2 / options.tp) + _span(constant)
    # logits in float32, one row for each sequence and draft token
    rows = options.max_num_seqs * (1 + options.draft_tokens)
    peak = forward.largest(_span(data["sampler_copies"], rows * shape.vocabulary * 4))
    per_hidden = tokens * hidden_bytes
    drafting = options.draft_tokens > 0
    peak += _span(data["draft_hidden_copies"], per_hidden if drafting else 0)
    if compiled is Compile.COLD:
        table_bytes = (weights.embedding or weights.head) // options.tp
        compiling = _span([1, 1, 1], table_bytes) + _span(data["cold_constant_bytes"])
        compiling += _span(data["cold_hidden_copies"], per_hidden)
        compiling += _span(data["cold_draft_hidden_copies"], per_hidden if drafting else 0)
        if version.version not in data["cold_measured_with"]:
            compiling = Span(0, compiling.likely, compiling.high)  # likely the same, not certain
        peak = peak.largest(compiling)
    if vision:
        peak += _span(data["vision_bytes"])
    return peak


def capture_sizes(options: KvOptions) -> int:
    """How many CUDA graphs vLLM captures: mixed batches and whole decode steps."""
    step = 1 + options.draft_tokens
    largest = min(options.max_num_seqs * step * 2, 512)
    plain = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    # with drafts a step has 1 + K tokens for each sequence, and sizes are rounded up to whole steps
    sizes = {size for s in plain if (size := -(-s // step) * step) <= largest}
    decode = {size for size in sizes if size <= options.max_num_seqs * step}
    return max(1, len(sizes)) + max(1, len(decode))


def _graphs(data: dict[str, Any], options: KvOptions, version: Switches, compiled: Compile) -> Span:
    if compiled is Compile.EAGER or not version.estimates_cudagraphs:
        return Span(0, 0, 0)
    further = max(0, capture_sizes(options) - 2)
    return _span(data["graph_first_bytes"]) + _span(data["graph_further_bytes"], further)


def _rounding(data: dict[str, Any], options: KvOptions, capability: tuple[int, int] | None) -> Span:
    workspaces: dict[str, int] = data["cublas_workspace_bytes"]
    large = capability is not None and capability >= (9, 0)
    span = _span([1, 1, 1], workspaces["9.0" if large else "0"]) + _span(data["rounding_bytes"])
    if options.draft_tokens:
        span += _span(data["draft_rounding_bytes"])
    if _quantised(options):
        span += _span(data["quantised_kv_rounding_bytes"])
    return span
