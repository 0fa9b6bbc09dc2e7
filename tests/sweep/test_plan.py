"""Which points a plan has, their keys, and what is predicted of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from doctor.errors import DoctorError
from doctor.memory.cards import named_cards
from doctor.memory.model import open_model
from doctor.memory.versions import switches
from doctor.sweep.forecast import Judge, compared
from doctor.sweep.plan import CONTEXTS, Point, Setup, Subject, Values, key, points
from tests.sweep.conftest import CONFIG

SUBJECT = Subject("/m", "f0", "m", longest=262144, has_mtp=True, edges={0: 146432, 2: 107520})
SETUP = Setup("0.26.0", "NVIDIA GeForce RTX 2080 Ti", 23_000_000_000, "cpu", 8, 0.8)


def of(axis: str, plan: tuple[Point, ...]) -> list[tuple[int, int, int, int]]:
    return [
        (p.max_model_len, p.draft_tokens, p.max_num_seqs, p.max_num_batched_tokens) for p in plan if axis in p.axes
    ]


def test_the_whole_plan() -> None:
    plan = points([SUBJECT], Values())
    assert of("context", plan) == [(c, k, 1, 2048) for k in (0, 2) for c in CONTEXTS]
    assert sorted(of("sequences", plan)) == [(8192, k, n, 2048) for k in (0, 2) for n in (1, 2, 3, 4)]
    assert sorted(of("batched", plan)) == [(8192, 2, 1, b) for b in (1024, 2048, 4096, 8192)]
    assert of("mtp", plan) == [(8192, 0, 1, 2048), (8192, 2, 1, 2048)]
    # a point of several axes is started once
    assert len(set(of("context", plan) + of("sequences", plan) + of("batched", plan))) == len(plan) == 21


def test_one_axis_and_a_model_without_a_draft_head() -> None:
    plan = points([SUBJECT], Values(axes=("context",)))
    assert of("context", plan) == [(c, 2, 1, 2048) for c in CONTEXTS]
    plan = points([replace(SUBJECT, has_mtp=False, longest=20_000)], Values())
    assert of("context", plan) == [(8192, 0, 1, 2048), (16384, 0, 1, 2048)]
    with pytest.raises(DoctorError, match="the plan is empty"):
        points([replace(SUBJECT, longest=100)], Values())


def test_a_second_model_is_tried_at_its_edge() -> None:
    plan = points([SUBJECT, replace(SUBJECT, path="/n", fingerprint="f1", name="n")], Values())
    assert of("edge", plan) == [
        (146432, 0, 1, 2048), (262144, 0, 1, 2048), (107520, 2, 1, 2048), (131072, 2, 1, 2048),
    ]  # fmt: skip
    unknown = replace(SUBJECT, name="n", edges={})
    assert of("edge", points([SUBJECT, unknown], Values(drafts=(0,)))) == [(8192, 0, 1, 2048)]


def test_keys_follow_what_is_measured_and_nothing_else() -> None:
    (point, *_) = points([SUBJECT], Values())
    same = key(point, SETUP)
    assert key(replace(point, axes=(), name="other name", model="/moved"), SETUP) == same
    others = [
        key(replace(point, max_model_len=1), SETUP),
        key(replace(point, draft_tokens=1), SETUP),
        key(replace(point, max_num_seqs=9), SETUP),
        key(replace(point, max_num_batched_tokens=9), SETUP),
        key(replace(point, fingerprint="f9"), SETUP),
        key(point, replace(SETUP, vllm="0.27.0")),
        key(point, replace(SETUP, card="NVIDIA H200")),
        key(point, replace(SETUP, card_bytes=1)),
        key(point, replace(SETUP, utilization=0.9)),
        key(point, replace(SETUP, serve_args=("--enforce-eager",))),
    ]
    assert len({same, *others}) == len(others) + 1


def judge(**changes: object) -> Judge:
    card = named_cards("RTX 2080 Ti", 22, None)[0]
    given = Judge(card, switches("0.26.0"), 0.8, False, False, True, None, {})
    return replace(given, **changes)  # type: ignore[arg-type]


def test_what_does_not_fit_is_predicted_and_the_edge_is_where_it_begins() -> None:
    model = open_model(str(CONFIG), {}, lambda _: None)
    one = judge()
    edge = one.edge(model, 2, 2048, 262144)
    assert edge is not None
    point = Point("m", "f", "n", edge, 2, 1, 2048)
    assert one.forecast(model, point).fits is True
    beyond = one.forecast(model, replace(point, max_model_len=262144))
    assert beyond.refused
    assert "one request of 262,144 tokens needs" in beyond.why
    assert beyond.first is not None
    assert beyond.later is not None
    assert beyond.first.tokens < beyond.later.tokens  # a cold compile cache costs pool
    assert judge(card=None).edge(None, 2, 2048, 262144) is None
    assert one.forecast(None, point).fits is None


def test_measured_is_compared_with_the_same_kind_of_start() -> None:
    model = open_model(str(CONFIG), {}, lambda _: None)
    guess = judge().forecast(model, Point("m", "f", "n", 8192, 2, 1, 2048))
    assert guess.first is not None
    assert guess.later is not None
    cold, warm = compared(guess, True, 68_169), compared(guess, False, 68_169)
    assert (cold["start"], cold["kv_tokens"]) == ("first", guess.first.tokens)
    assert (warm["start"], warm["kv_tokens"]) == ("later", guess.later.tokens)
    assert cold["difference_percent"] == pytest.approx(100 * (68_169 / guess.first.tokens - 1), abs=0.01)
    assert "difference_percent" not in compared(guess, True, None)


def test_a_cpu_server_has_the_pool_that_it_is_given() -> None:
    model = open_model(str(CONFIG), {}, lambda _: None)
    one = judge(card=None, version=switches("0.32.0"), utilization=None, eager=True)
    guess = one.forecast(model, Point("m", "f", "n", 8192, 2, 1, 2048))
    assert guess.first == guess.later
    assert guess.later is not None
    assert (guess.later.gib, guess.block_size, guess.fits) == (1.0, 544, True)
