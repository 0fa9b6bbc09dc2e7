"""Writes the files that a user asked for: whole ones or none, and never in place of what is no plain file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from doctor.errors import DoctorError
from doctor.streams import ERRORS


def write(path: Path, content: str | bytes, *, folders: bool = False) -> None:
    """Replaces what the file holds in one step; its mode stays, and a link to it stays a link.

    What is there and is no plain file (a pipe, /dev/stdout) is written to. ``folders``: missing ones above it
    are made. Raises DoctorError when it cannot be written; what was there is then untouched.
    """
    data = content.encode("utf-8", ERRORS) if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            with path.open("wb", buffering=0) as file:
                _all(file.fileno(), data)
            return
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if folders:
            target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data)
    except OSError as error:
        raise DoctorError(f"cannot write {path}: {error.strerror}") from None


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
