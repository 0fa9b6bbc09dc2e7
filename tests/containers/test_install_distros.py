"""install.sh on plain Debian: what is missing is named as it is called there, and a plain user can install."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.containers.harness import REPOSITORY, Docker

#: The checkout is mounted read-only: the installer has no business in it.
CHECKOUT = ("-v", f"{REPOSITORY}:/checkout:ro")
INSTALL = "/checkout/install.sh"
#: As a user with a HOME of his own.
AS_USER = "useradd -m ann && cd / && exec su ann -s /bin/sh -c"

Image = Callable[[str, str], str]


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if "this installs for root" not in line]
    assert done.returncode == 1, done
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_no_python(docker: Docker, image: Image, suite: str) -> None:
    done = docker.run(image(suite, "base"), INSTALL, docker_args=CHECKOUT)
    assert one_line(done).startswith(
        "install.sh: no python3 on PATH: sudo apt-get install python3 python3-venv, or "
    )


@pytest.mark.parametrize(("suite", "package"), [("bookworm", "python3.11-venv"), ("trixie", "python3.13-venv")])
def test_python_without_venv(docker: Docker, image: Image, suite: str, package: str) -> None:
    done = docker.run(image(suite, "python-only"), INSTALL, docker_args=CHECKOUT)
    assert f"sudo apt-get install {package}," in one_line(done)
    known = docker.run(
        image(suite, "base"), "sh", "-c", f"apt-get -qq update; apt-cache show {package}",
        docker_args=["--network=host"],
    )  # fmt: skip
    if not known.stdout and "Failed to fetch" in known.stderr:
        pytest.skip(f"no package lists here: {known.stderr[-200:]}")
    assert f"Package: {package}" in known.stdout, "the package exists under this name"


def test_python_of_bullseye_is_too_old(docker: Docker, image: Image) -> None:
    done = docker.run(image("bullseye", "python"), INSTALL, docker_args=CHECKOUT)
    assert "python3 is 3.9, vllm-doctor needs 3.10 or newer" in one_line(done)


def test_no_network(docker: Docker, image: Image) -> None:
    """Seen with pip 23.0: with retries it says what failed, without them only that there is no such package."""
    for retries, expected in (("1", "name resolution"), ("0", "No matching distribution found")):
        args = [*CHECKOUT, "--network=none", "-e", f"PIP_RETRIES={retries}"]
        line = one_line(docker.run(image("bookworm", "python"), INSTALL, docker_args=args))
        assert expected in line
        assert "check the network" in line


def test_read_only_home(docker: Docker, image: Image) -> None:
    args = [*CHECKOUT, "--read-only", "--tmpfs", "/tmp"]
    line = one_line(docker.run(image("bookworm", "python"), INSTALL, docker_args=args))
    assert line.endswith("(Read-only file system): choose a writable place with --prefix DIR")


def test_no_room(docker: Docker, image: Image) -> None:
    args = [*CHECKOUT, "--tmpfs", "/root:size=16m"]
    assert "only 16 MiB free under /root" in one_line(
        docker.run(image("bookworm", "python"), INSTALL, docker_args=args)
    )


@pytest.mark.network
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_install_and_uninstall_as_a_user(
    docker: Docker, image: Image, registry_args: Sequence[Any], suite: str
) -> None:
    parts = "install.sh pyproject.toml README.md LICENSE doctor docker"
    install = "sh ~/copy/install.sh"
    script = (
        f"mkdir ~/copy && (cd /checkout && cp -R {parts} ~/copy) && find ~ | sort >/tmp/before "
        f"&& {install} </dev/null && ~/.local/bin/vllm-doctor --version "
        f"&& {install} --no-check && {install} --uninstall && rm -rf ~/.cache && find ~ | sort >/tmp/after "
        "&& diff /tmp/before /tmp/after && echo as before"
    )
    done = docker.run(
        image(suite, "python"),
        "sh",
        "-c",
        f"{AS_USER} '{script}'",
        docker_args=[*CHECKOUT, *registry_args],
        timeout=240,
    )
    if "check the network" in done.stderr:
        pytest.skip(f"no package registry: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Installed. `vllm-doctor check` says: " in done.stdout
    assert "already installed, nothing to do" in done.stdout
    assert done.stdout.endswith("as before\n")
    assert "root" not in done.stderr


@pytest.mark.network
def test_install_with_uv_where_python_has_no_venv(
    docker: Docker, image: Image, uv: Path, registry_args: Sequence[Any]
) -> None:
    args = [*CHECKOUT, *registry_args, "-v", f"{uv}:/usr/local/bin/uv:ro"]
    script = f'{INSTALL} --no-check && "$HOME"/.local/bin/vllm-doctor --version'
    done = docker.run(image("bookworm", "python-only"), "sh", "-c", script, docker_args=args, timeout=240)
    if "check the network" in done.stderr:
        pytest.skip(f"no package registry: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(uv, Python 3.11)" in done.stdout
    assert "vllm-doctor " in done.stdout.splitlines()[-1]
