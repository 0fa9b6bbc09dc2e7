"""docker's configuration, changed and put back under a real daemon of our own, in a network of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from doctor.fix import journal as journals
from doctor.fix.actions import docker_config
from doctor.fix.actions.docker_config import DockerConfig
from doctor.fix.journal import Journal
from doctor.fix.machine import Machine
from doctor.fix.privilege import Privilege
from doctor.fix.runner import Result, apply
from doctor.fix.state import State
from doctor.fix.undo import Undone, take_back
from doctor.host.access import LocalHost
from tests.containers.harness import Docker, Unavailable

SETTINGS = '{\n  "log-level": "warn",\n  "max-concurrent-downloads": 5,\n  "labels": ["ours=1"]\n}\n'
NVIDIA: Mapping[str, Any] = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}


class Daemon:
    """One dockerd in a folder. It cannot touch the machine's own: network and mounts are apart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "daemon.json"
        self.pid = folder / "pid"
        self.config.write_text(SETTINGS)
        self.config.chmod(0o640)
        script = folder / "start"
        script.write_text(
            "#!/bin/sh\n"
            f"[ -s {self.pid} ] && kill $(cat {self.pid}) 2>/dev/null\n"
            f"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do [ -e {self.pid} ] || break; sleep 1; done\n"
            f"unshare -m -n dockerd --config-file {self.config} --data-root {folder}/data "
            f"--exec-root {folder}/run -H unix://{folder}/s --pidfile {self.pid} "
            "--bridge=none --iptables=false --ip-forward=false "
            f">> {folder}/log 2>&1 < /dev/null &\n"
        )
        script.chmod(0o755)
        reload = folder / "reload"
        reload.write_text(f"#!/bin/sh\nkill -HUP $(cat {self.pid})\n")
        reload.chmod(0o755)
        self.restart, self.reload = (str(script),), (str(reload),)
        self.client = ("docker", "-H", f"unix://{folder}/s")

    def __call__(self, *args: str, stdin: bytes | None = None) -> str:
        done = subprocess.run([*self.client, *args], input=stdin, capture_output=True, timeout=120)
        assert done.returncode == 0, (args, done.stderr[-500:], (self.folder / "log").read_text()[-800:])
        return done.stdout.decode().strip()

    def wait(self) -> None:
        for _ in range(60):
            if subprocess.run([*self.client, "version"], capture_output=True, timeout=20).returncode == 0:
                return
            time.sleep(0.5)
        raise Unavailable("a dockerd of our own does not start: " + (self.folder / "log").read_text()[-300:])

    def runtimes(self) -> set[str]:
        listed = json.loads(self("info", "--format", "{{json .Runtimes}}"))
        return {name for name in listed if not name.startswith("io.containerd.")}  # gone after any reload of 20.10

    def stop(self) -> None:
        for name in self("ps", "-aq").split():
            self("rm", "-f", name)
        pid = int(self.pid.read_text())
        os.kill(pid, 15)
        for _ in range(40):
            if not Path(f"/proc/{pid}").exists():
                return
            time.sleep(0.5)


