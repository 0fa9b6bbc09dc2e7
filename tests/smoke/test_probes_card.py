"""Probes that need a card or a real log: figures of real starts on an H200, and what would be slow there."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doctor.facts import DriverFacts, GpuFacts, GpuProcess, ServingFacts
from doctor.host import LocalHost
from doctor.report.smoke import print_smoke
from doctor.report.terminal import console
from doctor.serve.client import Client
from doctor.serve.command import Settings
from doctor.serve.log import LogFollower
from doctor.smoke import profile, usage
from doctor.smoke.outlook import Outlook, outlook
from doctor.smoke.probes import Session, concurrency, decode_speed, prediction, prefill_speed
from doctor.smoke.probes.concurrency import Level
from doctor.snapshot import Snapshot
from tests.memory.support import config_path
from tests.smoke.test_run import Smoke

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
H200 = GpuFacts(
    index=0,
    name="NVIDIA H200",
    compute_capability="9.0",
    total_bytes=150_754_820_096,
    cuda_total_bytes=150_109_880_320,
    used_bytes=30 * GIB,
    free_bytes=109 * GIB,
    throttle_reasons=("gpu_idle",),
    processes=(),
)
#: Lines of vLLM 0.26.0 (gpu_worker.py, kv_cache_utils.py, backends.py) with figures of docs/measurements.
LOG = """\
INFO 11-30 10:00:00 [core.py:115] Initializing a V1 LLM engine (v0.26.0) with config: x
INFO 11-30 10:00:01 [gpu_model_runner.py:5000] Model loading took {weights_gib} GiB memory and 3.2 seconds
INFO 11-30 10:00:02 [backends.py:1000] {compiled}
INFO 11-30 10:00:03 [interface.py:700] Setting attention block size to {block_size} tokens to ensure that x
INFO 11-30 10:00:04 [gpu_worker.py:561] Available KV cache memory: {gib} GiB
INFO 11-30 10:00:05 [kv_cache_utils.py:1800] GPU KV cache size: {tokens:,} tokens
INFO 11-30 10:00:05 [kv_cache_utils.py:1800] Maximum concurrency for 8,192 tokens per request: {concurrency}x
INFO 11-30 10:00:06 [gpu_worker.py:856] Free memory on device (139.29/139.80 GiB) on startup. Desired GPU memory \
utilization is (0.16, 22.37 GiB). Actual usage is {weights_gib} GiB for weight, {peak_activation_gib} GiB for \
peak activation, {non_torch_gib} GiB for non-torch memory, and {cudagraph_gib} GiB for CUDAGraph memory.
"""
COMPILED = {
    "cold": "Compiling a graph for compile range (1, 1024) takes 20.10 s",
    "warm": "Directly load the compiled graph(s) for compile range (1, 1024) from the cache",
}
EXTRA = ("--load-format", "dummy", "--language-model-only", "--max-num-seqs", "1")
EXTRA += ("--max-num-batched-tokens", "1024")


def measured(name: str) -> dict[str, Any]:
    """A start of docs/measurements/starts-9b-h200.json."""
    row: dict[str, Any] = json.loads((ROOT / "docs/measurements/starts-9b-h200.json").read_text())[name]
    return row


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A server of Qwen3.5-9B-AWQ on an H200 that nobody asks; MTP 2 and prefix caching."""
    monkeypatch.setattr(profile, "look", lambda _: Snapshot(driver=DriverFacts(env={}), gpus=(H200,)))
    (tmp_path / "m").mkdir()
    shutil.copy(config_path("qwen3.5-9b-awq"), tmp_path / "m" / "config.json")
    return Session(
        Client(1, "smoke"), ServingFacts(vllm="0.26.0"), False, 2, True, 8192,
        settings=Settings(str(tmp_path / "m"), True, 2, 8192, 0.16, EXTRA),
        model_folder=str(tmp_path / "m"), host=LocalHost(), pid=1, log=tmp_path / "server.log",
    )  # fmt: skip


