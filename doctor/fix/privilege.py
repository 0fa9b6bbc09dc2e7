"""How programs are run: the user's own steps as they are, root's steps through sudo with a clean environment."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from doctor.host.access import RunResult

#: Where root's programs are looked for, whatever PATH the user has.
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Variables that root's steps keep: without them nothing can be fetched behind a proxy.
_KEPT = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
#: Variables that would make a user's Python load something else.
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LD_PRELOAD")
#: Bytes kept of each output stream.
_OUTPUT = 1 << 20


@dataclass(frozen=True)
class Privilege:
    """Who runs this, and how it becomes root. ``sudo`` is the program's path, "" when there is none."""

    is_root: bool
    sudo: str = ""
    ask: bool = True  # sudo may ask for a password on the terminal
    proxies: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_this_process(cls, env: Mapping[str, str], ask: bool) -> Privilege:
        """As this process is."""
        proxies = tuple((n, env[n]) for n in _KEPT if env.get(n))
        return cls(os.geteuid() == 0, shutil.which("sudo", path=ROOT_PATH) or "", ask, proxies)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment of a root step: a fixed PATH, the C locale, proxies, and what is asked for."""
        return {"PATH": ROOT_PATH, "LC_ALL": "C", **dict(self.proxies), **(extra or {})}

    def argv(self, argv: Sequence[str], extra: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """What is really run for a root step, and shown beforehand.

        sudo's own rules may keep variables of the user, so ``env -i`` clears them on the other side.
        """
        if self.is_root:
            return tuple(argv)
        assignments = [f"{name}={value}" for name, value in self.environment(extra).items()]
        asking = () if self.ask else ("-n",)
        return (self.sudo or "sudo", *asking, "--", "/usr/bin/env", "-i", *assignments, *argv)


Run = Callable[[Sequence[str], Mapping[str, str], float], RunResult]


def run_program(argv: Sequence[str], env: Mapping[str, str], timeout: float) -> RunResult:
    """Runs a program to its end or ``timeout`` seconds. Never raises, never through a shell.

    It stays in the terminal's session, where sudo can ask for a password; its input is empty.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env)
        )
    except (OSError, ValueError) as error:
        return RunResult(tuple(argv), error=getattr(error, "strerror", None) or str(error))
    timed_out = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        timed_out = True
        process.terminate()  # a package manager ends its work in order; SIGKILL would leave it half-done
        try:
            out, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                process.kill()
            out, err = b"", b""
    return RunResult(
        tuple(argv),
        returncode=None if timed_out else process.returncode,
        stdout=out[-_OUTPUT:].decode("utf-8", "replace"),
        stderr=err[-_OUTPUT:].decode("utf-8", "replace"),
        timed_out=timed_out,
        seconds=time.monotonic() - began,
    )


def user_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a step without root: the user's own, in the C locale, without what bends Python."""
    return {**{k: v for k, v in env.items() if k not in _DROPPED}, "LC_ALL": "C", "LANGUAGE": "C"}


def program(name: str) -> str:
    """The absolute path of a system program, or the bare name when it is not there."""
    return shutil.which(name, path=ROOT_PATH) or name


def telling(result: RunResult) -> str:
    """Why a program failed, as one line: its own last words."""
    if result.error:
        return result.error
    if result.timed_out:
        return f"no end within {result.seconds:.0f} s"
    lines = [line.strip() for line in (result.stderr + "\n" + result.stdout).splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("E:", "ERROR", "error", "sudo:", "Error"))]
    words = (marked or lines[-1:] or ["no output"])[0]
    return f"exit {result.returncode}: {words[:300]}"
