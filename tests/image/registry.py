"""A registry and a hub on a local port: tokens, manifests, and every way to answer wrongly."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def manifest(text: str) -> bytes:
    """A manifest whose digest depends on ``text``."""
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "annotations": {"text": text}}).encode()


def index(*digests: str) -> bytes:
    """An index of amd64, arm64 and an attestation, as BuildKit pushes them."""
    platforms = (
        {"os": "linux", "architecture": "amd64"},
        {"os": "linux", "architecture": "arm64", "variant": "v8"},
    )
    entries = [{"digest": d, "platform": p} for d, p in zip(digests, platforms, strict=False)]
    attestation = {"digest": "sha256:" + "9" * 64, "platform": {"os": "unknown", "architecture": "unknown"}}
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [*entries, attestation]}).encode()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class FakeRegistry:
    """``manifests``: tag or digest to bytes. ``answer`` may take a request over; it returns True when it did."""

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"
        self.manifests: dict[str, bytes] = {}
        self.models: dict[str, object] = {}
        self.token: str | None = "dG9rZW4="
        self.challenge = f'Bearer realm="http://{self.host}/token?a=b",service="registry.test"'
        self.answer: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
        self.asked: list[tuple[str, dict[str, str]]] = []

    def serve(self, data: bytes, *names: str) -> str:
        """Serves a manifest under its digest and these tags; returns the digest."""
        for name in (digest(data), *names):
            self.manifests[name] = data
        return digest(data)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append((request.path, {k.lower(): v for k, v in request.headers.items()}))
        if self.answer(request):
            return
        if request.path.startswith("/token"):
            reply(request, 200, json.dumps({"token": self.token}).encode())
        elif request.path.startswith("/api/models/"):
            model = self.models.get(request.path.removeprefix("/api/models/"))
            reply(request, 200 if model is not None else 404, json.dumps(model or {"error": "no"}).encode())
        elif self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            reply(request, 401, b"{}", {"WWW-Authenticate": self.challenge})
        else:
            data = self.manifests.get(request.path.rpartition("/manifests/")[2])
            kind = json.loads(data)["mediaType"] if data else "application/json"
            reply(request, 200 if data else 404, data or b"{}", {"Content-Type": kind})


def reply(request: BaseHTTPRequestHandler, code: int, data: bytes, headers: dict[str, str] | None = None) -> bool:
    """Answers; always True, for use in ``answer``."""
    request.send_response(code)
    for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(data)
    return True


def trickle(request: BaseHTTPRequestHandler, seconds: float) -> bool:
    """Sends a byte now and then, so that no single read takes long."""
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            request.wfile.write(b" ")
            request.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass  # the other side had enough
    return True


@contextmanager
def running() -> Iterator[FakeRegistry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.handle(self)

        def do_CONNECT(self) -> None:
            fake.handle(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeRegistry(server.server_port)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
