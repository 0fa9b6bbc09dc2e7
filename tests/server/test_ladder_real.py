"""The ladder on a real server: each change forced by a fault that it cures; what it hands over starts again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from doctor.serve.client import Client
from doctor.serve.command import ServeCommand
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke.preflight import free_port
from tests.server.cpu_vllm import plugins, setup_env
from tests.server.test_smoke_real import ROOT, smoke, vllm_processes

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1500)]


def climbed(answer: dict[str, Any]) -> list[list[str]]:
    return [step["changes"] for step in answer["smoke"]["ladder"]["steps"]]


def start_again(tmp_path: Path, **environ: str) -> None:
    """The script that was handed over, as a user would start it, in the same broken surroundings."""
    port = free_port()
    argv = ("sh", str(tmp_path / "out" / "serve.sh"), "--port", str(port))
    command = ServeCommand(argv, environ, ("PYTHONDONTWRITEBYTECODE",), port)
    with Server(command, tmp_path / "again.log") as server:
        client = Client(port, "")
        ready = wait_healthy(server, client, LogFollower(server.log), 600, lambda _: None)
        assert ready.state == "healthy", server.log.read_text()[-2000:]
        done = subprocess.run(
            [sys.executable, "-m", "doctor", "smoke", "--url", client.url, "--json"],
            cwd=ROOT, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"]) == (0, "ready"), answer["findings"]
    assert vllm_processes(str(tmp_path)) == []


def test_prefix_caching_off(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    # without the plugin a kernel is missing that only requests with both MTP and prefix caching need
    broken = {"VLLM_PLUGINS": "none-of-them"}
    code, answer = smoke(vllm_env, tiny_model, "--ladder", "--out", str(tmp_path / "out"), **broken)
    assert (code, answer["verdict"]) == (1, "degraded")
    assert climbed(answer) == [["prefix caching off"]] * 2
    passed = answer["smoke"]["settings_that_passed"]
    assert (passed["prefix_caching"], passed["num_speculative_tokens"]) == (False, 2)
    start_again(tmp_path, **broken)


def test_mtp_off(vllm_env: Path, tmp_path: Path) -> None:
    model = setup_env.make_model(vllm_env / "bin" / "python", tmp_path / "noise", "--mtp-noise", "1000")
    code, answer = smoke(vllm_env, model, "--ladder", "--out", str(tmp_path / "out"))
    assert (code, answer["verdict"]) == (1, "degraded")
    assert climbed(answer) == [["MTP off"]] * 2
    passed = answer["smoke"]["settings_that_passed"]
    assert (passed["prefix_caching"], passed["num_speculative_tokens"]) == (True, 0)
    start_again(tmp_path)


def test_a_shorter_context(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "long")
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 1 << 20
    (model / "config.json").write_text(json.dumps(config))
    # 1 GiB of KV cache holds about 330,000 tokens of this model
    options = ("--ladder", "--max-model-len", "800000", "--out", str(tmp_path / "out"))
    code, answer = smoke(vllm_env, model, *options)
    assert (code, answer["verdict"]) == (1, "degraded"), answer["findings"]
    assert climbed(answer) == [["a shorter context"]] * 2
    assert [f["id"] for f in answer["findings"]] == ["kv-cache-too-small-for-context"]
    passed = answer["smoke"]["settings_that_passed"]
    # what vLLM itself names, not half of half
    assert 250_000 < passed["max_model_len"] <= passed["kv_tokens"]
    start_again(tmp_path)


def test_eager_mode(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> None:
    # an option of torch.compile that this torch does not know; that a server on a CPU compiles is the user's wish
    config = '{"inductor_compile_config":{"no_such_option":true}}'
    options = (
        "--ladder",
        "--out",
        str(tmp_path / "out"),
        "--",
        "--no-enforce-eager",
        "--compilation-config",
        config,
    )
    code, answer = smoke(vllm_env, tiny_model, *options, VLLM_CACHE_ROOT=str(tmp_path / "cache"))
    assert (code, answer["verdict"]) == (1, "degraded"), answer["findings"]
    assert "Unexpected optimization option no_such_option" in answer["findings"][0]["summary"]
    assert climbed(answer) == [["eager mode"]] * 2
    passed = answer["smoke"]["settings_that_passed"]
    assert (passed["eager"], passed["num_speculative_tokens"], passed["prefix_caching"]) == (True, 2, True)
    start_again(tmp_path)


@pytest.mark.parametrize(
    ("refused", "last", "values"),
    [
        ("seqs", ["one sequence at a time, small batches"], {"max_num_seqs": 1, "num_speculative_tokens": 2}),
        (
            "drafts caching",
            ["MTP off", "prefix caching off"],
            {"num_speculative_tokens": 0, "prefix_caching": False},
        ),
    ],
)
def test_a_server_that_dies_while_loading(
    vllm_env: Path, tiny_model: Path, tmp_path: Path, refused: str, last: list[str], values: dict[str, object]
) -> None:
    broken = {"PYTHONPATH": str(plugins.install("refuse_plugin", tmp_path / "plugin")), "REFUSE": refused}
    code, answer = smoke(vllm_env, tiny_model, "--ladder", "--out", str(tmp_path / "out"), **broken)
    assert (code, answer["verdict"]) == (1, "degraded"), answer["findings"]
    assert climbed(answer)[-2:] == [last] * 2
    passed = answer["smoke"]["settings_that_passed"]
    assert {name: passed[name] for name in values} == values
    start_again(tmp_path, **broken)
