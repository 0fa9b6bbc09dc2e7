"""The four servers of ``--full`` and the warm-up, on a real vLLM. Slow: four starts of about a minute each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor.host import LocalHost
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings, build
from doctor.serve.environment import locate
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke.preflight import free_port
from tests.server.cpu_vllm import corrupt_plugin, setup_env
from tests.server.test_smoke_real import ROOT, smoke, status

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1500)]


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
    assert status(answer)["mtp_speed"] in ("pass", "advise")


def test_damaged_state_is_caught(vllm_env: Path, telling_model: Path, tmp_path: Path) -> None:
    plugin = corrupt_plugin.install(tmp_path / "plugin")
    code, answer = smoke(
        vllm_env, telling_model, "--full", "--timeout", "600", "--out", str(tmp_path / "out"),
        PYTHONPATH=str(plugin), CORRUPT_STATE="3",
    )  # fmt: skip
    assert "damaged the state" in (tmp_path / "out" / "server.log").read_text()
    assert (code, answer["verdict"]) == (1, "degraded")
    assert [f["id"] for f in answer["findings"]] == ["mtp-prefix-cache-corrupts-output"]
    assert answer["findings"][0]["confidence"] == "proven"


@pytest.fixture
def running(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> Iterator[Server]:
    """A healthy server that somebody else started."""
    command = build(locate(LocalHost(), str(vllm_env)), Settings(str(tiny_model), True, 2, 4096, 0.9), free_port())
    with Server(command, tmp_path / "server.log", env=os.environ) as server:
        client = Client(command.port, SERVED_NAME)
        assert wait_healthy(server, client, LogFollower(server.log), 600, lambda _: None).state == "healthy"
        yield server


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
