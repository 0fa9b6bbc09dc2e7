"""Runs the server and ends its whole process tree, whatever happens to the doctor.

A small program of its own: the doctor starts it by path (``python -I -S supervisor.py``), so it uses the
standard library only and imports nothing of the package. The doctor holds the write end of its standard
input. When that closes, because the doctor finished, crashed or was killed with SIGKILL, the server and
everything it started are ended.

vLLM renames its children (``VLLM::EngineCore``), which overwrites ``/proc/PID/environ``, and they live on
when the API server is killed. So children are found by descent: this process adopts every orphan below it
(PR_SET_CHILD_SUBREAPER). The process group, the session and a marker in the environment are asked as well.

vLLM's processes share memory by files in /dev/shm, which outlive them when they are killed. Which ones the tree
has open is looked up while it runs; those with made-up names that are still there afterwards, that were not there
before, and that nobody uses, are removed.

A container's processes are children of its engine, not of the client that is run here. AFTER takes the
container away when everything else has ended: CLIENT rm -f -v NAME. A client that is ended while the engine still
makes what it asked for leaves a container that appears later; so it is waited for before anything is ended.

Usage: supervisor.py GRACE_S MARKER LOG [AFTER...] -- PROGRAM [ARGUMENT...]
Standard input: lines ``stop`` (SIGTERM, GRACE_S seconds, SIGKILL) or ``kill`` (SIGKILL at once).
Standard output: one JSON object a line: started, failed, exited, gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

#: Name of the environment variable that marks everything one run has started.
MARKER = "VLLM_DOCTOR_RUN"
#: Seconds that children get to end by themselves after the server has ended.
ORPHAN_GRACE_S = 2.0
#: Seconds after SIGKILL until processes that still exist are reported (stuck in the kernel).
KILL_WAIT_S = 10.0
#: Seconds for AFTER, and for how long it is repeated until there was something to take away.
AFTER_S = 30.0
AFTER_REPEAT_S = 2.0
#: Seconds that an engine gets to make a container before its client is ended.
MADE_S = 60.0

#: Where POSIX shared memory lies, and how often (seconds) it is looked up which of it the tree has open.
SHARED = "/dev/shm/"  # noqa: S108  not a temporary file of ours
LOOK_S = 2.0
#: How names begin that are made up for one run: Python's multiprocessing, torch, CUDA, NCCL, LLVM's OpenMP, and
#: vLLM 0.32. What has another name may be somebody's even if the tree had it open: it stays.
MADE_UP = (
    *("psm_", "sem.mp-", "torch_", "cuda.shm.", "nccl-", "__KMP_REGISTERED_LIB_"),
    *("VLLM_OBJECT_STORAGE_SHM_BUFFER", "vllm_offload_", "vllm_ec_"),
)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def every_pid() -> list[int]:
    """Every process, zombies too."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def processes() -> dict[int, tuple[int, int, int]]:
    """Every living process: pid -> (parent, process group, session). Zombies are left out."""
    table = {}
    for pid in every_pid():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if fields[0] not in (b"Z", b"X"):
            table[pid] = (int(fields[1]), int(fields[2]), int(fields[3]))
    return table


def marked(pid: int, marker: str) -> bool:
    """True when the process was started with our marker in its environment (and has not overwritten it)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARKER}={marker}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def living(root: int | None, session: int, marker: str) -> set[int]:
    """What still belongs to a run: descendants of ``root``, members of the session or group, marked ones.

    ``root`` itself and the asking process never belong.
    """
    table = processes()
    found = {p for p, (_, group, sid) in table.items() if session in (group, sid) or marked(p, marker)}
    parents = {root} if root is not None else set()
    parents |= found
    while parents:
        parents = {p for p, (parent, _, _) in table.items() if parent in parents and p not in found}
        found |= parents
    return found - {root, os.getpid()}


def send(pids: set[int], number: int) -> None:
    """Signals each process that still exists."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def present() -> set[int] | None:
    """Inodes of what lies in /dev/shm; None when it cannot be looked into."""
    try:
        with os.scandir(SHARED) as entries:
            return {entry.inode() for entry in entries}
    except OSError:
        return None


