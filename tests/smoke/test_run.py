"""Whole smoke tests on the stub server: every way a server fails has its own cause and exit code."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.checks.registry import Judgement, found
from doctor.errors import DoctorError
from doctor.finding import Confidence, Verdict
from doctor.smoke.answer import as_json
from doctor.smoke.probes import Result
from doctor.smoke.run import SmokeResult
from tests.smoke.conftest import make_environment, make_model

Smoke = Callable[..., SmokeResult]


def probe(result: SmokeResult, name: str) -> Result:
    return next(r for r in result.results if r.name == name)


def ids(result: SmokeResult) -> list[str]:
    return [f.id for f in result.judgement.findings]


def mentioned(result: SmokeResult) -> list[str]:
    """Ids of findings and of those folded under them: a root cause seen in the log comes first."""
    return [i.id for f in result.judgement.findings for i in (f, *f.symptoms)]


def test_ready(smoke: Smoke) -> None:
    result = smoke()
    assert result.judgement.verdict is Verdict.READY
    statuses = {r.name: r.status for r in result.results}
    assert {n for n, s in statuses.items() if s == "abstain"} == {
        "structured_output", "tool_call",  # drafts on a CPU and a grammar
        "needle",  # the stub recalls nothing, which says nothing
        "decode_speed", "concurrency", "prediction",
    }  # fmt: skip
    assert {n for n, s in statuses.items() if s not in ("pass", "abstain")} == {"sampling_limits"}
    assert probe(result, "prefix_cache").measured["cached_tokens"] == [0, 544, 544]
    assert probe(result, "speculative").measured["acceptance_per_position"] == {"0": 0.6667, "1": 0.3333}
    assert probe(result, "speculative").measured["mean_acceptance_length"] == 2.0
    answer = as_json(result)
    assert answer["settings_that_passed"]["num_speculative_tokens"] == 2
    assert answer["server"]["kv_tokens"] == 328_704
    assert [p["phase"] for p in answer["server"]["phases"]][-1] == "healthy"


def test_without_mtp_more_blocks_are_expected_and_no_drafts(smoke: Smoke) -> None:
    result = smoke(mtp=0)
    assert result.judgement.verdict is Verdict.READY
    assert probe(result, "speculative").status == "abstain"
    assert probe(result, "prefix_cache").expected["cached_tokens"] == 1088
    assert "--speculative-config" not in result.command.argv


@pytest.mark.parametrize(
    ("name", "cause", "text"),
    [
        ("out-of-memory", "weights-exceed-vram", "Tried to allocate 1.90 GiB"),
        ("utilization", "util-above-free-memory", "(20.81/22.0 GiB)"),
        ("port-stolen", "port-in-use", "Address already in use"),
        ("arguments", "serve-arguments-refused", "--gpu-memory-utilisation"),
        ("ninja", "gxx12-missing", "cc1plus: execvp: cc1plus: No such file"),
        ("validation", "transformers-too-old-for-model", "does not recognize this architecture"),
        ("nothing", "server-died-while-loading", "exit code 1"),
    ],
)
def test_dies_while_loading(smoke: Smoke, name: str, cause: str, text: str) -> None:
    result = smoke(f"die:{name}")
    assert result.judgement.verdict is Verdict.BLOCKED
    assert ids(result) == [cause]
    assert "server-died-while-loading" in mentioned(result)
    finding = result.judgement.findings[0]
    assert text in finding.summary
    assert "root cause above" not in finding.summary
    assert "while loading" in finding.summary
    assert {r.status for r in result.results} == {"abstain"}
    assert as_json(result)["settings_that_passed"] == {}


def test_killed_by_a_signal(smoke: Smoke) -> None:
    result = smoke("kill-self")
    assert mentioned(result) == ["server-died-while-loading"]
    assert "SIGKILL" in result.judgement.findings[0].summary
    assert "out-of-memory killer" in result.judgement.findings[0].summary


def test_never_healthy_names_the_phase(smoke: Smoke) -> None:
    result = smoke("hang:compiling", timeout_s=1.0)
    assert ids(result) == ["server-never-healthy"]
    assert "'compiling'" in result.judgement.findings[0].summary
    assert "torch.compile" in result.judgement.findings[0].summary
    assert result.judgement.verdict is Verdict.BLOCKED


@pytest.mark.parametrize("stub", ["dies-on-request", "engine-dead"])
def test_healthy_but_the_first_request_kills_it(smoke: Smoke, stub: str) -> None:
    result = smoke(stub)
    assert "server-died-on-request" in mentioned(result)
    assert "TypeError: 'function' object is not subscriptable" in result.judgement.findings[0].summary
    assert result.judgement.verdict is Verdict.BLOCKED
    assert probe(result, "liveness").status == "fail"
    assert probe(result, "consistency").status == "abstain"


@pytest.mark.parametrize(
    ("stub", "text"),
    [
        ("stream-error", "something odd"),
        ("cut-stream", "ended before its last message"),
        ("http-500", "HTTP 500"),
        ("silent", "no whole answer within 0.5 s"),
    ],
)
def test_no_usable_answer(smoke: Smoke, stub: str, text: str) -> None:
    # HTTP 500 with the engine's name is not a death while the log does not say so
    result = smoke(stub, request_s=0.5 if stub == "silent" else 5.0)
    assert ids(result) == ["server-gives-no-answer"]
    assert text in result.judgement.findings[0].summary
    assert result.judgement.verdict is Verdict.BLOCKED


def test_the_main_process_killed_leaves_no_orphans(smoke: Smoke) -> None:
    result = smoke("orphans silent", request_s=3.0)
    assert result.judgement.verdict is Verdict.BLOCKED
    assert "SIGKILL" in result.judgement.findings[0].summary


def test_prefix_cache_that_never_hits(smoke: Smoke) -> None:
    result = smoke("never-cached")
    assert ids(result) == ["prefix-cache-not-hitting"]
    assert result.judgement.verdict is Verdict.DEGRADED
    assert result.judgement.findings[0].confidence is Confidence.PROVEN


def test_a_first_hit_with_the_third_request_is_a_hit(smoke: Smoke) -> None:
    result = smoke("third-only")
    assert probe(result, "prefix_cache").status == "pass"
    assert "request 3" in probe(result, "prefix_cache").why


def test_cached_tokens_that_are_no_whole_blocks(smoke: Smoke) -> None:
    result = smoke("miscount")
    assert ids(result) == ["prefix-cache-miscounts"]
    assert "537" in probe(result, "prefix_cache").why


def test_usage_without_details_is_judged_by_the_counter(smoke: Smoke) -> None:
    result = smoke("no-details")
    assert probe(result, "prefix_cache").status == "pass"
    assert probe(result, "prefix_cache").measured["hit_counter"] == 1088
    assert probe(smoke("no-details never-cached"), "prefix_cache").status == "fail"


def test_metrics_that_are_not_metrics(smoke: Smoke) -> None:
    result = smoke("garbage-metrics")
    assert probe(result, "prefix_cache").status == "pass"
    assert probe(result, "speculative").status == "abstain"
    # MTP was asked for and nobody can tell whether it drafts
    assert result.judgement.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("stub", ["no-drafts", "no-accept"])
def test_mtp_that_does_nothing(smoke: Smoke, stub: str) -> None:
    result = smoke(stub)
    assert ids(result) == ["mtp-not-drafting"]
    assert result.judgement.verdict is Verdict.DEGRADED


def test_text_that_drifts_surely(smoke: Smoke) -> None:
    result = smoke("drifting")
    assert ids(result) == ["mtp-prefix-cache-corrupts-output"]
    assert probe(result, "consistency").measured["differs_at"] == 5
    assert ids(smoke("drifting", mtp=0)) == ["output-not-repeatable"]


def test_text_that_differs_by_rounding_is_advice(smoke: Smoke) -> None:
    result = smoke("rounding")
    assert probe(result, "consistency").status == "advise"
    assert result.judgement.verdict is Verdict.READY


def test_no_chat_template(smoke: Smoke) -> None:
    result = smoke("no-template")
    assert result.judgement.verdict is Verdict.READY
    assert probe(result, "chat_template").status == "abstain"
    assert "no chat template" in probe(result, "chat_template").why


def test_a_context_too_short_for_two_blocks_is_not_judged(smoke: Smoke) -> None:
    result = smoke(max_model_len=1000)
    assert probe(result, "prefix_cache").status == "abstain"
    assert result.judgement.verdict is Verdict.UNKNOWN


def test_checkpoint_without_mtp_weights_is_served_without(smoke: Smoke, tmp_path: Path) -> None:
    result = smoke(model=str(make_model(tmp_path / "bare", mtp=False)))
    assert ids(result) == ["mtp-weights-missing"]
    assert probe(result, "speculative").status == "fail"
    assert probe(result, "liveness").status == "pass"
    assert result.judgement.verdict is Verdict.DEGRADED
    assert "--speculative-config" not in result.command.argv


def test_model_folder_missing(smoke: Smoke, tmp_path: Path, model: Path) -> None:
    result = smoke(model=str(tmp_path / "modell"))
    assert ids(result) == ["model-path-invalid"]
    assert result.readiness is None
    assert "has model" in result.judgement.findings[0].summary  # a folder near it that is one
    assert result.judgement.verdict is Verdict.BLOCKED
    (model / "config.json").write_text("{not json")
    assert "not valid JSON" in smoke().judgement.findings[0].summary
    (model / "config.json").unlink()
    assert "no config.json" in smoke().judgement.findings[0].summary


def test_weights_cut_off_are_seen_before_the_start(smoke: Smoke, model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    result = smoke()
    assert ids(result) == ["model-files-incomplete"]
    assert result.readiness is None
    assert smoke(serve_args=("--load-format", "dummy")).judgement.verdict is Verdict.READY


def test_no_weights_at_all_are_seen_before_the_start(smoke: Smoke, model: Path) -> None:
    for path in model.glob("model.safetensors*"):
        path.unlink()
    result = smoke()
    assert ids(result) == ["model-files-incomplete"]
    assert result.readiness is None
    assert "every weights file (*.safetensors): missing" in result.judgement.findings[0].summary


def test_port_taken_names_the_listener(smoke: Smoke) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        result = smoke(port=other.getsockname()[1])
    assert ids(result) == ["port-in-use"]
    assert result.readiness is None
    assert "pid" in result.judgement.findings[0].summary


def test_environment_without_vllm(smoke: Smoke, tmp_path: Path) -> None:
    result = smoke(python=str(make_environment(tmp_path / "bare", version=None)))
    assert ids(result) == ["vllm-not-installed"]
    with pytest.raises(DoctorError, match="no such environment"):
        smoke(python=str(tmp_path / "nowhere"))


def test_arguments_that_move_the_server_are_refused(smoke: Smoke) -> None:
    for arguments in (("--host", "0.0.0.0"), ("--port=1",), ("--api_key", "x"), ("model",)):
        with pytest.raises(DoctorError):
            smoke(serve_args=arguments)


def test_gpu_build_gets_an_explicit_share_and_a_cpu_build_none(smoke: Smoke, tmp_path: Path) -> None:
    gpu = smoke(python=str(make_environment(tmp_path / "gpu", version="0.32.0")), utilization=0.83)
    argv = gpu.command.argv
    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.83"
    assert "--enforce-eager" not in argv
    cpu = smoke(utilization=0.83)
    assert "--gpu-memory-utilization" not in cpu.command.argv
    assert cpu.command.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert any("--util" in note for note in cpu.notes)


def test_the_users_speculative_config_wins(smoke: Smoke) -> None:
    config = '{"method":"mtp","num_speculative_tokens":3}'
    result = smoke(serve_args=("--speculative-config", config))
    assert result.command.argv.count("--speculative-config") == 1
    assert probe(result, "speculative").expected["positions"] == 3
    off = smoke(serve_args=("--no-enable-prefix-caching",))
    assert probe(off, "prefix_cache").status == "abstain"
    assert off.judgement.verdict is Verdict.READY


def test_a_root_cause_in_the_log_comes_first(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    cause = found("gxx12-missing", Confidence.PROVEN, "The C++ compiler of gcc-12 is not installed.")
    hint = found("ninja-missing", Confidence.HINT, "")
    monkeypatch.setattr("doctor.smoke.ending.judge", lambda _: Judgement(Verdict.BLOCKED, (cause, hint), (), ()))
    result = smoke("die:nothing")
    assert ids(result) == ["gxx12-missing"]
    assert mentioned(result) == ["gxx12-missing", "server-died-while-loading"]
    summary = result.judgement.findings[0].summary
    assert summary.startswith("The C++ compiler of gcc-12 is not installed. The server ended while loading")


def test_random_weights_are_not_blamed_for_accepting_nothing(smoke: Smoke) -> None:
    result = smoke("no-accept drifting", serve_args=("--load-format", "dummy"))
    assert result.judgement.verdict is Verdict.READY
    for name in ("speculative", "consistency"):
        assert probe(result, name).status == "abstain"
        assert "--load-format dummy" in probe(result, name).why
    assert probe(result, "speculative").measured["drafts"] > 0
    # drafting nothing at all is no matter of the weights
    assert ids(smoke("no-drafts", serve_args=("--load-format", "dummy"))) == ["mtp-not-drafting"]
