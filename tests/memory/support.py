"""Shapes of the models in tests/memory/configs, read once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from doctor.memory.config import read_json, shape_of
from doctor.memory.kv import KvPool, size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.shape import ModelShape
from doctor.memory.versions import switches

HERE = Path(__file__).parent
GIB = 1 << 30


def config_path(name: str) -> Path:
    """``qwen3.5-9b`` or ``families/llama``."""
    return HERE / "configs" / name / "config.json"


@cache
def shape(name: str) -> ModelShape:
    """The shape of one of our test models."""
    return shape_of(read_json(config_path(name)), name)


def rows(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and rows of a recorded oracle table."""
    lines = (HERE / "oracle" / f"{name}.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    return header, [dict(zip(header["columns"], json.loads(line), strict=True)) for line in lines[1:]]


def pool(name: str, available: float, length: int, version: str = "0.32.0", **options: Any) -> KvPool:
    """A pool of ``available`` GiB; options are those of KvOptions, ``mtp`` for the draft tokens."""
    if "mtp" in options:
        options["draft_tokens"] = options.pop("mtp")
    return size_pool(shape(name), int(available * GIB), KvOptions(length, **options), switches(version))
