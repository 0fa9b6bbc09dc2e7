"""Waits until a server answers /health, and says where it stopped when it does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from doctor.host import LocalHost, listeners
from doctor.serve.client import Client
from doctor.serve.log import HANG_HINTS, LogFollower
from doctor.serve.server import Exit, Server

_STEP_S = 0.25
#: Seconds that a server gets to end after its engine has failed, and after its last line. With a compiler that
#: does not work, vLLM 0.32 on a CPU logged the failure of its engine and then stayed, without a further line,
#: until it was ended.
ENGINE_WAIT_S = 45.0


@dataclass(frozen=True)
class Readiness:
    """``state``: "healthy", "died" or "timeout". ``phase`` is the last one reached.

    ``exit`` None of a server that died: its engine had failed and the rest of it hung.
    """

    state: str
    phase: str
    seconds: float
    quiet_s: float = 0.0  # since the last line of the log
    last_line: str = ""
    exit: Exit | None = None

    @property
    def hint(self) -> str:
        """What to look at when it hung."""
        return HANG_HINTS[self.phase]


def wait_healthy(
    server: Server, client: Client, log: LogFollower, timeout_s: float, on_phase: Callable[[str], None]
) -> Readiness:
    """Returns when /health answers 200, the process ends, or ``timeout_s`` seconds have passed."""
    deadline = time.monotonic() + timeout_s
    while True:
        ended = server.poll(_STEP_S)
        log.read()
        on_phase(log.phase)
        if ended is not None:
            return _readiness("died", log, ended)
        failed = log.engine_failed_at
        if failed is not None and time.monotonic() - max(failed, log.last_line_at) > ENGINE_WAIT_S:
            return _readiness("died", log)
        left = deadline - time.monotonic()
        if left > 0 and client.healthy(timeout_s=min(2.0, left)):
            # somebody else's server could answer on a stolen port, even before ours has seen that it is taken
            listening = listeners.owners(LocalHost(), client.port)
            if server.poll(0.0) is None and (not listening or server.owns(listening)):
                log.read()
                log.enter("healthy")
                on_phase(log.phase)
                return _readiness("healthy", log)
        elif left <= 0:
            return _readiness("timeout" if failed is None else "died", log)


def _readiness(state: str, log: LogFollower, ended: Exit | None = None) -> Readiness:
    quiet = time.monotonic() - log.last_line_at
    return Readiness(state, log.phase, round(log.seconds, 1), round(quiet, 1), log.last_line[:300], ended)
