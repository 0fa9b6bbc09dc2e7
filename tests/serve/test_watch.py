"""When a server counts as ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from doctor.serve.client import Client
from doctor.serve.log import LogFollower
from doctor.serve.watch import wait_healthy
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
