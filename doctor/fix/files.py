"""Files as they are, and files written so that a power loss leaves the old or the new one, never a torn one.

Every call that changes a disk goes through :class:`Syscalls`, so that tests can record their order and make any
one of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any

from doctor.fix.errors import ActionError

#: Files larger than this are no configuration and are never read into the journal.
LARGEST_BYTES = 64 << 20


class Syscalls:
    """The calls that change a disk, one method each."""

    def create(self, path: str, mode: int = 0o600) -> int:
        """A new file; fails when anything is there, a link included."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, mode)

    def append(self, path: str) -> int:
        """An existing regular file, opened to add to its end."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        os.fchown(fd, uid, gid)

    def fchmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def fsync_folder(self, path: str) -> None:
        """Makes a rename, a new or a removed name in this folder last."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@dataclass(frozen=True)
class FileState:
    """What is at a path, links not followed. ``kind``: "absent", "file", "folder", "link", "other"."""

    kind: str = "absent"
    sha256: str | None = None  # of a file's bytes
    size: int | None = None
    mode: int | None = None  # permission bits
    uid: int | None = None
    gid: int | None = None
    device: int | None = None
    inode: int | None = None

    def same_content(self, other: FileState) -> bool:
        """Equal bytes, mode and owner (or both absent)."""
        return all(getattr(self, n) == getattr(other, n) for n in ("kind", "sha256", "mode", "uid", "gid"))

    def same_thing(self, other: FileState) -> bool:
        """The same file or folder under whatever name."""
        return self.kind == other.kind and (self.device, self.inode) == (other.device, other.inode)

    def dump(self) -> dict[str, Any]:
        """For the journal; fields that are not known are left out."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> FileState:
        """Reads :meth:`dump`'s form; unknown fields of a later version are ignored."""
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})


ABSENT = FileState()


def digest(data: bytes) -> str:
    """sha256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def look(path: str) -> tuple[FileState, bytes | None]:
    """What is at a path and, for a file, its bytes. Raises OSError when it may not be read."""
    try:
        seen = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT, None
    common: dict[str, Any] = {
        "mode": stat.S_IMODE(seen.st_mode),
        "uid": seen.st_uid,
        "gid": seen.st_gid,
        "device": seen.st_dev,
        "inode": seen.st_ino,
    }
    if stat.S_ISLNK(seen.st_mode):
        return FileState("link", **common), None
    if stat.S_ISDIR(seen.st_mode):
        return FileState("folder", **common), None
    if not stat.S_ISREG(seen.st_mode):
        return FileState("other", **common), None
    if seen.st_size > LARGEST_BYTES:
        raise ActionError(f"{path} has {seen.st_size >> 20} MiB, which is no configuration file")
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    return FileState("file", sha256=digest(data), size=len(data), **common), data


def write_durably(
    calls: Syscalls,
    path: str,
    data: bytes,
    *,
    mode: int,
    uid: int | None = None,
    gid: int | None = None,
    temporary: str | None = None,
) -> None:
    """Replaces a file: temporary file in the same folder, fsync, rename, fsync of the folder."""
    folder = str(PurePosixPath(path).parent)
    temporary = temporary or temporary_name(path, str(os.getpid()))
    with contextlib.suppress(FileNotFoundError):
        os.lstat(temporary)
        calls.unlink(temporary)  # ours, from an attempt that was killed
    fd = calls.create(temporary)
    try:
        try:
            calls.write(fd, data)
            now = os.fstat(fd)
            if (uid is not None and uid != now.st_uid) or (gid is not None and gid != now.st_gid):
                calls.fchown(fd, -1 if uid is None else uid, -1 if gid is None else gid)
            calls.fchmod(fd, mode)  # after chown, which clears the set-id bits
            calls.fsync(fd)
        finally:
            calls.close(fd)
        calls.rename(temporary, path)
    except Exception:
        with contextlib.suppress(OSError):
            calls.unlink(temporary)
        raise
    calls.fsync_folder(folder)


def temporary_name(path: str, tag: str) -> str:
    """A hidden name beside ``path`` that says whose it is."""
    place = PurePosixPath(path)
    return str(place.parent / f".{place.name[:180]}.vllm-doctor-{tag}.tmp")


def reason(error: OSError) -> str:
    """An operating system error as a short clause."""
    known = {
        errno.ENOSPC: "the file system is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EROFS: "the file system is read-only",
        errno.EACCES: "permission denied",
        errno.EPERM: "not permitted",
    }
    text = known.get(error.errno or 0) or error.strerror or str(error)
    return f"{text}: {error.filename}" if error.filename else text
