"""``--full`` on stub servers: which combination changes answers is named, a healthy one is not accused."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.finding import Confidence, Verdict
from doctor.report.smoke import print_smoke
from doctor.report.terminal import console
from doctor.serve.client import NOT_A_NUMBER, Answer
from doctor.serve.command import without_option
from doctor.smoke import ab_judge, ab_speed
from doctor.smoke.ab import Config, Prompts, Run
from doctor.smoke.ab_judge import gap
from tests.smoke.test_run import Smoke, ids, probe


def test_a_healthy_server_is_not_accused(smoke: Smoke, tmp_path: Path) -> None:
    result = smoke("wobbles", full=True)
    one = probe(result, "correctness")
    assert (one.status, ids(result)) == ("pass", []), one.why
    assert sorted(one.measured["servers"]) == ["MTP", "MTP + prefix caching", "base", "prefix caching"]
    assert 0 < one.measured["base_spread_nats"] <= 0.02
    assert one.measured["tolerance_nats"] == 0.125
    assert any(t for tokens in one.measured["cached_tokens"]["MTP + prefix caching"].values() for t in tokens)
    assert not any(t for tokens in one.measured["cached_tokens"]["MTP"].values() for t in tokens)
    assert result.judgement.verdict is Verdict.READY
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "server.log", "server-base.log", "server-MTP.log", "server-prefix-caching.log",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("where", "cause"),
    [
        ("both", "mtp-prefix-cache-corrupts-output"),
        ("cache", "prefix-cache-corrupts-output"),
        ("mtp", "mtp-corrupts-output"),
    ],
)
def test_the_combination_that_changes_answers_is_named(smoke: Smoke, where: str, cause: str) -> None:
    result = smoke(f"shifts:{where}", full=True)
    assert ids(result) == [cause]
    found = result.judgement.findings[0]
    assert found.confidence is Confidence.PROVEN
    assert "0.60 nats" in found.summary
    assert probe(result, "correctness").status == "fail"
    assert result.judgement.verdict is Verdict.DEGRADED


def test_without_mtp_two_servers_are_compared(smoke: Smoke) -> None:
    result = smoke(full=True, mtp=0)
    assert sorted(probe(result, "correctness").measured["servers"]) == ["base", "prefix caching"]
    assert probe(result, "mtp_speed").status == "abstain"
    alone = smoke(full=True, mtp=0, serve_args=("--no-enable-prefix-caching",))
    assert probe(alone, "correctness").status == "abstain"
    assert alone.judgement.verdict is Verdict.READY


def test_a_server_that_does_not_start_leaves_it_open(smoke: Smoke) -> None:
    result = smoke("no-base", full=True)
    assert probe(result, "correctness").status == "abstain"
    assert "while spawning" in probe(result, "correctness").why
    assert result.judgement.verdict is Verdict.UNKNOWN


def test_a_cache_that_never_hits_was_not_tested(smoke: Smoke) -> None:
    assert "none tested it" in probe(smoke("never-cached", full=True), "correctness").why


def test_slower_with_mtp_is_said(smoke: Smoke) -> None:
    result = smoke("slow-mtp", full=True)
    one = probe(result, "mtp_speed")
    assert one.status == "advise"
    assert one.why.startswith("MTP makes it slower here: ")
    assert one.finding is None  # a CPU says nothing about a card
    out = io.StringIO()
    print_smoke(result, out=console(out))
    assert "MTP makes it slower here" in out.getvalue()


def test_random_weights_are_not_compared(smoke: Smoke) -> None:
    result = smoke(full=True, serve_args=("--load-format", "dummy"))
    assert "dummy" in probe(result, "correctness").why
    assert result.judgement.verdict is Verdict.READY


def test_needle(smoke: Smoke) -> None:
    kept = probe(smoke("recalls"), "needle")
    assert (kept.status, kept.measured["recalled"]["number"]) == ("pass", [True, True, True])
    lost = smoke("forgets")
    assert probe(lost, "needle").status == "fail"
    assert "mtp-prefix-cache-corrupts-output" in ids(lost)
    assert probe(smoke(), "needle").status == "abstain"


def _run(config: Config, *speeds: float) -> Run:
    return Run(config, speeds=list(speeds))


def test_speed_on_a_card() -> None:
    slow = [_run(Config(0, True), 80, 81, 79), _run(Config(2, True), 50, 51, 52)]
    one = ab_speed.judge(slow, cpu=False, mean_length=1.2)
    assert one.finding is not None
    assert one.finding.id == "mtp-slower-than-baseline"
    assert "0.64 times" in one.why
    assert "1.20 tokens a step" in one.why
    fast = [_run(Config(0, True), 50, 51, 52), _run(Config(2, True), 80, 81, 79)]
    assert ab_speed.judge(fast, cpu=False, mean_length=2.4).why.startswith("MTP makes it faster here: 80.0")
    # single runs that overlap are no clear difference
    near = [_run(Config(0, True), 50, 90, 88), _run(Config(2, True), 80, 81, 79)]
    one = ab_speed.judge(near, cpu=False, mean_length=2.4)
    assert (one.status, "no clear difference" in one.why) == ("pass", True)
    noisy = [_run(Config(0, True), 44, 48, 39), _run(Config(2, True), 38, 68, 99)]
    assert "no clear difference" in ab_speed.judge(noisy, cpu=False, mean_length=1.9).why


def _answer(tokens: str, tops: list[dict[str, float]]) -> Answer:
    return Answer(text=tokens, tokens=tuple(tokens), top_logprobs=tuple(tops), completion_tokens=len(tokens))


def test_gap_where_tokens_part() -> None:
    sure = _answer("ab", [{"a": -0.1, "x": -4}, {"b": -0.2, "c": -3.2}])
    tie = _answer("ac", [{"a": -0.15, "x": -4}, {"c": -0.7, "b": -0.72}])
    parted = gap(sure, tie)
    assert parted is not None
    assert (parted.parts_at, round(parted.nats, 3)) == (1, 3.0)
    equal = gap(
        tie, replace(tie, tokens=("a", "b"), top_logprobs=({"a": -0.1, "x": -4}, {"b": -0.69, "c": -0.70}))
    )
    assert equal is not None
    assert round(equal.nats, 3) == 0.05
    assert gap(Answer(text="x"), Answer(text="y")) is None


def test_a_base_that_differs_from_itself_is_no_base() -> None:
    base = Run(Config(0, False))
    base.answers = {
        ("A", "cold", 0): _answer("a", [{"a": -0.1}]),
        ("A", "again", 1): _answer("a", [{"a": -0.9}]),
    }
    result = ab_judge.judge([base, base], Prompts(544, {"A": [1]}, {}))
    assert (result.status, result.asked) == ("abstain", True)
    assert "differs from itself by 0.80" in result.why


@pytest.mark.parametrize(("apart", "status"), [(0.0, "pass"), (0.05, "pass"), (0.1, "advise"), (0.5, "fail")])
def test_the_combination_stands_out_below_the_tolerance(apart: float, status: str) -> None:
    def run(drafts: int, caching: bool, moved: float) -> Run:
        out = Run(Config(drafts, caching))
        cold = replace(_answer("a", [{"a": -0.1}]), cached_tokens=0)
        out.answers[("A", "cold", 0)] = cold
        again = replace(cold, top_logprobs=({"a": -0.1 - moved},), cached_tokens=544 if caching else 0)
        out.answers[("A", "again", 1)] = again
        return out

    runs = [run(0, False, 0.0), run(0, True, 0.03), run(2, False, 0.0), run(2, True, apart)]
    result = ab_judge.judge(runs, Prompts(544, {"A": [1]}, {}))
    assert (result.status, result.finding is not None) == (status, status == "fail")
    assert ("repeats itself only within 0.1000" in result.why) == (status == "advise")


@pytest.mark.parametrize("how", ["again", "at once"])
def test_that_it_takes_several_requests_is_said(how: str) -> None:
    def run(drafts: int, moved: float) -> Run:
        out = Run(Config(drafts, False))
        out.answers[("A", "cold", 0)] = _answer("a", [{"a": -0.1}])
        out.answers[("A", how, 1)] = _answer("a", [{"a": -0.1 - moved}])
        return out

    result = ab_judge.judge([run(0, 0.0), run(2, 0.5)], Prompts(544, {"A": [1]}, {}))
    assert result.finding is not None
    assert ("All of them when several requests were asked at once" in result.finding.summary) == (how == "at once")


def test_what_is_not_a_number_is_wrong() -> None:
    def run(drafts: int, value: float) -> Run:
        return Run(Config(drafts, False), {("A", "cold", 0): _answer("a", [{"a": value}])})

    good, bad = run(0, -0.1), run(2, NOT_A_NUMBER)
    result = ab_judge.judge([good, bad], Prompts(544, {"A": [1]}, {}))
    assert result.finding is not None
    assert result.finding.id == "mtp-corrupts-output"
    assert "not numbers" in result.finding.summary
    assert result.measured["servers"]["MTP"]["wrong"] == [
        "A (cold) against base: log-probabilities are not numbers"
    ]
    assert ab_judge.judge([run(0, NOT_A_NUMBER), bad], Prompts(544, {"A": [1]}, {})).status == "abstain"


def test_an_option_is_taken_out_in_both_forms() -> None:
    given = ("--a", "1", "--speculative-config", "{}", "--speculative_config={}", "--b")
    assert without_option(given, "--speculative-config") == ("--a", "1", "--b")