def shared(pids: Iterable[int], mapped: bool = True) -> dict[str, int]:
    """Files of /dev/shm that these processes have open or, with ``mapped`` (slower), mapped: path -> inode.

    Compared by inode: a semaphore is made under another name and then renamed, and its processes show the first.
    In another mount namespace /dev/shm is another file system, with inodes of the same numbers.
    """
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        device = os.stat(SHARED).st_dev
        used = set().union(*(_used(pid, device, mapped) for pid in pids))
        with os.scandir(SHARED) as entries:
            for entry in entries:
                if entry.inode() in used and entry.is_file(follow_symlinks=False):
                    found[entry.path] = entry.inode()
    return found


def _used(pid: int, device: int, mapped: bool) -> set[int]:
    used = set()
    for place, numbers in _open_files(pid):
        for number in numbers:
            with contextlib.suppress(OSError):
                link = f"{place}/fd/{number}"
                if os.readlink(link).startswith(SHARED) and (seen := os.stat(link)).st_dev == device:
                    used.add(seen.st_ino)
        if mapped:
            with contextlib.suppress(OSError), open(f"{place}/maps", "rb") as file:
                for line in file:
                    fields = line.split(None, 5)
                    if len(fields) == 6 and fields[5].startswith(SHARED.encode()):
                        major, minor = (int(part, 16) for part in fields[3].split(b":"))
                        if os.makedev(major, minor) == device:
                            used.add(int(fields[4]))
    return used


def _open_files(pid: int) -> list[tuple[str, list[str]]]:
    """Where /proc tells of a process, and its descriptors: of its threads when the first has ended before them."""
    if numbers := _listed(f"/proc/{pid}/fd"):
        return [(f"/proc/{pid}", numbers)]
    threads = [f"/proc/{pid}/task/{name}" for name in _listed(f"/proc/{pid}/task")]
    return [(thread, _listed(f"{thread}/fd")) for thread in threads]


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def unlink(seen: dict[str, int], before: set[int] | None) -> None:
    """Removes what the ended tree has left in /dev/shm: of ``seen`` (path -> inode) what is still the same file.

    Only files of ours with a name that a library made up, that are not in ``before`` (inodes that lay there when
    the tree was started; a user's model may lie there too), and that no process still uses.
    """
    if before is None:
        return
    left = {path for path, inode in seen.items() if inode not in before and _ours(path, inode)}
    for path in left - shared(every_pid()).keys() if left else ():
        if _ours(path, seen[path]):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _ours(path: str, inode: int) -> bool:
    if not path.removeprefix(SHARED).startswith(MADE_UP):
        return False
    with contextlib.suppress(OSError):
        now = os.lstat(path)
        return (now.st_ino, now.st_uid) == (inode, os.geteuid())
    return False


def clean(after: list[str], env: dict[str, str] | None = None) -> bool:
    """Runs AFTER until it says that it removed the name, or for AFTER_REPEAT_S: then there was none."""
    deadline = time.monotonic() + AFTER_REPEAT_S
    while (done := _ask(after, env)) is not None:
        if after[-1].encode() in done.stdout.split():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return False


def there(after: list[str]) -> bool:
    """Whether the container that AFTER takes away exists."""
    asked = _ask([after[0], "container", "inspect", after[-1]])
    return asked is not None and asked.returncode == 0


def _ask(argv: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes] | None:
    """The answer of the containers' client; None when there was none in AFTER_S seconds."""
    none = subprocess.DEVNULL
    try:
        return subprocess.run(argv, stdin=none, stdout=subprocess.PIPE, stderr=none, timeout=AFTER_S, env=env)
    except (OSError, subprocess.SubprocessError):
        return None


