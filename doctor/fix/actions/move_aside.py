"""Moves a stale lock or cache aside. It is never deleted: the same folder holds it under another name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from doctor.fix.action import Action, Keep, Outcome, Preview
from doctor.fix.errors import ActionError
from doctor.fix.files import FileState
from doctor.fix.journal import Run
from doctor.fix.machine import Machine


@dataclass(frozen=True, kw_only=True)
class MoveAside(Action):
    """Renames ``path`` to ``path`` + ``.vllm-doctor-RUN``."""

    kind: ClassVar[str] = "move_aside"

    path: str

    def preview(self, machine: Machine) -> Preview:
        argv = ("mv", "-nT", "--", self.path, f"{self.path}.vllm-doctor-RUN")
        return Preview((machine.privilege.argv(argv) if self.root else argv,))

    def facts(self) -> Mapping[str, Any]:
        return {"path": self.path}

    def already_done(self, machine: Machine) -> bool:
        return machine.look(self.path, self.root)[0].kind == "absent"

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        state, _ = machine.look(self.path, self.root)
        if state.kind not in ("file", "folder"):
            raise ActionError(f"{self.path} is a {state.kind}: it is not moved")
        aside = f"{self.path}.vllm-doctor-{machine.tag}"
        if machine.look(aside, self.root)[0].kind != "absent":
            raise ActionError(f"{aside} is there already")
        return {"path": self.path, "aside": aside, "root": self.root, "prior": state.dump()}

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        machine.rename(self.path, record["aside"], self.root)
        return {}

    def verify(self, machine: Machine) -> str | None:
        return None if self.already_done(machine) else f"{self.path} is there again"

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        path, aside, root = record["path"], record["aside"], bool(record["root"])
        prior = FileState.load(record["prior"])
        moved, there = machine.look(aside, root)[0], machine.look(path, root)[0]
        if moved.kind == "absent":
            if there.same_thing(prior):
                return Outcome()  # never moved, or put back before
            return Outcome(True, f"{aside} is gone, so {path} cannot be put back")
        if not moved.same_thing(prior):
            return Outcome(True, f"{aside} is not what was moved there, so it is left")
        if there.kind != "absent":
            return Outcome(True, f"there is a new {path}, so it is kept; the old one is {aside}")
        machine.rename(aside, path, root)
        return Outcome()
