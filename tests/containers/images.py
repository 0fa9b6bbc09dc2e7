"""The pinned image with the doctor alone: the whole way of `vllm-doctor build` without 4 GB of wheels.

A copy of the checkout in which the targets name the lock of the doctor alone; everything else is the product's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.harness import LABEL, REPOSITORY, Docker, Unavailable

NAME = "vllm-doctor-test/image"
#: Every file with its hash, then every path with mode, owner, type and link target; not what the daemon mounts.
LIST = (
    "cd /; find bin boot etc home lib lib64 media mnt opt root run sbin srv tmp usr var cache -xdev -type f "
    "! -path etc/hostname ! -path etc/hosts ! -path etc/resolv.conf -print0 | sort -z | xargs -0 sha256sum; "
    "find . -xdev \\( -path ./proc -o -path ./sys -o -path ./dev \\) -prune -o "
    "-printf 'M %m %U %G %y %p %l\\n' | sort"
)


@dataclass(frozen=True)
class Checkout:
    """A copy of the checkout to build from."""

    root: Path
    docker: Docker

    def build(self, *args: str, timeout: float = 420) -> subprocess.CompletedProcess[str]:
        """``vllm-doctor build ARGS --json`` of this copy."""
        code = "import sys; from doctor.cli import main; sys.exit(main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", code, "build", *args, "--json"],
            cwd=self.root, capture_output=True, text=True, timeout=timeout,
            env={**os.environ, "PYTHONPATH": str(self.root), "DOCKER_HOST": self.docker.host},
        )  # fmt: skip


def checkout(docker: Docker, folder: Path) -> Checkout:
    """Copies what an image is built from. Raises Unavailable where no client can build."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.whl")
    for name in ("doctor", "docker"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=unwanted, dirs_exist_ok=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder / name)
    pins = json.loads((folder / "docker/pins.json").read_text())
    for target in pins["targets"]:
        if target["python_lock"]:
            target["python_lock"] = target["python_lock"].replace("/python-", "/doctor-")
    (folder / "docker/pins.json").write_text(json.dumps(pins))
    return Checkout(folder, docker)


def build(docker: Docker, folder: Path, tag: str, suite: str = "bookworm", *more: str) -> dict[str, Any]:
    """The answer of a build that works. Raises Unavailable where the means are missing."""
    done = checkout(docker, folder).build("--base", docker.base(suite), "--tag", tag, *more)
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    ids = [f["id"] for f in answer.get("findings", [])]
    if "buildkit-missing" in ids:
        raise Unavailable("no docker client here can build with BuildKit")
    assert done.returncode == 0, (ids, done.stdout[-3000:], done.stderr[-3000:])
    return answer


def run(
    docker: Docker, image: str, *args: str, docker_args: tuple[str, ...] = (), timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """``docker run --rm`` with this suite's label."""
    return docker("run", "--rm", "--label", LABEL, *docker_args, image, *args, timeout=timeout)


def listing(docker: Docker, image: str) -> str:
    """``LIST`` of an image."""
    done = run(docker, image, "-c", LIST, docker_args=("--user", "0", "--entrypoint", "sh"))
    assert done.returncode == 0, done.stderr
    return done.stdout
