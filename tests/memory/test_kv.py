"""Properties that hold for every model and pool, beyond the recorded points."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.memory.kv import highest_context, needed_bytes, size_pool
from doctor.memory.layout import KV_DTYPES, KvOptions, UnsupportedOption, lay_out
from doctor.memory.versions import switches
from tests.memory.support import GIB, pool, shape

MODELS = ("qwen3.5-9b", "qwen3.5-27b", "families/llama", "families/gemma3", "families/gpt-oss",
          "families/granite-hybrid", "families/deepseek-v3", "families/llama4")  # fmt: skip
VERSIONS = ("0.19.1", "0.21.0", "0.26.0", "0.32.0")

models = st.sampled_from(MODELS)
versions = st.sampled_from(VERSIONS)
lengths = st.integers(1024, 200_000)
pools = st.integers(GIB // 2, 80 * GIB)


@given(models, versions, pools, lengths)
@settings(max_examples=60, deadline=None)
def test_more_memory_never_holds_less(model: str, version: str, available: int, length: int) -> None:
    v = switches(version)
    small = size_pool(shape(model), available, KvOptions(length), v)
    large = size_pool(shape(model), available + GIB, KvOptions(length), v)
    assert large.num_blocks >= small.num_blocks
    assert large.capacity_tokens >= small.capacity_tokens
    assert large.highest_context >= small.highest_context
    assert large.fits or not small.fits


@given(models, versions, pools, lengths)
@settings(max_examples=60, deadline=None)
def test_the_pool_is_never_larger_than_the_memory(model: str, version: str, available: int, length: int) -> None:
    p = size_pool(shape(model), available, KvOptions(length), switches(version))
    assert p.num_blocks * p.layout.bytes_per_block <= available
    assert (p.num_blocks + 1) * p.layout.bytes_per_block > available
    assert p.fits == (available >= p.needed_bytes)


@given(models, versions, pools)
@settings(max_examples=40, deadline=None)
def test_the_highest_context_is_the_edge(model: str, version: str, available: int) -> None:
    v, options = switches(version), KvOptions(4096)
    longest = highest_context(shape(model), available, options, v)
    limit = max(shape(model).max_positions, 4096)

    def fits(length: int) -> bool:
        return needed_bytes(lay_out(shape(model), replace(options, max_model_len=length), v), v) <= available

    assert longest == 0 or fits(longest)
    assert longest == limit or not fits(longest + 1)


@given(st.sampled_from(("qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b")), st.integers(0, 4),
       st.sampled_from([d for d in KV_DTYPES if d != "nvfp4"]))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_block_of_a_hybrid_holds_a_state(model: str, drafts: int, dtype: str) -> None:
    layout = lay_out(shape(model), KvOptions(8192, drafts, True, dtype), switches("0.26.0"))
    assert layout.block_size % 16 == 0
    assert layout.block_size * layout.token_bytes >= layout.state_bytes
    assert (layout.block_size - 16) * layout.token_bytes < layout.state_bytes


def test_drafts_only_ever_cost_pool() -> None:
    sizes = [pool("qwen3.5-9b", 7, 8192, mtp=k, prefix_caching=True).capacity_tokens for k in range(5)]
    assert sizes == sorted(sizes, reverse=True)


def test_every_layer_is_in_a_group() -> None:
    for name in (*MODELS, "families/gemma4", "families/nemotron-h"):
        layers = lay_out(shape(name), KvOptions(8192), switches("0.32.0")).groups
        assert sum(g.layers for g in layers) == len(shape(name).layers), name


def test_options_that_vllm_refuses() -> None:
    with pytest.raises(UnsupportedOption, match="no MTP head"):
        pool("families/llama", 4, 2048, mtp=2)
    with pytest.raises(UnsupportedOption, match="does not divide 4 KV heads"):
        pool("qwen3.5-9b", 4, 2048, tp=3)
    with pytest.raises(UnsupportedOption, match="'fp7' is not known"):
        pool("qwen3.5-9b", 4, 2048, kv_cache_dtype="fp7")
    with pytest.raises(UnsupportedOption, match="latent attention"):
        pool("families/deepseek-v3", 4, 2048, kv_cache_dtype="nvfp4")


def test_states_everywhere_is_a_mode_of_older_versions() -> None:
    def mode(version: str, name: str) -> str | None:
        return pool(name, 8, 8192, version, prefix_caching=True).layout.state_mode

    assert mode("0.26.0", "families/granite-hybrid") == "all"
    assert mode("0.32.0", "families/granite-hybrid") == "align"
    assert mode("0.26.0", "qwen3.5-9b") == "align"


def test_a_user_block_size_is_a_lower_bound() -> None:
    layout = lay_out(shape("qwen3.5-9b"), KvOptions(8192, block_size=128), switches("0.32.0"))
    assert layout.block_size == 640  # what a CPU server with its default block of 128 prints
    assert lay_out(shape("families/llama"), KvOptions(8192, block_size=32), switches("0.32.0")).block_size == 32
