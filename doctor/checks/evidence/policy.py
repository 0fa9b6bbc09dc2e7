"""How sure a check of facts may be when the facts come from a pasted text.

A text shows a part of a machine at one moment: packages may be of another environment, a list of cards may be
cut. What is wrong whatever else is there stays proven (a driver too old for the build, a card without code);
the rest is likely at most. Facts that contradict each other, or what happened, make a finding less sure.
"""

from __future__ import annotations

from dataclasses import replace

from doctor.checks.evidence.common import LIKELY, PROVEN, events, lower, quote
from doctor.finding import Finding
from doctor.snapshot import Snapshot

#: Causes that facts alone prove, even facts read from a text.
_STAY_PROVEN = frozenset(
    """driver-too-old-for-cuda-build gpu-compute-capability-unsupported gpu-too-new-for-torch-build cpu-only-torch
    wsl2-linux-driver-installed wsl2-windows-without-gpu-support
    pynvml-shim-installed""".split()
)

#: Causes that cannot be when CUDA worked in the same report.
_NEEDS_NO_CUDA = frozenset({"driver-too-old-for-cuda-build", "cpu-only-torch"})


def limit(finding: Finding, s: Snapshot) -> Finding:
    """The finding as sure as a text allows."""
    if finding.confidence is PROVEN and not (finding.id in _STAY_PROVEN and _one_passage(finding, s)):
        finding = replace(finding, confidence=LIKELY)
    if finding.id in _NEEDS_NO_CUDA:
        available = events(s, "report.cuda-available")
        worked = next((e for e in available if e.values["value"] == "True"), None)
        if worked:
            return lower(lower(finding, "yet CUDA was available", quote(worked)), "so this is unsure")
        if not available and finding.confidence is PROVEN:
            finding = replace(finding, confidence=LIKELY)  # that CUDA failed is not shown
    used = {row.fact for row in finding.evidence}
    for event in events(s, "contradiction"):
        if event.values["fact"] in used:
            return lower(finding, f"the texts contradict each other: {event.text}", quote(event))
    return finding


#: Lines of a report that belong together; facts further apart may be of different machines.
_PASSAGE = 120
#: The same for the output of two commands.
_COMMANDS = 8


def _one_passage(finding: Finding, s: Snapshot) -> bool:
    """Whether all facts that the finding rests on stand near each other in one text."""
    rows = list(finding.evidence)
    most = _PASSAGE
    if finding.id == "wsl2-linux-driver-installed" and s.wsl:
        if s.wsl.kernel is None:
            return False  # that it is WSL is known from somewhere else
        rows.append(s.evidence("wsl.kernel"))
        most = _COMMANDS
    places = [row.source.split(" ", 1)[0].rpartition(":") for row in rows]
    known = [(name, int(line)) for name, _, line in places if name and line.isdigit()]
    lines = [line for _, line in known]
    return len({name for name, _ in known}) <= 1 and (not lines or max(lines) - min(lines) <= most)
