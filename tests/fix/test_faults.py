"""Every fault at every boundary of every action: afterwards undo restores the machine, and nothing is lost.

The boundaries are not picked by hand. Each action is run once to count its calls that change a disk and the
programs it starts; then it is run once for each boundary and each fault, on a fresh machine.

SIGKILL, SIGTERM and SIGINT are real signals to a forked process. A full disk and a read-only file system last
until the undo, as do a held dpkg lock, a lost network and a lost sudo.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.fix import journal as journals
from doctor.fix.action import Action
from doctor.fix.journal import Journal
from doctor.fix.runner import Stop, apply
from doctor.fix.undo import take_back
from doctor.host.access import RunResult
from tests.fix.machines import Tracer, World, fails
from tests.fix.samples import SAMPLES

#: Programs of a package manager, which a dpkg lock or a lost network stops.
_FETCHING = ("apt-get", "python")
_CASES: Counter[str] = Counter()


class Everything:
    """All actions as one plan, so that the steps before and after the failing one are taken back too."""

    def __init__(self) -> None:
        self.names = [n for n in SAMPLES if n not in ("docker_restart", "merge_keyvalue")]

    def __call__(self, world: World) -> list[Action]:
        return [SAMPLES[n](world) for n in self.names]


def single(name: str) -> Callable[[World], list[Action]]:
    return lambda world: [SAMPLES[name](world)]


PLANS: dict[str, Callable[[World], list[Action]]] = {
    **{n: single(n) for n in SAMPLES},
    "all of them": Everything(),
}


#: The whole plan is struck by SIGKILL, in the undo too, and by a full disk; each action alone by everything.
ALONE = list(SAMPLES)


class Boundaries:
    """Counts what passes: disk calls, programs, packages within a program. ``strike`` comes at number ``at``."""

    def __init__(self, at: int = -1, strike: Callable[[], RunResult | None] = lambda: None) -> None:
        self.count = 0
        self.at = at
        self.strike = strike
        self.struck = False

    def pass_(self) -> RunResult | None:
        here = self.count
        self.count += 1
        if here == self.at:
            self.struck = True
            return self.strike()
        return None


def prepared(root: Path, plan: str, boundaries: Boundaries, is_root: bool = True) -> tuple[World, list[Action]]:
    world = World(root, calls=Tracer(lambda what, path: boundaries.pass_() and None), is_root=is_root)
    actions = PLANS[plan](world)
    world.before = lambda argv: boundaries.pass_()
    world.apt.between = lambda name: boundaries.pass_() and None
    boundaries.count = 0
    return world, actions


@pytest.fixture
def fresh() -> Iterator[Callable[[], Path]]:
    """Small folders, on a memory file system where there is one: thousands are made."""
    base = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    number = 0

    def make() -> Path:
        nonlocal number
        number += 1
        place = base / str(number)
        place.mkdir()
        return place

    yield make
    shutil.rmtree(base)


def boundaries_of(plan: str, root: Path, is_root: bool = True) -> int:
    boundaries = Boundaries()
    world, actions = prepared(root, plan, boundaries, is_root)
    assert apply(world.machine, actions, world.journal).status == "applied"
    return boundaries.count


def restored(root: Path, plan: str, before: dict[str, object], case: str) -> None:
    """A new process, no more faults: undo restores everything, and a second one has nothing to do."""
    world = World(root)
    world.daemon.takes_reload = plan != "docker_restart"
    for run in reversed(journals.all_runs(world.state)):
        if run.standing:
            book = Journal.reopen(run, world.state.calls)
            undone = take_back(world.machine, book)
            book.close()
            assert undone.complete, (case, [why for _, why in undone.problems])
    assert world.manifest() == before, case
    left = [r for r in journals.all_runs(world.state) if r.standing or r.damaged]
    assert left == [], case
    strays = [p for p in root.rglob("*") if ".vllm-doctor-" in p.name or p.name.startswith("staged-")]
    assert [p for p in strays if "state/runs" not in str(p)] == [], case


def forked(body: Callable[[], object]) -> int:
    """Runs ``body`` in a process of its own; its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:  # noqa: BLE001  whatever happens there must not go on as a second pytest
            os._exit(70)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize("plan", PLANS)
