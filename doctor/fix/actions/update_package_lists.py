"""Refreshes apt's list of packages, without which it installs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from doctor.fix.action import Action, Keep, Outcome, Preview
from doctor.fix.actions.apt import LOCK_WAIT, NONINTERACTIVE
from doctor.fix.journal import Run
from doctor.fix.machine import LONG_S, Machine
from doctor.fix.privilege import program


def _argv() -> tuple[str, ...]:
    return (program("apt-get"), *LOCK_WAIT, "-qq", "update")


class UpdatePackageLists(Action):
    """``apt-get update``. The lists are a cache of what the servers offer, so nothing is taken back."""

    kind: ClassVar[str] = "update_package_lists"

    def preview(self, machine: Machine) -> Preview:
        return Preview((machine.privilege.argv(_argv(), NONINTERACTIVE),))

    def facts(self) -> Mapping[str, Any]:
        return {}

    def already_done(self, machine: Machine) -> bool:
        return False

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        return {}

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        machine.must(_argv(), root=True, timeout=LONG_S, extra=NONINTERACTIVE)
        return {}

    def verify(self, machine: Machine) -> str | None:
        return None

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        return Outcome()
