"""Which program builds: docker with BuildKit, or podman where it is the only one."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from doctor.catalogue.gpus import version_tuple
from doctor.checks.registry import found
from doctor.errors import DoctorError
from doctor.finding import Confidence, Evidence, Finding
from doctor.host import Host

#: Seconds for a question that the client answers by itself.
CLIENT_S = 10.0
#: Seconds until a base must have told its distribution; it may have to be pulled first.
BASE_S = 600.0
#: From here on the docker client's builder is the plugin buildx; before, BuildKit is part of it.
BUILDX_FROM = (23,)
#: The first client that knows DOCKER_BUILDKIT and --secret.
FIRST_CLIENT = (18, 9)
#: Last line of a client that failed: it points to its help.
_HINT = re.compile(r"(See|Run) '\S+ run --help'")


@dataclass(frozen=True)
class Engine:
    """``kind``: "docker" or "podman". ``builder``: "buildx", "built in" or "buildah"."""

    kind: str
    path: str
    version: str
    builder: str
    passed_over: tuple[str, ...] = ()  # other programs, and why not

    @property
    def environment(self) -> Mapping[str, str]:
        """What its build command needs to be told: BuildKit, and no attestation beside the image."""
        if self.kind == "podman":
            return {}
        return {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}


def find(host: Host, wanted: str | None = None) -> Engine | Finding:
    """The first program on PATH that can build, docker before podman; ``wanted``: a name or path instead."""
    unfit: list[tuple[str, str]] = []
    paths = list(_named(host, wanted)) if wanted is not None else [*_all(host, "docker"), *_all(host, "podman")]
    for path in paths:
        engine, why = _look(host, path)
        if engine is not None:
            shown = tuple(f"{p}: {w}" for p, w in unfit)
            return Engine(engine.kind, path, engine.version, engine.builder, shown)
        unfit.append((path, why))
    if not unfit:
        text = "neither docker nor podman is on PATH"
        return found("container-engine-missing", Confidence.PROVEN, text, [Evidence("PATH", _path(host), "PATH")])
    return found(
        "buildkit-missing",
        Confidence.PROVEN,
        "; ".join(f"{p}: {w}" for p, w in unfit),
        [Evidence("container.docker_client", p, w) for p, w in unfit],
    )


def _path(host: Host) -> str:
    return host.env.get("PATH", os.defpath)


def _named(host: Host, wanted: str) -> Iterator[str]:
    if "/" in wanted:
        if not host.access(wanted, os.X_OK) or host.is_dir(wanted):
            raise DoctorError(f"--engine {wanted}: there is no such program")
        yield wanted
        return
    if wanted not in ("docker", "podman"):
        raise DoctorError(f"--engine {wanted}: docker, podman or the path of one of them")
    paths = list(_all(host, wanted))
    if not paths:
        raise DoctorError(f"--engine {wanted}: no program of that name is on PATH")
    yield from paths


def _all(host: Host, name: str) -> Iterator[str]:
    """Every program of that name on PATH, each once."""
    seen = set()
    for folder in _path(host).split(os.pathsep):
        path = f"{folder}/{name}"
        real = host.realpath(path)
        if folder and real not in seen and host.access(path, os.X_OK) and not host.is_dir(path):
            seen.add(real)
            yield path


def _look(host: Host, path: str) -> tuple[Engine | None, str]:
    """The engine, or why this program cannot build."""
    answer = host.run([path, "--version"], timeout=CLIENT_S)
    # podman's stand-in for docker says "podman version" too
    match = re.search(r"(?im)^(docker|podman) version v?([0-9][\w.+~-]*)", answer.stdout) if answer.ok else None
    if match is None:
        said = (answer.stdout + answer.stderr).strip().splitlines()
        why = answer.error or ("no answer in time" if answer.timed_out else said[0][:160] if said else "no answer")
        return None, f"it does not tell its version: {why}"
    kind, version = match[1].lower(), match[2]
    if kind == "podman":
        return Engine("podman", path, version, "buildah"), ""
    number = version_tuple(version) or ()
    if number < FIRST_CLIENT:
        return None, f"client {version} has no BuildKit"
    if number < BUILDX_FROM:
        return Engine("docker", path, version, "built in"), ""
    if host.run([path, "buildx", "version"], timeout=CLIENT_S).ok:
        return Engine("docker", path, version, "buildx"), ""
    return None, f"client {version} builds with the plugin buildx, which is not installed"


def distribution(host: Host, engine: Engine, base: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Id and release of an image's distribution, read in a container of it; DoctorError when that fails."""
    name = f"vllm-doctor-base-{uuid.uuid4().hex[:12]}"
    argv = [engine.path, "run", "--rm", "--name", name, "--network", "none", "--entrypoint", "cat", base,
            "/etc/os-release"]  # fmt: skip
    answer = None
    try:
        answer = host.run(argv, timeout=BASE_S, env=environment)
    finally:
        if answer is None or answer.timed_out:  # the client is gone, its container may live on
            host.run([engine.path, "rm", "-f", name], timeout=CLIENT_S, env=environment)
    fields = dict(re.findall(r"(?m)^(ID|VERSION_ID)=[\"']?([^\"'\n]*)", answer.stdout))
    if not answer.ok or "ID" not in fields:
        said = [line for line in answer.stderr.splitlines() if line.strip() and not _HINT.match(line)]
        why = answer.error or (f"no answer within {BASE_S:g} s" if answer.timed_out else "")
        why = why or (said[-1][:300].rstrip(".") if said else "no /etc/os-release")
        raise DoctorError(f"cannot tell the distribution of {base}: {why}; --target names it without asking", 2)
    return fields["ID"], fields.get("VERSION_ID", "")
