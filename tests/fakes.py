"""A host made of a folder and a list of allowed programs. Anything unplanned is an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from doctor.host.access import DEFAULT_LIMIT, LocalHost, RunResult

Reply = RunResult | str | Callable[[tuple[str, ...]], RunResult | str]


class Unplanned(AssertionError):
    """A probe ran a program that the test did not plan."""


class FakeHost(LocalHost):
    """Files below ``root`` (a temporary folder), ``env`` as given, programs only as planned.

    ``programs`` maps an argv (joined by blanks, or just the program's base name) to what it prints:
    a string means exit 0. Asking for a program that is planned nowhere gives "not found" for
    ``which`` and raises :class:`Unplanned` for ``run``.
    """

    def __init__(
        self,
        root: Path,
        *,
        env: Mapping[str, str] | None = None,
        programs: Mapping[str, Reply] | None = None,
        now: float = 1_800_000_000.0,
    ) -> None:
        super().__init__(str(root), env={"PATH": "/usr/bin:/bin", **(env or {})})
        self._programs = dict(programs or {})
        self._now = now
        self.calls: list[tuple[str, ...]] = []

    def write(self, path: str, text: str | bytes, mode: int = 0o644) -> None:
        """Makes a file inside the fake root."""
        target = Path(self._path(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        target.chmod(mode)

    def link(self, path: str, target: str) -> None:
        """Makes a symbolic link inside the fake root; absolute targets stay inside it."""
        place = Path(self._path(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(self._path(target) if target.startswith("/") else target)

    def program(self, path: str, reply: Reply | None = None) -> None:
        """Makes an executable file, and plans its replies when given."""
        self.write(path, "#!/bin/sh\n", 0o755)
        if reply is not None:
            self._programs[path] = reply

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
        key = tuple(argv)
        self.calls.append(key)
        for name in (" ".join(key), key[0], os.path.basename(key[0])):
            if name in self._programs:
                reply = self._programs[name]
                if callable(reply):
                    reply = reply(key)
                if isinstance(reply, str):
                    return RunResult(key, returncode=0, stdout=reply)
                return reply
        raise Unplanned(f"unplanned program: {' '.join(key)}")

    def time(self) -> float:
        return self._now
