"""Predictions of real starts, calibration, and the settings derived from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.memory import calibration
from doctor.memory.cards import named_cards
from doctor.memory.fit import evaluate
from doctor.memory.kv import size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.learn import learn
from doctor.memory.model import Model
from doctor.memory.overhead import Compile, capture_sizes
from doctor.memory.predict import Card, Prediction, Start, predict
from doctor.memory.settings import Wish, choose
from doctor.memory.start_check import GIB
from doctor.memory.versions import switches
from doctor.memory.weights import weights_from_shapes
from tests.memory.recipes import recipes
from tests.memory.support import shape

H200 = Card("NVIDIA H200", 150_109_880_320, None, (9, 0), 4.8e12)
REFERENCE = Card("GeForce RTX 2080 Ti", 22 * GIB, int(20.81 * GIB), (7, 5), 616e9)
AWQ = Model("qwen3.5-9b-awq", shape("qwen3.5-9b-awq"), weights_from_shapes(shape("qwen3.5-9b-awq")), "test")
V26 = switches("0.26.0")

#: Seven starts on one H200: compile cache, MTP, prefix caching, context, GiB and tokens that vLLM 0.26.0 printed.
MEASURED = [
    (Compile.EAGER, 0, False, 8192, 11.6, 310_002),
    (Compile.COLD, 0, False, 8192, 9.7, 259_125),
    (Compile.WARM, 0, False, 8192, 11.51, 307_846),
    (Compile.COLD, 0, True, 8192, 9.7, 224_162),
    (Compile.COLD, 2, False, 8192, 9.18, 160_890),
    (Compile.COLD, 2, True, 8192, 9.18, 143_652),
    (Compile.COLD, 0, False, 32768, 9.7, 298_387),
]


def start(compiled: Compile, mtp: int, caching: bool, length: int, **more: int) -> tuple[Prediction, KvOptions]:
    options = KvOptions(length, mtp, caching, max_num_batched_tokens=1024, **more)
    return predict(AWQ.shape, AWQ.weights, H200, Start(0.16, compiled), options, V26), options


@pytest.mark.parametrize(("compiled", "mtp", "caching", "length", "gib", "tokens"), MEASURED)
def test_measured_starts_are_predicted(
    compiled: Compile, mtp: int, caching: bool, length: int, gib: float, tokens: int
) -> None:
    p, _ = start(compiled, mtp, caching, length)
    assert p.available.low <= gib * GIB <= p.available.high
    assert abs(p.available.likely / GIB - gib) / gib < 0.005
    assert p.low.capacity_tokens <= tokens <= p.high.capacity_tokens


STARTS = json.loads((Path(__file__).resolve().parents[2] / "docs/measurements/starts-9b-h200.json").read_text())


@pytest.mark.parametrize("name", [n for n in STARTS if not n.startswith(("tiny", "(g)"))])
def test_every_recorded_start_is_predicted(name: str) -> None:
    seen = STARTS[name]
    serve = seen["serve"]

    def number(flag: str, default: int) -> int:
        return int(serve[serve.index(flag) + 1]) if flag in serve else default

    drafting = [json.loads(word)["num_speculative_tokens"] for word in serve if word.startswith('{"method"')]
    caching = [word for word in serve if word in ("--enable-prefix-caching", "--no-enable-prefix-caching")][-1]
    options = KvOptions(
        number("--max-model-len", 8192),
        drafting[0] if drafting else 0,
        caching == "--enable-prefix-caching",
        serve[serve.index("--kv-cache-dtype") + 1] if "--kv-cache-dtype" in serve else "auto",
        number("--max-num-seqs", 1),
        number("--max-num-batched-tokens", 1024),
    )
    p = predict(AWQ.shape, AWQ.weights, H200, Start(0.16, Compile(seen["compile_cache"])), options, V26)
    assert p.likely.block_size == seen["block_size"]
    assert abs(p.available.likely / GIB / seen["gib"] - 1) < 0.005
    assert p.available.low <= seen["gib"] * GIB <= p.available.high
    # the pool that was printed holds exactly the tokens that were printed
    low, high = (size_pool(AWQ.shape, int((seen["gib"] + d) * GIB), options, V26) for d in (-0.005, 0.005))
    assert low.capacity_tokens <= seen["tokens"] <= high.capacity_tokens
    per_request = low.layout.blocks_per_request
    assert seen["tokens"] in {int(n / per_request * options.max_model_len)
                              for n in range(low.num_blocks, high.num_blocks + 1)}  # fmt: skip


def test_a_cold_start_costs_one_vocabulary_matrix() -> None:
    cold, _ = start(Compile.COLD, 0, False, 8192)
    warm, _ = start(Compile.WARM, 0, False, 8192)
    assert warm.available.likely - cold.available.likely == pytest.approx(1.81 * GIB, rel=0.02)
    # it was measured with 0.26.0: for another version the range also holds a start without it
    other = predict(AWQ.shape, AWQ.weights, H200, Start(0.16, Compile.COLD), KvOptions(8192), switches("0.30.0"))
    assert other.overhead.activation.low < GIB < other.overhead.activation.likely


def test_the_reference_card_is_within_the_range() -> None:
    p = predict(AWQ.shape, AWQ.weights, REFERENCE, Start(0.80, Compile.EAGER),
                KvOptions(8192, max_num_batched_tokens=1024), switches("0.21.0"))  # fmt: skip
    assert p.available.low <= 7.06 * GIB <= p.available.high


def test_more_sequences_mean_more_graphs() -> None:
    assert capture_sizes(KvOptions(8192, max_num_seqs=1)) == 3
    assert capture_sizes(KvOptions(8192, max_num_seqs=1, draft_tokens=2)) == 3
    assert capture_sizes(KvOptions(8192, max_num_seqs=16)) > 10
    assert capture_sizes(KvOptions(8192, max_num_seqs=4096)) < 120


# -- calibration -----------------------------------------------------------------------------------------

LOG = """\
INFO 11-30 09:00:01 [api_server.py:1] vLLM API server version 0.26.0
INFO 11-30 09:00:02 [utils.py:1] non-default args: {'model': '/m', 'max_model_len': 8192, \
'gpu_memory_utilization': 0.16, 'max_num_batched_tokens': 1024, 'max_num_seqs': 1, 'enable_prefix_caching': False}
INFO 11-30 09:00:30 [gpu_model_runner.py:1] Model loading took 10.4 GiB memory and 3.2 seconds
INFO 11-30 09:00:40 [decorators.py:1] Directly load AOT compilation from path /root/.cache/vllm/x
INFO 11-30 09:00:45 [gpu_worker.py:1] Available KV cache memory: 11.51 GiB
INFO 11-30 09:00:45 [kv_cache_utils.py:1] GPU KV cache size: 307,846 tokens
INFO 11-30 09:00:45 [kv_cache_utils.py:1] Maximum concurrency for 8,192 tokens per request: 37.58x
"""


def test_a_log_is_read() -> None:
    measured = calibration.read_log(LOG, "log")
    assert measured == calibration.Measured(
        vllm="0.26.0", utilization=0.16, weights_gib=10.4, available_gib=11.51, tokens=307_846, max_model_len=8192,
        cold=False, eager=False,
    )  # fmt: skip


def test_cold_and_one_line_logs() -> None:
    text = (
        "Compiling a graph for compile range (1, 1024) takes 12 s\n"
        "GPU KV cache size: 259,125 tokens, Maximum concurrency for 8,192 tokens per request: 31.63x"
    )
    measured = calibration.read_log(text, "log")
    assert (measured.cold, measured.tokens, measured.max_model_len) == (True, 259_125, 8192)


def test_a_log_without_figures_is_refused() -> None:
    with pytest.raises(DoctorError, match="no line says"):
        calibration.read_log("nothing here", "log")


def test_after_calibration_later_starts_are_exact(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    lesson = learn(LOG, "log", AWQ, H200, Wish(), V26, None)
    assert "0.26.0, warm start" in lesson.summary
    calibration.save(env, lesson.card, lesson.calibration)
    wish = Wish(utilization=0.16, max_model_len=8192, draft_tokens=0, prefix_caching=False, max_num_seqs=1,
                max_num_batched_tokens=1024)  # fmt: skip
    fit = evaluate(AWQ, H200, wish, V26, env=env)
    assert fit.later is not None
    assert fit.later.calibrated
    assert fit.pool.capacity_tokens == 307_846
    # another context and another fraction profile the same batch: still exact
    longer = evaluate(AWQ, H200, replace(wish, max_model_len=32768, utilization=0.20), V26, env=env)
    assert longer.later is not None
    assert longer.later.calibrated
    moved = evaluate(AWQ, H200, replace(wish, draft_tokens=2), V26, env=env)
    assert moved.later is not None
    assert not moved.later.calibrated
    assert calibration.stored(env)
    assert calibration.forget(env) == 1
    assert calibration.stored(env) == []


def test_calibration_is_per_card_and_version(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    lesson = learn(LOG, "log", AWQ, H200, Wish(), V26, None)
    calibration.save(env, lesson.card, lesson.calibration)
    assert calibration.load(env, H200, "0.26.0")
    assert not calibration.load(env, H200, "0.30.0")
    assert not calibration.load(env, REFERENCE, "0.26.0")


def test_a_log_of_other_options_is_refused() -> None:
    with pytest.raises(DoctorError, match="do not belong to this model and these options"):
        learn(LOG, "log", AWQ, H200, Wish(draft_tokens=2), V26, None)


def test_a_damaged_store_is_ignored(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    lesson = learn(LOG, "log", AWQ, H200, Wish(), V26, None)
    path = calibration.save(env, lesson.card, lesson.calibration)
    path.write_text("{broken")
    assert calibration.load(env, H200, "0.26.0") == {}
    calibration.save(env, lesson.card, lesson.calibration)
    assert json.loads(path.read_text())["measured"]


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", ["chat", "long-context", "throughput"])
@pytest.mark.parametrize(
    "card",
    [REFERENCE, Card("GeForce RTX 3090", int(23.58 * GIB), None, (8, 6), 936e9),
     Card("GeForce RTX 4090", int(23.5 * GIB), None, (8, 9), 1008e9)],
    ids=lambda c: c.name,
)  # fmt: skip
def test_settings_keep_vllms_constraints(purpose: str, card: Card) -> None:
    profile = choose(AWQ, card, purpose, Wish(), V26)
    layout, o = profile.later.likely.layout, profile.options
    assert profile.first.likely.fits, "even the first start must be accepted"
    if layout.state_mode == "align":
        assert layout.block_size <= o.max_num_batched_tokens
    assert o.max_num_seqs <= profile.first.low.num_blocks
    if card.free_bytes is not None:
        assert profile.start.utilization * card.total_bytes <= card.free_bytes
    expected = {"gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
                "prefix_caching", "kv_cache_dtype", "mtp", "language_model_only"}  # fmt: skip
    assert expected <= profile.reasons.keys()


def test_purposes_differ() -> None:
    chat, long, busy = (choose(AWQ, REFERENCE, p, Wish(), V26) for p in ("chat", "long-context", "throughput"))
    assert chat.options.draft_tokens == 2
    assert busy.options.draft_tokens == 0
    assert busy.options.max_num_seqs > chat.options.max_num_seqs > long.options.max_num_seqs
    assert long.options.max_model_len > chat.options.max_model_len


def test_long_context_gives_up_mtp_before_length() -> None:
    profile = choose(AWQ, REFERENCE, "long-context", Wish(), V26)
    assert profile.options.draft_tokens == 0
    assert "no longer fits" in profile.reasons["mtp"]


def test_drafts_that_cost_the_context_of_a_chat_go_off() -> None:
    """27B in 4 bits on a 24 GB card: drafts would leave a first start 1,024 tokens."""
    model = recipes()["27b-int4"].model
    card = named_cards("RTX 4090", 24.0 * 0.98, None)[0]
    profile, plain = (choose(model, card, "chat", w, V26) for w in (Wish(), Wish(draft_tokens=0)))
    assert profile.options == plain.options
    assert (profile.options.max_model_len, profile.options.max_num_seqs) == (8192, 4)
    assert profile.reasons["mtp"] == "off: drafts would leave 1,024 tokens of context, without them it is 8,192"
    asked = choose(model, card, "chat", Wish(max_model_len=8192), V26)
    assert asked.options.draft_tokens == 0
    assert asked.reasons["mtp"] == "off: with drafts a context of 8,192 tokens no longer fits"
    kept = choose(model, card, "chat", Wish(draft_tokens=2), V26)
    assert kept.options.draft_tokens == 2, "what was asked for stays"


def test_what_the_user_fixed_stays() -> None:
    wish = Wish(utilization=0.5, max_model_len=4096, draft_tokens=1, prefix_caching=False, max_num_seqs=2,
                max_num_batched_tokens=1024, kv_cache_dtype="fp8")  # fmt: skip
    profile = choose(AWQ, Card("card", 40 * GIB), "chat", wish, V26)
    o = profile.options
    assert (profile.start.utilization, o.max_model_len, o.draft_tokens, o.prefix_caching) == (0.5, 4096, 1, False)
    assert (o.max_num_seqs, o.max_num_batched_tokens, o.kv_cache_dtype) == (2, 1024, "fp8")


def test_a_bfloat16_model_on_turing_gets_half() -> None:
    model = Model("m", shape("qwen3.5-4b"), weights_from_shapes(shape("qwen3.5-4b")), "test")
    assert choose(model, REFERENCE, "chat", Wish(), V26).dtype == "half"
    assert choose(model, replace(REFERENCE, capability=(8, 6)), "chat", Wish(), V26).dtype == ""


def test_the_start_check_decides_first() -> None:
    fit = evaluate(AWQ, REFERENCE, Wish(utilization=0.95, max_model_len=8192), V26)
    assert fit.fits is False
    assert "at most 0.94 passes" in fit.why
    assert (fit.max_utilization, fit.recommended_utilization) == (0.94, 0.92)
