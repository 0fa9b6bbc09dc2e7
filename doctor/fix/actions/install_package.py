"""Installs packages of the distribution (apt), and removes exactly those again that it added."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from doctor.fix.action import Action, Keep, Outcome, Preview
from doctor.fix.actions import apt
from doctor.fix.errors import ActionError
from doctor.fix.journal import Run
from doctor.fix.machine import LONG_S, Machine
from doctor.fix.privilege import program, telling


@dataclass(frozen=True, kw_only=True)
class InstallPackage(Action):
    """``adds`` and ``upgrades`` are what apt said when the plan was made; None when it could not say yet."""

    kind: ClassVar[str] = "install_package"

    names: tuple[str, ...]
    adds: tuple[str, ...] | None = None
    upgrades: tuple[str, ...] = ()

    def preview(self, machine: Machine) -> Preview:
        notes = []
        if self.adds is None:
            notes.append(
                "which packages this adds is known after the lists are refreshed; nothing is ever removed"
            )
        elif len(self.adds) > len(self.names):
            notes.append(f"adds {len(self.adds)} packages: {' '.join(self.adds)}")
        if self.upgrades:
            notes.append(f"upgrades {' '.join(self.upgrades)}, which undo does not downgrade")
        return Preview(
            (machine.privilege.argv(apt.install_argv(self.names), apt.NONINTERACTIVE),), notes=tuple(notes)
        )

    def facts(self) -> Mapping[str, Any]:
        return {"names": list(self.names)}

    def already_done(self, machine: Machine) -> bool:
        return apt.installed(machine, self.names)

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        known = apt.statuses(machine)
        wanted = [n for n in apt.checked(self.names) if known.get(n, ("", ""))[0] != "installed"]
        plan = apt.simulate(machine, "install", wanted)
        if plan.removed:
            raise ActionError(f"apt would remove {' '.join(plan.removed)} for it; nothing was installed")
        missing = [n for n in wanted if n not in plan.new and n not in plan.upgraded]
        if missing:  # a virtual name, or one that apt took for a pattern
            raise ActionError(f"apt would not install {' '.join(missing)} itself; nothing was installed")
        return {
            "names": wanted,
            "new": dict(plan.new),
            "prior": {n: known[n][0] for n in plan.new if n in known},
            "upgraded": dict(plan.upgraded),
            "downloaded": _downloads(machine, plan.new),
        }

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        machine.must(apt.install_argv(record["names"]), root=True, timeout=LONG_S, extra=apt.NONINTERACTIVE)
        known = apt.statuses(machine)
        return {"new": {n: known[n][1] for n in record["new"] if n in known}}

    def verify(self, machine: Machine) -> str | None:
        known = apt.statuses(machine)
        missing = [n for n in self.names if known.get(n, ("", ""))[0] != "installed"]
        return f"{' '.join(missing)} is not installed" if missing else None

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        if not after:  # cut off: apt may still be at it
            machine.outlive(apt.install_argv(record["names"]))
            _settle(machine)
        known = apt.statuses(machine)
        ours = [n for n in record["new"] if known.get(n, ("not-installed", ""))[0] not in _gone(record, n)]
        kept: list[str] = []
        if ours:
            ours, kept = _ours_alone(machine, ours, set(record["names"]))
        _take_away(machine, ours, record)
        for path in set(_downloads(machine, record["new"])) - set(record["downloaded"]):
            machine.remove(path, root=True)  # left when apt was cut off; it takes them away itself otherwise
        still = apt.statuses(machine)
        left = [n for n in ours if still.get(n, ("not-installed", ""))[0] not in _gone(record, n)]
        if left:
            raise ActionError(f"{' '.join(left)} could not be removed")
        words = [f"{' '.join(kept)} is needed by something installed since, so it is kept"] if kept else []
        upgraded = [n for n, old in record["upgraded"].items() if known.get(n, ("", old))[1] != old]
        if upgraded:
            words.append(f"{' '.join(upgraded)} was upgraded, and is not downgraded")
        return Outcome(bool(words), "; ".join(words))


def _downloads(machine: Machine, new: Mapping[str, str]) -> list[str]:
    """Files of exactly these packages and versions in apt's folder of downloads."""
    found: list[str] = []
    for name, version in new.items():
        start = f"{name.partition(':')[0]}_{version.replace(':', '%3a')}_"
        found += glob.glob(f"{glob.escape(os.path.join(machine.downloads, start))}*.deb")
    return sorted(found)


def _gone(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Status words that mean: as it was before."""
    return ("not-installed", "config-files") if record["prior"].get(name) == "config-files" else ("not-installed",)


def _settle(machine: Machine) -> None:
    """Lets dpkg finish what a kill has cut off; apt does nothing before that."""
    audit = machine.run((program("dpkg"), "--audit"))
    if audit.stdout.strip():
        argv = (program("dpkg"), "--force-confold", "--configure", "-a")
        for _ in range(30):  # dpkg itself does not wait for another package manager
            done = machine.run(argv, root=True, timeout=LONG_S, extra=apt.NONINTERACTIVE)
            if done.ok or "lock" not in done.stderr:
                break
            machine.sleep(2.0)
        if not done.ok:
            raise ActionError(f"dpkg cannot finish what was cut off: {telling(done)}")


def _ours_alone(machine: Machine, ours: list[str], asked: set[str]) -> tuple[list[str], list[str]]:
    """Of what we added: what may go, and what stays because something else needs it or somebody asked for it."""
    wanted = apt.manual(machine) - asked
    going = [n for n in ours if n not in wanted]
    if going and set(apt.simulate(machine, "purge", going).removed) - set(ours):
        # removing a package takes along all that depends on it: one whose removal touches a stranger stays
        going = [n for n in going if not set(apt.simulate(machine, "purge", [n]).removed) - set(ours)]
    while going:
        more = set(apt.simulate(machine, "purge", going).removed) - set(going)
        if not more:
            break
        # something of ours that stays needs some of these
        going = [n for n in going if not set(apt.simulate(machine, "purge", [n]).removed) & more]
    return going, [n for n in ours if n not in going]


def _take_away(machine: Machine, names: list[str], record: Mapping[str, Any]) -> None:
    # a configuration file that the user edited, or that an earlier installation left, is not ours to delete
    spare = [n for n in names if record["prior"].get(n) == "config-files" or apt.edited_conffiles(machine, n)]
    for verb, group in (("purge", [n for n in names if n not in spare]), ("remove", spare)):
        if group:
            argv = apt.remove_argv(verb, group)
            machine.must(argv, root=True, timeout=LONG_S, extra=apt.NONINTERACTIVE)
