"""Every figure that was seen on a real card or in a public report, reproduced."""

from __future__ import annotations

import pytest

from doctor.memory.layout import KvOptions, lay_out
from doctor.memory.start_check import GIB, highest_utilization, starts
from doctor.memory.versions import switches
from doctor.memory.weights import weights_from_shapes
from tests.memory.reference import Point, points
from tests.memory.support import pool, shape


@pytest.mark.parametrize("point", points(), ids=lambda p: p.case)
def test_reported_pools_are_reproduced(point: Point) -> None:
    assert point.predicted_fits is not point.refused
    if point.reported_tokens is not None:
        assert point.predicted_tokens == point.reported_tokens
        assert point.reported_tokens in point.possible_tokens
    if point.reported_about is not None:
        assert abs(point.predicted_tokens - point.reported_about) < 0.02 * point.reported_about
    if point.reported_blocks is not None:
        assert point.predicted_blocks == point.reported_blocks


@pytest.mark.parametrize(
    ("model", "mtp", "block", "mb_per_block", "groups", "floor_kib"),
    [
        ("qwen3.5-4b", 0, 528, 17.30, [8, 8, 8, 8], 32),
        ("qwen3.5-9b", 0, 528, 17.30, [8, 8, 8, 8], 32),
        ("qwen3.5-9b", 2, 544, 20.05, [9, 8, 8, 8], 36),
        ("qwen3.5-27b", 0, 784, 51.38, [16, 16, 16, 16], 64),
        ("qwen3.5-27b", 2, 800, 55.71, [17, 16, 16, 16], 68),
        ("qwen3.5-35b-a3b", 0, 1056, 21.63, [10, 10, 10, 10], 20),
        ("qwen3.5-35b-a3b", 2, 1072, 24.15, [11, 10, 10, 10], 22),
    ],
)
def test_blocks_and_groups(
    model: str, mtp: int, block: int, mb_per_block: float, groups: list[int], floor_kib: int
) -> None:
    layout = pool(model, 4, 8192, mtp=mtp, prefix_caching=False).layout
    assert layout.block_size == block
    assert round(layout.bytes_per_block / 1e6, 2) == mb_per_block
    assert [group.layers for group in layout.groups] == groups
    assert layout.kept_token_bytes == floor_kib * 1024


@pytest.mark.parametrize(("mtp", "block"), [(0, 528), (1, 528), (2, 544), (3, 544), (4, 544)])
def test_block_of_the_9b_by_draft_tokens(mtp: int, block: int) -> None:
    assert pool("qwen3.5-9b", 4, 8192, mtp=mtp).block_size == block


@pytest.mark.parametrize(
    ("dtype", "mtp", "block"),
    [("fp8", 0, 1056), ("fp8", 2, 1072), ("int8_per_token_head", 0, 1040), ("turboquant_k8v4", 0, 1392),
     ("turboquant_4bit_nc", 0, 2048)],
)  # fmt: skip
def test_block_of_the_9b_by_kv_format(dtype: str, mtp: int, block: int) -> None:
    assert pool("qwen3.5-9b", 4, 8192, mtp=mtp, kv_cache_dtype=dtype).block_size == block


@pytest.mark.parametrize(("mtp", "block"), [(0, 784), (2, 800), (3, 800), (4, 816)])
def test_block_of_the_27b_on_two_cards(mtp: int, block: int) -> None:
    assert pool("qwen3.5-27b", 4, 8192, mtp=mtp, tp=2).block_size == block


def test_the_9b_state_is_what_its_block_rule_says() -> None:
    assert pool("qwen3.5-9b", 4, 8192).layout.state_bytes == 49_152 + 2_097_152
    assert pool("qwen3.5-9b", 4, 8192, mtp=2).layout.state_bytes == 2_179_072


