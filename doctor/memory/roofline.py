"""The ceiling that memory bandwidth sets for decoding one sequence: bytes read per token.

    tokens/s <= A * bandwidth / (target_read + kv_read + K * draft_read)

A is the mean number of tokens a step yields (1 without drafts, at most K + 1). The embedding table is
looked up, not read; the output matrix is read once a step and once for every draft token.
"""

from __future__ import annotations

from dataclasses import dataclass

from doctor.catalogue.loader import table
from doctor.memory.weights import Weights


@dataclass(frozen=True)
class Ceiling:
    """Bytes and tokens a second; ``likely`` applies the share that real servers reached (CUDA graphs)."""

    step_bytes: int
    target_bytes: int
    kv_bytes: int
    draft_bytes: int
    acceptance: float
    tokens_per_s: float | None
    likely_tokens_per_s: float | None


def measured_acceptance(draft_tokens: int) -> float | None:
    """Mean accepted length at K drafts as measured on Qwen3.5, None beyond the positions measured."""
    positions: list[float] = table("decoding")["acceptance"]
    if draft_tokens > len(positions):
        return None
    # each figure is the share of steps in which that position was accepted
    return 1 + sum(positions[:draft_tokens])


def ceiling(
    weights: Weights,
    kept_token_bytes: int,
    context: int,
    bandwidth: float | None,
    *,
    draft_tokens: int = 0,
    acceptance: float | None = None,
    eager: bool = False,
    tp: int = 1,
) -> Ceiling:
    """The ceiling at one context length. ``bandwidth`` in bytes a second, of one card."""
    target = weights.decode_read // tp
    kv = kept_token_bytes * context
    draft = draft_tokens * weights.draft_read // tp
    length = acceptance if acceptance is not None else measured_acceptance(draft_tokens) or 1.0
    step = target + kv + draft
    speed = length * bandwidth / step if bandwidth else None
    share = table("decoding")["efficiency"]["eager" if eager else "graphs"]
    return Ceiling(step, target, kv, draft, length, speed, speed * share if speed else None)


def break_even(weights: Weights, draft_tokens: int, kept_token_bytes: int = 0, context: int = 0) -> float:
    """The mean accepted length above which drafting is faster than not drafting."""
    plain = weights.decode_read + kept_token_bytes * context
    return (plain + draft_tokens * weights.draft_read) / plain
