"""The vLLM of an image: whether it is there, what is in it, and how this host asks for its GPU."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from doctor.errors import DoctorError
from doctor.host import Host
from doctor.host.examine import Options
from doctor.image.engine import Engine
from doctor.image.runline import CDI, GPUS, lines
from doctor.serve.container import Container
from doctor.serve.environment import VllmEnvironment
from doctor.smoke.profile import look

#: Seconds for a question to the engine, and for the small container that tells the versions.
ASK_S = 20.0
VERSIONS_S = 120.0
_VERSIONS = """
import importlib.metadata as m, json, os
def v(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
own = os.access("/opt/vllm-doctor/entrypoint", os.X_OK)
print(json.dumps({"vllm": v("vllm"), "torch": v("torch"), "own": own}))
"""


def locate_image(host: Host, image: str) -> VllmEnvironment:
    """The environment inside an image that is on this machine; nothing is pulled. Raises DoctorError."""
    client = host.which("docker") or host.which("podman")
    if client is None:
        raise DoctorError("--image needs docker or podman, and neither is on PATH")
    kind = os.path.basename(client)
    found = host.run([client, "image", "inspect", "--format", "{{.Id}}", image], timeout=ASK_S)
    if not found.ok:
        said = found.error or (found.stderr.strip().splitlines() or ["no answer in time"])[-1]
        raise DoctorError(f"--image {image}: {said}; nothing is pulled unasked", 2)
    options: tuple[str, ...] = ("--security-opt", "label=disable") if kind == "podman" else ()
    if kind == "docker" and host.run([client, "info", "-f", "{{.InitBinary}}"], timeout=ASK_S).stdout.strip():
        options = ("--init",)  # signals reach a server that is still importing
    container = Container(client, image, (), options)
    versions = _versions(host, container)
    environment = VllmEnvironment(
        prefix=image,
        python="python3",
        chosen_by="--image",
        vllm=str(versions.get("vllm") or ""),
        torch=str(versions.get("torch") or ""),
        command=("vllm",),
        source=f"importlib.metadata in {image}",
    )
    request = () if environment.cpu else _request(host, kind, client, image)
    own = bool(versions.get("own"))
    # our image has an init of its own
    container = replace(container, request=request, own=own, options=() if own else options)
    return replace(environment, container=container)


def _versions(host: Host, container: Container) -> Mapping[str, Any]:
    """What a small container of the image says of itself; it has no network and is gone afterwards."""
    name = f"vllm-doctor-versions-{uuid.uuid4().hex[:12]}"
    argv = [*container.run(name, "--network", "none", "--entrypoint", "python3"), container.image, "-c", _VERSIONS]
    answer = None
    try:
        answer = host.run(argv, timeout=VERSIONS_S)
    finally:
        if answer is None or answer.timed_out:
            host.run(container.remove(name), timeout=ASK_S)
    try:
        told = json.loads(answer.stdout)
    except ValueError:
        said = (answer.error or answer.stderr).strip().splitlines()
        why = f"no answer within {VERSIONS_S:g} s" if answer.timed_out else said[0] if said else "no answer"
        raise DoctorError(f"--image {container.image}: python3 in it does not start: {why}", 2) from None
    return told if isinstance(told, dict) else {}


def _request(host: Host, kind: str, client: str, image: str) -> tuple[str, ...]:
    """How this host's engine is asked for the card; nothing when there is no card to ask for."""
    from doctor.host import container as probe

    snapshot = look(host)
    if not snapshot.gpus:
        return ()
    facts = probe.probe(host, Options()).get("container")
    way = lines(replace(snapshot, container=facts), Engine(kind, client, "", ""), image).way
    hidden = host.env.get("CUDA_VISIBLE_DEVICES")
    shown = () if hidden is None else ("-e", f"CUDA_VISIBLE_DEVICES={hidden}")
    return (*(CDI if way == "cdi" else GPUS), *shown)
