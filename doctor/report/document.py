"""What a report shows, taken from the JSON answers of commands: the form that both HTML and Markdown draw.

An answer is what ``--json`` printed, fresh or from a file. Nothing is judged here; texts are redacted before
they come here (see :mod:`doctor.commands.report`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor import __version__
from doctor.report import sweep_view
from doctor.report.fit_parts import fit_tables, fits
from doctor.report.issue import Issue, describe
from doctor.report.machine import machine_rows
from doctor.report.parts import Bars, Table, dicts
from doctor.report.plot import Plot
from doctor.report.reproduce import reproduce
from doctor.report.smoke_parts import predicted, smoke_parts
from doctor.snapshot import Snapshot, SnapshotError, loads

_VERDICTS = ("blocked", "degraded", "unknown", "ready")


@dataclass
class Document:
    """Everything a report shows, in its order.

    ``headline``: the verdict in words; ``logs``: (name, text); ``commands``: shell lines.
    """

    verdict: str
    headline: str
    commands_run: tuple[str, ...]
    machine: tuple[tuple[str, str], ...] = ()
    findings: list[Mapping[str, Any]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    passed: int = 0
    tables: list[Table] = field(default_factory=list)
    bars: list[Bars] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    logs: list[tuple[str, str]] = field(default_factory=list)
    reproduce: list[str] = field(default_factory=list)
    issue: Issue = field(default_factory=Issue)
    version: str = __version__
    made: str = ""


def build(answers: Sequence[Mapping[str, Any]], logs: Sequence[tuple[str, str]] = (), made: str = "") -> Document:
    """One document from one or several answers."""
    verdicts = [str(a.get("verdict")) for a in answers]
    worst = next((v for v in _VERDICTS if v in verdicts), "unknown")
    out = Document(
        worst,
        _headline(answers, worst),
        tuple(str(a.get("command") or "check") for a in answers),
        logs=list(logs),
        made=made,
    )
    seen: set[str] = set()
    for answer in answers:
        for item in dicts(answer.get("findings")):
            if str(item.get("id")) not in seen:
                seen.add(str(item.get("id")))
                out.findings.append(item)
        out.skipped += [(str(s.get("id")), str(s.get("why"))) for s in dicts(answer.get("skipped"))]
        out.passed += len(answer.get("passed") or ())
        out.machine = out.machine or _machine(answer)
        tables, bars = smoke_parts(answer)
        out.tables += tables
        out.bars += bars
        out.tables += fit_tables(answer)
        _sweep(answer, out)
        out.reproduce += reproduce(answer)
    out.tables += predicted(answers)
    out.issue = describe(answers, worst, out.findings)
    return out


def _headline(answers: Sequence[Mapping[str, Any]], verdict: str) -> str:
    """The verdict; of predictions alone what they say, since nothing was started that could be blocked."""
    known = {f.get("fits") for a in answers for f in fits(a)}
    if not known or not all(fits(a) for a in answers):
        return verdict
    return "fits" if True in known else "close" if None in known else "does not fit"


def _machine(answer: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    snapshot = answer.get("snapshot")
    if not isinstance(snapshot, dict):
        return ()
    try:
        facts = loads(json.dumps(snapshot))
    except SnapshotError:
        return ()
    return (*machine_rows(facts), *_topology(facts))


def _topology(facts: Snapshot) -> list[tuple[str, str]]:
    """How many cards there are and how each is attached: `nvidia-smi topo -m` shows no more of one card."""
    if facts.gpus is None:
        return []
    lines = [f"{len(facts.gpus)} GPU{'' if len(facts.gpus) == 1 else 's'}"]
    for gpu in facts.gpus:
        width = f"x{gpu.pcie_width} of x{gpu.pcie_width_max}" if gpu.pcie_width and gpu.pcie_width_max else ""
        link = (
            f"PCIe generation {gpu.pcie_gen} of {gpu.pcie_gen_max} {width}" if gpu.pcie_gen else "link not known"
        )
        screen = "a display is attached" if gpu.display_active else ""
        lines.append(", ".join(part for part in (f"{gpu.index}: {link.strip()}", screen) if part))
    return [("topology", "\n".join(lines))]


def _sweep(answer: Mapping[str, Any], out: Document) -> None:
    sweep = answer.get("sweep")
    if not isinstance(sweep, dict):
        return
    rows = dicts(sweep.get("rows"))
    setup = sweep.get("setup") or {}
    where = f"vLLM {setup.get('vllm')} on {setup.get('card') or setup.get('cpu') or 'a CPU'}"
    if rows:
        out.tables.append(Table(f"Sweep: {where}", *sweep_view.table(rows)))
    compared = sweep_view.comparison(rows)
    if compared:
        out.tables.append(Table(f"Predicted and measured: {where}", sweep_view.COMPARED, compared))
    out.plots += sweep_view.plots(rows)
