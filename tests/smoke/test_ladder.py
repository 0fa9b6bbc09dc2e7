"""The ladder on stub servers: every rung is taken for its cause, and what it claims has passed twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.finding import Verdict
from doctor.serve.command import Settings
from doctor.serve.container import Container
from doctor.serve.environment import VllmEnvironment
from doctor.smoke import ladder, rungs
from doctor.smoke.answer import as_json
from doctor.smoke.model import ModelInfo
from doctor.smoke.options import SmokeOptions
from doctor.smoke.result import SmokeResult
from doctor.smoke.rungs import CAUSES, RUNGS, Known
from tests.fakes import FakeHost
from tests.smoke.conftest import make_model
from tests.smoke.test_run import Smoke


def changes(result: object) -> list[tuple[str, ...]]:
    climbed = result.ladder  # type: ignore[attr-defined]
    assert climbed is not None
    return [s.changes for s in climbed.steps]


def test_nothing_is_tried_when_nothing_failed(smoke: Smoke) -> None:
    result = smoke(ladder=True)
    assert (result.ladder, result.judgement.verdict) == (None, Verdict.READY)


def test_off_by_default_and_on_with_full(smoke: Smoke) -> None:
    assert smoke("never-cached").ladder is None
    assert smoke("never-cached", full=True).ladder is not None
    assert smoke("never-cached", full=True, ladder=False).ladder is None


def test_prefix_caching_off(smoke: Smoke) -> None:
    result = smoke("never-cached", ladder=True)
    assert changes(result) == [("prefix caching off",)] * 2
    assert [s.again for s in result.ladder.steps] == [False, True]
    passed = as_json(result)["settings_that_passed"]
    assert (passed["prefix_caching"], passed["num_speculative_tokens"], passed["after_ladder"]) == (False, 2, True)
    assert result.ladder.gave_up == ("prefix caching: a repeated beginning is computed again",)
    assert result.judgement.verdict is Verdict.DEGRADED
    assert result.best.log.name == "ladder-2.log"


def test_mtp_off(smoke: Smoke) -> None:
    result = smoke("no-accept", ladder=True)
    assert changes(result) == [("MTP off",)] * 2
    assert as_json(result)["settings_that_passed"]["num_speculative_tokens"] == 0


def test_a_checkpoint_without_a_head_passes_without_it(smoke: Smoke, tmp_path: object) -> None:
    result = smoke(model=str(make_model(tmp_path / "bare", mtp=False)), ladder=True)  # type: ignore[operator]
    assert changes(result) == [("MTP off",)] * 2
    assert as_json(result)["settings_that_passed"]["num_speculative_tokens"] == 0


@pytest.mark.parametrize(("where", "title"), [("both", "prefix caching off"), ("mtp", "MTP off")])
def test_corruption_seen_by_the_comparison_is_compared_again(smoke: Smoke, where: str, title: str) -> None:
    result = smoke(f"shifts:{where}", full=True)
    assert changes(result) == [(title,)] * 2
    again = result.ladder.runs[0]
    assert next(r for r in again.results if r.name == "correctness").status == "pass"
    assert result.ladder.best.passed


@pytest.mark.parametrize(
    ("stub", "title", "flag"),
    [
        ("needs:--enforce-eager", "eager mode", "--enforce-eager"),
        ("refuses:--speculative-config", "MTP off", None),
        ("refuses:--enable-prefix-caching", "prefix caching off", "--no-enable-prefix-caching"),
        ("needs:--max-num-seqs=1", "one sequence at a time, small batches", "--max-num-seqs"),
    ],
)
def test_a_start_that_fails_for_an_unknown_reason(
    smoke: Smoke, gpu_environment: str, stub: str, title: str, flag: str | None
) -> None:
    result = smoke(stub, python=gpu_environment, ladder=True)
    assert result.ladder.best is not None, result.ladder
    assert changes(result)[-1] == (title,)
    assert flag is None or flag in result.best.command.argv


def test_two_changes_together(smoke: Smoke, gpu_environment: str) -> None:
    result = smoke("needs:--enforce-eager refuses:--speculative-config", python=gpu_environment, ladder=True)
    assert changes(result)[-1] == ("eager mode", "MTP off")
    assert len(result.ladder.gave_up) == 2


def test_a_shorter_context_as_vllm_names_it(smoke: Smoke, gpu_environment: str) -> None:
    result = smoke("longest:5000", python=gpu_environment, max_model_len=65536, ladder=True)
    assert changes(result) == [("a shorter context",)] * 2
    assert as_json(result)["settings_that_passed"]["max_model_len"] == 4096


def test_a_new_cause_keeps_the_change_that_showed_it(smoke: Smoke, gpu_environment: str) -> None:
    result = smoke("longest:5000 never-cached", python=gpu_environment, max_model_len=65536, ladder=True)
    assert changes(result) == [("a shorter context",), *[("a shorter context", "prefix caching off")] * 2]
    passed = as_json(result)["settings_that_passed"]
    assert (passed["max_model_len"], passed["prefix_caching"]) == (4096, False)


def test_what_no_setting_helps_against(smoke: Smoke) -> None:
    result = smoke("die:arguments", ladder=True)
    assert (changes(result), result.ladder.best) == ([], None)
    assert "no other setting helps against" in result.ladder.why
    assert as_json(result)["settings_that_passed"] == {}
    assert result.judgement.verdict is Verdict.BLOCKED


def test_starts_are_bounded(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "STARTS", 2)
    result = smoke("die:nothing", ladder=True)
    assert len(changes(result)) == 2
    assert "the limit is 2 starts or 60 min" in result.ladder.why


def test_what_passed_only_once_is_not_claimed(smoke: Smoke) -> None:
    result = smoke("never-cached dies-in:ladder-2", ladder=True)
    assert [(s.passed, s.again) for s in result.ladder.steps][:2] == [(True, False), (False, True)]
    assert result.ladder.best is None
    assert "none passed twice" in result.ladder.why


def test_what_a_server_is_not_told_is_not_tried(smoke: Smoke) -> None:
    result = smoke("die:nothing", ladder=True)  # on a CPU, which is always eager
    assert changes(result)[0] == ("MTP off",)
    assert not any("eager mode" in words for words in changes(result))


def test_every_rung_is_used_and_every_name_is_one() -> None:
    named = {n for names in (*CAUSES.values(), *rungs.AREAS.values()) for n in names}
    assert named == set(RUNGS)


def test_a_change_that_tells_the_server_nothing_new_is_none(tmp_path: Path) -> None:
    settings = Settings("/m", True, 0, 8192, 0.9)
    for image in (None, Container("docker", "img")):
        environment = VllmEnvironment("/v", "", "", "0.32.0+cpu", command=("vllm",), container=image)
        first = SmokeResult(ModelInfo("/m"), environment, settings=settings)
        climb = ladder._Climb(
            SmokeOptions("/m"), first, FakeHost(tmp_path), tmp_path, print, ladder.Ladder(), 0, False
        )
        assert climb.changed(RUNGS["utilization"], settings, first) is None
        assert climb.changed(RUNGS["eager"], settings, first) is None
        assert climb.changed(RUNGS["prefix"], settings, first) is not None


def test_the_last_of_the_users_switches_counts_with_either_sign() -> None:
    def settings(*extra: str) -> Settings:
        return Settings("m", True, 0, 4096, 0.9, extra)

    assert settings("--enforce_eager").enforce_eager
    assert not settings("--enforce-eager", "--no_enforce_eager").enforce_eager
    assert settings("--no-enable-prefix-caching", "--enable_prefix_caching").prefix_caching
    off = settings("--enable-prefix-caching", "--no_enable_prefix_caching")
    assert not off.prefix_caching
    assert rungs.RUNGS["prefix"].apply(off, rungs.Known()) is None


@pytest.mark.parametrize("flag", ["--no-enforce-eager", "--no_enforce_eager"])
def test_eager_mode_goes_over_the_users_own_wish(flag: str) -> None:
    asked = Settings("m", True, 0, 4096, 0.9, (flag, "--seed", "1"), eager=True)
    assert not asked.enforce_eager
    changed = rungs.RUNGS["eager"].apply(asked, rungs.Known())
    assert changed is not None
    assert changed.enforce_eager
    assert changed.extra == ("--seed", "1")
    assert rungs.RUNGS["eager"].apply(changed, rungs.Known()) is None


def test_how_far_a_rung_goes() -> None:
    settings = Settings("/m", True, 0, 8192, 0.9)
    shorter = RUNGS["context"].apply
    assert shorter(settings, Known()).max_model_len == 4096  # type: ignore[union-attr]
    assert shorter(settings, Known(longest=6500)).max_model_len == 6144  # type: ignore[union-attr]
    assert shorter(Settings("/m", True, 0, 2048, 0.9), Known()) is None
    lower = RUNGS["utilization"].apply
    assert lower(settings, Known()).utilization == 0.85  # type: ignore[union-attr]
    assert lower(Settings("/m", True, 0, 8192, 0.05), Known()) is None
    given = Settings("/m", True, 0, 8192, 0.9, ("--max-model-len", "9999"))
    assert shorter(given, Known()).extra == ()  # type: ignore[union-attr]
