"""The only door to the machine: files, programs, environment, clock.

Probes take a :class:`Host`, so that tests can hand them a folder and a list of allowed commands.
"""

from __future__ import annotations

import contextlib
import glob as globbing
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Bytes kept of a file or of one output stream unless a probe asks for another bound.
DEFAULT_LIMIT = 1 << 20


@dataclass(frozen=True)
class RunResult:
    """How a program ended. ``returncode`` is None when it was not started or was killed at the deadline."""

    argv: tuple[str, ...]
    returncode: int | None = None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    error: str | None = None  # why it could not be started
    truncated: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True when it ran and returned 0."""
        return self.returncode == 0


class Host(Protocol):
    """What a probe may do. Paths are absolute paths of the examined host."""

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 2.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> RunResult:
        """Runs a program in the C locale, killed with its children at ``timeout`` seconds. Never raises.

        ``env`` is added to the host's environment; an empty value unsets.
        """

    def read(self, path: str, limit: int = DEFAULT_LIMIT) -> str | None:
        """The first ``limit`` bytes of a file as text (undecodable bytes replaced), or None. Never raises."""

    def read_bytes(self, path: str, limit: int = DEFAULT_LIMIT) -> bytes | None:
        """The first ``limit`` bytes of a regular or proc file, or None. Never raises, never blocks on a FIFO."""

    def exists(self, path: str) -> bool:
        """True when the path can be stat'ed (links followed)."""

    def is_dir(self, path: str) -> bool:
        """True for a folder."""

    def access(self, path: str, mode: int) -> bool:
        """``os.access``."""

    def listdir(self, path: str) -> tuple[str, ...]:
        """Sorted names in a folder; empty when it cannot be read."""

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Sorted absolute paths that match."""

    def realpath(self, path: str) -> str:
        """The path with all links resolved."""

    def readlink(self, path: str) -> str | None:
        """Where a symbolic link points, unresolved, or None. Never touches the target."""

    def stat(self, path: str) -> os.stat_result | None:
        """``os.stat`` or None."""

    def statvfs(self, path: str) -> os.statvfs_result | None:
        """``os.statvfs`` or None."""

    def which(self, name: str) -> str | None:
        """The absolute path of a program on the host's PATH."""

    def local_path(self, path: str) -> str:
        """Where this process finds an absolute path of the host: for sockets, which only the kernel opens."""

    def time(self) -> float:
        """Seconds since the epoch."""


class LocalHost:
    """This machine. ``root`` moves all file access below a folder (tests, a mounted host)."""

    def __init__(self, root: str = "/", env: Mapping[str, str] | None = None) -> None:
        self._root = root.rstrip("/")
        self._env = dict(os.environ if env is None else env)

    @property
    def env(self) -> Mapping[str, str]:
        return self._env

    @property
    def root(self) -> str:
        """The folder that stands for "/", or "" for the running machine itself."""
        return self._root

    def _path(self, path: str) -> str:
        return self._root + path if self._root and path.startswith("/") else path

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 2.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> RunResult:
        merged = {**self._env, "LC_ALL": "C", "LANGUAGE": "C", **(env or {})}
        merged = {k: v for k, v in merged.items() if v != ""}
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=merged,
                cwd=cwd,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return RunResult(tuple(argv), error=getattr(error, "strerror", None) or str(error))
        with process:
            if stdin is not None and process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.write(stdin.encode()[:60_000])
                    process.stdin.close()
            out, timed_out = _collect(process, began + timeout, limit)
            if timed_out:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
        return RunResult(
            tuple(argv),
            returncode=None if timed_out else process.returncode,
            stdout=out[0][:limit].decode("utf-8", "replace"),
            stderr=out[1][:limit].decode("utf-8", "replace"),
            timed_out=timed_out,
            truncated=any(len(o) > limit for o in out),
            seconds=time.monotonic() - began,
        )

    def read_bytes(self, path: str, limit: int = DEFAULT_LIMIT) -> bytes | None:
        try:
            fd = os.open(self._path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            chunks: list[bytes] = []
            left = limit
            while left > 0:
                try:
                    chunk = os.read(fd, min(left, 1 << 16))
                except BlockingIOError:  # the end of /dev/kmsg, or a pipe that has nothing to say now
                    if not chunks:
                        return None
                    break
                if not chunk:
                    break
                chunks.append(chunk)
                left -= len(chunk)
            return b"".join(chunks)
        except OSError:
            return None
        finally:
            os.close(fd)

    def read(self, path: str, limit: int = DEFAULT_LIMIT) -> str | None:
        data = self.read_bytes(path, limit)
        return None if data is None else data.decode("utf-8", "replace")

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(self._path(path))

    def access(self, path: str, mode: int) -> bool:
        return os.access(self._path(path), mode)

    def listdir(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(self._path(path))))
        except OSError:
            return ()

    def glob(self, pattern: str) -> tuple[str, ...]:
        found = globbing.glob(self._path(pattern))
        return tuple(sorted(f[len(self._root) :] if self._root else f for f in found))

    def realpath(self, path: str) -> str:
        real = os.path.realpath(self._path(path))
        return real[len(self._root) :] if self._root and real.startswith(self._root) else real

    def readlink(self, path: str) -> str | None:
        try:
            target = os.readlink(self._path(path))
        except (OSError, ValueError):
            return None
        return target[len(self._root) :] if self._root and target.startswith(self._root + "/") else target

    def stat(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(self._path(path))
        except (OSError, ValueError):
            return None

    def statvfs(self, path: str) -> os.statvfs_result | None:
        try:
            return os.statvfs(self._path(path))
        except (OSError, ValueError):
            return None

    def which(self, name: str) -> str | None:
        if not self._root:
            return shutil.which(name, path=self._env.get("PATH", os.defpath))
        for folder in self._env.get("PATH", os.defpath).split(os.pathsep):
            candidate = str(Path(folder) / name)
            if os.access(self._path(candidate), os.X_OK) and not self.is_dir(candidate):
                return candidate
        return None

    def local_path(self, path: str) -> str:
        return self._path(path)

    def time(self) -> float:
        return time.time()


def _collect(process: subprocess.Popen[bytes], deadline: float, limit: int) -> tuple[list[bytearray], bool]:
    """Reads both pipes to their end or the deadline; keeps ``limit`` + 1 bytes of each, drops the rest."""
    out = [bytearray(), bytearray()]
    with selectors.DefaultSelector() as selector:
        for index, stream in enumerate((process.stdout, process.stderr)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, index)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return out, True
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(out[key.data]) <= limit:
                    out[key.data] += chunk
    while process.poll() is None:
        if time.monotonic() >= deadline:
            return out, True
        time.sleep(0.002)
    return out, False