class Supervisor:
    """State of one run."""

    def __init__(self, grace: float, marker: str, log: str, command: list[str], after: list[str]) -> None:
        self.grace = grace
        self.marker = marker
        self.log = log
        self.command = command
        self.after = after
        self.pid = 0
        self.status: int | None = None
        self.order = ""  # "", "stop" or "kill"
        self.shared: dict[str, int] = {}  # files in /dev/shm that the tree had open
        self.before = present()
        self._input = b""
        self._listening = True

    def run(self) -> int:
        """Starts, waits, ends. Returns 0 when nothing is left of the run."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        # handlers, not SIG_IGN: an ignored signal would stay ignored in the server
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._ordered("stop"))
        try:
            self._start(libc)
        except OSError as error:
            tell(event="failed", error=error.strerror or str(error))
            return 1
        tell(event="started", pid=self.pid)
        looked = time.monotonic()
        while self.status is None and not self.order:
            self._listen(wake, 1.0)
            if time.monotonic() - looked >= LOOK_S:
                self.shared.update(shared(self._left(), mapped=False))
                looked = time.monotonic()
        left = self._end(wake)
        self._reap()  # the server may have become a zombie just after the last look
        unlink(self.shared, self.before)
        if self.after:
            clean(self.after)
        tell(event="gone", left=sorted(left))
        return 1 if left else 0

    def _start(self, libc: ctypes.CDLL) -> None:
        me = os.getpid()

        def before_exec() -> None:
            # this process may be killed too: then the server gets SIGTERM from the kernel
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != me:
                os._exit(1)

        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARKER: self.marker},
                start_new_session=True,
                preexec_fn=before_exec,
            )
        self.pid = process.pid
        process.returncode = 0  # reaped below with everything else, never by this object

    def _ordered(self, order: str) -> None:
        if self.order != "kill":
            self.order = order

    def _listen(self, wake: int, seconds: float) -> None:
        """Waits for a signal or an order for at most ``seconds``, then collects ended children."""
        watched = [wake, 0] if self._listening else [wake]
        ready, _, _ = select.select(watched, [], [], seconds)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if 0 in ready:
            self._read_order()
        self._reap()

    def _read_order(self) -> None:
        data = os.read(0, 4096)
        if not data:  # the doctor is gone
            self._ordered("stop")
            self._listening = False
            return
        self._input += data
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            if line in (b"stop", b"kill"):
                self._ordered(line.decode())

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid and self.status is None:
                self.status = os.waitstatus_to_exitcode(status)
                tell(event="exited", code=self.status)

    def _left(self) -> set[int]:
        self._reap()
        return living(os.getpid(), self.pid, self.marker)

    def _made(self, wake: int) -> None:
        """Waits until the container exists, the client has ended, or MADE_S have passed."""
        deadline = time.monotonic() + MADE_S
        while self.status is None and time.monotonic() < deadline:
            if there(self.after):
                return
            self._listen(wake, 0.2)

    def _end(self, wake: int) -> set[int]:
        if self.after:
            self._made(wake)
        if not self.order:  # the server ended first; what is left of it may still be writing its traceback
            self._wait(wake, ORPHAN_GRACE_S, "")
        left = self._left()
        self.shared.update(shared(left))
        if left and self.order != "kill":
            send(left, signal.SIGTERM)
            left = self._wait(wake, self.grace, "kill")
        deadline = time.monotonic() + KILL_WAIT_S
        while left and time.monotonic() < deadline:
            self.shared.update(shared(left))
            send(left, signal.SIGKILL)
            self._listen(wake, 0.05)
            left = self._left()
        return left

    def _wait(self, wake: int, seconds: float, until: str) -> set[int]:
        """Waits until nothing is left, ``seconds`` have passed or the order ``until`` (or any) came."""
        deadline = time.monotonic() + seconds
        left = self._left()
        while left and time.monotonic() < deadline:
            self._listen(wake, 0.05)
            left = self._left()
            if self.order and (not until or self.order == until):
                break
        return left


def tell(**event: object) -> None:
    """One line to the doctor, if it still listens."""
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps(event) + "\n").encode())


def main(arguments: list[str]) -> int:
    """Runs one supervisor with the arguments of the usage line."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    grace, marker, log, *rest = arguments
    dashes = rest.index("--") if "--" in rest else len(rest)
    after, command = rest[:dashes], rest[dashes + 1 :]
    if not command:
        sys.stderr.write("usage: supervisor.py GRACE_S MARKER LOG [AFTER...] -- PROGRAM [ARGUMENT...]\n")
        return 2
    return Supervisor(float(grace), marker, log, command, after).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
