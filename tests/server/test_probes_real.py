"""What a server with drafts on a CPU is not asked: JSON, tool calls, limits of sampling, requests at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.test_smoke_real import smoke, status, vllm_processes

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]


def test_every_other_probe_without_drafts(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    parser = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    options = ("--mtp", "0", "--full", "--out", str(tmp_path / "out"), "--timeout", "600")
    code, answer = smoke(vllm_env, tiny_model, *options, "--", "--no-enable-prefix-caching", *parser)
    assert (code, answer["verdict"]) == (0, "ready"), answer["findings"]
    probes = {p["name"]: p for p in answer["smoke"]["probes"]}
    seen = status(answer)
    assert seen.pop("first_requests") in ("pass", "advise")
    # off, or nothing to compare with; a model of permutations recalls nothing; a CPU has no ceiling
    for name in ("prefix_cache", "speculative", "correctness", "mtp_speed", "needle", "decode_speed"):
        assert seen.pop(name, "abstain") == "abstain"
    assert set(seen.values()) == {"pass"}, probes
    assert probes["tool_call"]["measured"]["forced"][0] == "describe_ship"
    limits = probes["sampling_limits"]["measured"]
    assert (limits["logit_bias"], limits["min_p"]) == ("works", "works")
    levels = probes["concurrency"]["measured"]["levels"]
    assert [level["at_once"] for level in levels] == [1, 2, 3, 4]
    assert levels[-1]["total_tokens_per_s"] > levels[0]["total_tokens_per_s"]
    assert vllm_processes(str(tmp_path)) == []