def start(session: Session, name: str, **changes: Any) -> Session:
    """The session after this start."""
    row = measured(name) | changes
    assert session.log is not None
    session.log.write_text(LOG.format(**row, compiled=COMPILED[row["compile_cache"]]))
    follower = LogFollower(session.log)
    follower.read()
    session.server = follower.facts
    return session


def rows(result: Any) -> dict[str, dict[str, Any]]:
    return {row["figure"]: row for row in result.measured["rows"]}


def test_a_warm_start_is_as_predicted(session: Session) -> None:
    result = prediction.probe(start(session, "(b) MTP 2, prefix caching, warm"))
    assert result.status == "pass", result.why
    seen = rows(result)
    assert set(seen) == {"weights", "peak activation", "KV pool", "KV cache", "full requests", "block"}
    assert (seen["KV pool"]["measured"], seen["block"]["measured"]) == (11.05, 544)
    assert seen["KV cache"]["low"] <= 172_909 <= seen["KV cache"]["high"]
    assert result.measured["compile_cache"] == "warm"
    assert result.measured["second_start_worth"] is False


def test_a_cold_start_offers_a_second_one(session: Session) -> None:
    result = prediction.probe(start(session, "MTP 2, prefix caching, cold"))
    assert (result.status, result.finding) == ("advise", None)
    assert result.why.startswith("6 of 6 figures as predicted; this start compiled (cold cache): a second one has")
    assert result.measured["second_start_worth"] is True
    # measured: 11.05 GiB instead of 9.18
    assert 1.5 < result.measured["second_start_gain_gib"] < 2.2


def test_a_figure_outside_is_named_with_a_reason(session: Session) -> None:
    small = prediction.probe(start(session, "(b) MTP 2, prefix caching, warm", weights_gib=14.0))
    assert small.status == "advise"
    assert "weights 14.00 GiB, predicted 10." in small.why
    assert "other parts of the checkpoint" in small.why
    block = prediction.probe(start(session, "(b) MTP 2, prefix caching, warm", block_size=1056))
    assert "block 1,056 tokens, predicted 544" in block.why
    assert "another attention backend" in block.why


def test_nothing_is_predicted_without_what_it_needs(session: Session) -> None:
    start(session, "(b) MTP 2, prefix caching, warm")
    assert session.log is not None
    session.log.write_text("nothing\n")
    assert prediction.probe(session).status == "abstain"
    assert "no line says" in prediction.probe(session).why
    session.settings = None
    assert prediction.probe(session).why == "how this server was started is not known"
    assert not prediction.probe(session).asked


def known(session: Session) -> Outlook:
    found = outlook(session)
    assert isinstance(found, Outlook), found
    return found


def test_decode_speed_of_healthy_servers(session: Session) -> None:
    # 106.5 and 106.0 tokens/s with random weights on the H200: nothing is accepted
    one = decode_speed.judge(session, [106.5, 106.0], 1.0, known(session), 24)
    assert one.status == "pass"
    assert "launches and the scheduler limit" in one.why
    assert (one.measured["share_of_ceiling"], one.measured["beside_ms"]) == (0.31, 6.5)
    assert 9.3 < one.measured["step_ms"] < 9.5
    ti = replace(known(session).card, name="RTX 2080 Ti", bandwidth=616e9)  # type: ignore[type-var]
    # 80.3 tokens/s at 2.39 tokens a step
    two = decode_speed.judge(session, [80.3], 2.39, replace(known(session), card=ti), 24)
    assert (two.status, round(two.measured["share_of_ceiling"], 2)) == ("pass", 0.76)
    assert two.why.endswith("the bandwidth limits")


