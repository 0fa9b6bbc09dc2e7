"""Each fault of a stub server is caught by one probe and by no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from doctor.finding import Severity, Verdict
from doctor.serve.client import Answer
from doctor.smoke.probes import Result, memory, prefix_cache, streaming
from doctor.smoke.run import SmokeResult
from doctor.smoke.usage import CARD, PROCESSES, Usage
from tests.smoke.conftest import make_environment
from tests.smoke.test_run import Smoke, ids, probe

GIB = 1 << 30


def caught(result: SmokeResult) -> dict[str, str]:
    """What neither passed nor abstained; drafts and logit_bias exclude each other, on a healthy server too."""
    quiet = ("pass", "abstain")
    return {
        r.name: r.status
        for r in result.results
        if r.status not in quiet and (r.name, r.why) != ("sampling_limits", REFUSED)
    }


REFUSED = "requests with logit_bias or min_p are refused while MTP is on"


@pytest.mark.parametrize(
    ("stub", "name", "status", "text"),
    [
        ("bad-template", "chat_template", "fail", "a chat is refused: HTTP 400: 'str object' has no"),
        ("other-template", "chat_template", "fail", "makes 5 tokens of a message, the chat used 6 tokens"),
        ("ignores-stop", "stop_and_length", "fail", "is in the answer"),
        ("short-by-one", "stop_and_length", "fail", "7 tokens were asked for, 6 came (length)"),
        ("parts-streams", "streaming", "fail", "do not add up"),
        ("in-one-piece", "streaming", "advise", "1 pieces came within 0.00 s"),
        ("ignores-bias", "sampling_limits", "advise", "no effect with speculative decoding: logit_bias"),
        ("never-cached", "prefix_cache", "fail", "none came from the cache"),
        ("no-accept", "speculative", "fail", "none of"),
    ],
)
def test_a_fault_is_caught_by_its_probe_alone(smoke: Smoke, stub: str, name: str, status: str, text: str) -> None:
    result = smoke(stub)
    assert caught(result) == {name: status}
    assert text in probe(result, name).why


@pytest.mark.parametrize(
    ("stub", "name", "status", "text"),
    [
        ("bad-json", "structured_output", "fail", "does not follow the schema: '{\"cargo\": 7}'"),
        ("bad-arguments", "tool_call", "fail", "do not follow the schema"),
        ("wrong-parser", "tool_call", "advise", "--tool-call-parser is not this model's"),
        ("ignores-bias", "sampling_limits", "advise", "no effect although nothing speculates: logit_bias"),
        ("ignores-min-p", "sampling_limits", "advise", "no effect although nothing speculates: min_p"),
    ],
)
def test_what_is_not_asked_of_a_cpu_that_drafts(
    smoke: Smoke, stub: str, name: str, status: str, text: str
) -> None:
    result = smoke(stub, mtp=0, serve_args=("--enable-auto-tool-choice", "--tool-call-parser", "hermes"))
    assert caught(result) == {name: status}
    assert text in probe(result, name).why
    safe = smoke(stub)
    if name != "sampling_limits":
        assert probe(safe, name).status == "abstain"
        assert not probe(safe, name).asked


def test_a_server_without_drafts_passes_all_of_it(smoke: Smoke) -> None:
    result = smoke(mtp=0)
    assert caught(result) == {}
    assert probe(result, "structured_output").measured["text"] == '{"cargo": "copper", "docked": true}'
    assert "free choice is off here" in probe(result, "tool_call").why
    assert "requires --enable-auto-tool-choice" in probe(result, "tool_call").measured["free"]
    assert probe(result, "sampling_limits").why == "logit_bias and min_p work"
    assert result.judgement.verdict is Verdict.READY


def test_a_limit_of_drafts_is_said_and_costs_no_verdict(smoke: Smoke) -> None:
    refused = smoke()
    assert probe(refused, "sampling_limits").why == REFUSED
    assert "not yet supported with speculative decoding" in probe(refused, "sampling_limits").measured["refusal"]
    assert (ids(refused), refused.judgement.verdict) == ([], Verdict.READY)
    # a silent one is a note that names its cause
    ignored = smoke("ignores-bias")
    assert ids(ignored) == ["mtp-drops-logit-bias-min-p"]
    assert ignored.judgement.findings[0].severity is Severity.NOTE
    assert ignored.judgement.verdict is Verdict.READY


def test_a_broken_answer_degrades_with_its_evidence(smoke: Smoke) -> None:
    result = smoke("ignores-stop")
    assert (ids(result), result.judgement.verdict) == (["answer-breaks-request"], Verdict.DEGRADED)
    evidence = {e.fact: (e.value, e.source) for e in result.judgement.findings[0].evidence}
    assert evidence["stop_and_length.stop_reason"] == ("length", "expected stop")


def test_no_template_abstains_and_json_is_still_asked(smoke: Smoke) -> None:
    result = smoke("no-template", mtp=0)
    assert caught(result) == {}
    assert probe(result, "structured_output").status == "pass"
    assert (probe(result, "tool_call").status, probe(result, "tool_call").asked) == ("abstain", False)


def test_a_text_that_drifts_is_not_blamed_on_streams_or_limits(smoke: Smoke) -> None:
    assert caught(smoke("drifting", mtp=0)) == {"consistency": "fail"}
    assert caught(smoke("rounding", mtp=0)) == {"consistency": "advise"}


def test_prefix_cache_says_what_never_hits(smoke: Smoke) -> None:
    one = probe(smoke(), "prefix_cache")
    assert one.why.endswith("a prompt under 1089 tokens never hits, which is no fault")
    assert one.expected["cached_tokens"] == 544
    assert one.measured["ttft_ratio"] > 0
    assert probe(smoke(mtp=0), "prefix_cache").measured["smallest_prompt_that_hits"] == 545
    short = probe(smoke(max_model_len=1000), "prefix_cache")
    assert "shorter prompts never hit, which is no fault" in short.why


def test_more_cached_than_predicted_is_no_fault(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "smallest_hit", lambda *_: 1200)
    one = probe(smoke(), "prefix_cache")
    assert (one.status, "more than the 0 predicted" in one.why) == ("pass", True)


def test_concurrency_with_full_only(smoke: Smoke) -> None:
    assert "--full" in probe(smoke(mtp=0), "concurrency").why
    serve = ("--no-enable-prefix-caching",)
    together = probe(smoke(mtp=0, full=True, serve_args=serve), "concurrency")
    assert [level["at_once"] for level in together.measured["levels"]] == [1, 2, 3, 4]
    assert together.status == "pass"
    queued = probe(smoke("one-at-a-time", mtp=0, full=True, serve_args=serve), "concurrency")
    assert queued.why.startswith("they queue, one runs at a time")
    assert queued.measured["levels"][-1]["waiting"] >= 1


def test_memory_that_grows(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BOUND_BYTES", 24 << 20)
    result = smoke("leaks", mtp=0)
    assert caught(result) == {"memory": "advise"}
    assert 40 < probe(result, "memory").measured["growth_mib"] < 80
    assert caught(smoke(mtp=0)) == {}


def test_memory_of_a_card() -> None:
    warm = Usage(PROCESSES, 20 * GIB, 2 * GIB)
    grown = memory.judge(warm, Usage(PROCESSES, 20 * GIB + GIB // 2, GIB), memory.BOUND_BYTES)
    assert grown.status == "advise"
    assert "+512 MiB since the warm-up, 1.00 GiB free: more than 256 MiB" in grown.why
    assert memory.judge(warm, warm, memory.BOUND_BYTES).status == "pass"
    shown = memory.judge(Usage(CARD, GIB), Usage(CARD, GIB - (1 << 20)), memory.BOUND_BYTES)
    assert "the whole card" in shown.why


def test_without_a_card_nothing_is_compared(smoke: Smoke, tmp_path: Path) -> None:
    gpu = smoke(mtp=0, python=str(make_environment(tmp_path / "gpu", version="0.32.0")))
    for name in ("decode_speed", "memory", "prediction"):
        one: Result = probe(gpu, name)
        assert (one.status, one.asked) == ("abstain", False), one.why
    assert gpu.judgement.verdict is Verdict.READY


def test_streams_are_not_blamed_for_a_text_that_changes() -> None:
    def stream(text: str) -> Answer:
        return Answer(
            text=text, completion_tokens=32, ttft_s=0.1, total_s=0.5, arrivals_s=(0.1, 0.5), usage_last=True
        )

    same = [stream("a b"), stream("a b")]
    assert streaming.judge(same, ["a c", "a c"], None).status == "fail"
    assert streaming.judge(same, ["a c", "a b"], None).status == "pass"
    changed = streaming.judge(same, ["a c", "a d"], None)
    assert (changed.status, "another each time" in changed.why) == ("pass", True)
    assert streaming.judge([same[0], replace(same[1], usage_last=False)], ["a b"], None).status == "fail"
    late = [replace(s, ttft_s=0.48, arrivals_s=(0.48, 0.5)) for s in same]
    assert "something holds the stream back" in streaming.judge(late, ["a b"], None).why
