"""Does MTP pay here: decode speed of one stream with it and without it, on servers that differ in nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence
from doctor.smoke.ab import Run
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, rounded

NAME = "mtp_speed"
#: Below this ratio MTP counts as slower, above its inverse as faster, when no single runs overlap.
CLEARLY = 0.97


def judge(runs: Sequence[Run], *, cpu: bool, mean_length: float | None) -> Result:
    """``runs`` with the chosen settings last. ``mean_length``: tokens a step, from the counters."""
    with_mtp = runs[-1]
    without = next(
        (
            r
            for r in runs
            if not r.config.draft_tokens and r.config.prefix_caching == with_mtp.config.prefix_caching
        ),
        None,
    )
    measured: dict[str, Any] = {
        "tokens_per_s": {r.config.name: rounded(r.speed, 2) for r in runs},
        "runs": {r.config.name: [rounded(s, 2) for s in r.speeds] for r in runs},
        "mean_acceptance_length": mean_length,
    }
    if not with_mtp.config.draft_tokens:
        return Result(NAME, ABSTAIN, "MTP is not in use", measured, asked=False)
    if without is None or without.speed is None or with_mtp.speed is None:
        return Result(NAME, ABSTAIN, "no speed without MTP to compare with", measured, asked=False)
    ratio = with_mtp.speed / without.speed
    measured["ratio"] = rounded(ratio)
    figures = f"{with_mtp.speed:.1f} tokens/s with {with_mtp.config.draft_tokens} draft tokens, "
    figures += f"{without.speed:.1f} without ({ratio:.2f} times)"
    if mean_length is not None:
        figures += f"; {mean_length:.2f} tokens a step"
    expected = {"ratio": "above 1"}
    # single runs of one side that overlap the other's are no clear difference
    slower = ratio < CLEARLY and max(with_mtp.speeds) < min(without.speeds)
    faster = ratio > 1 / CLEARLY and min(with_mtp.speeds) > max(without.speeds)
    if not slower:
        how = "makes it faster" if faster else "makes no clear difference"
        return Result(NAME, PASS, f"MTP {how} here: {figures}", measured, expected)
    why = f"MTP makes it slower here: {figures}"
    if cpu:
        return Result(NAME, ADVISE, f"{why}; a CPU says nothing about a card", measured, expected)
    finding = found(
        "mtp-slower-than-baseline",
        Confidence.PROVEN,
        f"{why}.",
        [
            Evidence("mtp_speed.with", str(measured["runs"][with_mtp.config.name]), "tokens/s, one stream"),
            Evidence("mtp_speed.without", str(measured["runs"][without.config.name]), "tokens/s, one stream"),
        ],
    )
    return Result(NAME, ADVISE, why, measured, expected, finding)
