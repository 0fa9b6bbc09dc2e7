"""``--full``, what it says of damaged and of made models, and the warm-up, on a real vLLM.

The first test is the one whole ``--full`` that every CI run has; the others are run by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor.host import LocalHost
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings
from doctor.serve.environment import locate
from doctor.serve.server import Server
from doctor.smoke.prompts import unique_prompt
from tests.server.ab_servers import AbServers
from tests.server.cpu_vllm import plugins, setup_env
from tests.server.started import started
from tests.server.test_smoke_real import ROOT, smoke, status, vllm_processes

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def telling_model(vllm_env: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose text shows what the recurrent state holds, a block later too."""
    folder = tmp_path_factory.mktemp("telling") / "tiny"
    return setup_env.make_model(vllm_env / "bin" / "python", folder, "--layer-noise", "2", "--long-memory")


def test_a_healthy_server_is_not_accused(vllm_env: Path, telling_model: Path, tmp_path: Path) -> None:
    code, answer = smoke(vllm_env, telling_model, "--full", "--timeout", "600", "--out", str(tmp_path / "out"))
    assert (code, answer["verdict"]) == (0, "ready"), answer["findings"]
    one = next(p for p in answer["smoke"]["probes"] if p["name"] == "correctness")
    assert one["status"] in ("pass", "advise")
    assert sorted(one["measured"]["servers"]) == ["MTP", "MTP + prefix caching", "base", "prefix caching"]
    cached = one["measured"]["cached_tokens"]
    assert any(t for tokens in cached["MTP + prefix caching"].values() for t in tokens)
    # the next turn goes on behind a border that was crossed while drafts were verified
    assert max(t or 0 for t in cached["MTP + prefix caching"]["next turn"]) == 2 * 544
    seen = status(answer)
    assert seen["mtp_speed"] in ("pass", "advise")
    for name in ("liveness", "streaming", "prefix_cache", "speculative", "consistency", "memory", "prediction"):
        assert seen[name] == "pass", answer["smoke"]["probes"]
    probes = {p["name"]: p["measured"] for p in answer["smoke"]["probes"]}
    assert max(probes["prefix_cache"]["cached_tokens"]) == 544  # drafts cost a hit one block: one of two
    assert 0.3 < probes["speculative"]["acceptance_per_position"]["0"] < 1.0
    assert vllm_processes(str(tmp_path)) == []


@pytest.mark.long
def test_damaged_state_is_caught(vllm_env: Path, telling_model: Path, tmp_path: Path) -> None:
    plugin = plugins.install("corrupt_plugin", tmp_path / "plugin")
    code, answer = smoke(
        vllm_env, telling_model, "--full", "--timeout", "600", "--out", str(tmp_path / "out"),
        PYTHONPATH=str(plugin), CORRUPT_STATE="3",
    )  # fmt: skip
    assert "damaged the state" in (tmp_path / "out" / "server.log").read_text()
    assert (code, answer["verdict"]) == (1, "degraded")
    assert [f["id"] for f in answer["findings"]] == ["mtp-prefix-cache-corrupts-output"]
    assert answer["findings"][0]["confidence"] == "proven"
    assert {step["passed"] for step in answer["smoke"]["ladder"]["steps"]} == {True}
    passed = answer["smoke"]["settings_that_passed"]
    assert (passed["prefix_caching"], passed["num_speculative_tokens"]) == (False, 2)


