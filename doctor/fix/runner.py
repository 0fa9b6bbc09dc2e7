"""Applies a plan: each step journalled before and after, checked, and all taken back when one fails."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from doctor.errors import DoctorError
from doctor.fix.action import Action
from doctor.fix.errors import ActionError
from doctor.fix.files import reason
from doctor.fix.journal import Entry, Journal
from doctor.fix.machine import Machine
from doctor.fix.undo import Undone, take_back


class Stop:
    """Asked to stop? The first SIGINT or SIGTERM ends the run after the step in hand, a second SIGINT at once."""

    def __init__(self) -> None:
        self.asked = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Handles the two signals for the time of a run."""
        before = {s: signal.signal(s, self.handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass
class Result:
    """How a run ended. ``status``: "applied", "nothing", "rolled-back", "incomplete", "interrupted"."""

    status: str
    run_id: str = ""
    outcomes: dict[str, str] = field(default_factory=dict)  # action id -> done, already, failed, not reached, ...
    why: str = ""
    undone: Undone | None = None

    @property
    def exit_code(self) -> int:
        """0 done, 4 failed and rolled back, 5 not all could be rolled back, 130 interrupted."""
        return {"applied": 0, "nothing": 0, "rolled-back": 4, "incomplete": 5, "interrupted": 130}[self.status]


#: Called with an action and "begin", "done", "already" or "failed".
Progress = Callable[[Action, str], None]


def pending(machine: Machine, actions: Sequence[Action]) -> list[Action]:
    """Actions that a run would carry out: not manual, not done, helpers only for others that are left."""
    open_ = [a for a in actions if not a.manual and not a.helper and not _done(machine, a)]
    needed = {d for a in open_ for d in a.depends_on}
    return [a for a in actions if a in open_ or (a.helper and a.id in needed)]


def _done(machine: Machine, action: Action) -> bool:
    try:
        return action.already_done(machine)
    except (ActionError, OSError):
        return False  # the step itself will say what is wrong


def apply(
    machine: Machine,
    actions: Sequence[Action],
    journal: Callable[[], Journal],
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> Result:
    """Carries out what is pending. ``journal`` starts one; it is called only when there is something to do."""
    stop = stop or Stop()
    tell: Progress = progress or (lambda action, what: None)
    todo = pending(machine, actions)
    outcomes = {a.id: "manual" if a.manual else "already" for a in actions if a not in todo}
    if not todo:
        return Result("nothing", outcomes=outcomes)
    if any(a.root for a in todo):
        refused = machine.may_be_root()
        if refused is not None:
            return Result("rolled-back", outcomes=outcomes, why=f"root is needed: {refused}. Nothing was changed.")
    book = journal()
    machine.tag = book.run.id
    result = Result("applied", book.run.id, outcomes)
    try:
        for number, action in enumerate(todo, 1):
            if stop.asked:
                return _interrupted(book, result, todo)
            tell(action, "begin")
            try:
                _step(machine, book, action, number)
            except Exception as error:  # noqa: BLE001  a bug of the doctor must not leave a machine half-changed
                why = _why(error)
                outcomes[action.id] = "failed"
                tell(action, "failed")
                if stop.asked:  # the signal reached the program that was running, too
                    _undo_open(machine, book)
                    return _interrupted(book, result, todo)
                return _roll_back(machine, book, result, todo, f"{action.summary}: {why}")
            outcomes[action.id] = "done"
            tell(action, "done")
        _quietly(lambda: book.end("done"))
        return result
    finally:
        book.close()


def _step(machine: Machine, book: Journal, action: Action, number: int) -> None:
    entry = Entry(number, action.id, action.kind, action.summary, action.before(machine, book.keep), action.causes)
    book.begin(entry)
    try:
        after = action.apply(machine, entry.record)
        wrong = action.verify(machine)
        if wrong:
            raise ActionError(wrong)
        book.done(entry, after)
    except Exception as error:
        why = _why(error)
        _quietly(lambda: book.failed(entry, why))
        raise


def _why(error: Exception) -> str:
    if isinstance(error, ActionError):
        return str(error)
    return reason(error) if isinstance(error, OSError) else f"the doctor itself failed: {error!r}"


def _roll_back(machine: Machine, book: Journal, result: Result, todo: Sequence[Action], why: str) -> Result:
    undone = take_back(machine, book)
    for entry in undone.reverted:
        result.outcomes[entry.action] = "rolled back"
    for action in todo:
        result.outcomes.setdefault(action.id, "not reached")
    result.status = "rolled-back" if undone.complete else "incomplete"
    result.why, result.undone = why, undone
    _quietly(lambda: book.end("failed"))
    _quietly(lambda: book.undo("complete" if undone.complete else "incomplete"))
    return result


def _undo_open(machine: Machine, book: Journal) -> None:
    """Takes back the one step that was cut off; the finished ones stay."""
    finished = [e for e in book.run.entries if e.outcome == "done"]
    for entry in finished:
        entry.outcome = "reverted"  # hidden from take_back
    try:
        take_back(machine, book)
    finally:
        for entry in finished:
            entry.outcome = "done"


def _interrupted(book: Journal, result: Result, todo: Sequence[Action]) -> Result:
    _quietly(lambda: book.end("interrupted"))
    for action in todo:
        result.outcomes.setdefault(action.id, "not reached")
    result.status, result.why = "interrupted", "stopped before the next step"
    return result


def _quietly(write: Callable[[], Any]) -> None:
    """Journal lines that only describe: losing one on a full disk must not hide what happened."""
    try:
        write()
    except OSError:
        return


def settle(machine: Machine, journal: Journal) -> Undone:
    """Makes an end of a run that was killed: its half-done steps are taken back, the finished ones stay."""
    _undo_open(machine, journal)
    left = [e for e in journal.run.entries if e.outcome not in ("done", "reverted")]
    if left:
        raise DoctorError(
            f"run {journal.run.id} left {left[0].summary!r} half-done, and it cannot be taken back: {left[0].why}",
            5,
        )
    journal.end("settled")
    return Undone((), ())
