"""``--image``: a stub server in real containers. Whatever ends the doctor, no container is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.facts import ContainerFacts, DriverFacts, GpuFacts
from doctor.host.access import RunResult
from doctor.serve.command import Settings, build
from doctor.serve.container import LABEL, Container, mounted
from doctor.serve.environment import VllmEnvironment
from doctor.smoke import container
from doctor.snapshot import Snapshot
from tests.containers.harness import Docker, Unavailable
from tests.fakes import FakeHost
from tests.smoke.test_command import ROOT

pytestmark = pytest.mark.timeout(300)

SMOKE = Path(__file__).parent
VERSION = "0.32.0+cpu"


@pytest.fixture(scope="module")
def docker(request: pytest.FixtureRequest) -> Iterator[Docker]:
    try:
        found = Docker.find(Path(request.config.cache.mkdir("containers")))
    except Unavailable as why:
        pytest.skip(str(why))
    yield found
    found.close()


@pytest.fixture(scope="module")
def stub_image(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """``stub_image(words)``: an image whose ``vllm`` is the stub; removed afterwards."""
    tags: dict[str, str] = {}

    def make(words: str = "") -> str:
        if words in tags:
            return tags[words]
        try:
            parent = docker.image("bookworm", "python-only")
        except Unavailable as why:
            pytest.skip(str(why))
        context = tmp_path_factory.mktemp("context")
        shutil.copytree(SMOKE, context / "stub", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
        (context / "vllm").write_text('#!/bin/sh\nexec python3 -S /opt/stub/stub_vllm.py "$@"\n')
        (context / "vllm").chmod(0o755)
        (context / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
        (context / "Dockerfile").write_text(
            f"FROM {parent}\nCOPY stub /opt/stub\nCOPY vllm /usr/local/bin/vllm\n"
            f"COPY METADATA /usr/lib/python3/dist-packages/vllm-{VERSION}.dist-info/METADATA\n"
            f'ENV VLLM_STUB="{words}"\nVOLUME /cache\n'
        )
        tag = f"vllm-doctor-test/smoke-stub:{uuid.uuid4().hex[:12]}"
        built = docker("build", "-q", "-t", tag, str(context), timeout=120)
        assert built.returncode == 0, built.stderr
        tags[words] = tag
        return tag

    yield make
    for tag in tags.values():
        docker("rmi", "-f", tag)


def ours(docker: Docker) -> list[str]:
    return docker("ps", "-aq", "--filter", f"label={LABEL}").stdout.split()


def volumes(docker: Docker) -> set[str]:
    """Volumes without a name that no container uses."""
    return set(docker("volume", "ls", "-q", "--filter", "dangling=true").stdout.split())


def arguments(image: str, model: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "doctor", "smoke", "--image", image, "--model", str(model), "--json", *more]


def environ(docker: Docker) -> dict[str, str]:
    return {**os.environ, "DOCKER_HOST": docker.host}


def smoke(docker: Docker, image: str, model: Path, *more: str) -> tuple[int, dict[str, object]]:
    argv = arguments(image, model, *more)
    done = subprocess.run(argv, cwd=ROOT, env=environ(docker), capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["smoke"]


@pytest.mark.container
def test_a_whole_test_in_a_container(
    docker: Docker, stub_image: Callable[[str], str], model: Path, tmp_path: Path
) -> None:
    _, answer = smoke(docker, stub_image(""), model, "--out", str(tmp_path / "out"))
    server = answer["server"]
    assert isinstance(server, dict)
    assert (server["state"], server["vllm"], server["device"]) == ("healthy", VERSION, "cpu")
    assert server["environment"].startswith("vllm-doctor-test/smoke-stub:")
    argv = server["argv"]
    assert f"127.0.0.1:{server['port']}:8000" in argv
    assert "--gpus" not in argv  # this vLLM is for a CPU
    assert server["block_size"] == 544
    assert "Starting vLLM server" in (tmp_path / "out" / "server.log").read_text()
    assert ours(docker) == []


@pytest.mark.container
def test_the_ladder_in_containers(docker: Docker, stub_image: Callable[[str], str], model: Path) -> None:
    code, answer = smoke(docker, stub_image("never-cached"), model, "--ladder")
    assert code == 1
    passed = answer["settings_that_passed"]
    assert isinstance(passed, dict)
    assert passed["prefix_caching"] is False
    assert ours(docker) == []


@pytest.mark.container
def test_killed_inside(docker: Docker, stub_image: Callable[[str], str], model: Path) -> None:
    code, answer = smoke(docker, stub_image("kill-self"), model)
    assert code == 2
    server = answer["server"]
    assert isinstance(server, dict)
    assert (server["state"], server["exit"]) == ("died", -9)
    assert ours(docker) == []


@pytest.mark.container
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("SIGINT", "hang:compiling"),
        ("SIGTERM", "silent"),
        ("SIGKILL", "hang:compiling"),
        ("SIGKILL", "hang:spawning stubborn"),
        ("SIGKILL of both", "hang:compiling"),
    ],
)
def test_nothing_is_left_however_it_ends(
    docker: Docker, stub_image: Callable[[str], str], model: Path, ending: str, words: str
) -> None:
    argv = arguments(stub_image(words), model)
    before = volumes(docker)
    process = subprocess.Popen(argv, cwd=ROOT, env=environ(docker), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    server = ("--filter", f"label={LABEL}={process.pid}", "--filter", "name=vllm-doctor-smoke-")
    while not docker("ps", "-q", *server, "--filter", "status=running").stdout:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(0.5)
    if ending == "SIGKILL of both":
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        for pid in children.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        process.kill()
    else:
        process.send_signal(getattr(signal, ending))
    process.wait(60)
    deadline = time.monotonic() + 40
    while ours(docker) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ours(docker) == []
    assert volumes(docker) <= before


@pytest.mark.container
def test_stopped_while_the_engine_still_makes_it(
    docker: Docker, stub_image: Callable[[str], str], model: Path
) -> None:
    image = stub_image("hang:spawning")
    for wait in (0.0, 0.1, 0.3, 0.6):
        process = subprocess.Popen(
            arguments(image, model), cwd=ROOT, env=environ(docker), stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while "docker run --rm --name vllm-doctor-smoke" not in _below(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(wait)
        process.kill()
        process.wait(20)
    deadline = time.monotonic() + 30
    while (ours(docker) or _any("vllm-doctor-smoke-")) and time.monotonic() < deadline:
        time.sleep(0.3)
    assert ours(docker) == []


def _below(pid: int) -> str:
    """Command lines of everything below a process."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True).stdout.splitlines()
    below, found = {pid}, ""
    for line in table:  # in the order of process ids, so parents first as a rule
        own, parent, args = line.split(None, 2)
        if int(parent) in below:
            below.add(int(own))
            found += f"{args}\n"
    return found


