"""A healthy server that somebody else started, for tests of ``--url``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from doctor.host import LocalHost
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings, build
from doctor.serve.environment import locate
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke.preflight import free_port


@contextmanager
def started(vllm_env: Path, settings: Settings, log: Path) -> Iterator[Server]:
    """Ends it on exit. AssertionError when it does not become healthy."""
    command = build(locate(LocalHost(), str(vllm_env)), settings, free_port())
    with Server(command, log, env=os.environ) as server:
        client = Client(command.port, SERVED_NAME)
        ready = wait_healthy(server, client, LogFollower(log), 600, lambda _: None)
        assert ready.state == "healthy", log.read_text()[-2000:]
        yield server
