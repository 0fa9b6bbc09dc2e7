"""What lies in a model folder: config, weights, and whether they can be whole. No tensor is read."""

from __future__ import annotations

import json
import posixpath
import re
import stat
from typing import Any

from doctor.host.access import Host
from doctor.host.parts import Read

#: Shortest file that can hold weights: a Git LFS pointer has about 130 bytes.
_POINTER_MAX = 1024
_WEIGHTS = re.compile(r"\.(?:safetensors|gguf|bin|pt|pth)$")
#: Weights for a loader that is asked for with --load-format.
_OTHER_LOADERS = (".tensors", ".npz", ".npy")
#: Files of training that end like weights and are none.
_NOT_WEIGHTS = re.compile(r"^(?:training_args|optimizer|scheduler|rng_state|scaler).*\.(?:bin|pt|pth)$")
_HUB_NAME = re.compile(r"[\w][\w.\-]{0,95}/[\w][\w.\-]{0,95}")
#: Largest safetensors header that is looked at (the format's own limit is 100 MB).
_HEADER_MAX = 8 << 20


def expand(host: Host, model: str) -> str:
    """The model argument as an absolute path, when it can be one."""
    home = host.env.get("HOME") or "/root"
    path = re.sub(r"^~(?=/|$)", home, model)
    if not path.startswith("/"):
        folder = host.readlink("/proc/self/cwd")
        path = f"{folder}/{path}" if folder else path
    return posixpath.normpath(path) if path.startswith("/") else path


def facts(host: Host, model: str, hub_cache: str) -> dict[str, Read]:
    """The ``model_*`` fields. A hub name is looked for in the hub cache."""
    path = expand(host, model)
    found: dict[str, Read] = {"model_path": Read(model, "--model")}
    folder = path
    if not host.exists(path):
        name = bool(_HUB_NAME.fullmatch(model))
        found["model_is_hub_name"] = Read(name, "--model")
        if not name:
            return {**found, "model_exists": Read(False, path)}
        snapshot = _snapshot(host, f"{hub_cache}/models--{model.replace('/', '--')}")
        if snapshot is None:
            return found  # to be downloaded: nothing is wrong with that
        folder = snapshot
    else:
        found["model_is_hub_name"] = Read(False, path)
    return {
        **found,
        "model_exists": Read(True, folder),
        "model_folder": Read(folder, folder),
        **_folder(host, folder),
    }


def _snapshot(host: Host, repository: str) -> str | None:
    """The snapshot folder that the hub client would take: of the branch main, else the newest."""
    commit = (host.read(f"{repository}/refs/main", 128) or "").strip()
    if re.fullmatch(r"[0-9a-f]{40}", commit) and host.is_dir(f"{repository}/snapshots/{commit}"):
        return f"{repository}/snapshots/{commit}"
    names = [n for n in host.listdir(f"{repository}/snapshots") if host.is_dir(f"{repository}/snapshots/{n}")]
    return f"{repository}/snapshots/{names[0]}" if len(names) == 1 else None


def _folder(host: Host, folder: str) -> dict[str, Read]:
    if not host.is_dir(folder):  # a single file (GGUF), or something else
        state = host.stat(folder)
        if state is None or not stat.S_ISREG(state.st_mode) or not folder.endswith(".gguf"):
            return {"model_has_config": Read(False, folder)}
        size = Read(state.st_size, folder)
        return {"model_weights_bytes": size, "model_largest_file_bytes": size}
    names = host.listdir(folder)
    found: dict[str, Read] = {}
    config = f"{folder}/config.json"
    if "config.json" in names:
        text = host.read(config, 4 << 20)
        data = _object(text)
        found["model_has_config"] = Read(data is not None if text is not None else None, config)
        kind = data.get("model_type") if data else None
        found["model_type"] = Read(kind[:60] if isinstance(kind, str) else None, config)
    else:
        # params.json is Mistral's own format, a GGUF file carries its configuration inside
        other = "params.json" in names or any(n.endswith(".gguf") for n in names)
        found["model_has_config"] = Read(other, folder)
    return {**found, **_weights(host, folder, names)}


def _weights(host: Host, folder: str, names: tuple[str, ...]) -> dict[str, Read]:
    sizes: dict[str, int] = {}
    bad: dict[str, str] = {}
    for name in names:
        if _WEIGHTS.search(name) and not _NOT_WEIGHTS.match(name):
            state = host.stat(f"{folder}/{name}")
            if state is None:
                bad[name] = "a link whose file is gone"
            elif stat.S_ISREG(state.st_mode):
                sizes[name] = state.st_size
    best = _one_format(sizes)
    found: dict[str, Read] = {}
    index = f"{folder}/model.safetensors.index.json"
    data = _object(host.read(index, 64 << 20)) if "model.safetensors.index.json" in names else None
    shards = _shards(data)
    if shards:
        missing = tuple(sorted(s for s in shards if s not in names or s in bad))
        found["model_missing_files"] = Read(missing, index)
        best = {n: s for n, s in sizes.items() if n in shards} or best
    for name, size in best.items():
        why = _incomplete(host, f"{folder}/{name}", size)
        if why:
            bad[name] = why
    if best:
        found["model_largest_file_bytes"] = Read(max(best.values()), folder)
        found["model_weights_bytes"] = Read(sum(best.values()), folder)
        total = (
            data.get("metadata", {}).get("total_size") if data and isinstance(data.get("metadata"), dict) else None
        )
        if isinstance(total, int) and not isinstance(total, bool) and total > 0:
            found["model_weights_bytes"] = Read(total, index)
    if sizes or bad:
        found["model_bad_files"] = Read(tuple(f"{n}: {why}" for n, why in sorted(bad.items())), folder)
    elif "config.json" in names and not shards and not any(n.endswith(_OTHER_LOADERS) for n in names):
        found["model_missing_files"] = Read(("every weights file (*.safetensors)",), folder)
    return found


def _one_format(sizes: dict[str, int]) -> dict[str, int]:
    """The files vLLM would load: safetensors before anything else, never both."""
    for ending in (".safetensors", ".gguf", ".bin", ".pt", ".pth"):
        chosen = {n: s for n, s in sizes.items() if n.endswith(ending)}
        if chosen:
            return chosen
    return {}


def _shards(index: dict[str, Any] | None) -> set[str]:
    mapping = index.get("weight_map") if index else None
    if not isinstance(mapping, dict):
        return set()
    return {v for v in mapping.values() if isinstance(v, str) and "/" not in v}


def _incomplete(host: Host, path: str, size: int) -> str | None:
    """Why a weights file cannot be whole, or None."""
    head = host.read_bytes(path, 64)
    if head is None:
        return "cannot be read"
    if size < _POINTER_MAX and head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the weights (git lfs pull was not run)"
    if size == 0:
        return "empty"
    if not path.endswith(".safetensors") or len(head) < 8:
        return None
    length = int.from_bytes(head[:8], "little")
    if length + 8 > size:
        return f"cut off or no safetensors file ({size:,} bytes)"
    if length > _HEADER_MAX:
        return None
    header = host.read_bytes(path, length + 8) or b""
    ends = [int(e) for e in re.findall(rb'"data_offsets"\s*:\s*\[\s*\d{1,18}\s*,\s*(\d{1,18})\s*\]', header[8:])]
    if ends and max(ends) + length + 8 > size:
        return f"cut off: {size:,} of {max(ends) + length + 8:,} bytes"
    return None


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        data = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
