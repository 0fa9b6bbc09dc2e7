"""The start check, against figures people saw vLLM print."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.memory.start_check import (
    GIB,
    default_utilization,
    highest_utilization,
    recommended_utilization,
    requested_bytes,
    starts,
)

MIB = 1 << 20
TOTAL_2080TI = 22528 * MIB
FREE_2080TI = round(20.81 * GIB)


def test_the_22_gb_card_under_wsl2_refuses_095_and_takes_094() -> None:
    assert requested_bytes(TOTAL_2080TI, 0.95) / GIB == pytest.approx(20.90, abs=0.005)
    assert not starts(TOTAL_2080TI, FREE_2080TI, 0.95)
    assert starts(TOTAL_2080TI, FREE_2080TI, 0.94)
    assert highest_utilization(TOTAL_2080TI, FREE_2080TI) == 0.94
    assert recommended_utilization(TOTAL_2080TI, FREE_2080TI) == 0.92


def test_a_5090_under_wsl2_that_was_refused_at_095() -> None:
    total, free = round(31.84 * GIB), round(30.12 * GIB)
    assert requested_bytes(total, 0.95) / GIB == pytest.approx(30.25, abs=0.005)
    assert highest_utilization(total, free) == 0.94


def test_exactly_enough_passes() -> None:
    wanted = requested_bytes(TOTAL_2080TI, 0.9)
    assert starts(TOTAL_2080TI, wanted, 0.9)
    assert not starts(TOTAL_2080TI, wanted - 1, 0.9)


@pytest.mark.parametrize(
    ("total", "free", "highest"),
    [(TOTAL_2080TI, 0, 0.0), (0, 0, 0.0), (TOTAL_2080TI, TOTAL_2080TI, 1.0), (1000, 9, 0.0), (1000, 10, 0.01)],
)
def test_edges(total: int, free: int, highest: float) -> None:
    assert highest_utilization(total, free) == highest


@given(st.integers(1, 200 * GIB), st.integers(0, 200 * GIB))
def test_the_answer_starts_and_the_next_hundredth_does_not(total: int, free: int) -> None:
    answer = highest_utilization(total, free)
    assert 0.0 <= answer <= 1.0
    assert float(f"{answer:.2f}") == answer  # what a user types is what was computed
    if answer:
        assert starts(total, free, answer)
    if answer < 1.0:
        assert math.ceil(total * float(f"{answer + 0.01:.2f}")) > free
    assert recommended_utilization(total, free) <= answer


@pytest.mark.parametrize(
    ("version", "fraction"),
    [("0.19.1", 0.9), ("0.20.0", 0.92), ("0.21.0+cu128", 0.92), ("0.20.0rc1", 0.92), ("", 0.92), ("odd", 0.92)],
)
def test_the_default_depends_on_the_version(version: str, fraction: float) -> None:
    assert default_utilization(version) == fraction
