"""Probe of the places vLLM reads and writes: caches, temporary folder, model folder, build locks.

The kind of a file system is read from the mount table before anything is touched, and each place is
examined in its own thread: a network mount whose server is gone costs only its own answer.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from doctor.facts import Mount, StorageFacts
from doctor.host import build_locks, model_files
from doctor.host.access import Host
from doctor.host.examine import Options
from doctor.host.mounts import MountPoint, containing, read_mounts
from doctor.host.parts import Bounded, Read, gather

#: Seconds that all places together may take. A local file system answers in microseconds.
PLACES_DEADLINE_S = 1.0
#: What huggingface_hub takes for "yes" (constants.py, ENV_VARS_TRUE_VALUES).
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL", re.I)


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """Returns ``{"storage": StorageFacts}``."""
    places = cache_places(host.env)
    calls = Bounded(PLACES_DEADLINE_S * options.deadline_scale)
    mounts = read_mounts(host)
    wanted = [*places, *([("model", model_files.expand(host, options.model))] if options.model else [])]
    wanted = [(role, path) for role, path in wanted if path.startswith("/")]
    for role, path in wanted:
        calls.start(role, partial(_examine, host, mounts, role, path))
    if options.model:
        calls.start("model files", partial(model_files.facts, host, options.model, dict(places)["model cache"]))
    calls.start("locks", partial(build_locks.facts, host, options, dict(places)["torch extensions"]))
    calls.start("token", partial(_token, host))

    def mount_table() -> dict[str, Read]:
        return {"mounts": Read(tuple(_place(calls, mounts, r, p) for r, p in wanted), "/proc/self/mountinfo")}

    def locks() -> dict[str, Read]:
        return dict(calls.result("locks"))

    def token() -> dict[str, Read]:
        return dict(calls.result("token"))

    def model() -> dict[str, Read]:
        return dict(calls.result("model files")) if options.model else {}

    values, sources = gather((mount_table, partial(_hub, host), token, locks, model))
    if options.model:
        values.setdefault("model_path", options.model)
    return {"storage": StorageFacts(**values, sources=sources)}


def home(env: Mapping[str, str]) -> str:
    """The home folder, as ``~`` is expanded."""
    return env.get("HOME") or "/root"


def cache_places(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """(role, folder) of every cache, by the rules of the library that owns it."""
    user = home(env)
    cache = env.get("XDG_CACHE_HOME") or f"{user}/.cache"
    hf_home = expand(env, env.get("HF_HOME") or f"{cache}/huggingface")
    hub = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{hf_home}/hub"
    tmp = next((env[n] for n in ("TMPDIR", "TEMP", "TMP") if env.get(n)), "/tmp")  # noqa: S108
    triton = env.get("TRITON_CACHE_DIR") or f"{env.get('TRITON_HOME') or user}/.triton/cache"
    name = re.sub(
        r'[\\/:*?"<>|]', "_", env.get("LOGNAME") or env.get("USER") or posixpath.basename(user) or "root"
    )
    inductor = env.get("TORCHINDUCTOR_CACHE_DIR") or f"{tmp}/torchinductor_{name}"
    extensions = env.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"
    flashinfer = f"{env.get('FLASHINFER_WORKSPACE_BASE') or user}/.cache/flashinfer"
    vllm = env.get("VLLM_CACHE_ROOT") or f"{cache}/vllm"
    places = (
        ("model cache", hub),
        ("vllm cache", vllm),
        ("triton cache", triton),
        ("torchinductor cache", inductor),
        ("torch extensions", extensions),
        ("flashinfer cache", flashinfer),
        ("tmp", tmp),
    )
    return [(role, expand(env, path)) for role, path in places]


def expand(env: Mapping[str, str], path: str) -> str:
    """``~`` and ``$NAME`` of a path, with the examined host's environment."""
    path = re.sub(r"^~(?=/|$)", home(env), path)
    path = re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: env.get(m[1] or m[2], m[0]), path)
    return posixpath.normpath(path) if path.startswith("/") else path


def _place(calls: Bounded, mounts: tuple[MountPoint, ...], role: str, path: str) -> Mount:
    try:
        found: Mount = calls.result(role)
    except (OSError, ValueError) as error:
        mount = containing(mounts, path)
        where = f" ({mount.fstype} at {mount.point})" if mount else ""
        why = f"does not answer{where}" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        return Mount(role, path, fstype=mount.fstype if mount else None, error=why[:200])
    return found


def _examine(host: Host, mounts: tuple[MountPoint, ...], role: str, path: str) -> Mount:
    real = host.realpath(path)
    mount = containing(mounts, real)
    exists = host.exists(real)
    # a folder that is not there yet will be made in the nearest one that is
    there = real
    while not host.exists(there) and there not in ("/", ""):
        there = posixpath.dirname(there)
    room = host.statvfs(there)
    needed = os.W_OK | (os.X_OK if host.is_dir(there) else 0)
    return Mount(
        role,
        path,
        exists=exists,
        writable=host.access(there, needed),
        fstype=mount.fstype if mount else None,
        total_bytes=room.f_blocks * room.f_frsize if room else None,
        free_bytes=room.f_bavail * room.f_frsize if room else None,
        inodes_free=room.f_favail if room and room.f_files else None,  # btrfs and 9p count none
        read_only=bool(room.f_flag & os.ST_RDONLY) if room else None,
        real_path=real if real != path else None,
    )


def _hub(host: Host) -> dict[str, Read]:
    env = host.env
    shown = {
        name: re.sub(r"//[^/@\s]*@", "//", value)[:300]
        for name, value in env.items()
        if re.match(r"(HF|HUGGINGFACE|HUGGING_FACE|TRANSFORMERS)_", name) and value and not _SECRET.search(name)
    }
    cache = env.get("XDG_CACHE_HOME") or f"{home(env)}/.cache"
    offline = (env.get("HF_HUB_OFFLINE") or env.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE
    return {
        "env": Read(shown, "environment"),
        "hf_home": Read(expand(env, env.get("HF_HOME") or f"{cache}/huggingface"), "HF_HOME"),
        "hf_offline": Read(offline, "HF_HUB_OFFLINE"),
    }


def _token(host: Host) -> dict[str, Read]:
    """Whether there is a token; its value is never read from the file."""
    env = host.env
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if env.get(name, "").strip():
            return {"hf_token_present": Read(True, name)}
    cache = env.get("XDG_CACHE_HOME") or f"{home(env)}/.cache"
    path = env.get("HF_TOKEN_PATH") or f"{expand(env, env.get('HF_HOME') or f'{cache}/huggingface')}/token"
    state = host.stat(expand(env, path))
    return {"hf_token_present": Read(bool(state and state.st_size > 0), path)}
