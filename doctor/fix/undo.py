"""Takes a run back: in reverse order, only our own steps, only where the machine is as we left it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from doctor.fix.actions import KINDS
from doctor.fix.errors import ActionError
from doctor.fix.files import reason
from doctor.fix.journal import Entry, Journal
from doctor.fix.machine import Machine

#: Called after each step with its entry, "reverted", "kept" or "failed", and why.
Report = Callable[[Entry, str, str], None]


@dataclass(frozen=True)
class Undone:
    """``problems`` are the steps that could not be taken back whole, each with its reason."""

    reverted: tuple[Entry, ...]
    problems: tuple[tuple[Entry, str], ...]
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True when nothing of the run is left."""
        return not self.problems


def take_back(machine: Machine, journal: Journal, report: Report | None = None) -> Undone:
    """Undoes every step that may be in effect; goes on past those that fail. Can be repeated."""
    run = journal.run
    reverted: list[Entry] = []
    problems: list[tuple[Entry, str]] = []
    notes: list[str] = []
    for entry in reversed(run.standing):
        how, why = _one(machine, journal, entry)
        if how == "reverted":
            reverted.append(entry)
            if why:
                notes.append(why)
        else:
            problems.append((entry, why))
        if report is not None:
            report(entry, how, why)
    return Undone(tuple(reverted), tuple(problems), tuple(notes))


def _one(machine: Machine, journal: Journal, entry: Entry) -> tuple[str, str]:
    kind = KINDS.get(entry.kind)
    if kind is None:
        return "failed", f"this doctor knows no step of kind {entry.kind}"
    _note(lambda: journal.reverting(entry))
    try:
        outcome = kind.revert(machine, journal.run, entry.record, entry.after)
    except ActionError as error:
        return "failed", str(error)
    except OSError as error:
        return "failed", reason(error)
    except Exception as error:  # noqa: BLE001  one step that cannot be taken back must not stop the others
        return "failed", f"the journal's record of this step cannot be used: {error!r}"
    how = "kept" if outcome.kept else "reverted"
    _note(lambda: journal.reverted(entry, how, outcome.why))
    return how, outcome.why


def _note(write: Callable[[], None]) -> None:
    """A journal that cannot be written, on a full disk, must not keep the machine from being put back.

    The step then stays in the journal as standing; taking it back once more does nothing.
    """
    try:
        write()
    except OSError:
        return
