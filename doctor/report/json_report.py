"""The ``--json`` answer of every command: one object, schema version 1."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from doctor.checks.registry import Check, Judgement
from doctor.finding import Finding, Remedy
from doctor.snapshot import Snapshot, dump

SCHEMA_VERSION = 1


def finding(item: Finding) -> dict[str, Any]:
    """One finding by the contract; ``symptoms`` only when it has some."""
    out: dict[str, Any] = {
        "id": item.id,
        "area": item.area,
        "severity": item.severity.value,
        "confidence": item.confidence.value,
        "title": item.title,
        "summary": item.summary,
        "cause": item.cause,
        "evidence": [{"fact": e.fact, "value": e.value, "source": e.source} for e in item.evidence],
        "excludes": list(item.excludes),
        "fixes": [_remedy(r) for r in item.fixes],
        "docs": item.docs,
    }
    if item.symptoms:
        out["symptoms"] = [finding(s) for s in item.symptoms]
    return out


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "summary": remedy.summary,
        "automatic": remedy.automatic,
        "commands": [list(c) for c in remedy.commands],
        "risk": remedy.risk.value,
        "verify": list(remedy.verify),
    }


def answer(
    command: str, judgement: Judgement, snapshot: Snapshot | None, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The answer as a dict. ``extra`` adds a command's own part, such as ``fit`` or ``smoke``."""
    out: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "verdict": judgement.verdict.value,
        "findings": [finding(f) for f in judgement.findings],
        "passed": list(judgement.passed),
        "skipped": [{"id": s.id, "why": s.why} for s in judgement.skipped],
        "waived": list(judgement.waived),
        **(extra or {}),
    }
    if snapshot is not None:
        out["snapshot"] = dump(snapshot)
    return out


def render(
    command: str, judgement: Judgement, snapshot: Snapshot | None, extra: Mapping[str, Any] | None = None
) -> str:
    """The answer as text for stdout."""
    return json.dumps(answer(command, judgement, snapshot, extra), indent=1, ensure_ascii=False) + "\n"


def check_list(checks: Iterable[Check]) -> str:
    """All checks for ``check --list --json``."""
    rows = [{"id": c.id, "summary": c.summary, "needs": list(c.needs), "kind": c.kind} for c in checks]
    return json.dumps({"schema_version": SCHEMA_VERSION, "command": "check", "checks": rows}, indent=1) + "\n"
