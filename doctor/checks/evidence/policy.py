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
    """driver-too-old-for-cuda-build glibc-too-old gpu-compute-capability-unsupported gpu-dropped-by-cuda13
    gpu-too-new-for-torch-build cpu-only-torch wsl2-kernel-outdated wsl2-linux-driver-installed
    wsl2-windows-without-gpu-support pynvml-shim-installed""".split()
)

#: Causes that cannot be when CUDA worked in the same report.
_NEEDS_NO_CUDA = frozenset({"driver-too-old-for-cuda-build", "cpu-only-torch"})


def limit(finding: Finding, s: Snapshot) -> Finding:
    """The finding as sure as a text allows."""
    if finding.confidence is PROVEN and finding.id not in _STAY_PROVEN:
        finding = replace(finding, confidence=LIKELY)
    if finding.id in _NEEDS_NO_CUDA:
        worked = next((e for e in events(s, "report.cuda-available") if e.values["value"] == "True"), None)
        if worked:
            finding = lower(lower(finding, "yet CUDA was available", quote(worked)), "so this is unsure")
    used = {row.fact for row in finding.evidence}
    for event in events(s, "contradiction"):
        if event.values["fact"] in used:
            return lower(finding, f"the texts contradict each other: {event.text}", quote(event))
    return finding
