"""Where a build stands: recorded output of docker 20.10.24, of buildx 0.13.1 and of podman 4.3.1."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from doctor.image import pins
from doctor.image.steps import Steps, declared, stage_names, total

DATA = Path(__file__).parent / "data"
SMALL = """\
# a comment
ARG BASE
FROM ${BASE} AS a
WORKDIR /x
RUN echo hi && sleep 2
RUN --mount=type=cache,target=/c echo \\
    # inside
    there
FROM scratch AS unused
COPY f /f
FROM a AS b
ARG VLLM=1
COPY f /f
RUN cat /f && false
"""


def read(name: str, wanted: int | None = None) -> tuple[Steps, list[str]]:
    steps, titles = Steps(wanted), []
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        steps.take(line)
        if steps.title and steps.title not in titles:
            titles.append(steps.title)
    return steps, titles


def test_a_build_that_fails() -> None:
    steps, titles = read("buildkit-20.10-failed.txt", total(SMALL, "b"))
    assert titles == [
        # a base is shared between builds and keeps the name of the stage that had it first
        "step 1 of 6, system: FROM docker.io/local/bookworm:minbase",
        "step 2 of 6, a: WORKDIR /x",
        "step 3 of 6, a: RUN echo hi && sleep 2",
        "step 4 of 6, a: RUN echo there",
        "step 5 of 6, b: COPY f /f",
        "step 6 of 6, b: RUN cat /f && false",
    ]
    assert (steps.failed, steps.error) == (
        "step 6 of 6, b: RUN cat /f && false",
        "executor failed running [/bin/sh -c cat /f && false]: exit code: 1",
    )
    assert (steps.begun, steps.cached) == (6, 1)
    assert steps.told() == "step 6 of 6: data"


def test_buildx() -> None:
    steps, titles = read("buildx-0.13-failed.txt", 4)
    assert titles[0] == "step 1 of 4, system: FROM docker.io/local/bookworm:minbase"
    assert titles[1].startswith("step 2 of 4, system: RUN ls -l /run/secrets/ca && cat")
    assert (steps.failed, steps.begun, steps.cached) == (titles[3], 4, 2)
    assert steps.error.startswith("executor failed running [/bin/sh -c cat /src/doctor/errors.py")


def test_a_base_that_cannot_be_pulled() -> None:
    steps, titles = read("buildkit-20.10-no-registry.txt")
    assert titles == []
    assert steps.failed.startswith("load metadata for docker.io/nvidia/cuda:13@sha256:5dc1bca2")
    assert "no such host" in steps.error


def test_steps_from_the_cache() -> None:
    steps = Steps()
    lines = "#4 [a 1/3] FROM docker.io/x|#4 CACHED|#5 [a 2/3] RUN one|#5 CACHED|#6 [a 3/3] RUN two|#6 DONE 0.2s"
    for line in lines.split("|"):
        steps.take(line)
    assert (steps.begun, steps.cached, steps.failed, steps.error) == (3, 1, "", "")


def test_a_client_that_does_not_begin() -> None:
    """docker 20.10.24, given a tag in capitals and a network that is none."""
    tag = 'invalid argument "I1" for "-t, --tag" flag: invalid reference format: repository name must be lowercase'
    network = 'Error response from daemon: network mode "nonsense" not supported by buildkit'
    for text in (f"{tag}\nSee 'docker build --help'.", network):
        steps = Steps()
        for line in text.splitlines():
            steps.take(line)
        assert (steps.reason, steps.failed, steps.begun) == (text.splitlines()[0], "", 0)


def test_a_stage_without_a_name() -> None:
    steps = Steps()
    steps.take("#5 [2/4] RUN apt-get update")
    assert steps.title == "step 1, RUN apt-get update"


def test_podman() -> None:
    steps, titles = read("podman-4.3-failed.txt")
    assert titles[0] == "step 1 of 3 of stage 1 of 2, FROM localhost/local/bookworm:minbase AS system"
    assert titles[-1] == "step 5 of 6 of stage 2 of 2, RUN cat /src/doctor/errors.py | wc -l && id && false"
    assert (steps.failed, steps.begun, steps.cached) == (titles[-1], 8, 3)
    assert steps.reason.startswith('building at STEP "RUN cat')
    assert steps.reason.endswith("while running runtime: exit status 1")
    assert steps.told() == "step 5 of 6 of stage 2 of 2: uid=0(root) gid=0(root) gr..."


def test_what_a_dockerfile_declares() -> None:
    assert declared(SMALL) == {"BASE", "VLLM"}
    assert stage_names(SMALL) == ("a", "unused", "b")
    assert (total(SMALL, "a"), total(SMALL, "b"), total(SMALL, "unused"), total(SMALL, "none")) == (4, 6, 2, None)


@pytest.mark.parametrize("path", sorted(pins.docker_folder().glob("*Dockerfile")), ids=lambda p: p.name)
def test_the_images_own_dockerfiles(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    known = {
        "BASE",
        "PYTHON",
        "PYTHON_LOCK",
        "APT_LOCK",
        "VLLM",
        "TORCH",
        "CUDA",
        "LOCK_HASH",
        "REVISION",
        "PLAN_ID",
    }
    without_default = {m[1] for m in re.finditer(r"(?m)^ARG (\w+)$", text)}
    assert without_default <= known, "an argument that nobody gives"
    assert total(text, "runtime")


def test_long_lines_are_cut() -> None:
    steps = Steps()
    steps.take(f"#5 [a 2/4] RUN {'x' * 500}")
    assert len(steps.title) < 100


def test_what_the_images_own_scripts_say_is_the_reason() -> None:
    steps = Steps()
    for line in (
        "#7 [proof 5/5] RUN python -m doctor.image.prove /opt/vllm-doctor",
        "#7 0.1 prove: packages",
        "#7 0.2 prove: FAILED: idna 3.20 is in the lock, nothing is installed",
        "#7 0.3 prove: FAILED: pip check: requests needs idna",
        "#7 0.4 prove: this image would not work, so it is not made",
        "#7 ERROR: executor failed running [/bin/sh -c python -m doctor.image.prove]: exit code: 1",
    ):
        steps.take(line)
    assert steps.reason == "idna 3.20 is in the lock, nothing is installed; pip check: requests needs idna"
    assert steps.failed.startswith("step 1")
