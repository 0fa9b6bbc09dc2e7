"""A fake environment whose ``vllm`` is the stub server, and a model folder with MTP weights."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.facts import DriverFacts, GpuFacts
from doctor.host import LocalHost
from doctor.memory.start_check import GIB
from doctor.smoke import profile
from doctor.smoke.options import SmokeOptions
from doctor.smoke.run import SmokeResult, run_smoke
from doctor.snapshot import Snapshot
from tests.memory.support import config_path

CARD = GpuFacts(
    index=0,
    name="NVIDIA GeForce RTX 2080 Ti",
    compute_capability="7.5",
    total_bytes=22 * GIB,
    free_bytes=21 * GIB,
    cuda_total_bytes=int(21.99 * GIB),
    cuda_free_bytes=int(20.8 * GIB),
    processes=(),
)
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


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> list[GpuFacts]:
    """The card that the driver shows; a test may change it."""
    cards = [CARD]
    monkeypatch.setattr(profile, "look", lambda _: Snapshot(driver=DriverFacts(env={}), gpus=tuple(cards)))
    return cards


@pytest.fixture
def gpu(tmp_path: Path) -> dict[str, object]:
    """Options for an environment with a GPU's vLLM and the configuration of Qwen3.5-9B-AWQ."""
    model = make_model(tmp_path / "q9")
    (model / "config.json").write_bytes(config_path("qwen3.5-9b-awq").read_bytes())
    tensors = {"model.language_model.layers.0.mlp.down_proj.weight": 4_300_000_000, "mtp.fc.weight": 250_000_000}
    header: dict[str, object] = {}
    end = 0
    for name, elements in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [elements], "data_offsets": [end, end + 2 * elements]}
        end += 2 * elements
    text = json.dumps(header).encode()
    with (model / "model.safetensors").open("wb") as file:  # sparse: it takes no room
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    index = {"weight_map": dict.fromkeys(tensors, "model.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return {"python": str(make_environment(tmp_path / "gpu", "0.26.0")), "model": str(model)}


def host_with(stub: str, **env: str) -> LocalHost:
    return LocalHost(env={"PATH": os.environ["PATH"], "VLLM_STUB": stub, **env})


@pytest.fixture
def smoke(
    environment: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., SmokeResult]:
    """Runs a smoke test on the stub: ``smoke("never-cached", mtp=0)``. Nothing may be left of any run."""
    monkeypatch.setattr("doctor.smoke.attempt._DEATH_WAIT_S", 0.5)
    for module in ("ladder", "full"):  # no driver has to free anything here
        monkeypatch.setattr(f"doctor.smoke.{module}._PAUSE_S", 0.0)

    cache = tmp_path / "cache"
    cache.mkdir()

    def run(stub: str = "", **options: object) -> SmokeResult:
        given = {
            "model": str(model),
            "python": str(environment),
            "out": tmp_path / "out",
            "timeout_s": 10.0,
            "request_s": 5.0,
            **options,
        }
        result = run_smoke(SmokeOptions(**given), host_with(stub, VLLM_CACHE_ROOT=str(cache)), lambda _: None)  # type: ignore[arg-type]
        assert result.left == ()
        return result

    return run
