"""The parts of ``explain``'s ``--json`` answer that other commands do not have. Imports nothing that draws."""

from __future__ import annotations

import json
from typing import Any

from doctor import catalogue
from doctor.evidence.load import Reading


def texts_json(reading: Reading) -> list[dict[str, Any]]:
    """What each text was, for the ``--json`` answer."""
    return [
        {
            "name": t.name,
            "kinds": [{"kind": k.label, "line": k.line, "detail": k.detail} for k in t.kinds],
            "lines": t.lines,
            "bytes": t.bytes,
            "layers": list(t.layers),
            "damage": list(t.damage),
            "telling": [{"line": e.line, "text": e.text} for e in t.telling],
        }
        for t in reading.texts
    ]


def page(cause_id: str) -> dict[str, Any]:
    """Everything the catalogue knows of one cause."""
    from doctor.catalogue.render import messages_of

    entry = catalogue.cause(cause_id)
    return {
        "id": entry.id,
        "area": entry.area,
        "severity": entry.severity.value,
        "title": entry.title,
        "cause": entry.cause,
        "decisive": list(entry.decisive),
        "hints_only": list(entry.hints_only),
        "messages": [{"text": text, "confidence": sure.value} for text, sure in messages_of(cause_id)],
        "fixes": [
            {
                "summary": r.summary,
                "automatic": r.automatic,
                "risk": r.risk.value,
                "commands": [list(c) for c in r.commands],
                "verify": list(r.verify),
            }
            for r in entry.remedies
        ],
        "wrong_fixes": list(entry.wrong_fixes),
        "look_alikes": list(entry.look_alikes),
        "since": entry.since,
        "until": entry.until,
        "sources": list(entry.sources),
        "docs": f"docs/troubleshooting.md#{entry.id}",
    }


def page_json(cause_id: str) -> str:
    """The page as the ``--json`` answer."""
    return (
        json.dumps(
            {"schema_version": 1, "command": "explain", "cause": page(cause_id)}, indent=1, ensure_ascii=False
        )
        + "\n"
    )