def _any(text: str) -> bool:
    return text in subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True).stdout


@pytest.mark.container
def test_an_image_that_is_not_here_is_not_pulled(docker: Docker, model: Path) -> None:
    argv = arguments("vllm-doctor-test/nowhere:none", model)
    done = subprocess.run(argv, cwd=ROOT, env=environ(docker), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "nothing is pulled unasked" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.container
def test_an_image_without_python(docker: Docker, model: Path) -> None:
    argv = arguments(docker.base("bookworm"), model)
    done = subprocess.run(argv, cwd=ROOT, env=environ(docker), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "python3 in it does not start" in done.stderr
    assert ours(docker) == []


def in_image(**more: object) -> VllmEnvironment:
    one = Container("/usr/bin/docker", "img", ("--gpus", "all"), ("--init",), **more)  # type: ignore[arg-type]
    return VllmEnvironment("img", "python3", "--image", "0.26.0", "2.11.0", ("vllm",), container=one)


def test_the_command_line() -> None:
    settings = Settings("/data/q9", True, 2, 8192, 0.9, ("--max-num-seqs", "4"))
    command = build(in_image(), settings, 18000)
    argv = list(command.argv)
    assert argv[:4] == ["/usr/bin/docker", "run", "--rm", "--name"]
    assert command.after == ("/usr/bin/docker", "rm", "-f", "-v", argv[4])
    assert argv[argv.index("--mount") + 1] == "type=bind,source=/data/q9,target=/model,readonly"
    assert argv[argv.index("-p") + 1] == "127.0.0.1:18000:8000"
    assert "HF_HUB_OFFLINE=1" in argv
    image = argv.index("img")
    assert argv[image - 2 : image + 3] == ["--entrypoint", "vllm", "img", "serve", "/model"]
    assert argv[argv.index("--host") + 1] == "0.0.0.0"
    assert argv[-2:] == ["--max-num-seqs", "4"]
    assert build(in_image(), settings, 18000).after != command.after  # two servers have two names
    own = list(build(in_image(own=True), settings, 18000).argv)
    assert "--entrypoint" not in own


def test_a_snapshot_of_the_hub_is_mounted_with_its_blobs() -> None:
    folder = "/c/hub/models--a--b/snapshots/c0ffee"
    assert mounted(folder) == ("/c/hub/models--a--b", "/model/snapshots/c0ffee")
    assert mounted("/data/q9") == ("/data/q9", "/model")
    odd = build(in_image(), Settings('/data/a,"b"', True, 0, 8192, 0.9), 1)
    assert 'type=bind,"source=/data/a,""b""",target=/model,readonly' in odd.argv


@pytest.mark.parametrize(
    ("facts", "request_of"),
    [
        (ContainerFacts(runtimes=("nvidia", "runc")), ("--gpus", "all")),
        (
            ContainerFacts(cdi_nvidia_devices=("nvidia.com/gpu=all",), cdi_enabled=True, daemon_version="28.3"),
            ("--device", "nvidia.com/gpu=all"),
        ),
    ],
)
def test_how_the_card_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: ContainerFacts, request_of: tuple[str, ...]
) -> None:
    host = FakeHost(tmp_path, env={"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "1"})
    card = Snapshot(driver=DriverFacts(env={}), gpus=(GpuFacts(0, "NVIDIA GeForce RTX 2080 Ti"),))
    monkeypatch.setattr(container, "look", lambda _: card)
    monkeypatch.setattr("doctor.host.container.probe", lambda *_: {"container": facts})
    asked = container._request(host, "docker", "/usr/bin/docker", "img")
    assert asked == (*request_of, "-e", "CUDA_VISIBLE_DEVICES=1")
    monkeypatch.setattr(container, "look", lambda _: Snapshot())
    assert container._request(host, "docker", "/usr/bin/docker", "img") == ()


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="neither is on PATH"):
        container.locate_image(FakeHost(tmp_path, env={"PATH": "/usr/bin"}), "img")


def test_a_small_container_that_hangs_is_taken_away(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, env={"PATH": "/usr/bin"})
    asked: list[tuple[str, ...]] = []

    def run(argv: tuple[str, ...], **_: object) -> RunResult:
        asked.append(tuple(argv))
        return RunResult(tuple(argv), timed_out=argv[1] == "run")

    host.run = run  # type: ignore[method-assign,assignment]
    with pytest.raises(DoctorError, match="no answer within 120 s"):
        container._versions(host, Container("docker", "img"))
    name = asked[0][asked[0].index("--name") + 1]
    assert asked[1] == ("docker", "rm", "-f", "-v", name)
