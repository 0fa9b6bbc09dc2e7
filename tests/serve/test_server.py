"""The process tree of a server is gone afterwards, whatever happens. Real processes; each looks for itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.serve import supervisor
from doctor.serve.command import ServeCommand
from doctor.serve.server import Server
from tests.smoke.conftest import STUB, make_environment, make_model

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """The file in which the stub notes its processes; whatever a failing test leaves is killed."""
    file = tmp_path / "pids"
    yield file
    for pid in noted(file):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def noted(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_noted(file: Path, count: int) -> list[int]:
    deadline = time.monotonic() + 10
    while len(noted(file)) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    found = noted(file)
    assert len(found) == count
    return found


def all_gone(processes: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, processes))


def server(tmp_path: Path, pids: Path, stub: str, grace_s: float = 5.0) -> Server:
    argv = (sys.executable, "-S", str(STUB), "serve", "m", "--host", "127.0.0.1", "--port", "0")
    command = ServeCommand(argv, {"VLLM_STUB": stub, "VLLM_STUB_PIDS": str(pids)}, (), 0)
    return Server(command, tmp_path / "log", grace_s=grace_s)


def test_stops_children_that_left_group_session_and_environment(tmp_path: Path, pids: Path) -> None:
    with server(tmp_path, pids, "children") as running:
        found = wait_noted(pids, 3)
        assert running.pid == found[0]
        assert all(map(alive, found))
    assert not any(map(alive, found))
    assert running.left == ()
    assert running.exit is not None
    assert running.exit.code == -signal.SIGTERM


def test_kills_what_ignores_sigterm(tmp_path: Path, pids: Path) -> None:
    with server(tmp_path, pids, "stubborn", grace_s=0.3) as running:
        found = wait_noted(pids, 3)
        time.sleep(0.2)  # the children switch SIGTERM off
    assert not any(map(alive, found))
    assert running.exit is not None
    assert running.exit.code == -signal.SIGKILL


def test_an_exception_ends_the_tree_too(tmp_path: Path, pids: Path) -> None:
    def fail() -> None:
        with server(tmp_path, pids, "children"):
            wait_noted(pids, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    found = noted(pids)
    assert len(found) == 3
    assert not any(map(alive, found))


def test_orphans_of_a_killed_main_process(tmp_path: Path, pids: Path) -> None:
    with server(tmp_path, pids, "children") as running:
        found = wait_noted(pids, 3)
        os.kill(found[0], signal.SIGKILL)
        ended = running.poll(5.0)
        assert ended is not None
        assert ended.text == "killed by signal 9 (SIGKILL)"
    assert not any(map(alive, found))


def test_the_supervisor_killed(tmp_path: Path, pids: Path) -> None:
    with server(tmp_path, pids, "stubborn") as running:
        found = wait_noted(pids, 3)
        assert running._process is not None
        os.kill(running._process.pid, signal.SIGKILL)
        time.sleep(0.1)
    # the one in a session of its own with a cleared environment cannot be known any more
    assert not any(map(alive, found[:2]))


def test_a_program_that_cannot_start(tmp_path: Path) -> None:
    command = ServeCommand(("/nowhere/vllm", "serve"), {}, (), 0)
    with pytest.raises(DoctorError, match=r"cannot start /nowhere/vllm: No such file") as error:
        Server(command, tmp_path / "log").__enter__()
    assert error.value.exit_code == 2


HOLDER = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from doctor.serve.command import ServeCommand
    from doctor.serve.server import Server
    argv = ({python!r}, "-S", {stub!r}, "serve", "m", "--host", "127.0.0.1", "--port", "0")
    env = {{"VLLM_STUB": {words!r}, "VLLM_STUB_PIDS": {pids!r}}}
    with Server(ServeCommand(argv, env, (), 0), Path({log!r}), grace_s=0.5) as server:
        print(server._process.pid, flush=True)
        time.sleep(60)
"""


