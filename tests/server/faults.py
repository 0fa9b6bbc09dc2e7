"""A smoke test of a real server as a child process, watched from outside, and what it must not leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Seconds until a server on a busy machine has reached a phase, and until a command that was stopped has ended.
REACH_S = 600.0
END_S = 90.0


@dataclass
class Doctor:
    """``vllm-doctor smoke --json`` in its own session. What it starts has ``folder`` in its environment."""

    folder: Path
    environment: Path
    model: Path
    options: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None  # in the child, before the doctor is executed
    keep_log: bool = True  # with --out; else the doctor makes a temporary folder

    def __post_init__(self) -> None:
        self.temp = self.folder / "t"
        self.temp.mkdir()
        self.out = self.folder / "out"
        self.shared_memory = set(os.listdir("/dev/shm"))
        argv = [
            sys.executable, "-m", "doctor", "smoke", "--json", "--python", str(self.environment),
            "--model", str(self.model), *(("--out", str(self.out)) if self.keep_log else ()), *self.options,
        ]  # fmt: skip
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(self.temp), **self.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=self.before,
            )

    @property
    def stderr(self) -> str:
        """Progress and messages so far."""
        return (self.folder / "stderr").read_text(errors="replace")

    @property
    def log(self) -> str:
        """The server's log so far."""
        found = [self.out / "server.log"] if self.keep_log else list(self.temp.glob("*/server.log"))
        return found[0].read_text(errors="replace") if found and found[0].exists() else ""

    def until(self, reached: Callable[[], Any], what: str) -> Any:
        """Waits for something that the doctor or its server does."""
        deadline = time.monotonic() + REACH_S
        while not (value := reached()):
            assert self.process.poll() is None, f"ended before {what}: {self.stderr}"
            assert time.monotonic() < deadline, f"not reached: {what}: {self.stderr} {self.log[-2000:]}"
            time.sleep(0.05)
        return value

    def phase(self, text: str) -> None:
        """Waits until the progress says so."""
        self.until(lambda: f"smoke test: {text}" in self.stderr, text)

    def pid_of(self, tag: str) -> int:
        """The process that vLLM logs as ``(APIServer pid=...)`` or ``(EngineCore pid=...)``."""
        return int(self.until(lambda: re.search(rf"\({tag}\w* pid=(\d+)\)", self.log), tag)[1])

    def port(self) -> int:
        """The port that the server was told, from its command line."""
        return int(self.until(self._port, "the command line of the server"))

    def _port(self) -> str | None:
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = line.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            # its supervisor has the same words behind its own
            if str(self.model) in words and "serve" in words[:4] and "--port" in words:
                return words[words.index("--port") + 1]
        return None

    def send(self, number: int) -> None:
        """A signal to the doctor alone, as from a terminal or a service manager."""
        self.process.send_signal(number)

    def end(self, within_s: float = END_S) -> int:
        """Its exit code. Nothing of it may be left: no process, folder, segment, or socket."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still there after {within_s:g} s: {self.stderr}") from None
        assert "Traceback" not in self.stderr, self.stderr
        assert belonging(self.folder) == {}
        assert [p.name for p in self.temp.glob("vllm-doctor-*") if not self.kept(p)] == []
        assert set(os.listdir("/dev/shm")) <= self.shared_memory
        return code

    def kept(self, path: Path) -> bool:
        """A temporary folder is kept when the answer names the log in it."""
        text = (self.folder / "stdout").read_text()
        return bool(text) and str(path) in str(json.loads(text)["smoke"]["server"]["log"])

    def answer(self, within_s: float = REACH_S) -> tuple[int, dict[str, Any]]:
        """(exit code, answer) of a run that comes to a verdict."""
        code = self.end(within_s)
        answer: dict[str, Any] = json.loads((self.folder / "stdout").read_text())
        assert answer["smoke"]["server"]["left_processes"] == []
        return code, answer

    def interrupted(self, within_s: float = END_S) -> None:
        """It ended as a command that was stopped does: 130, one line, no answer."""
        assert self.end(within_s) == 130
        assert self.stderr.splitlines()[-1] == "vllm-doctor: interrupted"
        assert (self.folder / "stdout").read_text() == ""

    def kill(self) -> None:
        """Ends whatever is left, so that a failed test costs the next one nothing."""
        for pid in {self.process.pid, *belonging(self.folder)}:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


def belonging(folder: Path) -> dict[int, str]:
    """Living processes with this folder in their environment, command line, or open output: pid to name.

    vLLM's children rename themselves, which overwrites their environment; their output stays the log.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            seen = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            seen += os.readlink(process / "fd" / "1").encode()
            name = (process / "comm").read_text().strip()
        except OSError:
            continue
        if state not in "ZX" and str(folder).encode() in seen:
            found[int(process.name)] = name
    return found


def listen(port: int) -> socket.socket:
    """Takes a port of the loopback address."""
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    thief.bind(("127.0.0.1", port))
    thief.listen()
    return thief
