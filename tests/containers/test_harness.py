"""The harness itself: images are reused, containers never stay behind."""

from __future__ import annotations

import subprocess

import pytest

from tests.containers.harness import LABEL, Docker


def test_an_image_is_built_once(docker: Docker, image) -> None:
    tag = image("bookworm", "python")
    before = docker("image", "inspect", "--format", "{{.Id}}", tag).stdout
    docker._images.clear()
    assert image("bookworm", "python") == tag
    assert docker("image", "inspect", "--format", "{{.Id}}", tag).stdout == before


def test_a_container_that_hangs_is_removed(docker: Docker, image) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        docker.run(image("bookworm", "python"), "sleep", "60", timeout=3)
    assert docker("ps", "-aq", "--filter", f"label={LABEL}={docker.session}").stdout == ""


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_program_starts(docker: Docker, image, suite: str) -> None:
    from tests.containers.harness import CODE, REPOSITORY

    mount = ("-v", f"{REPOSITORY / 'doctor'}:{CODE}/doctor:ro")
    done = docker.run(image(suite, "doctor"), "vllm-doctor", "--version", docker_args=mount)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("vllm-doctor ")