def holder(tmp_path: Path, pids: Path, words: str) -> tuple[subprocess.Popen[str], int]:
    """A process that runs a server and can be killed: (process, pid of the supervisor)."""
    code = textwrap.dedent(HOLDER).format(
        root=str(ROOT),
        python=sys.executable,
        stub=str(STUB),
        words=words,
        pids=str(pids),
        log=str(tmp_path / "log"),
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("words", ["children", "stubborn"])
def test_the_doctor_killed_with_sigkill(tmp_path: Path, pids: Path, words: str) -> None:
    process, supervisor = holder(tmp_path, pids, words)
    found = wait_noted(pids, 3)
    time.sleep(0.2)
    process.kill()
    process.wait()
    assert all_gone([*found, supervisor], 8.0)


def test_doctor_and_supervisor_killed_together(tmp_path: Path, pids: Path) -> None:
    process, supervisor = holder(tmp_path, pids, "")
    found = wait_noted(pids, 1)
    os.kill(supervisor, signal.SIGKILL)
    process.kill()
    process.wait()
    assert all_gone(found, 5.0)


@pytest.mark.parametrize("words", ["hang:spawning", "hang:compiling", "silent"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_the_command(tmp_path: Path, pids: Path, words: str, number: int) -> None:
    environment, model = make_environment(tmp_path / "venv"), make_model(tmp_path / "model")
    process = subprocess.Popen(
        [sys.executable, "-m", "doctor", "smoke", "--python", str(environment), "--model", str(model),
         "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "VLLM_STUB": f"{words} children", "VLLM_STUB_PIDS": str(pids)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    found = wait_noted(pids, 3)
    time.sleep(0.3)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert out == ""
    assert not any(map(alive, found))


SHARER = """
import multiprocessing.shared_memory, os, sys, time
from multiprocessing import resource_tracker
model = open(sys.argv[2])
block = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
other = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
semaphore = multiprocessing.get_context("spawn").Semaphore()  # the tracker removes its file
names = block.name, other.name, "sem." + semaphore._semlock.name.strip("/")
open(sys.argv[1], "w").write(" ".join((*names, str(resource_tracker._resource_tracker._pid))))
os.kill(resource_tracker._resource_tracker._pid, 19) if "lost" in sys.argv else None
time.sleep(60)
"""


@pytest.mark.parametrize("who", ["nobody", "the server"])
def test_shared_memory_of_killed_processes_is_removed(tmp_path: Path, who: str) -> None:
    names = tmp_path / "names"
    # a tracker that is stopped cannot remove it, as one that is killed with the rest
    model = Path("/dev/shm") / f"model-of-the-user-{os.getpid()}"
    model.write_bytes(b"weights")
    argv = (sys.executable, "-S", "-c", SHARER, str(names), str(model), "lost")
    with Server(ServeCommand(argv, {}, (), 0), tmp_path / "log", grace_s=0.2) as running:
        deadline = time.monotonic() + 10
        while not (names.exists() and len(names.read_text().split()) == 4) and time.monotonic() < deadline:
            time.sleep(0.02)
        mine, shared, semaphore, tracker = names.read_text().split()
        made = {mine, shared, semaphore}
        assert made <= set(os.listdir("/dev/shm"))
        user = subprocess.Popen(["tail", "-f", f"/dev/shm/{shared}"], stdout=subprocess.DEVNULL)
        if who == "the server":
            assert running.pid is not None
            time.sleep(2.5)  # it looks every two seconds
            Path("/dev/shm", semaphore).unlink()  # mapped only: that is not looked up while it runs
            os.kill(running.pid, signal.SIGKILL)
        time.sleep(0.1)
    left = made & set(os.listdir("/dev/shm"))
    user.kill()
    user.wait()
    (Path("/dev/shm") / shared).unlink()
    model.unlink()  # it is still there
    assert left == {shared}  # somebody else has it open
    assert not alive(int(tracker))


LEAVER = """
import os, sys, time
from pathlib import Path
held = [open(f"/dev/shm/{name}", "w") for name in sys.argv[2:]]
Path(sys.argv[1]).write_text("ready")
time.sleep(60)
"""


def _shared_by(tmp_path: Path, names: Sequence[str], before: Sequence[str] = (), meanwhile: str = "") -> set[str]:
    """Which of these files of /dev/shm are left after a server that had all of them open."""
    argv = (*before, sys.executable, "-S", "-c", LEAVER, str(tmp_path / "ready"), *names)
    with Server(ServeCommand(argv, {}, (), 0), tmp_path / "log", grace_s=0.2):
        deadline = time.monotonic() + 10
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        if meanwhile:
            time.sleep(2.5)  # it looks every two seconds
            path = Path("/dev/shm", meanwhile)
            path.unlink()
            Path("/dev/shm", f"psm_doctor_test_{os.getpid()}_between").write_bytes(b"")  # takes a number
            path.write_bytes(b"somebody else's")
    return set(names) & set(os.listdir("/dev/shm"))


@pytest.fixture
def names() -> Iterator[list[str]]:
    mine = f"doctor_test_{os.getpid()}"
    yield [f"psm_{mine}", f"{mine}_of_the_user"]
    for path in Path("/dev/shm").glob(f"*{mine}*"):
        path.unlink()


def test_a_file_with_a_name_of_its_own_stays(tmp_path: Path, names: list[str]) -> None:
    assert _shared_by(tmp_path, names) == {names[1]}


def test_a_file_that_was_made_again_by_somebody_else_stays(tmp_path: Path, names: list[str]) -> None:
    assert _shared_by(tmp_path, names[:1], meanwhile=names[0]) == {names[0]}


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
def test_shared_memory_of_another_mount_is_another_file(tmp_path: Path) -> None:
    """The tree's /dev/shm is a new file system, with the inode numbers that a file of ours may have."""
    mine = f"psm_doctor_test_{os.getpid()}"
    mount = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs x /dev/shm && exec "$@"', "sh")
    if subprocess.run([*mount, "true"], capture_output=True, timeout=20).returncode:
        pytest.skip("no mount namespace here")
    code = f"""
import sys
from pathlib import Path
from tests.serve.test_server import LEAVER
from doctor.serve.command import ServeCommand
from doctor.serve.server import Server
import time
ready = Path({str(tmp_path / "ready")!r})
mount = {mount!r}
names = [f"psm_{{i}}" for i in range(50)]
argv = (*mount, sys.executable, "-S", "-c", LEAVER, str(ready), *names)
with Server(ServeCommand(argv, {{}}, (), 0), Path({str(tmp_path / "log")!r}), grace_s=0.2):
    while not ready.exists():
        time.sleep(0.02)
    Path("/dev/shm/{mine}").write_bytes(b"ours")
print(Path("/dev/shm/{mine}").stat().st_ino, Path("/dev/shm/{mine}").exists())
"""
    # a fresh file system for us as well: there the numbers are the same
    done = subprocess.run([*mount, sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    inode, there = done.stdout.split() or (done.stderr, "")
    assert (int(inode) <= 52, there) == (True, "True")


def test_a_process_whose_first_thread_has_ended_still_uses_its_file(names: list[str]) -> None:
    path = Path("/dev/shm", names[0])
    path.write_bytes(b"x")
    code = f"""
import ctypes, os, threading, time
held = open({str(path)!r})
def rest():
    time.sleep(60)
threading.Thread(target=rest).start()
ctypes.PyDLL(None).syscall({60 if os.uname().machine == "x86_64" else 93}, 0)  # ends this thread only
"""
    user = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 10
        while supervisor.processes().get(user.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        supervisor.unlink({str(path): path.stat().st_ino}, set())
        assert path.exists()
    finally:
        user.kill()
        user.wait()
    supervisor.unlink({str(path): path.stat().st_ino}, None)  # nobody knows what was there before
    assert path.exists()
    supervisor.unlink({str(path): path.stat().st_ino}, set())
    assert not path.exists()
