"""What vLLM refuses although the memory would do: rules of recurrent layers, and KV formats a card cannot use."""

from __future__ import annotations

from doctor.memory.compatibility import kv_dtype_problem
from doctor.memory.kv import KvPool
from doctor.memory.layout import KvOptions, Layout
from doctor.memory.predict import Card
from doctor.memory.shape import ModelShape
from doctor.memory.versions import Switches


def block_refusal(layout: Layout, options: KvOptions) -> str:
    """Prefix caching aligns states to whole blocks, and a batch has to hold one; "" when it does."""
    if layout.state_mode != "align" or options.max_num_batched_tokens >= layout.block_size:
        return ""
    return (
        f"vLLM will refuse: block size {layout.block_size} must not exceed max_num_batched_tokens "
        f"{options.max_num_batched_tokens}; give --max-num-batched-tokens {layout.block_size} or "
        "--no-prefix-caching"
    )


def sequences_refusal(pool: KvPool, options: KvOptions, version: Switches, *, eager: bool) -> str:
    """With full CUDA graphs every sequence needs a block for its state; "" when there are enough."""
    if eager or not version.checks_sequences_against_states or pool.layout.state_mode is None:
        return ""
    if options.max_num_seqs <= pool.num_blocks:
        return ""
    return (
        f"vLLM will refuse: max_num_seqs {options.max_num_seqs} exceeds the {pool.num_blocks} blocks of the pool, "
        f"and every sequence needs one for its state; give --max-num-seqs {max(1, pool.num_blocks)} or less"
    )


def needs_bfloat16(shape: ModelShape, card: Card, options: KvOptions) -> bool:
    """FlashAttention 3 (Hopper) takes an fp8 cache only with bfloat16: seen with vLLM 0.26.0 on an H200."""
    hopper = card.capability is not None and card.capability[0] == 9
    return hopper and options.kv_cache_dtype.startswith("fp8") and shape.dtype.endswith("float16") and (
        not shape.dtype.endswith("bfloat16")
    )  # fmt: skip


def kv_format_warnings(shape: ModelShape, card: Card, options: KvOptions) -> list[str]:
    """What is known against this KV format on this card."""
    out = []
    if needs_bfloat16(shape, card, options):
        out.append(
            "an fp8 cache with a float16 model is refused on this card (FlashAttention 3 wants bfloat16): start "
            "with --dtype bfloat16"
        )
    if problem := kv_dtype_problem(options.kv_cache_dtype, card.capability):
        out.append(f"{problem}: an attention backend may refuse the {options.kv_cache_dtype} cache; not measured")
    return out
