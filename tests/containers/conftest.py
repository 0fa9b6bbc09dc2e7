"""Fixtures for tests in real containers. Without a daemon, a base or a registry they skip with the reason."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.containers.harness import Docker, Unavailable, uv_program


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder needs a daemon: mark them, so that nobody can forget to."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.container)
            item.add_marker(pytest.mark.timeout(600))  # the first one to use an image builds it


@pytest.fixture(scope="session")
def docker(request: pytest.FixtureRequest) -> Iterator[Docker]:
    """The daemon under test."""
    try:
        found = Docker.find(Path(request.config.cache.mkdir("containers")))
    except Unavailable as why:
        pytest.skip(str(why))
    yield found
    found.close()


@pytest.fixture(scope="session")
def image(docker: Docker) -> Callable[[str, str], str]:
    """``image(suite, recipe)``: the tag of an image of ``harness.RECIPES``, built when needed."""

    def get(suite: str, recipe: str) -> str:
        try:
            return docker.image(suite, recipe)
        except Unavailable as why:
            pytest.skip(str(why))

    return get


@pytest.fixture(scope="session")
def run_doctor(docker: Docker) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_doctor(image, *args, docker_args=())``: ``vllm-doctor check --json`` of this checkout, inside."""
    return docker.run_doctor


@pytest.fixture(scope="session")
def bare_python_image(image: Callable[[str, str], str]) -> Callable[[str], str]:
    """``bare_python_image(suite)``: Debian with python3 and python3-venv and nothing else."""
    return lambda suite: image(suite, "python")


@pytest.fixture(scope="session")
def uv(docker: Docker) -> Path:
    """A uv program to mount into a container."""
    try:
        return uv_program(docker.cache)
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def registry_args() -> Sequence[Any]:
    """docker arguments with which pip and uv inside a container reach the registry that this host uses."""
    import os

    args: list[str] = ["--network=host"]
    bundle = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if bundle and Path(bundle).exists():
        inside = "/run/ca-bundle.crt"
        args += ["-v", f"{bundle}:{inside}:ro"]
        for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            args += ["-e", f"{name}={inside}"]
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        if os.environ.get(name):
            args += ["-e", name]
    return args
