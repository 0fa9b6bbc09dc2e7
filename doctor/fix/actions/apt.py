"""apt and dpkg: what is installed, and what a command would do, asked before it is done."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from doctor.fix.errors import ActionError
from doctor.fix.machine import SHORT_S, Machine
from doctor.fix.privilege import program, telling

#: Wait for another package manager instead of failing at once.
LOCK_WAIT = ("-o", "DPkg::Lock::Timeout=60")
#: Packages must not ask questions: nobody sees them.
NONINTERACTIVE: Mapping[str, str] = {"DEBIAN_FRONTEND": "noninteractive"}
#: A package name by Debian's policy. No blanks, no globs, no options; architecture allowed.
NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?")
_STEP = re.compile(r"^(Inst|Remv|Purg) (\S+)(?: \[([^\]]+)\])?(?: \((\S+))?", re.MULTILINE)


@dataclass(frozen=True)
class Simulation:
    """What apt would do: name -> version of new packages, name -> old version of upgraded ones, names removed."""

    new: Mapping[str, str]
    upgraded: Mapping[str, str]
    removed: tuple[str, ...]


def install_argv(names: Iterable[str]) -> tuple[str, ...]:
    """The smallest change: no recommended packages, configuration files of the user kept."""
    return (
        program("apt-get"),
        *LOCK_WAIT,
        "-o",
        "Dpkg::Options::=--force-confold",
        "-o",
        "APT::Keep-Downloaded-Packages=false",
        "-y",
        "--no-install-recommends",
        "--no-remove",
        "install",
        *names,
    )


def remove_argv(verb: str, names: Iterable[str]) -> tuple[str, ...]:
    """``verb`` is "purge" or "remove". Only what is named: nothing is removed automatically with it."""
    return (program("apt-get"), *LOCK_WAIT, "-o", "APT::Get::AutomaticRemove=false", "-y", verb, *names)


def checked(names: Sequence[str]) -> tuple[str, ...]:
    """The names, when each is a plain package name. apt would take others for patterns or orders."""
    for name in names:
        if not NAME.fullmatch(name):
            raise ActionError(f"{name!r} is not the name of a package")
    return tuple(names)


def simulate(machine: Machine, verb: str, names: Sequence[str]) -> Simulation:
    """What ``apt-get VERB NAMES`` would do. Needs no root. Raises ActionError with apt's own words."""
    argv = (program("apt-get"), "-s", "-o", "APT::Get::AutomaticRemove=false", "--no-install-recommends", verb)
    answer = machine.run((*argv, *checked(names)), timeout=SHORT_S)
    if not answer.ok:
        raise ActionError(f"apt cannot {verb} {' '.join(names)}: {telling(answer)}")
    return parse(answer.stdout)


def parse(text: str) -> Simulation:
    """Reads the output of ``apt-get -s``."""
    new: dict[str, str] = {}
    upgraded: dict[str, str] = {}
    removed: list[str] = []
    for what, name, old, version in _STEP.findall(text):
        if what != "Inst":
            removed.append(name)
        elif old:
            upgraded[name] = old
        else:
            new[name] = version
    return Simulation(new, upgraded, tuple(dict.fromkeys(removed)))


def statuses(machine: Machine) -> dict[str, tuple[str, str]]:
    """Package -> (dpkg's status word, version), for every package dpkg knows. Foreign ones carry ``:arch``."""
    native = machine.must((program("dpkg"), "--print-architecture")).stdout.strip()
    form = "${Package}\t${Architecture}\t${db:Status-Status}\t${Version}\n"
    known: dict[str, tuple[str, str]] = {}
    for line in machine.must((program("dpkg-query"), "-W", "-f", form)).stdout.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            name, arch, status, version = fields
            known[name if arch in (native, "all", "") else f"{name}:{arch}"] = (status, version)
    return known


def installed(machine: Machine, names: Iterable[str]) -> bool:
    """True when every one of them is installed."""
    known = statuses(machine)
    return all(known.get(n, ("", ""))[0] == "installed" for n in names)


def manual(machine: Machine) -> set[str]:
    """Packages that somebody asked for by name."""
    return set(machine.must((program("apt-mark"), "showmanual")).stdout.split())


def edited_conffiles(machine: Machine, name: str) -> bool:
    """True when a configuration file of the package is not as the package brought it."""
    import hashlib

    shown = machine.run((program("dpkg-query"), "-W", "-f", "${Conffiles}\n", name))
    for path, md5 in re.findall(r"^ (/\S+) ([0-9a-f]{32})$", shown.stdout, re.MULTILINE):
        state, data = machine.look(path, root=True)
        if state.kind == "file" and hashlib.md5(data or b"", usedforsecurity=False).hexdigest() != md5:
            return True
    return False
