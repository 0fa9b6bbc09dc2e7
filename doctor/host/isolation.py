"""Is this a container, and which kind? Is systemd process 1?"""

from __future__ import annotations

import re

from doctor.host.access import Host
from doctor.host.mounts import read_mounts
from doctor.host.parts import Read

_KINDS = {
    "docker": "docker",
    "podman": "podman",
    "oci": "podman",
    "lxc": "lxc",
    "lxc-libvirt": "lxc",
    "systemd-nspawn": "systemd-nspawn",
    "kube": "kubernetes",
}
_CGROUP = (
    (re.compile(r"/kubepods[./]|/kubepods-"), "kubernetes"),
    (re.compile(r"/docker[/\-]|/docker-[0-9a-f]"), "docker"),
    (re.compile(r"/libpod[/\-_]|/machine\.slice/libpod-"), "podman"),
    (re.compile(r"/lxc[/.]|/lxc\.payload"), "lxc"),
)
#: Where engines keep the layers of a container's root file system.
_LAYERS = (
    ("/docker/overlay2/", "docker"),
    ("/containers/storage/", "podman"),
    ("io.containerd.snapshotter", "containerd"),
)


#: PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h): the inode of the first PID namespace.
_INITIAL_PID_NAMESPACE = 4026531836


def facts(host: Host) -> dict[str, Read]:
    """``in_container``, ``container_kind`` and ``systemd``."""
    return {**_container(host), **_systemd(host)}


def in_container(host: Host) -> bool | None:
    """True inside a container, False on a host or virtual machine, None when it cannot be told."""
    read = _container(host).get("in_container")
    return None if read is None else bool(read.value)


def _container(host: Host) -> dict[str, Read]:
    if _owns_the_machine(host):
        source = "/proc/self/ns/pid, /proc/self/mountinfo"
        return {"in_container": Read(False, source), "container_kind": Read("", source)}
    sign = _sign(host)
    if sign is not None:
        return {"in_container": Read(True, sign.source), "container_kind": sign}
    # with none of the signs and a readable process 1 this is the host itself (or a virtual machine)
    if host.read("/proc/1/comm", 64):
        return {
            "in_container": Read(False, "no sign of a container"),
            "container_kind": Read("", "/proc/1/cgroup"),
        }
    return {}


def _owns_the_machine(host: Host) -> bool:
    """The first PID namespace of the kernel, with the kernel's own /dev and no layered root.

    A virtual machine whose disk was made from a container image keeps the image's /.dockerenv; that
    file then says nothing. A container run with --pid=host still has a tmpfs as /dev and an overlay root.
    """
    if not host.realpath("/proc/self/ns/pid").endswith(f"pid:[{_INITIAL_PID_NAMESPACE}]"):
        return False
    types = {m.point: m.fstype for m in read_mounts(host)}  # the last mount on a point is the visible one
    return types.get("/dev") == "devtmpfs" and types.get("/") not in (None, "overlay", "fuse-overlayfs", "aufs")


def _sign(host: Host) -> Read | None:
    if host.env.get("KUBERNETES_SERVICE_HOST"):
        return Read("kubernetes", "KUBERNETES_SERVICE_HOST")
    if host.exists("/run/.containerenv"):
        return Read("podman", "/run/.containerenv")
    if host.exists("/.dockerenv"):
        return Read("docker", "/.dockerenv")
    told = (host.read("/run/systemd/container", 64) or "").strip()
    if told and told != "wsl":  # systemd calls a WSL distribution a container; here it is a host
        return Read(_KINDS.get(told, told[:30]), "/run/systemd/container")
    groups = host.read("/proc/1/cgroup", 1 << 16) or ""
    for pattern, kind in _CGROUP:
        if pattern.search(groups):
            return Read(kind, "/proc/1/cgroup")
    root = next((m for m in reversed(read_mounts(host)) if m.point == "/"), None)
    if root is not None and root.fstype in ("overlay", "fuse-overlayfs"):
        layers = ",".join(root.super_options)
        for part, kind in _LAYERS:
            if part in layers:
                return Read(kind, "/proc/self/mountinfo")
    return None


def _systemd(host: Host) -> dict[str, Read]:
    if host.is_dir("/run/systemd/system"):
        return {"systemd": Read(True, "/run/systemd/system")}
    name = (host.read("/proc/1/comm", 64) or "").strip()
    return {"systemd": Read(name == "systemd", "/proc/1/comm")} if name else {}
