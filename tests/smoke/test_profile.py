"""The settings that are tried: the user's, else those that ``fit`` advises for the card, else defaults."""

from __future__ import annotations

from dataclasses import replace

from doctor.facts import GpuFacts, GpuProcess
from doctor.finding import Verdict
from doctor.memory.start_check import GIB
from doctor.smoke.answer import as_json
from doctor.smoke.options import SmokeOptions
from tests.smoke.conftest import CARD
from tests.smoke.test_run import Smoke, ids


def test_fit_chooses_for_the_card_and_says_why(smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]) -> None:
    result = smoke(**gpu)
    settings = result.settings
    assert settings is not None
    assert (settings.mtp, settings.caching, settings.max_num_batched_tokens) == (2, True, 2048)
    assert settings.utilization == 0.92  # of 21.99 GiB, half a GiB less than the 20.8 that are free
    assert settings.text_only
    argv = list(result.command.argv)
    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.92"
    assert argv[argv.index("--max-num-seqs") + 1] == str(settings.max_num_seqs)
    assert "--language-model-only" in argv
    answer = as_json(result)
    assert answer["settings"]["sources"]["gpu_memory_utilization"].startswith("fit: 0.94 is the highest")
    low, likely, high = answer["prediction"]["later_start"]["kv_bytes"]
    assert 8 * GIB < low < likely < high < 14 * GIB
    assert answer["settings_that_passed"]["max_model_len"] == settings.max_model_len


def test_what_the_user_fixed_wins(smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]) -> None:
    given = ("--max-num-seqs", "7", "--no-enable-prefix-caching")
    result = smoke(**gpu, utilization=0.5, max_model_len=4096, mtp=1, serve_args=given)
    settings = result.settings
    assert (settings.utilization, settings.max_model_len, settings.mtp) == (0.5, 4096, 1)
    assert not settings.prefix_caching
    argv = list(result.command.argv)
    assert argv.count("--max-num-seqs") == 1
    assert argv[argv.index("--max-num-seqs") + 1] == "7"
    fixed = {n for n, why in result.reasons.items() if why == "as given"}
    assert fixed == {"gpu_memory_utilization", "max_model_len", "mtp", "max_num_seqs", "prefix_caching"}


def test_without_facts_the_defaults(smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]) -> None:
    card.clear()
    result = smoke(**gpu)
    assert (result.settings.utilization, result.settings.max_model_len, result.settings.mtp) == (0.9, 8192, 2)
    assert result.settings.max_num_seqs is None
    assert any("no card tells its memory here" in n for n in result.notes)
    assert result.judgement.verdict is Verdict.READY


def test_a_fraction_that_is_not_free_is_not_started(
    smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]
) -> None:
    old = GpuProcess(4242, 9 * GIB, "VLLM::EngineCor", age_s=7300.0, user="yours")
    card[0] = replace(CARD, cuda_free_bytes=12 * GIB, processes=(old,))
    result = smoke(**gpu, utilization=0.9, ladder=False)
    assert ids(result)[0] == "gpu-memory-held-by-other-process"
    assert result.command is None
    assert "pid 4242 (VLLM::EngineCor, yours, 2 h old) with 9.00 GiB; it is left alone" in " ".join(result.notes)
    # without a fixed fraction the settings fit beside it
    beside = smoke(**gpu)
    assert beside.settings.utilization == 0.52
    assert beside.judgement.verdict is Verdict.READY
    assert any("pid 4242" in n for n in beside.notes)


def test_a_card_with_nothing_free(smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]) -> None:
    old = GpuProcess(4242, 21 * GIB, "VLLM::EngineCor", age_s=60.0, user="yours")
    card[0] = replace(CARD, cuda_free_bytes=GIB // 3, processes=(old,))
    result = smoke(**gpu, ladder=True)
    assert ids(result)[0] == "gpu-memory-held-by-other-process"
    assert result.command is None
    assert result.ladder is not None
    assert (result.ladder.runs, result.ladder.best) == ([], None)


def test_the_ladder_lowers_the_fraction(smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]) -> None:
    card[0] = replace(CARD, cuda_free_bytes=12 * GIB)
    result = smoke(**gpu, utilization=0.9, ladder=True)
    assert result.ladder is not None
    assert [s.changes for s in result.ladder.steps] == [("a lower memory fraction",)] * 2
    answer = as_json(result)
    assert answer["settings_that_passed"]["gpu_memory_utilization"] == 0.52
    assert result.judgement.verdict is Verdict.DEGRADED


def test_a_format_the_card_cannot_run_is_said_before_the_start(
    smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]
) -> None:
    card[0] = replace(CARD, compute_capability="6.1")
    result = smoke(**gpu)
    assert any("before the start" in n and "this card has 6.1" in n for n in result.notes), result.notes


def test_a_wrong_number_after_two_dashes_is_vllms_to_refuse(
    smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]
) -> None:
    result = smoke(**gpu, serve_args=("--max-num-seqs", "many"))
    assert any("a number is wanted" in n for n in result.notes)
    assert "many" in result.command.argv


def test_options_default_to_nothing() -> None:
    options = SmokeOptions("m")
    assert (options.mtp, options.utilization, options.max_model_len, options.ladder) == (None, None, None, None)
