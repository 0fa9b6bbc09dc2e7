"""A Docker daemon of a few lines on a real Unix socket: for answers that a real one gives only in trouble."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: /info of Docker 20.10.24 (Debian), the keys that are read and some neighbours.
INFO: Mapping[str, Any] = {
    "Driver": "overlay2",
    "CgroupDriver": "cgroupfs",
    "CgroupVersion": "1",
    "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
    "DockerRootDir": "/var/lib/docker",
    "ServerVersion": "20.10.24+dfsg1",
    "Runtimes": {
        "io.containerd.runc.v2": {"path": "runc"},
        "io.containerd.runtime.v1.linux": {"path": "runc"},
        "runc": {"path": "runc"},
    },
    "DefaultRuntime": "runc",
    "SecurityOptions": ["name=seccomp,profile=default"],
    "Name": "vm",
}
VERSION: Mapping[str, Any] = {
    "Platform": {"Name": ""},
    "Components": [{"Name": "Engine", "Version": "20.10.24+dfsg1"}],
    "Version": "20.10.24+dfsg1",
    "ApiVersion": "1.41",
}


def json_reply(document: Any, status: str = "200 OK") -> bytes:
    """An HTTP answer as the daemon writes it."""
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


@contextmanager
def daemon(path: Path, replies: Mapping[str, bytes] | bytes | None) -> Iterator[None]:
    """Listens on ``path``. ``replies``: bytes by request path, the same bytes for all, or None: never answers."""
    over = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().decode("latin-1")
            while self.rfile.readline() not in (b"\r\n", b"\n", b""):
                pass
            if not line:
                return
            if replies is None:
                over.wait(30)
            elif isinstance(replies, bytes):
                self.wfile.write(replies)
            else:
                self.wfile.write(replies.get(line.split()[1], json_reply({"message": "page not found"}, "404 X")))

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    path.parent.mkdir(parents=True, exist_ok=True)
    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            server.shutdown()
            thread.join()


@contextmanager
def docker(path: Path, **changes: Any) -> Iterator[None]:
    """A daemon that answers like Docker 20.10.24, with some keys of /info changed (None removes one)."""
    info = {k: v for k, v in {**INFO, **changes}.items() if v is not None}
    version = changes.get("_version", VERSION)
    info.pop("_version", None)
    with daemon(path, {"/info": json_reply(info), "/version": json_reply(version)}):
        yield
