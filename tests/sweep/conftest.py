"""Sweeps on the stub server: a fake environment, a model whose memory is known."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.smoke.conftest import make_environment

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests/memory/configs/qwen3.5-9b-awq"
#: Small enough for a fast test: two contexts with and without MTP, and two sequences with both.
SMALL = ("--context", "1K,4K", "--sequences", "1,2", "--axes", "context,sequences,mtp")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return make_environment(tmp_path / "venv")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "Tiny-9B")


def make_model(folder: Path, size: int = 2) -> Path:
    """The configuration of a real model, with a few bytes of weights that have a draft head."""
    folder.mkdir()
    (folder / "config.json").write_bytes((CONFIG / "config.json").read_bytes())
    names = ["model.language_model.embed_tokens.weight", "mtp.fc.weight"]
    header = json.dumps({n: {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]} for n in names}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return folder


def command(environment: Path, model: Path, out: Path, *options: str) -> list[str]:
    argv = [sys.executable, "-m", "doctor", "sweep", "--python", str(environment), "--model", str(model)]
    return [*argv, "--out", str(out), *options]


def sweep(
    environment: Path, model: Path, out: Path, *options: str, stub: str = "", **env: str
) -> tuple[int, dict[str, Any], str]:
    """Runs a whole sweep: exit code, answer, what was said."""
    argv = command(environment, model, out, "--json", *options)
    done = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, "VLLM_STUB": stub, **env}, capture_output=True, text=True, timeout=100
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "sweep.jsonl").read_text().splitlines()]
