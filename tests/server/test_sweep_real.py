"""A short sweep on a real vLLM, killed in the middle and resumed. Slow: a start takes about a minute."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_smoke_real import ROOT, vllm_processes

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1500)]

#: Two points are enough: with drafts and without, at a context that holds two blocks of 544 tokens.
PLAN = ("--context", "2K", "--axes", "context,mtp", "--mtp", "0,2", "--timeout", "600")


def argv(vllm_env: Path, model: Path, out: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "doctor", "sweep", "--python", str(vllm_env), "--model", str(model)]
    return [*command, "--out", str(out), *PLAN, *options]


def rows(out: Path) -> list[dict[str, Any]]:
    file = out / "sweep.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_predicted_measured_killed_and_resumed(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        argv(vllm_env, tiny_model, out), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 600
    # the second server is on its way when the doctor is killed
    while len(list(out.glob("logs/*.log"))) < 2 or not any(
        b"Initializing a V1 LLM engine" in log.read_bytes()
        for log in out.glob("logs/*.log")
        if log.stem.removeprefix("server-") not in {r["key"] for r in rows(out)}
    ):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    deadline = time.monotonic() + 40
    while vllm_processes(str(out)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert vllm_processes(str(out)) == []
    first = rows(out)
    assert len(first) == 1
    done = subprocess.run(
        argv(vllm_env, tiny_model, out, "--json"), cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["verdict"], answer["sweep"]["resumed"]) == ("ready", 1)
    found = rows(out)
    assert found[0] == first[0]
    assert len({r["key"] for r in found}) == len(found) == 2
    plain, drafting = sorted(found, key=lambda r: r["settings"]["draft_tokens"])
    for row in found:
        assert row["outcome"] == "ok", row["why"]
        assert row["block_size"] == 544  # that of Qwen3.5-9B with two draft tokens
        # the pool of a CPU server is given, so nothing is left to estimate
        assert row["predicted"]["difference_percent"] == 0.0
        assert row["decode_tokens_per_s"] > 0 < row["prefill_tokens_per_s"]
        assert row["memory_used_gib"] > 0.5
    assert drafting["kv_tokens"] < plain["kv_tokens"]
    assert 0.3 < drafting["acceptance_per_position"]["0"] < 1.0
    # drafts cost a hit one block: one of two
    assert max(plain["cached_tokens"]) == 2 * 544
    assert max(drafting["cached_tokens"]) == 544
    assert (out / "sweep.md").read_text().count("| ok |") == 2
    assert vllm_processes(str(out)) == []
