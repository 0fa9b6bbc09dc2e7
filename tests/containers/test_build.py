"""``vllm-doctor build`` against a real daemon, with a Dockerfile of a few seconds in place of the real one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.containers.harness import LABEL, NAME, REPOSITORY, Docker, Unavailable

CODE = "import sys; from doctor.cli import main; sys.exit(main(sys.argv[1:]))"
DOCKERFILE = f"""\
ARG BASE
FROM ${{BASE}} AS system
LABEL {LABEL}=image
ARG APT_LOCK
RUN --mount=type=bind,source=docker/locks,target=/docker/locks --mount=type=secret,id=ca \\
    cat /run/secrets/ca && test -s "/${{APT_LOCK}}"
FROM system AS runtime
ARG VLLM
COPY doctor /src/doctor
RUN echo "vllm $VLLM" >/said && @STEP@
USER 1000
"""


@dataclass
class Copy:
    """A copy of the checkout with a small Dockerfile, and a place for temporary files."""

    docker: Docker
    root: Path
    tag: str

    def dockerfile(self, step: str) -> None:
        (self.root / "docker/Dockerfile").write_text(DOCKERFILE.replace("@STEP@", step), encoding="utf-8")

    @property
    def process(self) -> dict[str, Any]:
        scratch = self.root.parent / "tmp"
        scratch.mkdir(exist_ok=True)
        env = {**os.environ, "PYTHONPATH": str(self.root), "DOCKER_HOST": self.docker.host, "TMPDIR": str(scratch)}
        return {"cwd": self.root, "env": env, "text": True}

    @property
    def left(self) -> list[str]:
        return sorted(p.name for p in (self.root.parent / "tmp").iterdir())

    def argv(self, *options: str) -> list[str]:
        base = self.docker.base("bookworm")
        ca = self.root / "ca.pem"
        ca.write_text("-----BEGIN CERTIFICATE-----\nof nobody\n-----END CERTIFICATE-----\n", encoding="utf-8")
        own = ("--base", base, "--tag", self.tag, "--ca", str(ca), "--ignore-room", "--json", *options)
        return [sys.executable, "-c", CODE, "build", *own]

    def build(self, *options: str) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(self.argv(*options), capture_output=True, timeout=240, **self.process)
        return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture
def copy(docker: Docker, tmp_path: Path) -> Iterator[Copy]:
    try:
        docker.base("bookworm")
    except Unavailable as why:
        pytest.skip(str(why))
    root = tmp_path / "checkout"
    for name in ("doctor", "docker"):
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, root / name)
    made = Copy(docker, root, f"{NAME}/build:{uuid.uuid4().hex[:12]}")
    made.dockerfile("true")
    yield made
    docker("rmi", "-f", made.tag)


def can_build(answer: dict[str, Any]) -> None:
    if "buildkit-missing" in [f["id"] for f in answer["findings"]]:
        pytest.skip("no docker client here can build with BuildKit")


def test_an_image_is_built_and_a_second_time_from_the_cache(copy: Copy) -> None:
    # work under a second leaves no lines: a step that lasts, and that no earlier run has left in the cache
    copy.dockerfile(f"sleep 2 && : {uuid.uuid4().hex}")
    code, answer, err = copy.build()
    can_build(answer)
    assert (code, answer["verdict"], answer["findings"]) == (0, "ready", [])
    made = answer["build"]
    assert (made["plan"]["target"], made["ended"]["steps"]) == ("bookworm", 4)
    assert "step 4 of 4, runtime: RUN echo" in err
    shown = copy.docker("image", "inspect", "--format", "{{.Id}} {{.Size}}", copy.tag).stdout.split()
    assert shown == [made["image"]["id"], str(made["image"]["bytes"])]
    said = copy.docker.run(copy.tag, "cat", "/said").stdout
    assert said == f"vllm {made['plan']['arguments']['VLLM']}\n"
    inside = copy.docker.run(
        copy.tag, "sh", "-c", "ls /src/doctor; find / -xdev -name ca.pem; cat /run/secrets/ca"
    )
    assert "cli.py" in inside.stdout
    assert "CERTIFICATE" not in inside.stdout, "a certificate is a secret of the build"
    again = copy.build()[1]["build"]
    assert again["image"]["id"] == made["image"]["id"]
    assert again["ended"]["cached"] == 3
    assert copy.left == []


def test_a_step_that_fails(copy: Copy) -> None:
    copy.dockerfile("echo it went wrong >&2; exit 7")
    code, answer, _ = copy.build()
    can_build(answer)
    assert (code, answer["verdict"], [f["id"] for f in answer["findings"]]) == (
        2,
        "blocked",
        ["image-build-failed"],
    )
    ended = answer["build"]["ended"]
    assert ended["failed_step"].startswith('step 4 of 4, runtime: RUN echo "vllm ')
    assert "exit code: 7" in ended["error"]
    (log,) = copy.left
    assert "it went wrong" in (copy.root.parent / "tmp" / log).read_text(encoding="utf-8")
    assert copy.docker("image", "inspect", copy.tag).returncode != 0


def test_ctrl_c_ends_the_build_in_the_daemon_too(copy: Copy) -> None:
    mark = str(10_000 + uuid.uuid4().int % 80_000)
    copy.dockerfile(f"sleep {mark}")
    process = subprocess.Popen(copy.argv(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **copy.process)

    def sleeping() -> bool:
        argv = f"sleep\0{mark}\0".encode()
        return any(argv == _cmdline(p) for p in Path("/proc").glob("[0-9]*"))

    deadline = time.monotonic() + 120
    while not sleeping() and time.monotonic() < deadline:
        if process.poll() is not None:
            can_build(json.loads(process.communicate()[0]))
        assert process.poll() is None
        time.sleep(0.2)
    if not sleeping():
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        pytest.skip("the daemon's processes cannot be seen from here")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.splitlines()[-1]) == (130, "", "vllm-doctor: interrupted")
    assert copy.left == []
    deadline = time.monotonic() + 30
    while sleeping() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not sleeping()


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