@pytest.fixture(scope="module")
def daemon(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if os.geteuid() != 0 or not shutil.which("dockerd") or not shutil.which("unshare"):
        pytest.skip("a dockerd of our own needs root, dockerd and unshare")
    it = Daemon(tmp_path_factory.mktemp("d"))
    subprocess.run(it.restart, check=True, timeout=60)
    try:
        it.wait()
        image = docker.base("bookworm")
    except Unavailable as why:
        pytest.skip(str(why))
    saved = subprocess.run(
        [docker.client, "save", image],
        capture_output=True,
        timeout=120,
        env={**os.environ, "DOCKER_HOST": docker.host},
    )
    it("load", stdin=saved.stdout)
    it("tag", image, "base")
    yield it
    it.stop()


@pytest.fixture
def theirs(daemon: Daemon) -> Iterator[str]:
    """A running container that is not ours to stop."""
    name = daemon("run", "-d", "--network", "none", "--name", "theirs", "base", "sleep", "600")
    yield name
    with contextlib.suppress(AssertionError):
        daemon("rm", "-f", "theirs")


class Repair:
    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.state = State(folder / "state")
        self.machine = Machine(Privilege(True), staging=self.state.folder)
        self.daemon = daemon

    def do(self, patch: Mapping[str, Any]) -> Result:
        action = DockerConfig.merge(
            LocalHost(),
            str(self.daemon.config),
            patch,
            id="docker_config",
            summary="Register",
            root=True,
            runtime="nvidia",
            reload=self.daemon.reload,
            restart=self.daemon.restart,
            client=self.daemon.client,
        )
        return apply(self.machine, [action], self.journal)

    def journal(self) -> Journal:
        self.state.make()
        return Journal.start(self.state, {}, time.time())

    def undo(self) -> Undone:
        book = Journal.reopen(journals.all_runs(self.state)[-1], self.state.calls)
        undone = take_back(self.machine, book)
        book.close()
        return undone


@pytest.fixture
def repair(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repair]:
    monkeypatch.setattr(docker_config, "RETURN_S", 25.0)
    yield Repair(daemon, tmp_path)
    daemon.config.write_text(SETTINGS)  # each test gets a daemon that knows no nvidia runtime
    daemon.config.chmod(0o640)
    subprocess.run(daemon.restart, check=True, timeout=60)
    daemon.wait()


def test_registered_and_taken_back_while_a_container_runs(repair: Repair, daemon: Daemon, theirs: str) -> None:
    before = daemon.runtimes()
    result = repair.do(NVIDIA)
    assert (result.status, result.why) == ("applied", "")
    assert daemon.runtimes() == before | {"nvidia"}
    merged = json.loads(daemon.config.read_text())
    assert {k: merged[k] for k in json.loads(SETTINGS)} == json.loads(SETTINGS)
    assert daemon.config.stat().st_mode & 0o777 == 0o640
    assert daemon("inspect", "--format", "{{.State.Running}}", theirs) == "true"
    undone = repair.undo()
    assert undone.complete
    assert daemon.config.read_text() == SETTINGS
    assert daemon.config.stat().st_mode & 0o777 == 0o640
    # a reload only adds runtimes; the restart that forgets one would stop their container
    assert daemon.runtimes() == before or undone.notes == (
        "the docker daemon forgets the runtime at its next restart",
    )
    assert daemon("inspect", "--format", "{{.State.Running}}", theirs) == "true"


def test_a_bad_configuration_never_stops_their_container(repair: Repair, daemon: Daemon, theirs: str) -> None:
    result = repair.do({**NVIDIA, "no-such-setting": True})
    assert (result.status, result.exit_code) == ("rolled-back", 4)
    assert daemon.config.read_text() == SETTINGS
    assert daemon("inspect", "--format", "{{.State.Running}}", theirs) == "true"
    assert "would stop 1 running containers (theirs)" in result.why


def test_undo_restarts_a_daemon_that_runs_nothing(repair: Repair, daemon: Daemon) -> None:
    assert repair.do(NVIDIA).status == "applied"
    undone = repair.undo()
    assert (undone.complete, undone.notes) == (True, ())
    assert daemon.config.read_text() == SETTINGS
    assert "nvidia" not in daemon.runtimes()


def test_a_bad_configuration_is_put_back_and_the_daemon_runs_again(repair: Repair, daemon: Daemon) -> None:
    before = daemon.runtimes()
    result = repair.do({**NVIDIA, "no-such-setting": True})
    assert (result.status, result.exit_code) == ("rolled-back", 4), result.why
    assert daemon.config.read_text() == SETTINGS
    assert daemon.runtimes() == before
    assert daemon("run", "--rm", "--network", "none", "base", "echo", "works") == "works"
