"""The mount table, read as text: the kind of a file system is known before it is touched."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from doctor.host.access import Host

MOUNTINFO = "/proc/self/mountinfo"
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class MountPoint:
    """One line of mountinfo. ``root`` is the folder of the file system that is mounted at ``point``."""

    point: str
    fstype: str
    source: str = ""
    root: str = "/"
    options: tuple[str, ...] = ()
    super_options: tuple[str, ...] = ()

    @property
    def windows_drive(self) -> bool:
        """True for a Windows folder that WSL hands in (drvfs under WSL 1, 9p or virtiofs under WSL 2)."""
        if self.fstype == "drvfs":
            return True
        if self.fstype not in ("9p", "virtiofs"):
            return False
        text = ";".join((*self.super_options, *self.options))
        return "aname=drvfs" in text or bool(re.match(r"(drvfs[a-z]?$|[A-Za-z]:)", self.source))


def read_mounts(host: Host) -> tuple[MountPoint, ...]:
    """The mounts that this process sees; empty when the table cannot be read."""
    return parse(host.read(MOUNTINFO, 4 << 20) or "")


def parse(text: str) -> tuple[MountPoint, ...]:
    """Parses /proc/PID/mountinfo; lines it does not understand are left out."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        head, tail = left.split(), right.split()
        if not separator or len(head) < 6 or len(tail) < 2 or not head[4].startswith("/"):
            continue
        found.append(
            MountPoint(
                point=unescape(head[4]),
                fstype=tail[0],
                source=unescape(tail[1]),
                root=unescape(head[3]),
                options=tuple(head[5].split(",")),
                super_options=tuple(tail[2].split(",")) if len(tail) > 2 else (),
            )
        )
    return tuple(found)


def unescape(text: str) -> str:
    """Blanks and the like are written as octal numbers in the mount table."""
    return _OCTAL.sub(lambda m: chr(int(m[1], 8)), text)


def containing(mounts: Iterable[MountPoint], path: str) -> MountPoint | None:
    """The mount that holds ``path``: the longest mount point above it, the last one when stacked."""
    best: MountPoint | None = None
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
