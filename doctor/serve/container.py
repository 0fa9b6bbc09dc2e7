"""A server in a container: how a command becomes one of the engine's client, and how it is taken away again."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: On every container that is started; its value names the process that did it.
LABEL = "vllm-doctor.smoke"
#: Where the server listens inside.
PORT = 8000
#: Where the model lies inside.
MODEL = "/model"
_SNAPSHOT = re.compile(r"(.+/models--[^/]+)(/snapshots/[^/]+)/?\Z")


@dataclass(frozen=True)
class Container:
    """An image and the client that starts it. ``request`` asks for the GPU; ``own`` is an image of ours.

    ``options`` are further options of ``run`` that this engine needs.
    """

    client: str
    image: str
    request: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    own: bool = False

    def run(self, name: str, *options: str) -> tuple[str, ...]:
        """The beginning of a command line that starts it; removed when it ends."""
        label = f"{LABEL}={os.getpid()}"
        return (self.client, "run", "--rm", "--name", name, "--label", label, *self.options, *options)

    def remove(self, name: str) -> tuple[str, ...]:
        """Takes a container of this name away, whatever it does, and the volumes that its image made it have."""
        return (self.client, "rm", "-f", "-v", name)

    def serve(
        self, arguments: Sequence[str], env: Mapping[str, str], folder: str, port: int
    ) -> tuple[tuple[str, ...], str]:
        """The command line that serves ``arguments`` (after ``serve MODEL``) on a loopback port, and the name."""
        name = f"vllm-doctor-smoke-{uuid.uuid4().hex[:12]}"
        source, inside = mounted(folder)
        options = [
            *self.request,
            # the figure of our compose file: vLLM's processes talk through shared memory, an engine gives 64 MiB
            "--shm-size", "4g",
            "--mount", f"type=bind,{_field(f'source={source}')},target={MODEL},readonly",
            "-p", f"127.0.0.1:{port}:{PORT}",
        ]  # fmt: skip
        for key, value in env.items():
            options += ["-e", f"{key}={value}"]
        # our own entrypoint knows what the image lacks; those of other images differ between versions
        entry = () if self.own else ("--entrypoint", "vllm")
        return (*self.run(name, *options, *entry), self.image, "serve", inside, *arguments), name


def _field(text: str) -> str:
    """A field of ``--mount``, whose value the engines read as CSV."""
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def mounted(folder: str) -> tuple[str, str]:
    """(folder to mount, the model's path inside). A snapshot of the hub's cache has links to files beside it."""
    match = _SNAPSHOT.match(folder)
    return (match[1], MODEL + match[2]) if match else (folder, MODEL)
