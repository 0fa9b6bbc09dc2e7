"""The container probe against the real daemon, and a real GPU request that the daemon refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.facts import ContainerFacts
from doctor.host import LocalHost
from doctor.host.container import probe
from doctor.host.examine import Options
from doctor.host.gpu_container import LABEL
from tests.containers.harness import REPOSITORY, Docker

SAY = """
import json, sys
from doctor.codec import encode
from doctor.host import LocalHost
from doctor.host.container import probe
from doctor.host.examine import Options
print(json.dumps(encode(probe(LocalHost(), Options())["container"])))
"""


def facts(docker: Docker, **options: Any) -> ContainerFacts:
    host = LocalHost(env={**os.environ, "DOCKER_HOST": docker.host})
    return probe(host, Options(**options))["container"]  # type: ignore[no-any-return]


def test_facts_agree_with_the_client(docker: Docker) -> None:
    said = json.loads(docker("info", "--format", "{{json .}}").stdout)
    c = facts(docker)
    assert c.daemon_reachable is True
    assert c.daemon_version == said["ServerVersion"]
    assert c.runtimes == tuple(sorted(said["Runtimes"]))
    assert c.default_runtime == said["DefaultRuntime"]
    assert (c.cgroup_driver, c.cgroup_version) == (said["CgroupDriver"], said["CgroupVersion"])
    assert c.storage_driver == said["Driver"]
    assert c.data_root == said["DockerRootDir"]
    assert c.cdi_enabled is bool(said.get("CDISpecDirs"))
    if Path(said["DockerRootDir"]).exists():
        usage = shutil.disk_usage(said["DockerRootDir"])
        assert c.data_total_bytes is not None
        assert abs(c.data_total_bytes - usage.total) < usage.total * 0.1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv")
def test_another_user_is_refused(docker: Docker) -> None:
    socket = Path(docker.host.removeprefix("unix://"))
    if not docker.host.startswith("unix://") or socket.stat().st_mode & 0o006:
        pytest.skip("the daemon's socket is open to everybody")
    # the other user may not be able to reach this checkout, so it gets a copy of the code
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        shutil.copytree(REPOSITORY / "doctor", f"{place}/doctor", ignore=shutil.ignore_patterns("__pycache__"))
        python = next((p for p in ("/usr/bin/python3", sys.executable) if Path(p).exists()), sys.executable)
        env = {"PATH": os.environ["PATH"], "DOCKER_HOST": docker.host, "PYTHONPATH": place, "HOME": "/nonexistent"}
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-c", SAY]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, cwd="/", env=env)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["daemon_permission_denied"] is True
    assert said["daemon_reachable"] is False
    assert said["daemon_error"] == f"permission denied on {docker.host}"
    assert said["docker_socket_group"]


@pytest.fixture
def known_image(docker: Docker, image: Any) -> Iterator[str]:
    """A local image under a name that the trial knows."""
    tag = f"debian:doctor-test-{docker.session}"
    assert docker("tag", image("bookworm", "base"), tag).returncode == 0
    yield tag
    docker("rmi", tag)


def _trials(docker: Docker) -> list[str]:
    return docker("ps", "-aq", "--filter", f"label={LABEL}").stdout.split()


def test_a_gpu_container_is_refused_and_removed(docker: Docker, known_image: str) -> None:
    if "nvidia" in (facts(docker).runtimes or ()):
        pytest.skip("this daemon has a GPU to give")
    before = _trials(docker)
    c = facts(docker, deep=True)
    assert c.gpu_container_ok is False
    assert "could not select device driver" in (c.gpu_container_output or "")
    assert known_image in (c.gpu_container_output or "")
    assert _trials(docker) == before


def test_what_an_earlier_trial_left_is_taken_away(docker: Docker, known_image: str) -> None:
    assert docker("create", "--label", f"{LABEL}=1", known_image, "true").returncode == 0
    assert _trials(docker)
    facts(docker, deep=True)
    assert _trials(docker) == []


def test_no_image_no_trial(docker: Docker) -> None:
    tags = docker("image", "ls", "--format", "{{.Repository}}").stdout.split()
    if {t.rpartition("/")[2] for t in tags} & {"ubuntu", "debian", "cuda", "vllm-openai", "pytorch", "python"}:
        pytest.skip("this daemon has an image that the trial would take")
    c = facts(docker, deep=True)
    assert c.gpu_container_ok is None
    assert "none is pulled unasked" in (c.gpu_container_skipped or "")
