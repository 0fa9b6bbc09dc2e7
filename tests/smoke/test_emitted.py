"""Files of the settings that passed: they start the same server again, and hold no secret."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.facts import GpuFacts
from doctor.report.redact import Redactor
from doctor.serve.command import build
from doctor.serve.container import Container
from doctor.smoke.emitted import files
from doctor.smoke.preflight import free_port
from tests.smoke.conftest import host_with
from tests.smoke.test_command import doctor
from tests.smoke.test_run import Smoke


def written(result: object) -> dict[str, str]:
    return files(result, Redactor.of_this_host(), host_with("").env)  # type: ignore[arg-type]


def test_the_three_files_of_a_card(
    smoke: Smoke,
    card: list[GpuFacts],
    gpu: dict[str, object],
) -> None:
    result = smoke(**gpu, serve_args=("--generation-config", "vllm"))
    out = written(result)
    assert set(out) == {"serve.sh", "compose.yaml", "settings.env"}
    assert result.settings is not None
    assert "# passed `vllm-doctor smoke` with vLLM 0.26.0\n" in out["serve.sh"]
    assert "--served-model-name" not in out["serve.sh"]
    assert "--generation-config vllm" in out["serve.sh"]
    assert "image: vllm/vllm-openai:v0.26.0" in out["compose.yaml"]
    assert f'"{result.settings.model}:/model:ro"' in out["compose.yaml"]
    assert '      - "/model"\n' in out["compose.yaml"]
    assert "count: 1" in out["compose.yaml"]
    lines = dict(line.split("=", 1) for line in out["settings.env"].splitlines() if not line.startswith("#"))
    assert lines["GPU_UTIL"] == f"{result.settings.utilization:g}"
    assert lines["MAX_MODEL_LEN"] == str(result.settings.max_model_len)
    assert (lines["MTP_K"], lines["ENABLE_PREFIX_CACHING"]) == ("2", "1")


def test_after_the_ladder_the_files_are_of_what_passed(
    smoke: Smoke,
    card: list[GpuFacts],
    gpu: dict[str, object],
) -> None:
    out = written(smoke("never-cached", **gpu, ladder=True))
    assert "--no-enable-prefix-caching" in out["serve.sh"]
    assert "DISABLE_PREFIX_CACHING=1" in out["settings.env"]
    assert "# given up: prefix caching" in out["serve.sh"]
    assert "--no-enable-prefix-caching" in out["compose.yaml"]


def test_files_of_a_container_name_its_image(smoke: Smoke, card: list[GpuFacts], gpu: dict[str, object]) -> None:
    result = smoke(**gpu)
    one = Container("/usr/bin/docker", "vllm-doctor:0.26.0-cu130-0123456789ab", ("--gpus", "all"), own=True)
    result.environment = replace(result.environment, container=one)
    assert result.settings is not None
    result.command = build(result.environment, result.settings, 18000)
    out = written(result)
    script = out["serve.sh"].replace(" \\\n ", "")
    assert "exec /usr/bin/docker run --rm --gpus all" in script
    assert "vllm-doctor-smoke" not in script
    assert "-p 127.0.0.1:8000:8000" in script
    assert f"{one.image} serve /model --max-model-len" in script.replace("  ", " ")
    assert script.rstrip().endswith('--host 0.0.0.0 --port 8000 "$@"')
    assert f"image: {one.image}" in out["compose.yaml"]
    assert "entrypoint" not in out["compose.yaml"]
    other = replace(one, image="vllm/vllm-openai:v0.26.0", own=False)
    result.environment = replace(result.environment, container=other)
    result.command = build(result.environment, result.settings, 18000)
    assert 'entrypoint: ["vllm", "serve"]' in written(result)["compose.yaml"]


def test_nothing_passed_nothing_written(smoke: Smoke) -> None:
    assert written(smoke("die:nothing")) == {}


def test_values_left_to_vllm_make_no_profile(smoke: Smoke, gpu_environment: str) -> None:
    assert set(written(smoke(python=gpu_environment))) == {"serve.sh", "compose.yaml"}


def test_the_script_starts_the_server_again(environment: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "settings.env").parent.mkdir()
    (out / "settings.env").write_text("of an earlier test\n")
    secret = "hf_" + "Q" * 34
    arguments = ["--python", str(environment), "--model", str(model), "--json", "--out", str(out)]
    done = doctor(*arguments, "--", "--hf-token", secret)
    assert json.loads(done.stdout)["smoke"]["settings_that_passed"], done.stdout[:3000]
    script = (out / "serve.sh").read_text()
    assert secret not in script
    assert not (out / "settings.env").exists()
    port = free_port()
    process = subprocess.Popen([str(out / "serve.sh"), "--port", str(port)], env=dict(os.environ))
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2) as answer:
                    assert json.loads(answer.read())["data"][0]["max_model_len"] == 4096
                    break
            except urllib.error.URLError:
                time.sleep(0.1)
        else:
            pytest.fail("it did not answer")
    finally:
        process.kill()
        process.wait()
