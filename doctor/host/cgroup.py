"""Memory and CPU limits of the control group this process is in, version 1 and 2."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from doctor.host.access import Host
from doctor.host.mounts import MountPoint, read_mounts
from doctor.host.parts import Read, number

#: The kernel writes "no limit" in version 1 as the largest page-aligned number.
_UNLIMITED = 1 << 60


def facts(host: Host) -> dict[str, Read]:
    """``cgroup_version``, memory limit, usage and OOM kills, CPU quota."""
    membership = _membership(host.read("/proc/self/cgroup", 1 << 16) or "")
    mounts = read_mounts(host)
    unified = next((m for m in mounts if m.fstype == "cgroup2"), None)
    memory = _v1_mount(mounts, "memory")
    cpu = _v1_mount(mounts, "cpu")
    if memory is not None and "memory" in membership:
        found = {"cgroup_version": Read(1, memory.point), **_memory_v1(host, memory, membership["memory"])}
        if cpu is not None and "cpu" in membership:
            found.update(_cpu_v1(host, cpu, membership["cpu"]))
        return found
    if unified is not None and "" in membership:
        version = {"cgroup_version": Read(2, unified.point)}
        return {**version, **_memory_v2(host, unified, membership[""]), **_cpu_v2(host, unified, membership[""])}
    return {}


def _membership(text: str) -> dict[str, str]:
    """Controller -> path of /proc/self/cgroup; the unified hierarchy has the controller ""."""
    found = {}
    for line in text.splitlines():
        head, _, path = line.rpartition(":/")
        number_, _, controllers = head.partition(":")
        if number_.isdigit():
            for controller in controllers.split(","):
                found[controller] = "/" + path
    return found


def _v1_mount(mounts: tuple[MountPoint, ...], controller: str) -> MountPoint | None:
    return next((m for m in mounts if m.fstype == "cgroup" and controller in m.super_options), None)


def _folders(mount: MountPoint, path: str) -> Iterator[str]:
    """The group's folder and those above it. A limit anywhere on the way counts.

    In a container the mount shows only a part of the hierarchy (its root), or the namespace hides it.
    """
    root = mount.root.rstrip("/")
    inside = path[len(root) :] if root and (path + "/").startswith(root + "/") else path
    inside = posixpath.normpath("/" + inside.lstrip("/"))
    while inside != "/":
        yield mount.point.rstrip("/") + inside
        inside = posixpath.dirname(inside)
    yield mount.point.rstrip("/")


def _smallest(host: Host, folders: Iterator[str], name: str) -> Read | None:
    best: Read | None = None
    for folder in folders:
        path = f"{folder}/{name}"
        text = (host.read(path, 64) or "").strip()
        value = _UNLIMITED if text == "max" else number(text)
        if value is not None and value >= 0 and (best is None or value < best.value):
            best = Read(value, path)
    return None if best is None else Read(-1 if best.value >= _UNLIMITED else best.value, best.source)


def _memory_v1(host: Host, mount: MountPoint, path: str) -> dict[str, Read]:
    own = next((f for f in _folders(mount, path) if host.is_dir(f)), None)
    found: dict[str, Read] = {}
    limit = _smallest(host, _folders(mount, path), "memory.limit_in_bytes")
    if limit:
        found["cgroup_memory_limit_bytes"] = limit
    if own is None:
        return found
    used = number(host.read(f"{own}/memory.usage_in_bytes", 64))
    found["cgroup_memory_used_bytes"] = Read(used, f"{own}/memory.usage_in_bytes")
    kills = re.search(r"^oom_kill (\d{1,15})$", host.read(f"{own}/memory.oom_control", 4096) or "", re.M)
    if kills:
        found["cgroup_oom_kills"] = Read(int(kills[1]), f"{own}/memory.oom_control")
    return found


def _memory_v2(host: Host, mount: MountPoint, path: str) -> dict[str, Read]:
    own = next((f for f in _folders(mount, path) if host.is_dir(f)), None)
    if own is None:
        return {}
    limit = _smallest(host, _folders(mount, path), "memory.max")
    if limit is None and host.exists(f"{mount.point}/cgroup.controllers"):
        # the root group has no memory.max, nor has a group without the memory controller: not limited
        limit = Read(-1, f"{mount.point}/cgroup.controllers")
    found = {"cgroup_memory_limit_bytes": limit} if limit else {}
    used = number(host.read(f"{own}/memory.current", 64))
    found["cgroup_memory_used_bytes"] = Read(used, f"{own}/memory.current")
    kills = re.search(r"^oom_kill (\d{1,15})$", host.read(f"{own}/memory.events", 4096) or "", re.M)
    if kills:
        found["cgroup_oom_kills"] = Read(int(kills[1]), f"{own}/memory.events")
    return found


def _cpu_v1(host: Host, mount: MountPoint, path: str) -> dict[str, Read]:
    best: Read | None = None
    for folder in _folders(mount, path):
        quota = number(host.read(f"{folder}/cpu.cfs_quota_us", 64))
        period = number(host.read(f"{folder}/cpu.cfs_period_us", 64))
        if quota is not None and period:
            best = _fewer(
                best, Read(-1.0 if quota < 0 else round(quota / period, 3), f"{folder}/cpu.cfs_quota_us")
            )
    return {"cgroup_cpus": best} if best else {}


def _cpu_v2(host: Host, mount: MountPoint, path: str) -> dict[str, Read]:
    best: Read | None = None
    for folder in _folders(mount, path):
        quota = re.match(r"(max|\d{1,15}) ([1-9]\d{0,14})$", (host.read(f"{folder}/cpu.max", 64) or "").strip())
        if quota:
            cpus = -1.0 if quota[1] == "max" else round(int(quota[1]) / int(quota[2]), 3)
            best = _fewer(best, Read(cpus, f"{folder}/cpu.max"))
    return {"cgroup_cpus": best} if best else {}


def _fewer(one: Read | None, other: Read) -> Read:
    if one is None or one.value < 0:
        return other
    return one if other.value < 0 else min(one, other, key=lambda r: float(r.value))
