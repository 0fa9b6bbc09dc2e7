"""The line to run an image with, for every way that a host hands out its GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from doctor.facts import ContainerFacts, DriverFacts, GpuFacts, WslFacts
from doctor.image import pins
from doctor.image.engine import Engine
from doctor.image.runline import SHM, RunLines, lines
from doctor.snapshot import Snapshot

IMAGE = "vllm-doctor:0.26.0-cu130-0123456789ab"
MODEL = "QuantTrio/Qwen3.5-9B-AWQ"
DOCKER = Engine("docker", "/usr/bin/docker", "28.5.1", "buildx")
PODMAN = Engine("podman", "/usr/bin/podman", "5.4.2", "buildah")
CARD = Snapshot(
    driver=DriverFacts(nvml_status="ok", version="580.65.06"), gpus=(GpuFacts(0),), wsl=WslFacts(version=0)
)
CDI = {"cdi_nvidia_devices": ("nvidia.com/gpu=all",), "cdi_files": ("/etc/cdi/nvidia.yaml",)}


def of(engine: Engine = DOCKER, s: Snapshot = CARD, **facts: Any) -> RunLines:
    container = ContainerFacts(**{"daemon_version": "28.5.1", "runtimes": ("runc",), **facts})
    return lines(replace(s, container=container), engine, IMAGE, MODEL)


def gpu(found: RunLines) -> tuple[str, ...]:
    """The request, which is the same in all three lines."""
    requests = {argv[3:5] for _, argv in found.commands}
    assert len(requests) == 1
    return requests.pop()


@pytest.mark.parametrize(
    ("facts", "request_", "why", "first"),
    [
        ({"runtimes": ("nvidia", "runc")}, ("--gpus", "all"), "the runtime nvidia is registered", ""),
        ({"nvidia_hook": "/usr/bin/hook"}, ("--gpus", "all"), "NVIDIA's hook is installed", ""),
        ({"desktop": True}, ("--gpus", "all"), "Docker Desktop brings its own toolkit", ""),
        (CDI, ("--device", "nvidia.com/gpu=all"), "Docker 28.5.1 resolves CDI devices: /etc/cdi/nvidia.yaml", ""),
        (
            {**CDI, "daemon_version": "26.1.5", "cdi_enabled": True},
            ("--device", "nvidia.com/gpu=all"), "Docker 26.1.5 resolves CDI devices", "",
        ),
        (
            {**CDI, "daemon_version": "26.1.5", "cdi_enabled": False},
            ("--device", "nvidia.com/gpu=all"), "there is a CDI specification", '{"features": {"cdi": true}}',
        ),
        (
            {"toolkit_version": ""},
            ("--gpus", "all"), "the usual request", "nvidia-container-toolkit is not installed",
        ),
        (
            {"toolkit_version": "1.18.0"},
            ("--gpus", "all"), "the usual request", "sudo nvidia-ctk runtime configure --runtime=docker",
        ),
        (
            {"runtimes": ("nvidia", "runc"), "rootless": True},
            ("--gpus", "all"), "the runtime nvidia is registered", "no-cgroups",
        ),
    ],
)  # fmt: skip
def test_docker(facts: dict[str, Any], request_: tuple[str, ...], why: str, first: str) -> None:
    found = of(**facts)
    assert gpu(found) == request_
    assert why in found.why
    assert (first in " ".join(found.first)) if first else found.first == ()
    assert found.notes == ()


def test_podman_names_a_cdi_device() -> None:
    found = of(PODMAN, **CDI)
    assert (gpu(found), found.first) == (("--device", "nvidia.com/gpu=all"), ())
    assert found.commands[0][1][0] == "podman"
    bare = of(PODMAN)
    assert gpu(bare) == ("--device", "nvidia.com/gpu=all")
    assert "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml" in bare.first[0]


def test_under_wsl() -> None:
    found = of(s=replace(CARD, wsl=WslFacts(version=2)), runtimes=("nvidia", "runc"))
    assert gpu(found) == ("--gpus", "all")
    assert "(WSL 2)" in found.why


def test_what_each_line_carries() -> None:
    by_name = dict(of(runtimes=("nvidia",)).commands)
    assert by_name["check"] == ("docker", "run", "--rm", "--gpus", "all", IMAGE, "check")
    assert by_name["smoke"][-3:] == (IMAGE, "smoke", "--download")
    assert by_name["serve"][-5:] == (IMAGE, "serve", MODEL, "--max-model-len", "8192")
    serve = by_name["serve"]
    assert serve[serve.index("-p") + 1] == "127.0.0.1:8000:8000", "never on every interface"
    for argv in (by_name["smoke"], serve):
        assert argv[argv.index("-v") + 1] == "vllm-doctor-cache:/cache"
        assert argv[argv.index("--shm-size") + 1] == "4g"


def test_the_lines_are_those_of_the_compose_file() -> None:
    text = (pins.load().root / "docker/compose.yaml").read_text(encoding="utf-8")
    for word in (f"shm_size: {SHM}b", "/cache", ":8000", '"--max-model-len", "8192"', MODEL):
        assert word in text


def test_without_a_card_the_line_says_what_will_happen() -> None:
    found = of(s=Snapshot(driver=DriverFacts(nvml_status="LibraryNotFound"), gpus=()), runtimes=("nvidia",))
    assert "no working GPU here" in found.notes[0]


def test_a_daemon_elsewhere_is_not_judged() -> None:
    found = lines(replace(CARD, container=ContainerFacts(toolkit_version="")), DOCKER, IMAGE, MODEL, remote=True)
    assert (gpu(found), found.first, found.notes) == (("--gpus", "all"), (), ())
    assert "was not looked at" in found.why


def test_a_client_of_another_name_is_called_by_its_path() -> None:
    found = of(Engine("docker", "/opt/bin/docker-27", "27.0", "buildx"))
    assert found.commands[0][1][0] == "/opt/bin/docker-27"
