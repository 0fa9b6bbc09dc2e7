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
from doctor.smoke.options import HERE, Missing

#: A name on the hub, with a branch, tag or commit behind an @.
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+?)(?:@([\w./-]+))?\Z")
#: Keys of a configuration that count layers of an MTP head, and families that always have one.
_MTP_KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_MTP_FAMILIES = ("qwen3_5", "qwen3_next")
#: Bytes of a safetensors header that are read at most; the 9B's index has 1,500 names.
_HEADER_LIMIT = 64 << 20


@dataclass(frozen=True)
class ModelInfo:
    """``problem`` is one line when the model cannot be served. ``has_mtp`` is None when not known."""

    given: str
    path: str = ""
    problem: str | None = None
    cause: str = Missing.cause  # of the problem, in the catalogue
    config: Mapping[str, Any] = field(default_factory=dict)
    has_mtp: bool | None = None
    mtp_source: str = ""

    @property
    def declares_mtp(self) -> bool:
        """Whether the configuration, or its architecture, has a head for drafts."""
        text = self.config.get("text_config")
        parts = [self.config, *([text] if isinstance(text, dict) else [])]
        if any(p.get(name) for p in parts for name in _MTP_KEYS):
            return True
        return any(str(p.get("model_type", "")).startswith(_MTP_FAMILIES) for p in parts)

    @property
    def architecture(self) -> str:
        """First architecture of the configuration, or ""."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""


def inspect(host: Host, given: str, missing: Missing = HERE) -> ModelInfo:
    """Looks at a folder, or at a hub name that is already in the local cache. Nothing is downloaded.

    ``missing`` is why a hub name is not there, when the caller knows.
    """
    expanded = os.path.expanduser(given)
    path = os.path.abspath(expanded)
    if not host.exists(path):
        cached = cached_folder(host, given)
        if cached is None:
            why = missing or Missing(_missing(host, given, path))
            return ModelInfo(given, path, problem=str(why), cause=why.cause)
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
    if HUB_ID.match(given):
        return f"{given} is neither a folder here nor a whole model in the local hub cache; --download fetches it"
    parent = os.path.dirname(path)
    while not host.exists(parent) and parent != "/":
        parent = os.path.dirname(parent)
    near = [n for n in host.listdir(parent) if host.exists(f"{parent}/{n}/config.json")][:3]
    return f"{path} does not exist" + (f"; {parent} has {', '.join(near)}" if near else f" ({parent} does)")


def hub_cache(env: Mapping[str, str]) -> str:
    """The folder that the hub's own client keeps models in."""
    home = env.get("HF_HOME") or f"{env.get('HOME') or os.path.expanduser('~')}/.cache/huggingface"
    return env.get("HF_HUB_CACHE") or f"{home}/hub"


def cached_folder(host: Host, given: str) -> str | None:
    """The snapshot of a hub name in the local cache, when every weight file that it names is there."""
    match = HUB_ID.match(given)
    if match is None:
        return None
    name, revision = match[1], match[2] or "main"
    folder = f"{hub_cache(host.env)}/models--{name.replace('/', '--')}"
    commit = (host.read(f"{folder}/refs/{revision}", 200) or "").strip()
    if not commit and not host.is_dir(f"{folder}/snapshots/{revision}"):
        return None
    snapshot = f"{folder}/snapshots/{commit or revision}"
    return snapshot if host.exists(f"{snapshot}/config.json") and _whole(host, snapshot) else None


def _whole(host: Host, snapshot: str) -> bool:
    """A client that was interrupted, or only asked for the configuration, leaves a snapshot without weights."""
    text = host.read(f"{snapshot}/model.safetensors.index.json", 32 << 20)
    if text is None:
        return any(n.endswith((".safetensors", ".bin", ".pt", ".gguf")) for n in host.listdir(snapshot))
    try:
        names = set(json.loads(text)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # what is wrong with it is said by others
    return all(host.exists(f"{snapshot}/{name}") for name in names)


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
