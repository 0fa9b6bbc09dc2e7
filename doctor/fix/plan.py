"""The plan: what would be done, as one document. Nothing here changes anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from doctor.checks.container_way import CAUSE as SHORTER_WAY
from doctor.checks.registry import Judgement
from doctor.finding import Confidence, Finding, Severity
from doctor.fix import container as container_plan
from doctor.fix.action import Action
from doctor.fix.draft import Draft
from doctor.fix.machine import Machine
from doctor.fix.recipes import plan_finding
from doctor.host.access import Host
from doctor.snapshot import Snapshot

#: Version of the plan document.
VERSION = 1


@dataclass(frozen=True)
class Plan:
    """Ordered actions. ``left`` names findings that get no step, each with the reason."""

    actions: tuple[Action, ...]
    left: Mapping[str, str]
    fingerprint: str
    only: tuple[str, ...] = ()
    container: bool = False  # the container way was chosen: host repairs that the image replaces are left

    @property
    def id(self) -> str:
        """Short name; the same for the same plan from the same facts."""
        return f"plan-{self.fingerprint[:12]}"

    def dump(self, machine: Machine) -> dict[str, Any]:
        """The document of ``--json`` and ``--save``."""
        return {
            "schema_version": VERSION,
            "id": self.id,
            "facts_fingerprint": self.fingerprint,
            "only": list(self.only),
            **({"container": True} if self.container else {}),
            "actions": [_action(a, machine) for a in self.actions],
            "left": [{"id": i, "why": why} for i, why in self.left.items()],
        }


def _action(action: Action, machine: Machine) -> dict[str, Any]:
    shown = action.preview(machine)
    out: dict[str, Any] = {
        "id": action.id,
        "kind": action.kind,
        "for": list(action.causes),
        "summary": action.summary,
        "commands": [list(c) for c in shown.commands],
        "risk": action.risk.value,
        "root": action.root,
        "manual": action.manual,
        "depends_on": list(action.depends_on),
        "needs": list(action.needs),
        "notes": list(shown.notes),
    }
    if shown.diff:
        out["diff"] = shown.diff
    return out


def wanted(finding: Finding, only: Collection[str]) -> str | None:
    """None when the finding is to be repaired, else why it is left alone."""
    if only:
        return None if finding.id in only else "not asked for"
    if finding.severity is Severity.NOTE:
        return "only a note"
    if finding.confidence is Confidence.HINT and finding.severity is not Severity.BLOCKER:
        return "only a hint"
    return None


def make(
    snapshot: Snapshot,
    judgement: Judgement,
    host: Host,
    *,
    is_root: bool,
    only: Collection[str] = (),
    container: bool = False,
) -> Plan:
    """The plan for what was found. The snapshot must not be redacted: paths are taken from it.

    ``container``: repair the container engine only, and leave what the image replaces. Raises DoctorError when no
    image could run here.
    """
    draft = Draft(snapshot, host, is_root)
    planned: list[Finding] = []
    if container:
        container_plan.must_be_possible(snapshot)
    for finding in _asked(judgement.findings, only):
        why = container_plan.wanted(snapshot, finding) if container else wanted(finding, only)
        if why is None:
            planned.append(finding)
            plan_finding(draft, finding)
        elif container:
            draft.left[finding.id] = why
        elif not only:
            option = "--container" if finding.id == SHORTER_WAY else f"--only {finding.id}"
            draft.left[finding.id] = f"{why}; `vllm-doctor fix {option}` plans it"
    actions = tuple(draft.actions())
    near = container_plan.open_way(snapshot)
    if container:
        draft.left.pop(SHORTER_WAY, None)
        actions = (*actions, container_plan.step(snapshot, near, planned=planned))
    elif near is not None and (instead := container_plan.by_hand(snapshot, planned, actions)):
        draft.left.pop(SHORTER_WAY, None)
        actions = (*actions, container_plan.step(snapshot, near, instead_of=instead))
    facts = {
        "version": VERSION,
        "only": sorted(only),
        **({"container": True} if container else {}),
        "machine": _machine(snapshot, is_root),
        "actions": [{"id": a.id, "kind": a.kind, "for": sorted(a.causes), "facts": a.facts()} for a in actions],
    }
    text = json.dumps(facts, sort_keys=True, ensure_ascii=True)
    return Plan(actions, draft.left, hashlib.sha256(text.encode()).hexdigest(), tuple(only), container)


def _asked(findings: Iterable[Finding], only: Collection[str]) -> Iterator[Finding]:
    """The findings; those folded below another too when they are asked for by name."""
    for finding in findings:
        yield finding
        yield from (f for f in _asked(finding.symptoms, only) if f.id in only)


def _machine(s: Snapshot, is_root: bool) -> dict[str, Any]:
    """Facts that a plan stands on whatever is in it; none that change from minute to minute."""
    return {
        "root": is_root,
        "system": [s.system.os_id, s.system.os_version, s.system.arch] if s.system else None,
        "wsl": s.wsl.version if s.wsl else None,
        "container": s.in_container,
        "python": [s.python.executable, s.python.vllm, s.python.torch] if s.python else None,
        "driver": s.driver.version if s.driver else None,
        "cards": [g.name for g in s.gpus or ()],
    }
