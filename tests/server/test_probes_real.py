"""What a server with drafts on a CPU is not asked: JSON, tool calls, limits of sampling, requests at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.serve.command import Settings
from tests.server.started import started
from tests.server.test_smoke_real import ROOT, status

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]


def test_every_other_probe_without_drafts(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    parser = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    settings = Settings(str(tiny_model), True, 0, 4096, 0.9, extra=parser, caching=False)
    with started(vllm_env, settings, tmp_path / "server.log") as server:
        done = subprocess.run(
            [sys.executable, "-m", "doctor", "smoke", "--json", "--full", "--url",
             f"http://127.0.0.1:{server.command.port}"],
            cwd=ROOT, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"]) == (0, "ready"), answer["findings"]
    probes = {p["name"]: p for p in answer["smoke"]["probes"]}
    seen = status(answer)
    assert seen.pop("first_requests") in ("pass", "advise")
    # off, or one server to compare with none; a model of permutations recalls nothing; a CPU has no ceiling;
    # of a server that somebody else started neither processes nor settings are known
    for name in (
        "prefix_cache", "speculative", "correctness", "needle", "decode_speed", "memory", "prediction",
    ):  # fmt: skip
        assert seen.pop(name) == "abstain", probes[name]
    assert set(seen.values()) == {"pass"}, probes
    assert probes["tool_call"]["measured"]["forced"][0] == "describe_ship"
    limits = probes["sampling_limits"]["measured"]
    assert (limits["logit_bias"], limits["min_p"]) == ("works", "works")
    levels = probes["concurrency"]["measured"]["levels"]
    assert [level["at_once"] for level in levels] == [1, 2, 3, 4]
    assert levels[-1]["total_tokens_per_s"] > levels[0]["total_tokens_per_s"]
