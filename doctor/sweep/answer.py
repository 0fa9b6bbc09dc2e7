"""What rows mean together: verdict and findings, for a sweep that just ran and for a file of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from doctor.checks.registry import Judgement
from doctor.codec import DecodeError, decode
from doctor.finding import Finding, Severity, Skipped, Verdict, order, verdict
from doctor.sweep.plan import Setup
from doctor.sweep.store import OK


def judge(
    rows: Iterable[Mapping[str, Any]], skipped: Sequence[tuple[str, str]] = (), before: Iterable[Finding] = ()
) -> Judgement:
    """Ready: every point ran, or was refused as predicted. Degraded: some did not. Blocked: none ran.

    A point that is refused as predicted leaves a note; one that is not costs, but the others stand.
    """
    rows = list(rows)
    ran = [r for r in rows if r.get("outcome") == OK]
    found: dict[str, Finding] = {f.id: f for f in before}
    for row in rows:
        for finding in _findings(row):
            shown = replace(finding, severity=_severity(row, finding, bool(ran)))
            shown = replace(shown, summary=f"{row.get('label')}: {shown.summary or shown.title}")
            known = found.get(shown.id)
            if known is None or shown.severity.rank < known.severity.rank:
                found[shown.id] = shown
    findings = order(found.values())
    left = tuple(Skipped(label, why) for label, why in skipped)
    word = verdict(findings, left)
    if rows and not ran and not _all_predicted(rows):
        word = Verdict.BLOCKED
    elif not rows and not findings:
        word = Verdict.UNKNOWN
    return Judgement(word, findings, tuple(str(r.get("label")) for r in ran), left)


def _all_predicted(rows: Sequence[Mapping[str, Any]]) -> bool:
    return all(_predicted_refusal(r) for r in rows)


def _predicted_refusal(row: Mapping[str, Any]) -> bool:
    return row.get("outcome") != OK and (row.get("predicted") or {}).get("fits") is False


def _severity(row: Mapping[str, Any], finding: Finding, others_ran: bool) -> Severity:
    if _predicted_refusal(row):
        return Severity.NOTE
    if finding.severity is Severity.BLOCKER and others_ran:
        return Severity.DEGRADES
    return finding.severity


def _findings(row: Mapping[str, Any]) -> list[Finding]:
    out = []
    for item in row.get("findings") or ():
        try:
            out.append(decode(Finding, item))
        except DecodeError:  # a row of another version of this program
            continue
    return out


def setup_of(row: Mapping[str, Any]) -> Setup | None:
    """The setup a row was measured with; None when it cannot be read."""
    try:
        return decode(Setup, row.get("setup"))
    except DecodeError:
        return None


def difference(row: Mapping[str, Any]) -> float | None:
    """By how many percent the real pool is larger than the predicted one."""
    value = (row.get("predicted") or {}).get("difference_percent")
    return float(value) if isinstance(value, (int, float)) else None
