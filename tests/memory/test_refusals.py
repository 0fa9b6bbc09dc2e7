"""What vLLM refuses although the memory would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.memory.fit import Fit, evaluate
from doctor.memory.learn import learn
from doctor.memory.model import Model
from doctor.memory.predict import Card
from doctor.memory.settings import Wish, choose, recommended
from doctor.memory.start_check import GIB
from doctor.memory.versions import switches
from doctor.memory.weights import weights_from_shapes
from tests.memory.support import shape

AWQ = Model("qwen3.5-9b-awq", shape("qwen3.5-9b-awq"), weights_from_shapes(shape("qwen3.5-9b-awq")), "test")
H200 = Card("H200", int(138.18 * GIB), None, (9, 0), 4.8e12)
TURING = Card("RTX 2080 Ti 22 GB", 22 * GIB, None, (7, 5), 616e9)
T4 = Card("T4", int(15.68 * GIB), None, (7, 5), 320e9)
V26 = switches("0.26.0")
LOGS = Path(__file__).resolve().parents[1] / "evidence/real"


def fit(card: Card | None, version: str = "0.26.0", pool: float | None = None, **wish: object) -> Fit:
    given = Wish(**{"max_model_len": 8192, "max_num_seqs": 1, "max_num_batched_tokens": 1024, **wish})  # type: ignore[arg-type]
    available = None if pool is None else int(pool * GIB)
    return evaluate(AWQ, card, given, switches(version), available_bytes=available)


@pytest.mark.parametrize("where", [(H200, None), (TURING, None), (None, 7.06)])
def test_a_block_larger_than_a_batch_does_not_start(where: tuple[Card | None, float | None]) -> None:
    """Measured: fp8 cache, MTP 2, prefix caching and 1,024 batched tokens, block 1,072: refused."""
    card, pool = where
    wish = {"draft_tokens": 2, "prefix_caching": True, "kv_cache_dtype": "fp8"}
    refused = fit(card, pool=pool, **wish)
    assert refused.fits is False
    assert "block size 1072 must not exceed max_num_batched_tokens 1024" in refused.why
    assert fit(card, pool=pool, **wish, max_num_batched_tokens=1072).fits
    assert fit(card, pool=pool, **{**wish, "prefix_caching": False}).fits


def test_more_sequences_than_states_do_not_start() -> None:
    refused = fit(T4, max_num_seqs=256, max_num_batched_tokens=2048)  # vLLM's own defaults
    assert refused.fits is False
    assert "max_num_seqs 256 exceeds the" in refused.why
    assert fit(T4, max_num_seqs=256, max_num_batched_tokens=2048, eager=True).fits is not False  # no graphs
    assert fit(T4, "0.19.1", max_num_seqs=256, max_num_batched_tokens=2048).fits is not False  # nor the rule
    pools = [fit(None, pool=4, max_num_seqs=n).fits for n in (248, 249)]
    assert pools == [True, False]  # 248 blocks of 17.3 MB


def test_settings_avoid_what_would_be_refused() -> None:
    given = {"draft_tokens": 2, "kv_cache_dtype": "fp8"}
    larger = choose(AWQ, TURING, "chat", Wish(**given), V26)  # type: ignore[arg-type]
    assert larger.options.max_num_batched_tokens >= larger.later.likely.block_size == 1072
    fixed = choose(AWQ, TURING, "chat", Wish(**given, max_num_batched_tokens=1024), V26)  # type: ignore[arg-type]
    assert fixed.options.prefix_caching is False
    assert "tokens would exceed the 1024 of a batch" in fixed.reasons["prefix_caching"]
    insisted = choose(AWQ, TURING, "chat", Wish(**given, max_num_batched_tokens=1024, prefix_caching=True), V26)  # type: ignore[arg-type]
    assert any("vLLM will refuse: block size 1072" in w for w in insisted.warnings)


def test_an_fp8_cache_with_float16_on_hopper() -> None:
    """FlashAttention 3 refused it on an H200; with bfloat16 the same start was healthy."""
    judged = fit(H200, kv_cache_dtype="fp8")
    assert any("FlashAttention 3 wants bfloat16" in w for w in judged.warnings)
    profile = choose(AWQ, H200, "chat", Wish(kv_cache_dtype="fp8"), V26)
    assert profile.dtype == "bfloat16"
    assert "FlashAttention 3" in profile.reasons["dtype"]
    assert choose(AWQ, H200, "chat", Wish(), V26).dtype == ""
    assert fit(H200).warnings == ()
    ada = Card("RTX 4090", 24 * GIB, None, (8, 9), 1008e9)
    assert fit(ada, kv_cache_dtype="fp8").warnings == ()


def test_an_fp8_cache_on_turing_is_doubted() -> None:
    assert any("needs compute capability 8.9" in w for w in fit(TURING, kv_cache_dtype="fp8").warnings)


def test_an_unmeasured_card_gets_the_default_fraction() -> None:
    """0.95 was refused on a 22 GB card under WSL2 whose desktop used 1.2 GiB."""
    assert recommended(TURING) == 0.92
    assert recommended(Card("idle", 22 * GIB, 22 * GIB)) == 0.97
    assert recommended(Card("busy", 22 * GIB, int(20.81 * GIB))) == 0.92
    assert "was not measured" in choose(AWQ, TURING, "chat", Wish(), V26).reasons["gpu_memory_utilization"]


def test_too_long_says_what_would_fit() -> None:
    refused = fit(T4, max_model_len=262_144)
    assert refused.fits is False
    length = int(refused.why.split("--max-model-len ")[1].split()[0])
    assert fit(T4, max_model_len=length).fits


@pytest.mark.parametrize("name", ["plain-warm-healthy", "fp8-kv-healthy", "mtp-prefix-caching-cold-healthy"])
def test_the_logs_own_memory_counts_when_calibrating(name: str) -> None:
    """A card known by name is off by one per cent: the start asked for a share of the 139.8 GiB in its log."""
    text = (LOGS / f"0.26.0-{name}.log").read_text()
    lesson = learn(text, name, AWQ, H200, Wish(), V26, None)
    assert abs(lesson.calibration.error_bytes) < 0.1 * GIB
    with pytest.raises(DoctorError, match=r"its card has 139\.8 GiB"):
        learn(text, name, AWQ, TURING, Wish(), V26, None)
