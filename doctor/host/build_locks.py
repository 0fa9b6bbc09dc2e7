"""Lock files that an interrupted build of a torch extension left behind.

torch's loader takes a plain file as its lock (``torch/utils/file_baton.py``): whoever finds it waits, for
ever, until it is gone. Nothing cleans it up after a kill or a power loss.
"""

from __future__ import annotations

import posixpath

from doctor.host.access import Host
from doctor.host.examine import Options
from doctor.host.parts import Read

#: A lock younger than this may belong to a build whose compiler has not started yet.
STALE_AFTER_S = 300.0
#: Programs that work while a torch extension is built.
BUILDERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "cc1plus", "c++", "g++", "ld"})
#: Folder names of extension roots inside a source tree of the Turing fork.
_TREE_PATTERNS = (
    ".torch_extensions*/*/*/lock",
    ".deps/*/.torch_extensions*/*/*/lock",
    "*/.torch_extensions*/*/*/lock",
    "torch-extensions/*/*/lock",
)


def facts(host: Host, options: Options, extensions: str) -> dict[str, Read]:
    """``stale_locks`` and ``fresh_locks``. ``extensions`` is torch's folder of built extensions."""
    paths = dict.fromkeys([*host.glob(f"{extensions}/*/lock"), *host.glob(f"{extensions}/*/*/lock")])
    for tree in _trees(host, options):
        for pattern in _TREE_PATTERNS:
            paths.update(dict.fromkeys(host.glob(f"{tree}/{pattern}")))
    now = host.time()
    stale: list[str] = []
    fresh: list[str] = []
    building = _building(host) if paths else False
    for path in paths:
        state = host.stat(path)
        if state is None:
            continue
        old = now - state.st_mtime >= STALE_AFTER_S
        (stale if old and not building else fresh).append(path)
    source = f"{extensions} and source trees"
    return {"stale_locks": Read(tuple(stale), source), "fresh_locks": Read(tuple(fresh), source)}


def _trees(host: Host, options: Options) -> tuple[str, ...]:
    """Folders that may be a checkout of the fork: where we are, and around the chosen environment."""
    starts = []
    for place in (host.readlink("/proc/self/cwd"), options.python, host.env.get("VIRTUAL_ENV")):
        if place and place.startswith("/"):
            starts.append(posixpath.normpath(place))
    if host.env.get("FLASHQLA_ROOT", "").startswith("/"):
        starts.append(posixpath.normpath(host.env["FLASHQLA_ROOT"]))
    found: dict[str, None] = {}
    for start in starts:
        folder = start
        for _ in range(4):  # tree/.venv/bin/python is three below the tree
            if host.exists(f"{folder}/PROJECT_RELEASE.env") or folder == host.env.get("FLASHQLA_ROOT"):
                found[folder] = None
            folder = posixpath.dirname(folder)
            if folder == "/":
                break
    home = host.env.get("HOME") or "/root"
    found.update({posixpath.dirname(p): None for p in host.glob(f"{home}/*/PROJECT_RELEASE.env")})
    return tuple(found)


def _building(host: Host) -> bool:
    """True when a compiler or linker of a build runs, or when processes cannot be listed."""
    pids = [name for name in host.listdir("/proc") if name.isdigit()]
    if not pids:
        return True  # not known: never call a lock stale then
    return any((host.read(f"/proc/{pid}/comm", 64) or "").strip() in BUILDERS for pid in pids)
