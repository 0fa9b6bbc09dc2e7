"""A step that only a person can do, shown with its exact text. The checks see afterwards whether it was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from doctor.finding import Risk
from doctor.fix.action import Action, Keep, Outcome, Preview
from doctor.fix.errors import ActionError
from doctor.fix.journal import Run
from doctor.fix.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Manual(Action):
    """``commands`` are to be run, ``text`` is to be pasted, by hand; ``verify_with`` tells whether it worked."""

    kind: ClassVar[str] = "manual"

    commands: tuple[tuple[str, ...], ...] = ()
    text: str = ""
    verify_with: tuple[str, ...] = ()
    risk: Risk = Risk.MANUAL

    @property
    def manual(self) -> bool:
        return True

    def preview(self, machine: Machine) -> Preview:
        return Preview(self.commands, self.text, tuple(f"afterwards: {v}" for v in self.verify_with))

    def facts(self) -> Mapping[str, Any]:
        return {"summary": self.summary, "commands": [list(c) for c in self.commands], "text": self.text}

    def already_done(self, machine: Machine) -> bool:
        return False  # the check of its cause says so, by not finding it any more

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        raise ActionError("this step can only be done by hand")

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        raise ActionError("this step can only be done by hand")

    def verify(self, machine: Machine) -> str | None:
        return None

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        return Outcome()
