"""Weights of the building blocks that model families share: attention, MLPs, experts, recurrent mixers."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from doctor.memory.shape import Part, Role, Weight


def linear(
    module: str, outputs: int, inputs: int, part: Part = Part.LANGUAGE, bias: bool = False
) -> Iterator[Weight]:
    """A projection and its bias."""
    yield Weight(module, outputs, inputs, Role.LINEAR, part)
    if bias:
        yield other(module, outputs, part)


def other(module: str, elements: int, part: Part = Part.LANGUAGE) -> Weight:
    """Anything that is never quantised: norms, biases, convolutions, routers' corrections."""
    return Weight(module, 1, elements, Role.OTHER, part)


def attention(
    prefix: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    gated: bool = False,
    bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    shared_kv: bool = False,
    part: Part = Part.LANGUAGE,
) -> Iterator[Weight]:
    """Query, key, value and output projections. ``gated`` doubles the query; ``shared_kv`` drops the value."""
    queries = heads * head_dim
    yield from linear(f"{prefix}.q_proj", queries * (2 if gated else 1), hidden, part, bias)
    yield from linear(f"{prefix}.k_proj", kv_heads * head_dim, hidden, part, bias)
    if not shared_kv:
        yield from linear(f"{prefix}.v_proj", kv_heads * head_dim, hidden, part, bias)
    yield from linear(f"{prefix}.o_proj", hidden, queries, part, out_bias)
    if qk_norm:
        yield other(f"{prefix}.q_norm", head_dim, part)
        yield other(f"{prefix}.k_norm", head_dim, part)


def mlp(prefix: str, hidden: int, ffn: int, *, gated: bool = True, bias: bool = False,
        part: Part = Part.LANGUAGE) -> Iterator[Weight]:  # fmt: skip
    """A feed-forward block; ``gated`` has a gate beside the up projection."""
    if gated:
        yield from linear(f"{prefix}.gate_proj", ffn, hidden, part, bias)
    yield from linear(f"{prefix}.up_proj", ffn, hidden, part, bias)
    yield from linear(f"{prefix}.down_proj", hidden, ffn, part, bias)


def experts(
    prefix: str,
    hidden: int,
    ffn: int,
    count: int,
    chosen: int,
    *,
    gated: bool = True,
    bias: bool = False,
    shared_ffn: int = 0,
    shared_gate: bool = False,
    part: Part = Part.LANGUAGE,
) -> Iterator[Weight]:
    """A router, ``count`` experts of which ``chosen`` work on a token, and the shared expert if any."""
    share = Fraction(min(chosen, count), count)
    yield Weight(f"{prefix}.gate", count, hidden, Role.OTHER, part)
    names = ("gate_proj", "up_proj") if gated else ("up_proj",)
    for name in names:
        yield Weight(f"{prefix}.experts.{name}", ffn, hidden, Role.EXPERT, part, count, share)
    yield Weight(f"{prefix}.experts.down_proj", hidden, ffn, Role.EXPERT, part, count, share)
    if bias:
        yield Weight(f"{prefix}.experts", 1, (len(names) * ffn + hidden), Role.OTHER, part, count, share)
    if shared_ffn:
        yield from mlp(f"{prefix}.shared_expert", hidden, shared_ffn, gated=gated, part=part)
        if shared_gate:
            yield other(f"{prefix}.shared_expert_gate", hidden, part)


def delta_net(prefix: str, hidden: int, k_heads: int, v_heads: int, k_dim: int, v_dim: int,
              kernel: int) -> Iterator[Weight]:  # fmt: skip
    """A gated delta net: one projection for query, key and value, one for the gate, two small ones."""
    keys, values = k_heads * k_dim, v_heads * v_dim
    yield from linear(f"{prefix}.in_proj_qkv", 2 * keys + values, hidden)
    yield from linear(f"{prefix}.in_proj_z", values, hidden)
    yield from linear(f"{prefix}.in_proj_b", v_heads, hidden)
    yield from linear(f"{prefix}.in_proj_a", v_heads, hidden)
    yield from linear(f"{prefix}.out_proj", hidden, values)
    yield other(f"{prefix}.conv1d", (2 * keys + values) * kernel)
    yield other(f"{prefix}.A_log", 2 * v_heads + v_dim)


def mamba2(prefix: str, hidden: int, inner: int, heads: int, groups: int, state: int, kernel: int,
           bias: bool = False) -> Iterator[Weight]:  # fmt: skip
    """A Mamba 2 mixer."""
    channels = inner + 2 * groups * state
    yield from linear(f"{prefix}.in_proj", inner + channels + heads, hidden, bias=bias)
    yield from linear(f"{prefix}.out_proj", hidden, inner, bias=bias)
    yield other(f"{prefix}.conv1d", channels * (kernel + 1))
    yield other(f"{prefix}.A", 3 * heads + inner)


def latent_attention(prefix: str, hidden: int, heads: int, q_rank: int, kv_rank: int, nope: int, rope: int,
                     value: int, part: Part = Part.LANGUAGE) -> Iterator[Weight]:  # fmt: skip
    """Multi-head latent attention (DeepSeek): compressed keys and values, optionally compressed queries."""
    if q_rank:
        yield from linear(f"{prefix}.q_a_proj", q_rank, hidden, part)
        yield from linear(f"{prefix}.q_b_proj", heads * (nope + rope), q_rank, part)
    else:
        yield from linear(f"{prefix}.q_proj", heads * (nope + rope), hidden, part)
    yield from linear(f"{prefix}.kv_a_proj_with_mqa", kv_rank + rope, hidden, part)
    yield from linear(f"{prefix}.kv_b_proj", heads * (nope + value), kv_rank, part)
    yield from linear(f"{prefix}.o_proj", hidden, heads * value, part)


def vocabulary(prefix: str, head: str, vocabulary_size: int, hidden: int, tied: bool) -> Iterator[Weight]:
    """The embedding table and, unless it is tied to it, the output matrix.

    A tied table is looked up and also read whole as the output matrix, so decoding reads it.
    """
    yield Weight(f"{prefix}.embed_tokens", vocabulary_size, hidden, Role.EMBEDDING,
                 read=Fraction(1 if tied else 0))  # fmt: skip
    if not tied:
        yield Weight(head, vocabulary_size, hidden, Role.HEAD)


def vision_tower(prefix: str, hidden: int, ffn: int, depth: int, out: int, merge: int, patch_inputs: int,
                 positions: int) -> Iterator[Weight]:  # fmt: skip
    """A Qwen-style image encoder with its merger; all of it carries biases and none is quantised."""
    yield Weight(f"{prefix}.patch_embed", hidden, patch_inputs + 1, Role.OTHER, Part.VISION)
    if positions:
        yield Weight(f"{prefix}.pos_embed", positions, hidden, Role.OTHER, Part.VISION)
    block = (3 * hidden + hidden) * (hidden + 1) + ffn * (hidden + 1) + hidden * (ffn + 1) + 4 * hidden
    yield Weight(f"{prefix}.blocks", 1, block, Role.OTHER, Part.VISION, depth)
    wide = hidden * merge * merge
    yield Weight(f"{prefix}.merger", 1, wide * (wide + 1) + out * (wide + 1) + 2 * hidden, Role.OTHER, Part.VISION)
