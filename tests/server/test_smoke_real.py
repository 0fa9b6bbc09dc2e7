"""The smoke test against a real vLLM with MTP and prefix caching. Slow: a start takes about a minute."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.cpu_vllm import setup_env

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def command(vllm_env: Path, model: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "doctor", "smoke", "--python", str(vllm_env), "--model", str(model), *options]


def smoke(vllm_env: Path, model: Path, *options: str, **env: str) -> tuple[int, dict[str, Any]]:
    argv = command(vllm_env, model, "--json", *options)
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=1400)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def vllm_processes(marker: str) -> list[int]:
    """Processes that hold the log of a run open: vLLM renames them and hides their environment."""
    found = []
    for fd in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if marker in os.readlink(fd):
                found.append(int(fd.parts[2]))
        except OSError:
            continue
    return found


def status(answer: dict[str, Any]) -> dict[str, str]:
    return {p["name"]: p["status"] for p in answer["smoke"]["probes"]}


@pytest.mark.long  # a part of what --full asks in test_full_real.py
def test_ready_on_the_tiny_model(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    code, answer = smoke(vllm_env, tiny_model, "--out", str(tmp_path / "out"), "--timeout", "600")
    assert (code, answer["verdict"]) == (0, "ready"), answer["findings"]
    seen = status(answer)
    assert seen.pop("needle") == "abstain"  # a model of permutations recalls nothing
    assert seen.pop("first_requests") in ("pass", "advise")  # how long the first takes depends on the machine
    assert seen.pop("sampling_limits") == "advise"  # refused while MTP is on
    # a grammar and drafts on a CPU, no ceiling for a CPU, and what --full asks
    for name in ("structured_output", "tool_call", "decode_speed", "concurrency"):
        assert seen.pop(name) == "abstain"
    assert set(seen.values()) == {"pass"}, answer["smoke"]["probes"]
    server = answer["smoke"]["server"]
    assert server["block_size"] == 544  # that of Qwen3.5-9B with two draft tokens
    assert server["device"] == "cpu"
    assert server["left_processes"] == []
    probes = {p["name"]: p["measured"] for p in answer["smoke"]["probes"]}
    assert max(probes["prefix_cache"]["cached_tokens"]) == 544
    assert 0.3 < probes["speculative"]["acceptance_per_position"]["0"] < 1.0
    assert 1.0 < probes["speculative"]["mean_acceptance_length"] < 3.0
    assert probes["consistency"]["same_text"]
    # what vLLM makes of a pool of 1 GiB is predicted to the token
    rows = {row["figure"]: row for row in probes["prediction"]["rows"]}
    assert rows["KV cache"]["measured"] == rows["KV cache"]["predicted"] == server["kv_tokens"]
    assert answer["smoke"]["settings_that_passed"]["num_speculative_tokens"] == 2
    assert (tmp_path / "out" / "server.log").stat().st_size > 1000
    assert vllm_processes(str(tmp_path)) == []


@pytest.mark.long  # a part of what --full asks in test_full_real.py
def test_a_draft_head_of_noise(vllm_env: Path, tmp_path: Path) -> None:
    model = setup_env.make_model(vllm_env / "bin" / "python", tmp_path / "noise", "--mtp-noise", "1000")
    code, answer = smoke(vllm_env, model, "--out", str(tmp_path / "out"))
    assert (code, answer["verdict"]) == (1, "degraded")
    assert [f["id"] for f in answer["findings"]] == ["mtp-not-drafting"]
    seen = status(answer)
    assert {n: seen[n] for n in ("liveness", "prefix_cache", "speculative", "consistency")} == {
        "liveness": "pass", "prefix_cache": "pass", "speculative": "fail", "consistency": "pass",
    }  # fmt: skip
    assert vllm_processes(str(tmp_path)) == []


@pytest.mark.long
def test_healthy_and_dead_with_the_first_request(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    # without the plugin a kernel is missing that only requests with both MTP and prefix caching need
    code, answer = smoke(vllm_env, tiny_model, "--out", str(tmp_path / "out"), VLLM_PLUGINS="none-of-them")
    assert (code, answer["verdict"]) == (2, "blocked")
    assert [f["id"] for f in answer["findings"]] == ["server-died-on-request"]
    assert "'function' object is not subscriptable" in answer["findings"][0]["summary"]
    assert answer["smoke"]["server"]["state"] == "healthy"
    assert vllm_processes(str(tmp_path)) == []


def test_weights_that_are_cut_off(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(tiny_model, tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: 1 << 20])
    code, answer = smoke(vllm_env, broken)
    assert (code, answer["verdict"]) == (2, "blocked")
    assert [f["id"] for f in answer["findings"]] == ["model-files-incomplete"]
    assert answer["smoke"]["server"]["state"] == "not started"


@pytest.mark.long
def test_weights_that_do_not_fit_the_configuration(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    odd = shutil.copytree(tiny_model, tmp_path / "odd")
    config = json.loads((odd / "config.json").read_text())
    config["text_config"]["vocab_size"] = 4096  # the file has 2048
    (odd / "config.json").write_text(json.dumps(config))
    code, answer = smoke(vllm_env, odd, "--out", str(tmp_path / "out"))
    assert (code, answer["verdict"]) == (2, "blocked")
    assert [f["id"] for f in answer["findings"]] == ["server-died-while-loading"]
    assert "while loading" in answer["findings"][0]["summary"]
    assert "root cause above" not in answer["findings"][0]["summary"]
    assert "AssertionError at " in answer["findings"][0]["summary"]  # a bare assertion: its place is named
    assert vllm_processes(str(tmp_path)) == []


def test_never_healthy(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    code, answer = smoke(vllm_env, tiny_model, "--timeout", "4", "--out", str(tmp_path / "out"))
    assert code == 2
    assert [f["id"] for f in answer["findings"]] == ["server-never-healthy"]
    assert "'spawning'" in answer["findings"][0]["summary"]
    assert vllm_processes(str(tmp_path)) == []


def test_an_unknown_argument(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    code, answer = smoke(vllm_env, tiny_model, "--out", out, "--", "--gpu-memory-utilisation", "0.9")
    assert code == 2
    assert [f["id"] for f in answer["findings"]] == ["serve-arguments-refused"]
    assert "--gpu-memory-utilisation" in answer["findings"][0]["summary"]


def test_model_folder_missing(vllm_env: Path, tmp_path: Path) -> None:
    code, answer = smoke(vllm_env, tmp_path / "nowhere")
    assert (code, answer["verdict"]) == (2, "blocked")
    assert [f["id"] for f in answer["findings"]] == ["model-path-invalid"]
    assert answer["smoke"]["server"]["state"] == "not started"


def test_port_taken(vllm_env: Path, tiny_model: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, answer = smoke(vllm_env, tiny_model, "--port", str(other.getsockname()[1]))
    assert code == 2
    assert [f["id"] for f in answer["findings"]] == ["port-in-use"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_stopped_while_loading(
    vllm_env: Path, tiny_model: Path, tmp_path: Path, number: int
) -> None:
    log = tmp_path / "out" / "server.log"
    argv = command(vllm_env, tiny_model, "--out", str(log.parent))
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    # the engine process lives by then; it is the one that outlives its API server
    while b"Initializing a V1 LLM engine" not in (log.read_bytes() if log.exists() else b""):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert len(vllm_processes(str(log))) >= 2
    process.send_signal(number)
    process.wait(60)
    deadline = time.monotonic() + 40
    while vllm_processes(str(log)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert vllm_processes(str(log)) == []
