"""Programs and files of a real host, with everything that goes wrong."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from doctor.host import LocalHost
from tests.fakes import FakeHost, Unplanned

HOST = LocalHost()
PYTHON = sys.executable


def test_runs_in_the_c_locale_and_keeps_streams_apart() -> None:
    code = "import os,sys; print(os.environ['LC_ALL']); print('e', file=sys.stderr); sys.exit(7)"
    result = HOST.run([PYTHON, "-c", code], timeout=20)
    assert (result.stdout, result.stderr, result.returncode, result.ok) == ("C\n", "e\n", 7, False)


def test_a_program_that_does_not_exist_is_a_result() -> None:
    result = HOST.run(["/no/such/program"])
    assert result.returncode is None
    assert result.error == "No such file or directory"


def test_the_deadline_kills_the_whole_tree() -> None:
    script = "sleep 60 & echo $!; wait"
    began = time.monotonic()
    result = HOST.run(["sh", "-c", script], timeout=0.5)
    assert result.timed_out
    assert result.returncode is None
    assert time.monotonic() - began < 5
    child = int(result.stdout)
    for _ in range(50):
        state = HOST.read(f"/proc/{child}/stat")
        if state is None or state.rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child of the killed program lives on")


def test_a_hundred_megabytes_of_output_are_bounded() -> None:
    code = "import sys\nfor _ in range(100): sys.stdout.write('x' * 1000000)"
    result = HOST.run([PYTHON, "-c", code], timeout=60, limit=1000)
    assert result.ok
    assert result.truncated
    assert len(result.stdout) == 1000


def test_output_on_stderr_alone_does_not_hang() -> None:
    result = HOST.run([PYTHON, "-c", "import sys; sys.stderr.write('y' * 300000)"], timeout=20, limit=500_000)
    assert len(result.stderr) == 300_000


def test_environment_is_added_and_unset() -> None:
    host = LocalHost(env={"PATH": os.environ["PATH"], "KEEP": "1", "DROP": "1"})
    code = "import os; print(sorted(k for k in os.environ if k in ('KEEP', 'DROP', 'NEW')))"
    result = host.run([PYTHON, "-c", code], env={"DROP": "", "NEW": "x"}, timeout=20)
    assert result.stdout == "['KEEP', 'NEW']\n"


def test_stdin_and_closed_stdin() -> None:
    assert HOST.run(["cat"], stdin="hello", timeout=20).stdout == "hello"
    assert HOST.run(["cat"], timeout=20).stdout == ""


def test_reading_never_raises_or_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "junk").write_bytes(bytes(range(256)) * 4)
    assert HOST.read(str(tmp_path / "fifo")) in ("", None)
    assert HOST.read(str(tmp_path)) is None
    assert HOST.read("/no/such/file") is None
    assert HOST.read("with\0nul") is None
    assert len(HOST.read_bytes(str(tmp_path / "junk"), limit=10) or b"") == 10
    assert isinstance(HOST.read(str(tmp_path / "junk")), str)
    assert HOST.listdir("/no/such/folder") == ()
    assert HOST.stat("/no/such/file") is None
    assert HOST.statvfs("/no/such/file") is None


def test_a_root_moves_all_file_access(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write("/etc/os-release", "ID=debian\n")
    host.program("/usr/bin/gcc")
    host.link("/usr/bin/cc", "/usr/bin/gcc")
    assert host.read("/etc/os-release") == "ID=debian\n"
    assert host.which("cc") == "/usr/bin/cc"
    assert host.realpath("/usr/bin/cc") == "/usr/bin/gcc"
    assert host.which("clang") is None
    assert host.glob("/usr/bin/g*") == ("/usr/bin/gcc",)
    with pytest.raises(Unplanned):
        host.run(["gcc", "--version"])
