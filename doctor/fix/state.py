"""The folder of the journals and its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from doctor.errors import DoctorError
from doctor.fix.files import Syscalls


def place(env: Mapping[str, str], uid: int) -> Path:
    """/var/lib/vllm-doctor for root, else $XDG_STATE_HOME/vllm-doctor or ~/.local/state/vllm-doctor."""
    if uid == 0:
        return Path("/var/lib/vllm-doctor")
    base = env.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):  # the specification: relative paths are to be ignored
        home = env.get("HOME") or os.path.expanduser("~")
        base = f"{home}/.local/state"
    return Path(base) / "vllm-doctor"


class State:
    """The folder with ``runs/`` and ``lock``; never a link, a stranger's folder or one that others can write."""

    def __init__(self, folder: Path, calls: Syscalls | None = None, uid: int | None = None) -> None:
        self.folder = folder
        self.calls = calls or Syscalls()
        self._uid = os.geteuid() if uid is None else uid

    @property
    def runs(self) -> Path:
        """One folder a run below it."""
        return self.folder / "runs"

    def exists(self) -> bool:
        """True when there is a state folder; raises DoctorError when it is not to be trusted."""
        if not os.path.lexists(self.folder):
            return False
        self._trust(self.folder)
        if os.path.lexists(self.runs):
            self._trust(self.runs)
        return True

    def make(self) -> None:
        """Makes what is missing, for this user alone, and checks what is there."""
        missing = [p for p in (self.folder, *self.folder.parents) if not os.path.lexists(p)]
        for path in reversed(missing):
            self._mkdir(path, 0o700)
        self._trust(self.folder)
        if not os.path.lexists(self.runs):
            self._mkdir(self.runs, 0o700)
        self._trust(self.runs)

    def _mkdir(self, path: Path, mode: int) -> None:
        try:
            self.calls.mkdir(str(path), mode)
            self.calls.fsync_folder(str(path.parent))
        except FileExistsError:
            pass
        except OSError as error:
            raise DoctorError(
                f"cannot make the journal's folder {path}: {error.strerror}; nothing was changed"
            ) from None

    def _trust(self, path: Path) -> None:
        seen = os.lstat(path)
        if stat.S_ISLNK(seen.st_mode):
            raise DoctorError(f"{path} is a symbolic link: a journal is not read or written through one")
        if not stat.S_ISDIR(seen.st_mode):
            raise DoctorError(f"{path} is not a folder")
        if seen.st_uid != self._uid:
            raise DoctorError(f"{path} belongs to uid {seen.st_uid}, not to this user ({self._uid})")
        if seen.st_mode & 0o022:
            raise DoctorError(f"{path} can be written by others: chmod go-w {path}")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Only one repair or undo at a time. The kernel gives the lock back when its holder dies."""
        self.make()
        path = self.folder / "lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise DoctorError(f"cannot open {path}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise DoctorError(f"another repair or undo is running (pid {holder}); try again later") from None
            with contextlib.suppress(OSError):  # only a hint for people; the lock itself needs no room
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(fd)
