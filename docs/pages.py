"""What the scripts that write pages share: tables, figures as text, and what the doctor says about a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from doctor.memory.start_check import GIB

ROOT = Path(__file__).resolve().parent.parent


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table and an empty line."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(r)} |" for r in rows), ""]


def gib(value: float) -> str:
    """Bytes as GiB."""
    return f"{value / GIB:.2f} GiB"


def share(value: float) -> str:
    """A share as a whole percentage."""
    return f"{value * 100:.0f} %"


def difference(reported: float, computed: float) -> str:
    """How far the report is from the model."""
    off = reported / computed - 1
    return "equal" if abs(off) < 0.0005 else f"{off * 100:+.1f} %"


def causes(text: str) -> list[tuple[str, str]]:
    """(cause, confidence) of what the doctor says about these lines of a log."""
    from doctor.checks.registry import judge, registered
    from doctor.evidence.scan import scan
    from doctor.snapshot import Snapshot

    lines = [f"{line}\n".encode() for line in text.splitlines()]
    events = tuple(scan(lines, "message").events)
    found = judge(Snapshot(origin="evidence", events=events), registered()).findings
    return [(f.id, f.confidence.value) for f in found]
