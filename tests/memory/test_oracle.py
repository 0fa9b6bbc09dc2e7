"""Bit for bit against what vLLM's own sizing code answered (recorded; test_oracle_live.py asks it again)."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.memory.kv import size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.versions import switches
from doctor.memory.weights import weights_from_shapes
from tests.memory.support import rows, shape

QWEN_HEADER, QWEN = rows("qwen35")
FAMILY_HEADER, FAMILIES = rows("families")
#: Families whose capacities must be exact, with their largest error of weight bytes (parts in a million).
NAMES = sorted({row["model"] for row in FAMILIES})
WEIGHT_TOLERANCE_PPM = {"phi": 40}


def test_the_tables_cover_what_they_promise() -> None:
    assert len(QWEN) >= 300
    assert {row["model"] for row in QWEN} == {"qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b"}
    assert {row["mtp"] for row in QWEN} == {0, 1, 2, 3, 4}
    assert {row["prefix_caching"] for row in QWEN} == {True, False}
    assert min(row["max_model_len"] for row in QWEN) == 1024
    assert max(row["max_model_len"] for row in QWEN) == 262144
    assert {row["max_num_seqs"] for row in QWEN} >= {1, 64}
    assert len({row["kv_cache_dtype"] for row in QWEN}) >= 9
    assert sum(row["num_blocks"] is None for row in QWEN) >= 30  # refusals are compared too
    assert len(NAMES) >= 25


@pytest.mark.parametrize("model", ["qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b"])
def test_qwen_pools_equal_vllm(model: str) -> None:
    version = switches(QWEN_HEADER["vllm"])
    for row in QWEN:
        if row["model"] != model:
            continue
        options = KvOptions(
            row["max_model_len"],
            row["mtp"],
            row["prefix_caching"],
            row["kv_cache_dtype"],
            row["max_num_seqs"],
            tp=row["tp"],
        )
        pool = size_pool(shape(model), row["available_bytes"], options, version)
        assert pool.fits == (row["num_blocks"] is not None), row
        if pool.fits:
            got = (pool.block_size, pool.layout.bytes_per_block, pool.num_blocks, pool.capacity_tokens,
                   pool.max_concurrency, pool.layout.state_mode)  # fmt: skip
            assert got == _expected(row), row


def _expected(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[k] for k in ("block_size", "bytes_per_block", "num_blocks", "capacity_tokens",
                                  "max_concurrency", "state_mode"))  # fmt: skip


@pytest.mark.parametrize("model", NAMES)
def test_family_pools_equal_vllm(model: str) -> None:
    version = switches(FAMILY_HEADER["vllm"])
    for row in (r for r in FAMILIES if r["model"] == model):
        options = KvOptions(
            row["max_model_len"],
            prefix_caching=row["prefix_caching"],
            kv_cache_dtype=row["kv_cache_dtype"],
            max_num_batched_tokens=row["max_num_batched_tokens"],
        )
        pool = size_pool(shape(f"families/{model}"), row["available_bytes"], options, version)
        assert pool.fits == (row["num_blocks"] is not None), row
        if pool.fits:
            got = (pool.block_size, pool.num_blocks, pool.capacity_tokens, pool.max_concurrency)
            assert got == (row["block_size"], row["num_blocks"], row["capacity_tokens"], row["max_concurrency"]), (
                row
            )


@pytest.mark.parametrize("model", NAMES)
def test_weight_bytes_equal_vllms_parameters(model: str) -> None:
    expected = next(row["parameter_bytes"] for row in FAMILIES if row["model"] == model)
    got = weights_from_shapes(shape(f"families/{model}")).language
    assert abs(got - expected) * 1_000_000 <= expected * WEIGHT_TOLERANCE_PPM.get(model, 2), got - expected
