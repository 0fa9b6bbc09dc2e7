"""What must be known of a model before a server is started for it: that it is there, and has MTP weights."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from doctor.host import Host

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
#: Bytes of a safetensors header that are read at most; the 9B's index has 1,500 names.
_HEADER_LIMIT = 64 << 20


@dataclass(frozen=True)
class ModelInfo:
    """``problem`` is one line when the model cannot be served. ``has_mtp`` is None when not known."""

    given: str
    path: str = ""
    problem: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    has_mtp: bool | None = None
    mtp_source: str = ""

    @property
    def architecture(self) -> str:
        """First architecture of the configuration, or ""."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""


def inspect(host: Host, given: str) -> ModelInfo:
    """Looks at a folder, or at a hub name that is already in the local cache. Nothing is downloaded."""
    expanded = os.path.expanduser(given)
    path = os.path.abspath(expanded)
    if not host.exists(path):
        cached = _cached(host, given) if _HUB_ID.match(given) else None
        if cached is None:
            return ModelInfo(given, path, problem=_missing(host, given, path))
        path = cached
    if not host.is_dir(path):
        return ModelInfo(
            given, path, problem=f"{path} is a file; a model is a folder with config.json and weights"
        )
    text = host.read(f"{path}/config.json")
    if text is None:
        return ModelInfo(given, path, problem=f"{path} has no config.json that this user can read")
    try:
        config = json.loads(text)
    except ValueError as error:
        return ModelInfo(given, path, problem=f"{path}/config.json is not valid JSON ({error})")
    if not isinstance(config, dict) or not (config.get("architectures") or config.get("model_type")):
        return ModelInfo(given, path, problem=f"{path}/config.json names no architecture")
    has_mtp, source = _mtp(host, path)
    return ModelInfo(given, path, config=config, has_mtp=has_mtp, mtp_source=source)


def _missing(host: Host, given: str, path: str) -> str:
    if _HUB_ID.match(given):
        return (
            f"{given} is neither a folder here nor a model in the local hub cache; "
            f"the smoke test downloads nothing, `hf download {given}` does"
        )
    parent = os.path.dirname(path)
    while not host.exists(parent) and parent != "/":
        parent = os.path.dirname(parent)
    near = [n for n in host.listdir(parent) if host.exists(f"{parent}/{n}/config.json")][:3]
    return f"{path} does not exist" + (f"; {parent} has {', '.join(near)}" if near else f" ({parent} does)")


def _cached(host: Host, name: str) -> str | None:
    home = host.env.get("HF_HOME") or f"{host.env.get('HOME', os.path.expanduser('~'))}/.cache/huggingface"
    cache = host.env.get("HF_HUB_CACHE") or f"{home}/hub"
    folder = f"{cache}/models--{name.replace('/', '--')}"
    revision = (host.read(f"{folder}/refs/main", 200) or "").strip()
    snapshot = f"{folder}/snapshots/{revision}"
    return snapshot if revision and host.exists(f"{snapshot}/config.json") else None


def _mtp(host: Host, path: str) -> tuple[bool | None, str]:
    index = f"{path}/model.safetensors.index.json"
    text = host.read(index, 32 << 20)
    if text is not None:
        try:
            return _any_mtp(json.loads(text)["weight_map"]), index
        except (ValueError, KeyError, TypeError):
            return None, index
    files = [n for n in host.listdir(path) if n.endswith(".safetensors")]
    if len(files) != 1:
        return None, path
    name = f"{path}/{files[0]}"
    head = host.read_bytes(name, 8)
    if head is None or len(head) < 8:
        return None, name
    length = struct.unpack("<Q", head)[0]
    if length > _HEADER_LIMIT:
        return None, name
    try:
        return _any_mtp(json.loads((host.read_bytes(name, 8 + length) or b"")[8:])), name
    except (ValueError, TypeError):
        return None, name


def _any_mtp(names: Mapping[str, Any]) -> bool:
    return any(n.startswith("mtp.") or ".mtp." in n for n in names)
