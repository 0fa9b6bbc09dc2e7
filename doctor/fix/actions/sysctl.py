"""Sets a kernel parameter now and, through a file in /etc/sysctl.d, at each boot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from doctor.fix.action import Keep, Outcome, Preview
from doctor.fix.actions.write_file import WriteFile, put_back
from doctor.fix.errors import ActionError
from doctor.fix.journal import Run
from doctor.fix.machine import Machine
from doctor.fix.privilege import program


@dataclass(frozen=True, kw_only=True)
class Sysctl(WriteFile):
    """``key`` is a name such as vm.overcommit_memory."""

    kind: ClassVar[str] = "sysctl"

    key: str
    value: str

    def preview(self, machine: Machine) -> Preview:
        shown = super().preview(machine)
        return Preview((machine.privilege.argv(_set(self.key, self.value)),), shown.diff, shown.notes)

    def facts(self) -> Mapping[str, Any]:
        return {**super().facts(), "key": self.key, "value": self.value}

    def already_done(self, machine: Machine) -> bool:
        return super().already_done(machine) and current(machine, self.key) == self.value

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        now = current(machine, self.key)
        if now is None:
            raise ActionError(f"the kernel parameter {self.key} cannot be read here")
        return {**super().before(machine, keep), "key": self.key, "value": self.value, "was": now}

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        super().apply(machine, record)
        machine.must(_set(self.key, self.value), root=True)
        return {}

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        outcome = put_back(machine, run, record)
        now = current(machine, record["key"])
        if now == record["value"] and now != record["was"]:
            machine.must(_set(record["key"], record["was"]), root=True)
        elif now not in (record["was"], record["value"]):
            more = f"{record['key']} is {now} now, which was not set here, so it is kept (it was {record['was']})"
            return Outcome(True, f"{outcome.why}; {more}" if outcome.why else more)
        return outcome


def _set(key: str, value: str) -> tuple[str, ...]:
    return (program("sysctl"), "-q", "-w", f"{key}={value}")


def current(machine: Machine, key: str) -> str | None:
    """The parameter's value in the running kernel."""
    shown = machine.run((program("sysctl"), "-n", key))
    return shown.stdout.strip() if shown.ok else None
