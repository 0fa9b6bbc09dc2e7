"""Writes the files that a user asked for: whole ones or none, and never in place of what is no plain file."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path

from doctor.errors import DoctorError
from doctor.streams import ERRORS

_OPEN = re.compile(r"/(?:proc/(?:self|thread-self)|dev)/fd/(\d+)\Z")


def write(path: Path, content: str | bytes, *, folders: bool = False) -> None:
    """Replaces what the file holds in one step; its mode stays, and a link to it stays a link.

    What is there and is no plain file (a pipe, /dev/null) is written to, and so is /dev/stdout wherever it leads.
    ``folders``: missing ones above it are made. Raises DoctorError when it cannot be written; what was
    there is then untouched.
    """
    data = content.encode("utf-8", ERRORS) if isinstance(content, str) else content
    try:
        descriptor = _descriptor(path)
        if descriptor is not None or (path.exists() and not path.is_file()):
            sys.stdout.flush()  # what was printed before comes before
            with open(path if descriptor is None else descriptor, "wb", closefd=descriptor is None) as file:
                file.write(data)
            return
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if folders:
            target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data)
    except OSError as error:
        raise DoctorError(f"cannot write {path}: {error.strerror}") from None


def _descriptor(path: Path) -> int | None:
    """The open descriptor that it names. A file behind it has a place up to which others have written."""
    for _ in range(10):
        if found := _OPEN.match(os.path.normpath(path.absolute())):
            return int(found[1])
        if not path.is_symlink():
            break
        path = path.parent / os.readlink(path)
    return None


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of an earlier process with our number
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if target.exists():
                before = target.stat()
                with suppress(OSError):  # only root may give it away
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
