"""What every action has: what it would do, whether that is done, how it is done, checked and taken back.

An action is planned once and applied once; it is taken back from its journal record alone, perhaps by a later
version of the doctor, so ``revert`` is a class method that knows nothing but that record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from doctor.finding import Risk
from doctor.fix.journal import Run
from doctor.fix.machine import Machine

#: Keeps bytes in the run's folder and returns their sha256.
Keep = Callable[[bytes], str]


@dataclass(frozen=True)
class Preview:
    """What is shown before: commands (argv) that will be run, a unified diff of a file, notes."""

    commands: tuple[tuple[str, ...], ...] = ()
    diff: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How taking back ended. ``kept`` is true when something stays, and ``why`` then says what and where."""

    kept: bool = False
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Action(ABC):
    """One step of a plan.

    ``causes`` are the finding ids it is for, ``needs`` what has to happen afterwards for it to take effect,
    ``depends_on`` ids of actions that must have worked before.
    """

    kind: ClassVar[str] = ""

    id: str
    summary: str
    causes: tuple[str, ...] = ()
    risk: Risk = Risk.SAFE
    root: bool = False
    needs: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    #: Taken alone it repairs nothing; it is there for the actions that depend on it.
    helper: bool = field(default=False)

    @property
    def manual(self) -> bool:
        """True when only a person can do it."""
        return False

    @abstractmethod
    def preview(self, machine: Machine) -> Preview:
        """What will be run or written. Touches nothing."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What the action was made from, as JSON: the plan's fingerprint covers it."""

    @abstractmethod
    def already_done(self, machine: Machine) -> bool:
        """True when there is nothing left to do. Touches nothing."""

    @abstractmethod
    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        """The prior state, as JSON: all that :meth:`revert` needs. Touches nothing but the run's folder.

        Raises ActionError when the step must not be done, for example because the machine has changed.
        """

    @abstractmethod
    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        """Does it. Raises ActionError or OSError; what was done by then is taken back with the record."""

    @abstractmethod
    def verify(self, machine: Machine) -> str | None:
        """None when it worked, otherwise why not."""

    @classmethod
    @abstractmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        """Takes it back as far as the machine is as it was left. Done twice, it does nothing the second time.

        ``after`` is empty when the step was killed: anything between nothing and all of it may have happened.
        """
