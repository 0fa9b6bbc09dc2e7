"""Fetches ``config.json`` and the weight index of a hub model, nothing else, and keeps them for offline use.

``HF_ENDPOINT`` chooses the hub, ``HF_HUB_OFFLINE=1`` forbids the network. What the hub's own cache already
holds is used first. No credential is read or sent: a gated model has to be fetched with its own client.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from doctor.errors import DoctorError
from doctor.files import write
from doctor.memory.checkpoint import INDEX
from doctor.memory.config import LARGEST_CONFIG_BYTES
from doctor.memory.fields import ConfigError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}\Z")
#: Seconds for each of the two requests, from its start to its last byte.
DEADLINE_S = 20.0
_PIECE = 1 << 16
_LIMITS = {"config.json": LARGEST_CONFIG_BYTES, INDEX: 64 << 20}


@dataclass(frozen=True)
class Fetched:
    """A folder with ``config.json`` and perhaps the index. ``origin`` says where from, in words."""

    folder: Path
    origin: str


def fetch(model: str, env: Mapping[str, str], say: Callable[[str], None]) -> Fetched:
    """The files of one hub model: from the hub's cache, ours, or the network (``say`` is told what is fetched)."""
    if found := _hub_cache(model, env):
        return Fetched(found, "the local hub cache")
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    folder = cache_folder(env) / urllib.parse.quote(endpoint.split("://")[-1], safe="") / model.replace("/", "--")
    if (folder / "config.json").is_file() and (folder / ".complete").is_file():
        return Fetched(folder, "fetched before")
    if env.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise ConfigError(f"{model} is not in the local caches, and HF_HUB_OFFLINE forbids to fetch it")
    if not _is_http(endpoint):
        raise ConfigError(f"HF_ENDPOINT {endpoint!r} is not an http address")
    files: dict[str, bytes] = {}
    for name in _LIMITS:
        url = f"{endpoint}/{model}/resolve/main/{name}"
        say(f"fetching {url}")
        data = _get(url, model, name)
        if data is not None:
            files[name] = data
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot keep what was fetched in {folder}: {error.strerror}") from None
    try:
        for name, data in files.items():
            write(folder / name, data)
        write(folder / ".complete", b"")
    except DoctorError as error:
        raise ConfigError(str(error)) from None
    return Fetched(folder, endpoint)


def _is_http(endpoint: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(endpoint)
        _ = parts.port  # raises when it is no number a port can have
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"[\x00-\x20\x7f]", endpoint)
    )


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where fetched files are kept; deleting it is safe."""
    base = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "vllm-doctor" / "models"


def _hub_cache(model: str, env: Mapping[str, str]) -> Path | None:
    home = env.get("HF_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache/huggingface")
    snapshots = (
        Path(env.get("HF_HUB_CACHE") or f"{home}/hub") / f"models--{model.replace('/', '--')}" / "snapshots"
    )
    try:
        folders = sorted(snapshots.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
    except OSError:
        return None
    return next((f for f in folders if (f / "config.json").is_file()), None)


def _get(url: str, model: str, name: str) -> bytes | None:
    limit = _LIMITS[name]
    request = urllib.request.Request(url, headers={"User-Agent": "vllm-doctor"})  # noqa: S310  http(s) was checked
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:  # noqa: S310
            data = _body(answer, limit)
    except urllib.error.HTTPError as error:
        if error.code == 404 and name == INDEX:
            return None  # one file holds all weights, or there is none: shapes decide
        reason = {401: "it does not exist or is gated; fetch it with `hf download` and give the folder",
                  403: "it is gated; fetch it with `hf download` and give the folder",
                  404: "the hub has no such model or it has no config.json"}  # fmt: skip
        raise ConfigError(f"{model}: {reason.get(error.code, f'the hub answered {error.code}')} ({url})") from None
    except http.client.HTTPException as error:  # its text may be whatever the other side sent
        raise ConfigError(f"{model}: {url} does not answer as a hub does ({type(error).__name__})") from None
    except (OSError, ValueError) as error:
        why = " ".join(str(getattr(error, "reason", error)).split())
        raise ConfigError(f"{model}: cannot fetch {url} ({why}); give a folder or a config.json instead") from None
    if len(data) > limit:
        raise ConfigError(f"{model}: {name} is larger than {limit:,} bytes; not kept")
    # a login page or half a file must not be kept: it would be believed from then on
    try:
        whole = isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise ConfigError(f"{model}: {url} is not valid JSON (cut short, or a page for people); not kept")
    return data


def _body(answer: http.client.HTTPResponse, limit: int) -> bytes:
    """At most one byte more than ``limit``; TimeoutError when it trickles past the deadline."""
    pieces: list[bytes] = []
    size, end = 0, time.monotonic() + DEADLINE_S
    while size <= limit and (piece := answer.read1(min(_PIECE, limit + 1 - size))):
        pieces.append(piece)
        size += len(piece)
        if time.monotonic() > end:
            raise TimeoutError(f"not complete after {DEADLINE_S:g} s")
    return b"".join(pieces)
