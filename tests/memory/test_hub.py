"""A hub model: two files are fetched from a stub on loopback, kept, and used offline afterwards."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest

from doctor.memory.checkpoint import INDEX
from doctor.memory.fields import ConfigError
from doctor.memory.hub import _body, cache_folder, fetch
from doctor.memory.model import open_model
from tests.memory.support import config_path

CONFIG = config_path("qwen3.5-9b-awq").read_bytes()


@dataclass
class Hub:
    """Files by path, and what was asked."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    status: int = 404
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def hub() -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stub.asked.append((self.path, dict(self.headers.items())))
            body = stub.files.get(self.path)
            self.send_response(200 if body is not None else stub.status)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield stub
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def env(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "HF_TOKEN": "hf_secret"}  # fmt: skip


def silent(_: str) -> None:
    pass


def test_config_and_index_only_then_offline(hub: Hub, env: dict[str, str]) -> None:
    hub.files["/org/model/resolve/main/config.json"] = CONFIG
    said: list[str] = []
    model = open_model("org/model", env, said.append)
    assert model.shape.architecture == "Qwen3_5ForConditionalGeneration"
    assert model.weights.source == "shapes"
    assert [path for path, _ in hub.asked] == [
        "/org/model/resolve/main/config.json", f"/org/model/resolve/main/{INDEX}"
    ]  # fmt: skip
    assert all("uthorization" not in name for _, headers in hub.asked for name in headers)
    assert said == [f"fetching {hub.url}/org/model/resolve/main/{name}" for name in ("config.json", INDEX)]
    assert model.served == "org/model"
    hub.asked.clear()
    again = open_model("org/model", env | {"HF_HUB_OFFLINE": "1"}, silent)
    assert again.shape == model.shape
    assert hub.asked == []


def test_offline_without_a_cache(hub: Hub, env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE forbids"):
        fetch("org/model", env | {"HF_HUB_OFFLINE": "1"}, silent)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("status", "message"), [(404, "no such model"), (401, "gated"), (403, "gated"), (500, "the hub answered 500")]
)
def test_what_the_hub_refuses(hub: Hub, env: dict[str, str], status: int, message: str) -> None:
    hub.status = status
    with pytest.raises(ConfigError, match=message):
        open_model("org/model", env, silent)
    # a failed fetch leaves nothing that would pass for a whole one
    assert not list(cache_folder(env).rglob(".complete"))


def test_an_unreachable_hub(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="give a folder or a config"):
        fetch("org/model", env | {"HF_ENDPOINT": "http://127.0.0.1:9"}, silent)
    with pytest.raises(ConfigError, match="not an http address"):
        fetch("org/model", env | {"HF_ENDPOINT": "file:///etc"}, silent)


def test_a_broken_file_from_the_hub_is_one_line(hub: Hub, env: dict[str, str]) -> None:
    hub.files["/org/model/resolve/main/config.json"] = b"<html>login</html>"
    with pytest.raises(ConfigError, match="not valid JSON"):
        open_model("org/model", env, silent)
    # it was not kept: once the hub is well again, so is the answer
    hub.files["/org/model/resolve/main/config.json"] = CONFIG
    assert open_model("org/model", env, silent).shape.hidden == 4096


def test_the_hubs_own_cache_comes_first(hub: Hub, env: dict[str, str], tmp_path: Path) -> None:
    snapshot = tmp_path / ".cache/huggingface/hub/models--org--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(CONFIG)
    assert open_model("org/model", env, silent).origin == "the local hub cache"
    assert hub.asked == []


def test_names_that_are_neither_file_nor_hub(env: dict[str, str]) -> None:
    for name in ("nothing", "../org/model", "org/model/extra", "org/mo del", "https://x/y"):
        with pytest.raises(ConfigError, match="no such folder or file"):
            open_model(name, env, silent)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x00\xff no http\r\n\r\n", "does not answer as a hub does"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", "does not answer as a hub does"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + CONFIG[:100], "cut short"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        (b"", "does not answer as a hub does"),
    ],
    ids=["no-http", "huge-header", "cut-short", "to-a-file", "closed"],
)
def test_an_endpoint_that_is_no_hub_is_one_line(env: dict[str, str], raw: bytes, message: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(raw)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with pytest.raises(ConfigError, match=message) as caught:
        fetch("org/model", env | {"HF_ENDPOINT": f"http://127.0.0.1:{listener.getsockname()[1]}"}, silent)
    thread.join(5)
    listener.close()
    assert len(str(caught.value).splitlines()) == 1
    assert not list(cache_folder(env).rglob("*.json"))


class _Trickle:
    """A body that never ends."""

    def __init__(self, piece: bytes) -> None:
        self.piece = piece

    def read1(self, size: int) -> bytes:
        return self.piece[:size]


def test_a_body_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = cast("HTTPResponse", _Trickle(b" " * 4096))
    assert len(_body(endless, 100_000)) == 100_001  # one too many is enough to refuse it
    monkeypatch.setattr("doctor.memory.hub.DEADLINE_S", 0.0)
    with pytest.raises(TimeoutError, match="not complete"):
        _body(cast("HTTPResponse", _Trickle(b" ")), 100_000)


@pytest.mark.parametrize("endpoint", ["http://[bad", "http://a b", "http://127.0.0.1:99999", "http://", "ftp://x"])
def test_an_endpoint_that_is_no_address(env: dict[str, str], endpoint: str) -> None:
    with pytest.raises(ConfigError, match="not an http address"):
        fetch("org/model", env | {"HF_ENDPOINT": endpoint}, silent)


def test_a_cache_that_cannot_be_written(hub: Hub, env: dict[str, str]) -> None:
    hub.files["/org/model/resolve/main/config.json"] = CONFIG
    with pytest.raises(ConfigError, match="cannot keep what was fetched in /dev/null"):
        fetch("org/model", env | {"XDG_CACHE_HOME": "/dev/null"}, silent)
