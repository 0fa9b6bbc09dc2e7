"""The machine as actions change it: files and programs, with or without root. Tests hand in another one."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from doctor.fix.errors import ActionError
from doctor.fix.files import ABSENT, FileState, Syscalls, digest, look, temporary_name, write_durably
from doctor.fix.privilege import Privilege, Run, program, run_program, telling, user_environment
from doctor.host.access import RunResult

#: Seconds that a package manager or pip may take: a download over a slow line.
LONG_S = 3600.0
#: Seconds for everything that does not load anything.
SHORT_S = 60.0


class Machine:
    """What an action may do.

    Files that the user may write are written directly; others through sudo and coreutils with the same order:
    temporary file in the same folder, fsync, rename, fsync of the folder.
    """

    def __init__(
        self,
        privilege: Privilege,
        *,
        staging: Path,
        calls: Syscalls | None = None,
        run: Run = run_program,
        env: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        tag: str = "",
        downloads: str = "/var/cache/apt/archives",
    ) -> None:
        self.privilege = privilege
        self.calls = calls or Syscalls()
        self.env = dict(os.environ if env is None else env)
        self.sleep = sleep
        self.tag = tag or str(os.getpid())  # in temporary names, so that they can be told to be ours
        self.downloads = downloads  # where apt keeps packages until they are installed
        self._staging = staging
        self._run = run

    # ------------------------------------------------------------ programs

    def run(
        self,
        argv: Sequence[str],
        *,
        root: bool = False,
        timeout: float = SHORT_S,
        extra: Mapping[str, str] | None = None,
    ) -> RunResult:
        """Runs a program. A root step gets a clean environment, on this side of sudo and on the other."""
        if root and not self.privilege.is_root and not self.privilege.sudo:
            return RunResult(tuple(argv), error="this step needs root, and there is no sudo here")
        if root:
            return self._run(self.privilege.argv(argv, extra), self.privilege.environment(extra), timeout)
        return self._run(argv, {**user_environment(self.env), **(extra or {})}, timeout)

    def must(
        self,
        argv: Sequence[str],
        *,
        root: bool = False,
        timeout: float = SHORT_S,
        extra: Mapping[str, str] | None = None,
    ) -> RunResult:
        """Like :meth:`run`; raises ActionError when the program does not end with 0."""
        result = self.run(argv, root=root, timeout=timeout, extra=extra)
        if not result.ok:
            raise ActionError(f"`{shlex.join(argv)}` failed: {telling(result)}")
        return result

    def outlive(self, argv: Sequence[str], timeout: float = LONG_S) -> None:
        """Waits for a program that an earlier, killed doctor started and that still works.

        Killing a package manager half-way would be worse than its end.
        """
        wanted = b"\0".join(os.fsencode(w) for w in argv) + b"\0"
        ends = time.monotonic() + timeout
        while any(line.endswith(wanted) for line in _command_lines()):
            if time.monotonic() > ends:
                raise ActionError(
                    f"`{shlex.join(argv)}` of the earlier run still works; try again when it has ended"
                )
            self.sleep(1.0)

    def may_be_root(self) -> str | None:
        """None when root steps can be run; otherwise why not. sudo asks for its password here."""
        if self.privilege.is_root:
            return None
        result = self.run([program("true")], root=True, timeout=300.0)
        return None if result.ok else telling(result)

    # --------------------------------------------------------------- files

    def look(self, path: str, root: bool = False) -> tuple[FileState, bytes | None]:
        """What is at a path and a file's bytes; root's eyes when the user's are not enough."""
        try:
            return look(path)
        except PermissionError:
            if not root:
                raise
        return self._look_as_root(path)

    def temporary(self, path: str) -> str:
        """The name that a new version of ``path`` has before it is renamed."""
        return temporary_name(path, self.tag)

    def write(self, path: str, data: bytes, *, mode: int, uid: int, gid: int, root: bool, temporary: str) -> None:
        """Replaces a file with these bytes, mode and owner, atomically and durably."""
        if not root or self.privilege.is_root:
            write_durably(self.calls, path, data, mode=mode, uid=uid, gid=gid, temporary=temporary)
            return
        staged = str(self._staging / f"staged-{digest(data)[:16]}")
        write_durably(self.calls, staged, data, mode=0o600)
        try:
            install = [
                program("install"),
                "-T",
                "-m",
                f"{mode:o}",
                "-o",
                str(uid),
                "-g",
                str(gid),
                staged,
                temporary,
            ]
            self.must(install, root=True)
            self.must([program("sync"), temporary], root=True)
            self.must([program("mv"), "-fT", temporary, path], root=True)
            self.must([program("sync"), str(PurePosixPath(path).parent)], root=True)
        finally:
            self.calls.unlink(staged)

    def remove(self, path: str, root: bool) -> None:
        """Removes a file's name."""
        if not root or self.privilege.is_root:
            self.calls.unlink(path)
            self.calls.fsync_folder(str(PurePosixPath(path).parent))
            return
        self.must([program("rm"), "-f", "--", path], root=True)
        self.must([program("sync"), str(PurePosixPath(path).parent)], root=True)

    def rename(self, source: str, target: str, root: bool) -> None:
        """Renames within a folder. The caller has made sure that nothing is at ``target``."""
        if not root or self.privilege.is_root:
            self.calls.rename(source, target)
            self.calls.fsync_folder(str(PurePosixPath(target).parent))
            return
        self.must([program("mv"), "-nT", "--", source, target], root=True)
        self.must([program("sync"), str(PurePosixPath(target).parent)], root=True)

    def make_folder(self, path: str, root: bool, mode: int = 0o755) -> None:
        """Makes one folder."""
        if not root or self.privilege.is_root:
            self.calls.mkdir(path, mode)
            self.calls.fsync_folder(str(PurePosixPath(path).parent))
            return
        self.must([program("mkdir"), "-m", f"{mode:o}", "--", path], root=True)

    def remove_empty_folder(self, path: str, root: bool) -> bool:
        """Removes a folder that is empty; False when it is not, or is not there."""
        try:
            if os.listdir(path):
                return False
            if not root or self.privilege.is_root:
                self.calls.rmdir(path)
                self.calls.fsync_folder(str(PurePosixPath(path).parent))
                return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            if not root:
                raise
        answer = self.run([program("rmdir"), "--", path], root=True)
        if not answer.ok and "not empty" not in answer.stderr:
            raise ActionError(f"{path} is empty and could not be removed: {telling(answer)}")
        return answer.ok

    def owner_for(self, path: str, root: bool) -> tuple[int, int]:
        """Owner of a new file: root's steps make root's files, the user's own."""
        return (0, 0) if root and not self.privilege.is_root else (os.geteuid(), os.getegid())

    def _look_as_root(self, path: str) -> tuple[FileState, bytes | None]:
        shown = self.run([program("stat"), "-c", "%f %u %g %d %i", "--", path], root=True)
        if not shown.ok:
            if "No such file" in shown.stderr:
                return ABSENT, None
            raise ActionError(f"cannot look at {path}: {telling(shown)}")
        match = re.fullmatch(r"([0-9a-f]+) (\d+) (\d+) (\d+) (\d+)", shown.stdout.strip())
        if match is None:
            raise ActionError(f"cannot look at {path}: {shown.stdout.strip()[:80]}")
        raw = int(match[1], 16)
        kind = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}.get(stat.S_IFMT(raw), "other")
        data = None
        if kind == "file":
            text = self.must([program("base64"), "-w0", "--", path], root=True).stdout
            data = base64.b64decode(text)
        numbers = [int(match[n]) for n in range(2, 6)]
        return FileState(
            kind,
            digest(data) if data is not None else None,
            len(data) if data is not None else None,
            stat.S_IMODE(raw),
            *numbers,
        ), data


def _command_lines() -> Iterator[bytes]:
    """The arguments of every other process, as far as they can be read."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                yield Path(f"/proc/{name}/cmdline").read_bytes()
