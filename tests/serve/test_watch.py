"""When a server counts as ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from doctor.serve import watch
from doctor.serve.client import Client
from doctor.serve.log import LogFollower
from doctor.serve.watch import wait_healthy
from doctor.smoke.ending import not_ready
from tests.serve.test_server import pids, server

__all__ = ["pids"]


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Healthy) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        yield answering.server_port
        answering.shutdown()


def test_a_stranger_on_the_port_is_not_our_server(tmp_path: Path, pids: Path, stranger: int) -> None:
    client = Client(stranger, "m")
    assert client.healthy()
    with server(tmp_path, pids, "hang:loading") as ours:
        ready = wait_healthy(ours, client, LogFollower(ours.log), 2.0, lambda _: None)
    assert ready.state == "timeout"


@pytest.mark.parametrize(("wait_s", "timeout_s"), [(0.3, 30.0), (30.0, 2.0)])
def test_a_server_whose_engine_failed_is_not_waited_for(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch, wait_s: float, timeout_s: float
) -> None:
    monkeypatch.setattr(watch, "ENGINE_WAIT_S", wait_s)
    with server(tmp_path, pids, "hang:loading") as ours:
        with ours.log.open("a") as log:
            log.write(
                "(EngineCore pid=7) ERROR 11-30 21:46:33 [core.py:1510] EngineCore failed to start.\n"
                "(EngineCore pid=7) ERROR 11-30 21:46:33 [core.py:1510] Traceback (most recent call last):\n"
                "(EngineCore pid=7) ERROR 11-30 21:46:33 [core.py:1510] RuntimeError: Worker failed with 'X'\n"
            )
        ready = wait_healthy(ours, Client(1, "m"), LogFollower(ours.log), timeout_s, lambda _: None)
        first, *_ = not_ready(ready, ours.log, timeout_s)
    assert (ready.state, ready.exit) == ("died", None)
    assert ready.seconds < 10
    assert first.id == "server-died-while-loading"
    assert "its engine had failed, and the rest of it hung" in first.summary
