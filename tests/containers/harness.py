"""Real containers for tests: finds a daemon and Debian bases, builds small images once, runs the doctor inside.

Images are tagged by the hash of their recipe, so a second run builds nothing. The doctor's code is
mounted read-only, never copied: editing it needs no new image. Everything carries ``LABEL``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
LABEL = "vllm-doctor-test"
NAME = "vllm-doctor-test"
SUITES: Mapping[str, str] = {"bookworm": "3.11", "trixie": "3.13"}  # suite -> its Python
CODE = "/opt/code"  # where the checkout's package is mounted

_APT = (
    "RUN apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends {} "
    "&& rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin"
)
_NON_FREE = (
    "RUN sed -i 's/ main$/ main contrib non-free non-free-firmware/' /etc/apt/sources.list 2>/dev/null; "
    "sed -i 's/^Components: .*/Components: main contrib non-free non-free-firmware/' "
    "/etc/apt/sources.list.d/*.sources 2>/dev/null; true"
)
_ENTRY = (
    r"RUN printf '%s\n' '#!/opt/doctor/bin/python' 'import sys' 'from doctor.cli import main' "
    "'sys.exit(main())' > /usr/local/bin/vllm-doctor && chmod 755 /usr/local/bin/vllm-doctor"
)

#: name -> (parent, Dockerfile lines after FROM). "base" is the plain suite.
RECIPES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "python": ("base", (_APT.format("python3 python3-venv"),)),
    "python-only": ("base", (_APT.format("python3"),)),
    "doctor": (
        "python",
        (
            "COPY wheels /tmp/wheels",
            "RUN python3 -m venv /opt/doctor && /opt/doctor/bin/pip -q install --no-index --no-cache-dir "
            "--find-links /tmp/wheels /tmp/wheels/*.whl && rm -rf /tmp/wheels",
            _ENTRY,
            f"ENV PYTHONPATH={CODE} PYTHONDONTWRITEBYTECODE=1",
        ),
    ),
    "gcc12": ("doctor", (_APT.format("gcc-12"),)),
    "gxx12": ("gcc12", (_APT.format("g++-12 libc6-dev"),)),
    "gcc": ("doctor", (_APT.format("gcc g++"),)),
    "nvml": ("doctor", (_NON_FREE, _APT.format("nvidia-smi libnvidia-ml1"))),
}


class Unavailable(Exception):
    """A means is missing here; the message is the reason the tests are skipped with."""


@dataclass
class Docker:
    """One daemon, spoken to through the docker client program. ``session`` labels what this run starts."""

    client: str
    host: str
    cache: Path
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    bases: dict[str, str] = field(default_factory=dict)
    _images: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def find(cls, cache: Path) -> Docker:
        """Raises :class:`Unavailable` with the reason when there is no client or no daemon that answers."""
        client = shutil.which("docker")
        if client is None:
            raise Unavailable("no docker client on PATH")
        candidates = [
            os.environ.get("VLLM_DOCTOR_TEST_DOCKER_HOST"),
            os.environ.get("DOCKER_HOST"),
            "unix:///var/run/docker.sock" if Path("/var/run/docker.sock").exists() else None,
        ]
        host = next((c for c in candidates if c), None)
        if host is None:
            raise Unavailable("no Docker daemon: set VLLM_DOCTOR_TEST_DOCKER_HOST or DOCKER_HOST")
        docker = cls(client, host if "://" in host else f"unix://{host}", cache)
        answer = docker("version", "--format", "{{.Server.Version}}", timeout=20)
        if answer.returncode != 0:
            raise Unavailable(f"the Docker daemon at {docker.host} does not answer: {answer.stderr.strip()[:200]}")
        return docker

    def __call__(
        self, *args: str, timeout: float = 60, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the client. Output is text; the caller judges the exit status."""
        done = subprocess.run(
            [self.client, *args],
            input=stdin,
            capture_output=True,
            timeout=timeout,
            env={**os.environ, "DOCKER_HOST": self.host, "LC_ALL": "C"},
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def base(self, suite: str) -> str:
        """The plain image of a suite: VLLM_DOCTOR_TEST_BASES=bookworm=IMAGE,..., or local/SUITE:minbase."""
        named = dict(
            item.split("=", 1) for item in os.environ.get("VLLM_DOCTOR_TEST_BASES", "").split(",") if "=" in item
        )
        image = named.get(suite, f"local/{suite}:minbase")
        if self("image", "inspect", image, timeout=20).returncode != 0:
            raise Unavailable(f"no image {image} (name one in VLLM_DOCTOR_TEST_BASES={suite}=IMAGE)")
        return image

    def image(self, suite: str, recipe: str) -> str:
        """The tag of a recipe's image, built with its parents when its content is new."""
        if (suite, recipe) in self._images:
            return self._images[suite, recipe]
        if recipe == "base":
            tag = self.base(suite)
        else:
            parent_name, lines = RECIPES[recipe]
            parent = self.image(suite, parent_name)
            layers = self("image", "inspect", "--format", "{{json .RootFS.Layers}}", parent).stdout
            content = "\n".join((layers if parent_name == "base" else parent, *lines, *self._inputs(recipe)))
            tag = f"{NAME}/{suite}-{recipe}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"
            if self("image", "inspect", tag).returncode != 0:
                self._build(suite, recipe, parent, lines, tag)
        self._images[suite, recipe] = tag
        return tag

    def _inputs(self, recipe: str) -> tuple[str, ...]:
        return tuple(dependencies()) if recipe == "doctor" else ()

    def _build(self, suite: str, recipe: str, parent: str, lines: Sequence[str], tag: str) -> None:
        context = self.cache / f"context-{suite}-{recipe}-{self.session}"
        context.mkdir(parents=True)
        try:
            if recipe == "doctor":
                download(dependencies(), SUITES[suite], context / "wheels")
            (context / "Dockerfile").write_text(
                "\n".join((f"FROM {parent}", f"LABEL {LABEL}=image", *lines)) + "\n", encoding="utf-8"
            )
            built = self("build", "--network=host", "-q", "-t", tag, str(context), timeout=300)
        finally:
            shutil.rmtree(context, ignore_errors=True)
        if built.returncode != 0:
            # a failed step of the classic builder stays behind with the image's label
            for kind in ("container", "image"):
                self(kind, "prune", "-f", "--filter", f"label={LABEL}=image")
            raise RuntimeError(f"building {tag} failed:\n{built.stdout[-2000:]}{built.stderr[-2000:]}")
        old = self("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", tag.rpartition(":")[0]).stdout.split()
        for stale in old:
            if stale != tag:
                self("rmi", stale)  # refused while something uses it, which is right

    def run(
        self, image: str, *command: str, docker_args: Sequence[str] = (), timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a fresh container that is removed whatever happens."""
        name = f"{NAME}-{self.session}-{uuid.uuid4().hex[:8]}"
        argv = ("run", "--rm", "--name", name, "--label", f"{LABEL}={self.session}", *docker_args, image, *command)
        try:
            return self(*argv, timeout=timeout)
        except subprocess.TimeoutExpired:
            self("rm", "-f", name, timeout=30)
            raise

    def run_doctor(
        self, image: str, *args: str, docker_args: Sequence[str] = (), timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``vllm-doctor check --json ARGS`` of this checkout in a fresh container."""
        mount = ("-v", f"{REPOSITORY / 'doctor'}:{CODE}/doctor:ro")
        command = ("vllm-doctor", "check", "--json", *args)
        return self.run(image, *command, docker_args=(*mount, *docker_args), timeout=timeout)

    def close(self) -> None:
        """Removes every container of this run."""
        left = self("ps", "-aq", "--filter", f"label={LABEL}={self.session}").stdout.split()
        if left:
            self("rm", "-f", *left)


def dependencies() -> list[str]:
    """The project's own dependencies, from pyproject.toml. Needs Python 3.11 for its parser."""
    try:
        import tomllib
    except ImportError:
        raise Unavailable("reading pyproject.toml needs Python 3.11 or newer") from None
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(project["dependencies"])


def download(requirements: Sequence[str], python: str, folder: Path) -> None:
    """Wheels for a container's Python, fetched by this host's pip. Raises :class:`Unavailable`."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = [
        sys.executable, "-m", "pip", "-q", "download", "--only-binary=:all:", "--python-version", python,
        "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64", "-d", str(folder),
        *requirements,
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240)
    if done.returncode != 0:
        raise Unavailable(f"pip cannot fetch wheels here: {done.stderr.strip()[-300:]}")


def uv_program(cache: Path) -> Path:
    """The uv program out of its wheel, kept in ``cache``. Raises :class:`Unavailable`."""
    program = cache / "uv" / "uv"
    if not program.exists():
        folder = cache / "uv-wheel"
        download(["uv"], "3.11", folder)
        with zipfile.ZipFile(next(folder.glob("uv-*.whl"))) as wheel:
            inside = next(n for n in wheel.namelist() if n.endswith(("/bin/uv", "scripts/uv")))
            program.parent.mkdir(exist_ok=True)
            program.write_bytes(wheel.read(inside))
        program.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
    return program


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object of ``check --json``; a failed assertion shows what was printed instead."""
    with contextlib.suppress(ValueError):
        parsed = json.loads(done.stdout)
        if isinstance(parsed, dict):
            assert "Traceback" not in done.stderr, done.stderr
            return parsed
    raise AssertionError(f"exit {done.returncode}, no JSON object\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")


def finding_ids(document: Mapping[str, Any], *, folded: bool = False) -> list[str]:
    """Ids of the findings that are listed; with ``folded`` also of those below another."""
    ids: list[str] = []
    for found in document["findings"]:
        ids.append(found["id"])
        if folded:
            ids += [s["id"] if isinstance(s, dict) else s for s in found.get("symptoms", ())]
    return ids
