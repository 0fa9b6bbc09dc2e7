"""Findings for a server that did not become ready, or died when it was asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from doctor.checks.registry import found, judge
from doctor.evidence import read_evidence
from doctor.finding import Confidence, Evidence, Finding
from doctor.serve.death import LIMIT, Death, explain
from doctor.serve.server import Exit
from doctor.serve.watch import Readiness

__all__ = ["LIMIT", "died_on_request", "not_ready"]


def not_ready(ready: Readiness, log: Path, timeout_s: float) -> list[Finding]:
    """Why /health never answered: the root cause first when the log shows it."""
    if ready.state == "timeout":
        quiet = f"its log is silent for {ready.quiet_s:.0f} s" if ready.quiet_s > 10 else "its log still moves"
        return _under_causes(
            found(
                "server-never-healthy",
                Confidence.PROVEN,
                f"Not ready after {timeout_s:g} s: it stopped in the phase {ready.phase!r}, {quiet}. "
                f"Look at: {ready.hint}.",
                [
                    Evidence("server.phase", ready.phase, str(log)),
                    Evidence("server.last_line", ready.last_line or "none", str(log)),
                ],
            ),
            log,
        )
    death = explain(log, ready.exit)
    hung = "its engine had failed, and the rest of it hung until it was ended"
    how = ready.exit.text if ready.exit else hung
    summary = f"The server ended while {ready.phase} ({how}): {death.text}"
    ended = found("server-died-while-loading", Confidence.PROVEN, summary, _evidence(log, death, how))
    return _under_causes(ended, log)


def died_on_request(log: Path, ended: Exit | None, during: str) -> list[Finding]:
    """Why a healthy server died: the root cause first when the log shows it."""
    how = ended.text if ended else "its engine is dead"
    death = explain(log, ended)
    summary = f"/health answered, then the server died in the probe {during!r} ({how}): {death.text}"
    return _under_causes(
        found("server-died-on-request", Confidence.PROVEN, summary, _evidence(log, death, how)), log
    )


def _under_causes(ended: Finding, log: Path) -> list[Finding]:
    """The root causes that ``explain`` would find in this log, the end of the server folded under the first."""
    causes = [f for f in judge(read_evidence([str(log)]).snapshot).findings if f.blocks and f.id != ended.id]
    if not causes:
        return [ended]
    first = causes[0]
    summary = f"{first.summary or first.title} {ended.summary}"
    return [replace(first, summary=summary, symptoms=(*first.symptoms, ended)), *causes[1:]]


def _evidence(log: Path, death: Death, how: str) -> list[Evidence]:
    place = f"{log}:{death.line}" if death.line else str(log)
    return [
        Evidence("server.exit", how, "process"),
        Evidence("server.cause", death.text, place),
        *(Evidence("server.last_line", line, str(log)) for line in death.last_lines[-3:]),
    ]