def test_decode_speed_that_is_slow_says_why(session: Session) -> None:
    slow = decode_speed.judge(session, [40.0], 1.0, known(session), 24)
    assert slow.status == "advise"
    assert "something beside the card limits" in slow.why
    hot = replace(known(session), gpu=replace(H200, throttle_reasons=("hw_thermal_slowdown",)))
    assert "throttled (hw_thermal_slowdown)" in decode_speed.judge(session, [40.0], 1.0, hot, 24).why
    eager = replace(known(session), settings=replace(known(session).settings, eager=True))
    assert "launching kernels one by one" in decode_speed.judge(session, [30.0], 1.0, eager, 24).why


def test_decode_speed_without_a_ceiling(session: Session) -> None:
    odd = replace(known(session), card=replace(known(session).card, name="X", bandwidth=None))  # type: ignore[type-var]
    one = decode_speed.judge(session, [50.0], 1.0, odd, 24)
    assert (one.status, one.asked) == ("abstain", False)
    assert "50.0 tokens/s; the bandwidth of X is not in the table" in one.why
    assert "no counter" in decode_speed.judge(session, [50.0], None, known(session), 24).why
    assert "more than can be" in decode_speed.judge(session, [5000.0], 1.0, known(session), 24).why
    session.shared = True
    assert "what the server runs on is not known" in decode_speed.judge(session, [5.0], 1.0, "x", 24).why


def test_prefill_that_is_no_faster_than_decoding(session: Session) -> None:
    fast = prefill_speed.judge(session, 4096, [0.03], [0.25], [110.0])
    assert (fast.status, fast.measured["times_decode"]) == ("pass", 148.9)
    slow = prefill_speed.judge(session, 4096, [0.2], [16.0], [110.0])
    assert slow.status == "advise"
    assert "only 2.3 times the decode speed" in slow.why


def test_requests_at_once_that_bring_nothing(session: Session) -> None:
    levels = [Level(n, 100.0 + n, 50.0, 0.1, float(n), 0.0) for n in range(1, 5)]
    assert concurrency.judge(session, levels).status == "advise"
    queued = [replace(level, running=1.0, waiting=float(level.at_once - 1)) for level in levels]
    assert "they queue" in concurrency.judge(session, queued).why
    more = [replace(level, total_tokens_per_s=100.0 * level.at_once) for level in levels]
    assert "400 together at 4 (4.0 times)" in concurrency.judge(session, more).why
    session.cpu = True
    assert concurrency.judge(session, levels).status == "pass"


def test_memory_is_read_of_our_processes_first(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usage.read(session) == usage.Usage(usage.CARD, 30 * GIB, 109 * GIB)
    ours = replace(H200, processes=(GpuProcess(1, 22 * GIB), GpuProcess(4_000_000, 5 * GIB)))
    monkeypatch.setattr(profile, "look", lambda _: Snapshot(driver=DriverFacts(env={}), gpus=(ours,)))
    monkeypatch.setattr(usage.supervisor, "living", lambda *_: set())
    assert usage.read(session) == usage.Usage(usage.PROCESSES, 22 * GIB, 109 * GIB)
    session.pid = None
    assert usage.read(session) is None


def test_the_figures_are_shown_side_by_side(smoke: Smoke, session: Session) -> None:
    result = smoke(mtp=0)
    cold = prediction.probe(start(session, "MTP 2, prefix caching, cold"))
    result.results = [cold if r.name == "prediction" else r for r in result.results]
    out = io.StringIO()
    print_smoke(result, out=console(out))
    text = " ".join(out.getvalue().split())
    assert "vLLM says measured predicted range" in text
    assert "KV cache (tokens) 143,652" in text
    assert "block (tokens) 544 544" in text
    assert "a second one has about 1.9 GiB more KV cache" in text
    assert "prefix_cache 1088 of 1152 tokens" not in text  # the stub keeps a block less
    assert "1088 tokens from the cache" in text  # what was expected stands beside it
    out = io.StringIO()
    print_smoke(result, out=console(out), verbose=True)
    assert "hit_counter 1088.0" in " ".join(out.getvalue().split())
