"""What is run after a server has ended, as an engine's ``rm -f``: however it ended, until it says it is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from doctor.serve import supervisor
from doctor.serve.command import ServeCommand
from doctor.serve.server import Server

ROOT = Path(__file__).parents[2]
#: The container "exists" while the file is there; taking it away says its name, as the engines do.
CLIENT = """#!/bin/sh
if [ "$1" = container ]; then [ -e "{there}" ]; exit; fi
echo "$*" >> "{calls}"
[ -e "{there}" ] || exit 0
rm "{there}"
echo "$3"
"""


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A program that behaves like ``docker rm -f NAME``."""
    path = tmp_path / "client"
    path.write_text(CLIENT.format(calls=tmp_path / "calls", there=tmp_path / "there"))
    path.chmod(0o755)
    (tmp_path / "there").touch()
    return path


def command(client: Path, seconds: float = 60.0) -> ServeCommand:
    argv = (sys.executable, "-S", "-c", f"import time; time.sleep({seconds})")
    return ServeCommand(argv, {}, (), 0, after=(str(client), "rm", "-f", "name"))


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def gone(tmp_path: Path, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while (tmp_path / "there").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not (tmp_path / "there").exists()


def test_after_a_stop_and_after_its_own_end(client: Path, tmp_path: Path) -> None:
    with Server(command(client), tmp_path / "log"):
        assert not (tmp_path / "calls").exists()
    assert calls(tmp_path) == ["rm -f name"]
    (tmp_path / "there").touch()
    with Server(command(client, 0.0), tmp_path / "log") as server:
        assert server.poll(10.0) is not None
        assert gone(tmp_path)
    assert calls(tmp_path) == ["rm -f name"] * 2


def test_a_client_is_not_ended_before_its_container_exists(client: Path, tmp_path: Path) -> None:
    (tmp_path / "there").unlink()
    server = Server(command(client), tmp_path / "log")
    server.start()
    late = subprocess.Popen(["sh", "-c", f"sleep 3; touch '{tmp_path}/there'"])
    server.stop()
    late.wait()
    assert calls(tmp_path) == ["rm -f name"]
    assert not (tmp_path / "there").exists()


def test_it_is_repeated_until_there_was_something_to_take_away(client: Path, tmp_path: Path) -> None:
    (tmp_path / "there").unlink()
    late = subprocess.Popen(["sh", "-c", f"sleep 1; touch '{tmp_path}/there'"])
    assert supervisor.clean([str(client), "rm", "-f", "name"])
    late.wait()
    assert len(calls(tmp_path)) > 1


def test_it_ends_when_there_is_nothing(client: Path, tmp_path: Path) -> None:
    (tmp_path / "there").unlink()
    began = time.monotonic()
    assert not supervisor.clean([str(client), "rm", "-f", "name"])
    assert time.monotonic() - began < supervisor.AFTER_REPEAT_S + 5
    assert not supervisor.clean(["/nowhere/docker", "rm", "-f", "name"])


HOLDER = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from tests.serve.test_after import command
    from doctor.serve.server import Server
    with Server(command(Path({client!r})), Path({log!r}), grace_s=0.5) as server:
        print(server._process.pid, flush=True)
        time.sleep(60)
"""


def test_the_doctor_killed_with_sigkill(client: Path, tmp_path: Path) -> None:
    code = textwrap.dedent(HOLDER).format(root=str(ROOT), client=str(client), log=str(tmp_path / "log"))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    assert gone(tmp_path)
    process.stdout.close()


def test_the_supervisor_killed_with_sigkill(client: Path, tmp_path: Path) -> None:
    with Server(command(client), tmp_path / "log", grace_s=0.5) as server:
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGKILL)
        server._process.wait()
    assert calls(tmp_path) == ["rm -f name"]


def test_a_signal_inside_is_read_from_the_exit_code(client: Path, tmp_path: Path) -> None:
    argv = ("sh", "-c", "exit 137")
    for after, code in (((str(client), "rm", "-f", "name"), -9), ((), 137)):
        with Server(ServeCommand(argv, {}, (), 0, after=after), tmp_path / "log") as server:
            ended = server.poll(10.0)
            assert ended is not None
            assert ended.code == code
