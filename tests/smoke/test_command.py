"""``vllm-doctor smoke`` as a person or a script meets it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from doctor.report.smoke import print_smoke
from doctor.report.terminal import console
from tests.smoke.conftest import make_model
from tests.smoke.test_run import Smoke

ROOT = Path(__file__).parents[2]


def doctor(*arguments: str, stub: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "doctor", "smoke", *arguments],
        cwd=ROOT,
        env={**os.environ, "VLLM_STUB": stub, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def given(environment: Path, model: Path) -> list[str]:
    return ["--python", str(environment), "--model", str(model)]


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(done.stdout)  # nothing else may be on stdout
    assert (parsed["schema_version"], parsed["command"]) == (1, "smoke")
    return parsed


def test_ready_is_0_and_leaves_no_folder(given: list[str], tmp_path: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    done = doctor(*given, "--json", TMPDIR=str(scratch))
    assert done.returncode == 0
    assert answer(done)["verdict"] == "ready"
    assert list(scratch.iterdir()) == []


def test_degraded_is_1_and_out_keeps_log_and_answer(given: list[str], tmp_path: Path) -> None:
    out = tmp_path / "kept"
    done = doctor(*given, "--json", "--out", str(out), stub="never-cached")
    assert done.returncode == 1
    assert answer(done)["smoke"]["settings_that_passed"] == {}
    assert json.loads((out / "smoke.json").read_text()) == answer(done)
    assert "Starting vLLM server" in (out / "server.log").read_text()


def test_blocked_is_2_and_names_the_log(given: list[str], tmp_path: Path) -> None:
    done = doctor(*given, stub="die:port-stolen", TMPDIR=str(tmp_path))
    assert done.returncode == 2
    assert "BLOCKED" in done.stdout.splitlines()[0]
    log = next(line for line in done.stdout.splitlines() if line.startswith("log: ")).removeprefix("log: ")
    assert "Address already in use" in Path(log).read_text()


def test_serve_arguments_after_two_dashes(given: list[str]) -> None:
    done = doctor(*given, "--json", "--", "--max-num-seqs", "4", "--language-model-only")
    assert done.returncode == 0, done.stderr
    assert answer(done)["smoke"]["server"]["argv"][-3:] == ["--max-num-seqs", "4", "--language-model-only"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--mtp", "-1"], ["--mtp", "x"], ["--util", "1.5"], ["--util", "nan"], ["--port", "0"], ["--timeout", "0"],
        ["--max-model-len", "3"], ["--python", "/nowhere"], ["--model", ""], ["--", "--host", "::"],
        ["--out", "/proc/nowhere"],
    ],
)  # fmt: skip
def test_misuse_is_3_with_one_line(given: list[str], wrong: list[str]) -> None:
    done = doctor(*given, *wrong)
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_a_model_that_of_the_image(environment: Path, tmp_path: Path) -> None:
    pinned = "QuantTrio/Qwen3.5-9B-AWQ@938f8e3ef86c9d1e9bec3705e149694c172592f1"
    arguments = ["--python", str(environment), "--json"]
    done = doctor(*arguments, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert done.returncode == 2
    assert f"{pinned} is not in {tmp_path}/hub, and HF_HUB_OFFLINE forbids" in done.stdout
    name, _, revision = pinned.partition("@")
    make_model(tmp_path / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / revision)
    cached = answer(doctor(*arguments, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)))
    assert cached["smoke"]["server"]["model"].endswith(revision)


def test_no_server_is_started_for_a_known_cause(given: list[str], tmp_path: Path) -> None:
    done = doctor(*given, "--model", str(tmp_path / "nowhere"), "--json", VLLM_STUB_PIDS=str(tmp_path / "pids"))
    assert done.returncode == 2
    assert answer(done)["findings"][0]["id"] == "model-path-invalid"
    assert not (tmp_path / "pids").exists()


def test_plain_text_when_piped(smoke: Smoke) -> None:
    out = io.StringIO()
    print_smoke(smoke("rounding"), verbose=True, out=console(out))
    text = out.getvalue()
    assert "READY" in text.splitlines()[0]
    assert "\x1b" not in text
    assert "! consistency" in " ".join(text.split())
    assert "texts part at token 5" in " ".join(text.split())
    assert "544 of 1154 tokens" in text
    assert "--enable-prefix-caching" in text


def test_the_table_says_what_failed(smoke: Smoke, tmp_path: Path) -> None:
    out = io.StringIO()
    print_smoke(smoke(model=str(make_model(tmp_path / "bare", mtp=False))), out=console(out))
    text = out.getvalue()
    assert "DEGRADED" in text.splitlines()[0]
    assert "no mtp.* tensor" in text
    assert "mtp-weights-missing" in text


def test_settings_are_shown_with_their_source_and_the_time(smoke: Smoke) -> None:
    out = io.StringIO()
    print_smoke(smoke("never-cached", ladder=True, mtp=1), out=console(out))
    lines = out.getvalue().splitlines()
    assert any(line.split() == ["mtp", "1", "as", "given"] for line in lines), out.getvalue()
    assert any(line.split() == ["prefix_caching", "on", "off", "default:", "on"] for line in lines)
    assert any(line.startswith("the whole test took ") for line in lines)


def test_nothing_that_leaves_has_names_or_secrets(environment: Path, tmp_path: Path) -> None:
    home = tmp_path / "home" / "petra"
    model = make_model(home / "models" / "q9")
    token = "hf_" + "Q" * 34
    arguments = ["--python", str(environment), "--model", str(model), "--out", str(tmp_path / "out"), "-v"]
    arguments += ["--json"]
    serve = ["--", "--hf-token", token, "--some-secret", "s3cr3t-value", "--note", "petra@example.org"]
    env = {"HOME": str(home), "USER": "petra"}
    done = doctor(*arguments, *serve, stub="die:nothing", VLLM_STUB_SAYS=f"token={token} at {home}/x", **env)
    assert done.returncode == 2
    plain = doctor(*[a for a in arguments if a != "--json"], *serve, stub="die:nothing", **env)
    log = (tmp_path / "out" / "server.log").read_text()
    again = doctor(*arguments, *serve, stub="stream-error", VLLM_STUB_SAYS=f"token={token} at {home}/x", **env)
    log += (tmp_path / "out" / "server.log").read_text()
    everything = done.stdout + plain.stdout + again.stdout + log + (tmp_path / "out" / "smoke.json").read_text()
    assert "<secret>" in everything
    for secret in (token, "s3cr3t-value", "petra@example.org", str(home)):
        assert secret not in everything
