"""Files that a user asked for: whole or not at all, and never in place of a device or a pipe."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.files import write


def test_text_and_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a", "µ\n")
    write(tmp_path / "b", b"\xff")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"\xc2\xb5\n", b"\xff")


def test_a_path_that_is_not_utf8_can_be_written_about(tmp_path: Path) -> None:
    write(tmp_path / "a", "/x\udcff")
    assert (tmp_path / "a").read_text() == "/x\\udcff"


def test_folders_above_are_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=r"cannot write .*/new/a: No such file or directory"):
        write(tmp_path / "new/a", "text")
    write(tmp_path / "new/a", "text", folders=True)
    assert (tmp_path / "new/a").read_text() == "text"


def test_the_mode_stays_and_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o600)
    (tmp_path / "link").symlink_to("a")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["a", "link"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(pipe, "x" * 200_000)
    reader.join(10)
    assert [len(g) for g in got] == [200_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_one() -> None:
    """A folder for /dev/null must not be writable for this: as root a rename would replace it."""
    before = os.stat("/dev/null")
    write(Path("/dev/null"), "text")
    assert os.stat("/dev/null").st_rdev == before.st_rdev
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_dev_stdout() -> None:
    code = "from pathlib import Path; from doctor.files import write; write(Path('/dev/stdout'), 'text')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "text", "")


@pytest.mark.parametrize("mode", ["ab", "r+b"])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_dev_stdout_that_is_a_file(tmp_path: Path, name: str, mode: str) -> None:
    """The file is what the shell opened: what is printed before and after stays in it."""
    code = (
        "from pathlib import Path; from doctor.files import write; print('before'); "
        f"write(Path({name!r}), 'text '); print('after')"
    )
    (tmp_path / "out").write_text("there\n")
    with (tmp_path / "out").open(mode) as out:
        out.seek(0, os.SEEK_END)
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "there\nbefore\ntext after\n"


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / f".a.{os.getpid()}.tmp").symlink_to("victim")
    write(tmp_path / "a", "text")
    assert ((tmp_path / "victim").read_text(), (tmp_path / "a").read_text()) == ("mine", "text")
    assert not (tmp_path / "a").is_symlink()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=r"cannot write .*: Is a directory"):
        write(tmp_path, "text")
    assert os.listdir(tmp_path) == []


def test_no_room_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DoctorError, match=r"cannot write .*/a: File too large"):
            write(tmp_path / "a", "x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(DoctorError, match="cannot write"):
        write(tmp_path / "a", "text")
