"""Adds the user to a group, such as docker's. It takes effect with the next login."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from doctor.fix.action import Action, Keep, Outcome, Preview
from doctor.fix.errors import ActionError
from doctor.fix.journal import Run
from doctor.fix.machine import Machine
from doctor.fix.privilege import program


@dataclass(frozen=True, kw_only=True)
class AddGroupMember(Action):
    """``gpasswd --add``, which changes one membership and no other."""

    kind: ClassVar[str] = "add_group_member"

    group: str
    user: str

    def preview(self, machine: Machine) -> Preview:
        return Preview((machine.privilege.argv((program("gpasswd"), "--add", self.user, self.group)),))

    def facts(self) -> Mapping[str, Any]:
        return {"group": self.group, "user": self.user}

    def already_done(self, machine: Machine) -> bool:
        return self.user in (members(machine, self.group) or ())

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        now = members(machine, self.group)
        if now is None:
            raise ActionError(f"there is no group {self.group}")
        return {"group": self.group, "user": self.user, "member": self.user in now}

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        machine.must((program("gpasswd"), "--add", self.user, self.group), root=True)
        return {}

    def verify(self, machine: Machine) -> str | None:
        return None if self.already_done(machine) else f"{self.user} is not in group {self.group}"

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        group, user = record["group"], record["user"]
        if not record["member"] and user in (members(machine, group) or ()):
            machine.must((program("gpasswd"), "--delete", user, group), root=True)
        return Outcome()


def members(machine: Machine, group: str) -> tuple[str, ...] | None:
    """Users listed in the group's line; None when there is no such group."""
    found = machine.run((program("getent"), "group", group))
    if found.returncode == 2:
        return None
    if not found.ok:
        raise ActionError(f"the members of group {group} cannot be read")
    return tuple(u for u in found.stdout.strip().split(":")[-1].split(",") if u)