def test_half_precision_states_halve_the_block() -> None:
    layout = lay_out(shape("qwen3.5-9b"), KvOptions(8192, ssm_dtype_bytes=2), switches("0.32.0"))
    assert layout.block_size == 16 * -(-(49_152 + 1_048_576) // 65_536)


def test_27b_costs_111_kib_a_token_at_4k_only() -> None:
    at_4k, at_8k = pool("qwen3.5-27b", 2.32, 4096), pool("qwen3.5-27b", 2.32, 8192, prefix_caching=False)
    assert (
        round(2.32 * GIB / pool("qwen3.5-27b", 2.32, 4096, prefix_caching=False).capacity_tokens / 1024, 1)
        == 111.4
    )
    assert at_4k.layout.block_size == 784
    assert round(at_8k.layout.blocks_per_request * at_8k.layout.bytes_per_block / GIB, 2) == 0.67


def test_262k_needs_500_blocks_and_503_with_prefix_caching() -> None:
    assert pool("qwen3.5-9b", 9.26, 262144, prefix_caching=False).layout.blocks_per_request == 500
    assert pool("qwen3.5-9b", 9.26, 262144, prefix_caching=True).layout.blocks_per_request == 503
    with_mtp = pool("qwen3.5-9b", 6.9, 262144, "0.21.0", mtp=2, prefix_caching=True)
    assert with_mtp.layout.blocks_per_request == 494
    assert round(with_mtp.needed_bytes / GIB, 2) == 9.23
    assert not with_mtp.fits


def test_one_block_is_kept_back_from_0_30_on() -> None:
    # 33 blocks are needed; exactly 33 are there
    layout = pool("qwen3.5-27b", 1.71, 16384, "0.26.0", mtp=3, prefix_caching=False).layout
    exactly = layout.bytes_per_block * layout.blocks_per_request / GIB
    assert pool("qwen3.5-27b", exactly, 16384, "0.26.0", mtp=3, prefix_caching=False).fits
    assert not pool("qwen3.5-27b", exactly, 16384, "0.30.0", mtp=3, prefix_caching=False).fits


def test_refusal_names_what_is_needed() -> None:
    refused = pool("qwen3.5-9b", 7.06, 262144, prefix_caching=False)
    assert refused.refusal.startswith("one request of 262,144 tokens needs 500 blocks and one spare = 8.07 GiB")
    assert "7.06 GiB" in refused.refusal
    assert refused.highest_context == 229_152


def test_reference_card_starts_at_094_and_not_at_095() -> None:
    total, free = 22 * GIB, int(20.81 * GIB)
    assert starts(total, free, 0.94)
    assert not starts(total, free, 0.95)
    assert highest_utilization(total, free) == 0.94


def test_prefix_hits_come_in_blocks() -> None:
    plain = pool("qwen3.5-9b", 7.06, 8192, prefix_caching=True)
    assert plain.prefix_hit_step == 528
    assert plain.smallest_prefix_hit == 529
    with_mtp = pool("qwen3.5-9b", 7.06, 8192, mtp=2, prefix_caching=True)
    assert with_mtp.prefix_hit_step == 544
    assert with_mtp.smallest_prefix_hit == 2 * 544 + 1
    assert pool("qwen3.5-9b", 7.06, 8192, prefix_caching=False).prefix_hit_step is None


def test_checkpoint_sizes() -> None:
    awq = weights_from_shapes(shape("qwen3.5-9b-awq"))
    assert round((awq.language + awq.vision + awq.draft) / 1e9, 3) == 12.376
    assert round(awq.language / 1e9, 2) == 10.98
    assert round(awq.draft / 1e6, 1) == 486.6
    large = weights_from_shapes(shape("qwen3.5-27b"))
    assert round((large.language + large.vision + large.draft) / GIB, 2) == 51.75
    assert round(large.draft / 1e6, 1) == 849.4


def test_versions_change_the_defaults() -> None:
    assert not switches("0.25.1").hybrid_prefix_caching
    assert switches("0.26.0").hybrid_prefix_caching
    assert switches("0.26.0rc1").hybrid_prefix_caching
    assert (switches("0.19.1").default_utilization, switches("0.20.0").default_utilization) == (0.9, 0.92)
    assert switches("0.20.0").capacity_rule == "blocks"
    assert switches("0.20.2").capacity_rule == "concurrency"
    assert switches("0.40").extrapolated
    assert not switches("0.26.0+cu130").extrapolated