@pytest.mark.long
def test_which_combination_is_named(vllm_env: Path, telling_model: Path, tmp_path: Path) -> None:
    with AbServers(locate(LocalHost(), str(vllm_env)), str(telling_model), tmp_path) as servers:
        servers.ask()
        healthy = servers.judge()
        assert healthy["status"] in ("pass", "advise"), healthy
        named = {}
        for when, damaged in (
            ("both", {"MTP + prefix caching"}),
            ("restored", {"prefix caching", "MTP + prefix caching"}),
            ("drafted", {"MTP", "MTP + prefix caching"}),
        ):
            servers.damage(3, when)
            # what was asked while undamaged or damaged otherwise is asked again
            servers.ask_again(c for c in servers.clients if c.name != "base")
            judged = servers.judge()
            named[when] = judged["finding"]
            assert {n for n, apart in judged["largest"].items() if max(apart) > judged["tolerance"]} == damaged
    assert named == {
        "both": "mtp-prefix-cache-corrupts-output",
        "restored": "prefix-cache-corrupts-output",
        "drafted": "mtp-corrupts-output",
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("noise", "least", "most"), [("0", 0.9, 1.0), ("4", 0.4, 0.85), ("16", 0.0, 0.45), ("1000", 0.0, 0.0)]
)
def test_acceptance_is_what_the_draft_head_was_made_for(
    vllm_env: Path, tmp_path: Path, noise: str, least: float, most: float
) -> None:
    model = setup_env.make_model(vllm_env / "bin" / "python", tmp_path / "model", "--mtp-noise", noise)
    _, answer = smoke(vllm_env, model, "--out", str(tmp_path / "out"))
    probes = {p["name"]: p for p in answer["smoke"]["probes"]}
    seen = probes["speculative"]["measured"]
    first, second = (seen["acceptance_per_position"].get(p, 0.0) for p in "01")
    assert least <= first <= most
    assert second <= first
    assert seen["mean_acceptance_length"] == pytest.approx(1 + first + second, abs=0.01)
    # with a noise of 16 the head may guess nothing right either
    assert probes["speculative"]["status"] == ("pass" if first else "fail")
    assert noise in ("16", "1000") or first


@pytest.mark.long
def test_a_checkpoint_without_a_draft_head(vllm_env: Path, tmp_path: Path) -> None:
    model = setup_env.make_model(vllm_env / "bin" / "python", tmp_path / "model", "--no-mtp")
    code, answer = smoke(vllm_env, model, "--mtp", "2", "--out", str(tmp_path / "out"))
    assert (code, answer["verdict"]) == (1, "degraded")
    assert [f["id"] for f in answer["findings"]] == ["mtp-weights-missing"]
    assert status(answer)["speculative"] == "fail"
    assert answer["smoke"]["server"]["state"] == "healthy"  # tried without it
    # a CPU aligns blocks to 32 tokens: 544 without drafts too, where a GPU has 528
    assert answer["smoke"]["server"]["block_size"] == 544
    cached = next(p for p in answer["smoke"]["probes"] if p["name"] == "prefix_cache")["measured"]["cached_tokens"]
    assert max(cached) == 2 * 544  # without drafts no block is lost


@pytest.fixture(scope="module")
def running(vllm_env: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A healthy server that somebody else started."""
    log = tmp_path_factory.mktemp("running") / "server.log"
    with started(vllm_env, Settings(str(tiny_model), True, 2, 4096, 0.9), log) as server:
        yield server


@pytest.mark.long
def test_url_and_warmup(running: Server) -> None:
    def doctor(*arguments: str) -> tuple[int, dict]:
        argv = [sys.executable, "-m", "doctor", *arguments, "--json"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600)
        return done.returncode, json.loads(done.stdout)

    url = f"http://127.0.0.1:{running.command.port}"
    code, answer = doctor("warmup", "--url", url, "--greedy-only", "--log", str(running.log))
    assert (code, answer["verdict"]) == (0, "ready"), answer["findings"]
    assert len(answer["warmup"]["shapes"]) == 9
    assert all(s["error"] is None and len(s["later_s"]) == 2 for s in answer["warmup"]["shapes"])
    assert (answer["warmup"]["model"], answer["warmup"]["vllm"]) == (SERVED_NAME, "0.32.0")
    code, answer = doctor("smoke", "--url", url)
    assert (code, answer["verdict"]) == (0, "ready"), answer["findings"]
    assert {p: s for p, s in status(answer).items() if s == "pass"}.keys() >= {
        "liveness", "prefix_cache", "speculative", "consistency",
    }  # fmt: skip
    assert answer["smoke"]["server"]["block_size"] == 544
    time.sleep(0.5)
    assert running.poll() is None


@pytest.mark.long
def test_cached_tokens_grow_by_a_block(running: Server) -> None:
    client = Client(running.command.port, SERVED_NAME)
    best = {}
    for blocks in (1, 2, 3, 4):
        prompt = unique_prompt(client, blocks * 544 + 40)
        best[blocks] = max(client.complete(prompt, 4, ignore_eos=True).cached_tokens or 0 for _ in range(3))
    assert best == {1: 0, 2: 544, 3: 1088, 4: 1632}  # drafts cost the last block
