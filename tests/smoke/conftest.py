"""A fake environment whose ``vllm`` is the stub server, and a model folder with MTP weights."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.host import LocalHost
from doctor.smoke.options import SmokeOptions
from doctor.smoke.run import SmokeResult, run_smoke

STUB = Path(__file__).parent / "stub_vllm.py"


def make_environment(folder: Path, version: str | None = "0.32.0+cpu") -> Path:
    """A virtual environment as far as the doctor looks: interpreter, vllm program, its metadata."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    site = folder / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    if version is not None:
        program = folder / "bin" / "vllm"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{STUB}" "$@"\n')
        program.chmod(0o755)
        info = site / f"vllm-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder


def make_model(folder: Path, *, mtp: bool = True) -> Path:
    """A model folder with a configuration, an index and two bytes of weights."""
    folder.mkdir(parents=True)
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    (folder / "config.json").write_text(json.dumps(config))
    names = ["model.language_model.embed_tokens.weight"] + (["mtp.fc.weight"] if mtp else [])
    header = json.dumps({n: {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]} for n in names}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return make_environment(tmp_path / "venv")


@pytest.fixture
def gpu_environment(tmp_path: Path) -> str:
    """One whose version is that of a GPU's vLLM."""
    return str(make_environment(tmp_path / "gpu-venv", "0.26.0"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


def host_with(stub: str) -> LocalHost:
    return LocalHost(env={"PATH": os.environ["PATH"], "VLLM_STUB": stub})


@pytest.fixture
def smoke(
    environment: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., SmokeResult]:
    """Runs a smoke test on the stub: ``smoke("never-cached", mtp=0)``. Nothing may be left of any run."""
    monkeypatch.setattr("doctor.smoke.attempt._DEATH_WAIT_S", 0.5)
    for module in ("ladder", "full"):  # no driver has to free anything here
        monkeypatch.setattr(f"doctor.smoke.{module}._PAUSE_S", 0.0)

    def run(stub: str = "", **options: object) -> SmokeResult:
        given = {
            "model": str(model),
            "python": str(environment),
            "out": tmp_path / "out",
            "timeout_s": 10.0,
            "request_s": 5.0,
            **options,
        }
        result = run_smoke(SmokeOptions(**given), host_with(stub), lambda _: None)  # type: ignore[arg-type]
        assert result.left == ()
        return result

    return run
