"""Installs Python packages where vLLM runs, resolved beforehand, and puts the old ones back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from doctor.fix.action import Action, Keep, Outcome, Preview
from doctor.fix.errors import ActionError
from doctor.fix.journal import Run
from doctor.fix.machine import LONG_S, Machine
from doctor.fix.privilege import telling

_SPEC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[\w,-]+\])?(?:[=<>!~][^\s;]*)?")
_OPTION = re.compile(r"--(?:index-url|extra-index-url)=https://[^\s]+")


@dataclass(frozen=True, kw_only=True)
class InstallPython(Action):
    """``specs`` are requirements, ``pins`` packages (name==version) that must stay as they are."""

    kind: ClassVar[str] = "install_python"

    python: str
    specs: tuple[str, ...]
    options: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()

    def _pip(self, *arguments: str) -> tuple[str, ...]:
        return (self.python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments)

    def _resolve(self) -> tuple[str, ...]:
        quiet = ("install", "--dry-run", "--quiet", "--report", "-")
        return self._pip(*quiet, *self.options, *self.specs, *self.pins)

    def preview(self, machine: Machine) -> Preview:
        install = self._pip("install", "--no-deps", *self.options, "NAME==VERSION ...")
        note = f"{self._resolve()[0]} resolves first; exactly what it finds is installed"
        kept = (f"stays as it is: {' '.join(self.pins)}",) if self.pins else ()
        return Preview((self._resolve(), install), notes=(note, *kept))

    def facts(self) -> Mapping[str, Any]:
        return {
            "python": self.python,
            "specs": list(self.specs),
            "options": list(self.options),
            "pins": list(self.pins),
        }

    def already_done(self, machine: Machine) -> bool:
        # asks the environment itself, without a network: pip's resolver may not be able to reach an index
        code = (
            "import sys, importlib.metadata as m\n"
            "try:\n from packaging.requirements import Requirement as R\n"
            "except ImportError:\n from pip._vendor.packaging.requirements import Requirement as R\n"
            "for s in sys.argv[1:]:\n r = R(s)\n"
            " try: v = m.version(r.name)\n"
            " except m.PackageNotFoundError: sys.exit(4)\n"
            " if not r.specifier.contains(v, prereleases=True): sys.exit(4)\n"
        )
        return machine.run((self.python, "-I", "-c", code, *self.specs)).ok

    def before(self, machine: Machine, keep: Keep) -> dict[str, Any]:
        for text in (*self.specs, *self.pins):
            if not _SPEC.fullmatch(text):
                raise ActionError(f"{text!r} is not a plain requirement")
        for text in self.options:
            if not _OPTION.fullmatch(text):
                raise ActionError(f"{text!r} is not an option that is passed to pip")
        answer = machine.run(self._resolve(), timeout=LONG_S)
        if not answer.ok:
            raise ActionError(f"pip cannot resolve {' '.join(self.specs)}: {telling(answer)}")
        try:
            report = json.loads(answer.stdout)
            wanted = {r["metadata"]["name"]: r["metadata"]["version"] for r in report["install"]}
        except (ValueError, KeyError, TypeError):
            raise ActionError("pip's answer to --dry-run cannot be read; pip 22.2 or newer is needed") from None
        now = versions(machine, self.python)
        changes = {_plain(n): [now.get(_plain(n)), v] for n, v in wanted.items()}
        return {"python": self.python, "options": list(self.options), "changes": changes}

    def apply(self, machine: Machine, record: Mapping[str, Any]) -> dict[str, Any]:
        if record["changes"]:
            machine.must(_install(record), timeout=LONG_S)
        return {}

    def verify(self, machine: Machine) -> str | None:
        return None if self.already_done(machine) else f"{' '.join(self.specs)} is not satisfied afterwards"

    @classmethod
    def revert(cls, machine: Machine, run: Run, record: Mapping[str, Any], after: Mapping[str, Any]) -> Outcome:
        machine.outlive(_install(record))
        python, now = record["python"], versions(machine, record["python"])
        back: list[str] = []
        gone: list[str] = []
        kept: list[str] = []
        for name, (old, new) in record["changes"].items():
            have = now.get(name)
            if have == old:
                continue
            if have not in (new, None):
                kept.append(f"{name} {have}")
            elif old is None:
                gone.append(name)
            else:
                back.append(f"{name}=={old}")  # also when a kill left none of the two
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")
        if gone:
            machine.must((*pip, "uninstall", "-y", *gone), timeout=LONG_S)
        if back:
            machine.must((*pip, "install", "--no-deps", *record["options"], *back), timeout=LONG_S)
        if kept:
            return Outcome(True, f"{', '.join(kept)} was installed since, so it is kept")
        return Outcome()


def _install(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Exactly what was resolved, and nothing that pip would add to it."""
    exact = [f"{name}=={new}" for name, (_, new) in record["changes"].items()]
    pip = (record["python"], "-m", "pip", "--disable-pip-version-check", "--no-input")
    return (*pip, "install", "--no-deps", *record["options"], *exact)


def versions(machine: Machine, python: str) -> dict[str, str]:
    """Normalised name -> version of everything installed in the environment."""
    code = (
        "import json, importlib.metadata as m\n"
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}))"
    )
    found = json.loads(machine.must((python, "-I", "-c", code)).stdout)
    return {_plain(name): version for name, version in found.items()}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
