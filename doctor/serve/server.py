"""One vLLM server process tree: started, watched, and gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from doctor.errors import DoctorError
from doctor.serve import supervisor
from doctor.serve.command import ServeCommand

#: Seconds a server gets to end after SIGTERM. vLLM 0.32 takes 2 to 3 on an idle machine.
GRACE_S = 15.0
#: What a shell or an engine adds to the number of the signal that ended a process.
_SIGNAL_BASE = 128


@dataclass(frozen=True)
class Exit:
    """How the server's main process ended: ``code`` is negative for a signal, as in subprocess."""

    code: int

    @property
    def text(self) -> str:
        """ "exit code 1" or "killed by signal 9 (SIGKILL)"."""
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = "unknown"
        return f"killed by signal {-self.code} ({name})"


class Server:
    """A context manager: on leaving, nothing of the server exists any more, or ``left`` says what does.

    The server has its own session and process group, so a Ctrl+C in the terminal reaches the doctor
    alone. A supervisor process (see :mod:`doctor.serve.supervisor`) ends the tree even when the doctor
    is killed.
    """

    def __init__(
        self, command: ServeCommand, log: Path, *, env: Mapping[str, str] | None = None, grace_s: float = GRACE_S
    ) -> None:
        self.command = command
        self.log = log
        self.pid: int | None = None
        self.exit: Exit | None = None
        self.left: tuple[int, ...] = ()
        self._env = dict(os.environ if env is None else env)
        self._grace_s = grace_s
        self._marker = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._buffer = b""
        self._gone = False
        self._before: set[int] | None = None
        self._error: str | None = None

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the tree and returns once the program runs. Raises DoctorError when it cannot be started."""
        self._before = supervisor.present()
        self._process = subprocess.Popen(
            [
                sys.executable, "-I", "-S", supervisor.__file__,
                f"{self._grace_s:g}", self._marker, str(self.log), *self.command.after, "--", *self.command.argv,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.command.environment(self._env),
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None  # noqa: S101  for the type checker
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        deadline = time.monotonic() + 10.0
        while self.pid is None and self._error is None and time.monotonic() < deadline and not self._gone:
            self._read(0.1)
        if self._error is not None:
            raise DoctorError(f"cannot start {self.command.argv[0]}: {self._error}", exit_code=2)
        if self.pid is None:
            raise DoctorError(f"cannot start {self.command.argv[0]}: its supervisor gave no answer")

    def poll(self, wait_s: float = 0.0) -> Exit | None:
        """How the server ended, or None while it runs; waits at most ``wait_s`` seconds for the end."""
        deadline = time.monotonic() + wait_s
        while self.exit is None and not self._gone:
            self._read(max(0.0, min(0.2, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                break
        return self.exit

    def owns(self, pids: set[int]) -> bool:
        """Whether one of these processes belongs to this server. The port of a container is its engine's."""
        return bool(self.command.after) or bool(pids & self._living())

    def stop(self) -> None:
        """Ends the tree: SIGTERM, the grace time, SIGKILL. Safe to call again; a Ctrl+C shortens the wait."""
        process = self._process
        if process is None:
            return
        self._process = None
        interrupted = False
        self._order(process, "stop")
        try:
            self._await_end(process, self._grace_s + supervisor.KILL_WAIT_S + self._after_s + 5.0)
        except KeyboardInterrupt:
            interrupted = True
            self._order(process, "kill")
            self._await_end(process, supervisor.KILL_WAIT_S + self._after_s + 5.0)
        finally:
            self._sweep(process)
            self._selector.close()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        if interrupted:
            raise KeyboardInterrupt

    @property
    def _after_s(self) -> float:
        return supervisor.MADE_S + supervisor.AFTER_S if self.command.after else 0.0

    def _order(self, process: subprocess.Popen[bytes], order: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.write(process.stdin.fileno(), f"{order}\n".encode())  # type: ignore[union-attr]

    def _await_end(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)
        self._read(0.0)

    def _sweep(self, process: subprocess.Popen[bytes]) -> None:
        """Last resort when the supervisor itself was killed or hangs."""
        done = process.poll() is not None and process.returncode >= 0
        if not done:
            with contextlib.suppress(OSError):
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
        left = self._living()
        segments: dict[str, int] = {}
        deadline = time.monotonic() + supervisor.KILL_WAIT_S
        while left and time.monotonic() < deadline:
            segments.update(supervisor.shared(left))
            supervisor.send(left, signal.SIGKILL)
            time.sleep(0.05)
            left = self._living()
        supervisor.unlink(segments, self._before)
        self.left = tuple(sorted(left))
        if self.command.after and not done:
            supervisor.clean(list(self.command.after), self.command.environment(self._env))

    def _living(self) -> set[int]:
        return supervisor.living(None, self.pid or -1, self._marker)

    def _read(self, wait_s: float) -> None:
        if not self._selector.get_map() or not self._selector.select(wait_s):
            return
        stream = next(iter(self._selector.get_map().values())).fileobj
        try:
            data = os.read(stream.fileno(), 1 << 16)  # type: ignore[union-attr]
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(stream)
            self._gone = True
            return
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._event(json.loads(line))

    def _event(self, event: dict[str, object]) -> None:
        kind = event["event"]
        if kind == "started":
            self.pid = int(str(event["pid"]))
        elif kind == "failed":
            self._error = str(event["error"])
        elif kind == "exited":
            code = int(str(event["code"]))
            inside = self.command.after and code - _SIGNAL_BASE in list(signal.Signals)
            self.exit = Exit(_SIGNAL_BASE - code if inside else code)
