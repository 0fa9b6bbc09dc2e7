"""Which program builds, by what each answers: docker 20.10.24 and 28.2.2, podman 4.3.1, as they print it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.finding import Finding
from doctor.host.access import RunResult
from doctor.image.engine import Engine, distribution, find
from tests.fakes import FakeHost, Reply

OLD = "Docker version 20.10.24+dfsg1, build 297e128\n"
NEW = "Docker version 28.2.2, build e6534b4\n"
PODMAN = "podman version 4.3.1\n"
NO_BUILDX = RunResult(
    ("docker",), returncode=1, stderr="docker: unknown command: docker buildx\n\nRun 'docker --help'"
)
BUILDX = "github.com/docker/buildx v0.24.0 d0e5e86\n"
PATH = "/usr/local/bin:/usr/bin:/bin"
BOOKWORM = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n'
GONE = RunResult(
    ("docker",),
    returncode=125,
    stderr="Unable to find image 'mine:1' locally\ndocker: Error response from daemon: Get "
    '"https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host.\n'
    "See 'docker run --help'.\n",
)


def host(root: Path, programs: Mapping[str, Mapping[str, Reply]]) -> FakeHost:
    """Programs by path; their replies by arguments."""
    planned = {f"{path} {arguments}": r for path, replies in programs.items() for arguments, r in replies.items()}
    made = FakeHost(root, env={"PATH": PATH}, programs=planned)
    for path in programs:
        made.program(path)
    return made


def engine(found: Engine | Finding) -> Engine:
    assert isinstance(found, Engine), found
    return found


def finding(found: Engine | Finding) -> Finding:
    assert isinstance(found, Finding), found
    return found


def test_a_client_with_buildkit_inside(tmp_path: Path) -> None:
    found = engine(find(host(tmp_path, {"/usr/bin/docker": {"--version": OLD}})))
    assert (found.kind, found.path, found.builder) == ("docker", "/usr/bin/docker", "built in")
    assert found.environment["DOCKER_BUILDKIT"] == "1"


def test_a_client_with_buildx(tmp_path: Path) -> None:
    found = engine(find(host(tmp_path, {"/usr/bin/docker": {"--version": NEW, "buildx version": BUILDX}})))
    assert (found.version, found.builder, found.passed_over) == ("28.2.2", "buildx", ())


def test_a_client_without_buildx_is_passed_over(tmp_path: Path) -> None:
    machine = host(
        tmp_path,
        {
            "/usr/local/bin/docker": {"--version": NEW, "buildx version": NO_BUILDX},
            "/usr/bin/docker": {"--version": OLD},
        },
    )
    found = engine(find(machine))
    assert found.path == "/usr/bin/docker"
    assert found.passed_over == (
        "/usr/local/bin/docker: client 28.2.2 builds with the plugin buildx, which is not installed",
    )


def test_no_buildx_anywhere_is_a_cause(tmp_path: Path) -> None:
    found = finding(find(host(tmp_path, {"/usr/bin/docker": {"--version": NEW, "buildx version": NO_BUILDX}})))
    assert (found.id, found.blocks) == ("buildkit-missing", True)
    assert "client 28.2.2" in found.summary
    assert any("docker-buildx" in r.summary for r in found.fixes)


def test_podman_only_where_docker_cannot(tmp_path: Path) -> None:
    both = {"/usr/bin/docker": {"--version": OLD}, "/usr/bin/podman": {"--version": PODMAN}}
    assert engine(find(host(tmp_path / "a", both))).kind == "docker"
    alone = engine(find(host(tmp_path / "b", {"/usr/bin/podman": {"--version": PODMAN}})))
    assert (alone.kind, alone.builder, alone.environment) == ("podman", "buildah", {})
    unfit = {**both, "/usr/bin/docker": {"--version": NEW, "buildx version": NO_BUILDX}}
    assert engine(find(host(tmp_path / "c", unfit))).kind == "podman"


def test_podmans_stand_in_for_docker_is_podman(tmp_path: Path) -> None:
    found = engine(find(host(tmp_path, {"/usr/bin/docker": {"--version": PODMAN}})))
    assert (found.kind, found.path) == ("podman", "/usr/bin/docker")


def test_one_program_under_two_names_is_asked_once(tmp_path: Path) -> None:
    machine = host(tmp_path, {"/usr/bin/docker": {"--version": NEW, "buildx version": NO_BUILDX}})
    machine.link("/bin/docker", "/usr/bin/docker")
    finding(find(machine))
    assert machine.calls.count(("/usr/bin/docker", "--version")) == 1
    assert len(machine.calls) == 2


def test_nothing_there(tmp_path: Path) -> None:
    machine = host(tmp_path, {})
    machine.write("/usr/bin/docker", "a file that nobody may run", 0o644)
    found = finding(find(machine))
    assert (found.id, found.blocks, machine.calls) == ("container-engine-missing", True, [])


def test_the_stub_of_docker_desktop_is_no_client(tmp_path: Path) -> None:
    """Under WSL without the integration, `docker` prints advice and fails."""
    said = "The command 'docker' could not be found in this WSL 2 distro.\n"
    stub = RunResult(("docker",), returncode=1, stdout=said)
    found = finding(find(host(tmp_path, {"/usr/bin/docker": {"--version": stub}})))
    assert "could not be found in this WSL 2 distro" in found.summary


def test_a_client_that_hangs_is_passed_over(tmp_path: Path) -> None:
    hung = RunResult(("docker",), timed_out=True)
    machine = host(tmp_path, {"/usr/bin/docker": {"--version": hung}, "/usr/bin/podman": {"--version": PODMAN}})
    found = engine(find(machine))
    assert found.kind == "podman"
    assert "no answer in time" in found.passed_over[0]


def test_a_named_engine_is_the_only_one_asked(tmp_path: Path) -> None:
    both = {"/usr/bin/docker": {"--version": OLD}, "/usr/bin/podman": {"--version": PODMAN}}
    machine = host(tmp_path, both)
    assert engine(find(machine, "podman")).path == "/usr/bin/podman"
    assert engine(find(machine, "/usr/bin/docker")).kind == "docker"
    for wrong, why in (("nerdctl", "docker, podman or the path"), ("/usr/bin/none", "no such program")):
        with pytest.raises(DoctorError, match=why):
            find(machine, wrong)
    with pytest.raises(DoctorError, match="no program of that name"):
        find(host(tmp_path / "none", {}), "podman")


def asked(root: Path, reply: Reply) -> tuple[FakeHost, Engine]:
    machine = FakeHost(root, env={"PATH": PATH}, programs={"/usr/bin/docker": reply})
    return machine, Engine("docker", "/usr/bin/docker", "20.10.24", "built in")


def test_the_distribution_of_a_base(tmp_path: Path) -> None:
    machine, docker = asked(tmp_path, BOOKWORM)
    assert distribution(machine, docker, "mine:1", {}) == ("debian", "12")
    (argv,) = machine.calls
    assert argv[:4] == ("/usr/bin/docker", "run", "--rm", "--name")
    assert argv[5:] == ("--network", "none", "--entrypoint", "cat", "mine:1", "/etc/os-release")


def test_a_base_without_a_release(tmp_path: Path) -> None:
    machine, docker = asked(tmp_path, "ID=debian\nVERSION_CODENAME=sid\n")
    assert distribution(machine, docker, "mine:1", {}) == ("debian", "")


def test_a_base_that_is_not_there(tmp_path: Path) -> None:
    machine, docker = asked(tmp_path, GONE)
    with pytest.raises(DoctorError, match="no such host; --target names it") as caught:
        distribution(machine, docker, "mine:1", {})
    assert caught.value.exit_code == 2
    assert len(machine.calls) == 1


def test_a_base_that_hangs_leaves_no_container(tmp_path: Path) -> None:
    def reply(argv: tuple[str, ...]) -> RunResult:
        return RunResult(argv, timed_out=argv[1] == "run", returncode=None if argv[1] == "run" else 0)

    machine, docker = asked(tmp_path, reply)
    with pytest.raises(DoctorError, match="no answer within 600 s"):
        distribution(machine, docker, "mine:1", {})
    started, removed = machine.calls
    assert removed == ("/usr/bin/docker", "rm", "-f", started[4])
