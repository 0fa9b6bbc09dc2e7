"""Reads the catalogue and its tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from doctor.finding import Remedy, Risk, Severity

_HERE = Path(__file__).parent

#: Areas in reading order; each has a file of the same name.
AREAS = (
    "host", "wsl", "compiler", "driver", "gpu", "memory", "container", "image", "python", "network", "storage",
    "model", "serving",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """One root cause.

    ``decisive`` says what proves it, ``hints_only`` what is seen with it and proves nothing,
    ``symptom_of`` names causes that explain it when they are found too.
    """

    id: str
    area: str
    severity: Severity
    title: str
    cause: str
    decisive: tuple[str, ...] = ()
    hints_only: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    wrong_fixes: tuple[str, ...] = ()
    look_alikes: tuple[str, ...] = ()
    symptom_of: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    sources: tuple[str, ...] = ()


@cache
def _area(area: str) -> dict[str, Cause]:
    data = json.loads((_HERE / f"{area}.json").read_text(encoding="utf-8"))
    return {c.id: c for c in (_cause(area, entry) for entry in data["causes"])}


def _cause(area: str, entry: dict[str, Any]) -> Cause:
    remedies = tuple(
        Remedy(
            summary=fix["step"],
            automatic=fix["auto"],
            commands=tuple(tuple(c) for c in fix.get("commands", ())),
            risk=Risk(fix.get("risk", "safe" if fix["auto"] else "manual")),
            verify=tuple(fix.get("verify", ())),
        )
        for fix in entry.get("fix", ())
    )
    lists = ("decisive", "hints_only", "wrong_fixes", "look_alikes", "symptom_of", "messages", "sources")
    return Cause(
        id=entry["id"],
        area=area,
        severity=Severity(entry["severity"]),
        title=entry["title"],
        cause=entry["cause"],
        remedies=remedies,
        since=entry.get("since"),
        until=entry.get("until"),
        **{name: tuple(entry.get(name, ())) for name in lists},
    )


def all_causes() -> tuple[Cause, ...]:
    """Every cause, by area."""
    return tuple(c for area in AREAS for c in _area(area).values())


@cache
def _index() -> dict[str, Cause]:
    return {c.id: c for c in all_causes()}


def cause(cause_id: str) -> Cause:
    """One cause by its id. Raises KeyError."""
    return _index()[cause_id]


@cache
def table(name: str) -> Any:
    """The ``data`` of one table (``doctor/catalogue/tables/NAME.json``), which also carries source and date."""
    return json.loads((_HERE / "tables" / f"{name}.json").read_text(encoding="utf-8"))["data"]