def test_sigkill_at_every_boundary(plan: str, fresh: Callable[[], Path]) -> None:
    total = boundaries_of(plan, fresh())
    assert total > 3
    for at in range(total):
        root = fresh()
        boundaries = Boundaries(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
        world, actions = prepared(root, plan, boundaries)
        before = world.manifest()
        status = forked(partial(apply, world.machine, actions, world.journal))
        assert os.WIFSIGNALED(status), (plan, at, status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        restored(root, plan, before, f"SIGKILL {plan} {at}")
        _CASES["SIGKILL"] += 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("plan", ALONE)
def test_signals_at_every_boundary(plan: str, number: signal.Signals, fresh: Callable[[], Path]) -> None:
    total = boundaries_of(plan, fresh())
    for at in range(total):
        root = fresh()
        boundaries = Boundaries(at, lambda: os.kill(os.getpid(), number))
        world, actions = prepared(root, plan, boundaries)
        before = world.manifest()

        def body(world: World = world, actions: list[Action] = actions) -> None:
            stop = Stop()
            with stop.listening():
                result = apply(world.machine, actions, world.journal, stop)
            os._exit(result.exit_code)

        status = forked(body)
        assert os.WIFEXITED(status), (plan, at, status)
        assert os.WEXITSTATUS(status) in (0, 130), (plan, at)
        for run in journals.all_runs(world.state):
            assert run.ended in ("done", "interrupted"), (plan, at)
            assert run.open_steps == [], (plan, at)
        restored(root, plan, before, f"{number.name} {plan} {at}")
        _CASES[number.name] += 1


@pytest.mark.parametrize(("word", "number"), [("full", 28), ("read-only", 30)])
@pytest.mark.parametrize("plan", PLANS)
def test_a_disk_that_stops_taking_writes(plan: str, word: str, number: int, fresh: Callable[[], Path]) -> None:
    """From one boundary on, every call that needs room (or any change) fails, for the rollback too."""
    total = boundaries_of(plan, fresh())
    for at in range(total):
        root = fresh()
        boundaries = Boundaries(at)
        world, actions = prepared(root, plan, boundaries)
        before = world.manifest()
        harmless = ("unlink", "rmdir", "rename") if word == "full" else ()

        def failing(
            what: str,
            path: str,
            boundaries: Boundaries = boundaries,
            harmless: tuple[str, ...] = harmless,
        ) -> None:
            boundaries.pass_()
            if boundaries.struck and what not in harmless:
                raise OSError(number, os.strerror(number), path)

        world.state.calls.hook = failing  # type: ignore[attr-defined]
        exit_code, refusal = None, "nothing was changed"
        try:
            exit_code = apply(world.machine, actions, world.journal).exit_code
        except DoctorError as error:
            refusal = str(error)
        assert "nothing was changed" in refusal
        if exit_code is None:
            assert world.manifest() == before
        assert exit_code in (None, 0, 4, 5), (plan, at)
        if exit_code == 4:
            assert world.manifest() == before, (plan, at)
        restored(root, plan, before, f"{word} {plan} {at}")
        _CASES[f"disk {word}"] += 1


LOCKED = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (unattended-upgr)"
OFFLINE = (
    "E: Failed to fetch http://mirror.example/debian/pool/main/g/gcc-12/g++-12.deb Temporary failure resolving"
)
DENIED = "sudo: a password is required"


@pytest.mark.parametrize(
    ("fault", "is_root", "matches", "text", "code"),
    [
        ("dpkg lock held", True, lambda a: "apt-get" in a[0] and "-s" not in a, LOCKED, 100),
        ("no network", True, lambda a: any(p in a[0] for p in _FETCHING) and "install" in a, OFFLINE, 100),
        ("sudo denied", False, lambda a: "sudo" in a[0], DENIED, 1),
        ("any program fails", True, lambda a: True, "E: it did not work", 1),
    ],
    ids=["dpkg-lock", "no-network", "sudo-denied", "any-program"],
)
@pytest.mark.parametrize("plan", ALONE)
def test_programs_that_fail_from_some_point_on(
    plan: str,
    fault: str,
    is_root: bool,
    matches: Callable[[tuple[str, ...]], bool],
    text: str,
    code: int,
    fresh: Callable[[], Path],
) -> None:
    total = boundaries_of(plan, fresh(), is_root)
    for at in range(total):
        root = fresh()
        boundaries = Boundaries(at)
        world, actions = prepared(root, plan, boundaries, is_root)
        before = world.manifest()

        def broken(argv: tuple[str, ...], boundaries: Boundaries = boundaries) -> RunResult | None:
            boundaries.pass_()
            return fails(argv, code, text) if boundaries.struck and matches(argv) else None

        world.before = broken
        result = apply(world.machine, actions, world.journal)
        assert result.exit_code in (0, 4, 5), (plan, at)
        if result.exit_code == 4:
            assert world.manifest() == before, (plan, at, result.why)
        restored(root, plan, before, f"{fault} {plan} {at}")
        _CASES[fault] += 1


@pytest.mark.parametrize("plan", PLANS)
def test_no_sudo_at_all(plan: str, fresh: Callable[[], Path]) -> None:
    world = World(fresh(), is_root=False, sudo=False)
    actions = PLANS[plan](world)
    before = world.manifest()
    result = apply(world.machine, actions, world.journal)
    needs_root = any(a.root for a in actions)
    assert result.exit_code == (4 if needs_root else 0)
    if needs_root:
        assert world.manifest() == before
    _CASES["no sudo"] += 1


@pytest.mark.parametrize("plan", PLANS)
def test_sigkill_at_every_boundary_of_the_undo(plan: str, fresh: Callable[[], Path]) -> None:
    """An undo that is cut off is finished by the next one."""

    def undo(world: World) -> None:
        run = journals.all_runs(world.state)[0]
        book = Journal.reopen(run, world.state.calls)
        take_back(world.machine, book)
        book.close()

    def applied(root: Path, boundaries: Boundaries) -> tuple[World, dict[str, object]]:
        world, actions = prepared(root, plan, Boundaries())
        before = world.manifest()
        assert apply(world.machine, actions, world.journal).status == "applied"
        again = World(root, calls=Tracer(lambda what, path: boundaries.pass_() and None))
        again.daemon.takes_reload = plan != "docker_restart"
        again.before = lambda argv: boundaries.pass_()
        again.apt.between = lambda name: boundaries.pass_() and None
        return again, before

    counting = Boundaries()
    undo(applied(fresh(), counting)[0])
    for at in range(counting.count):
        root = fresh()
        boundaries = Boundaries(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
        world, before = applied(root, boundaries)
        status = forked(partial(undo, world))
        assert os.WIFSIGNALED(status), (plan, at, status)
        restored(root, plan, before, f"SIGKILL in undo of {plan} {at}")
        _CASES["SIGKILL in undo"] += 1


def test_the_number_of_cases_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Last in this file: says how many faults were injected, and that none of the kinds was left out."""
    if not _CASES:
        pytest.skip("no fault was injected in this run")
    with capsys.disabled():
        rows = ", ".join(f"{name} {count}" for name, count in _CASES.items())
        print(f"\n{sum(_CASES.values())} faults injected: {rows}")
