"""Does MTP draft and are drafts accepted: counters before and after a generation.

Acceptance is judged only as some or none: how much pays depends on the model, the card and the batch, and
needs a run without MTP beside it. On a CPU MTP is slower than plain decoding; that never counts.
"""

from __future__ import annotations

from typing import Any

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence
from doctor.serve import metrics as names
from doctor.serve.client import Answer
from doctor.smoke.probes import ABSTAIN, FAIL, PASS, RANDOM_WEIGHTS, Result, Session, rounded, unusable
from doctor.smoke.prompts import unique_text

NAME = "speculative"
TITLE = "MTP drafts"
TOKENS = 48
PROMPTS = 2
#: Drafts below which "none accepted" says nothing.
ENOUGH_DRAFTS = 20


def probe(session: Session) -> Result:
    """Generates from two prompts and reads acceptance by position."""
    if "draft_tokens" in session.unknown:
        return Result(NAME, ABSTAIN, "the server does not tell whether it speculates")
    if not session.draft_tokens:
        return Result(NAME, ABSTAIN, "MTP is not in use", asked=False)
    before = session.metrics()
    answers: list[Answer] = []
    for _ in range(PROMPTS):
        answer = session.client.complete(unique_text(), TOKENS, ignore_eos=True)
        if not answer.ok:
            return unusable(NAME, answer, f"a generation of {TOKENS} tokens failed")
        answers.append(answer)
    after = session.metrics()
    if before is None or after is None:
        return Result(NAME, ABSTAIN, "the counters of the server cannot be read")
    # a counter with labels appears with its first event: absent before means 0
    drafts = _grown(after, before, names.DRAFTS)
    drafted = _grown(after, before, names.DRAFT_TOKENS)
    accepted = _grown(after, before, names.ACCEPTED_TOKENS)
    speed = [a.decode_tokens_per_s for a in answers]
    generated = sum(a.completion_tokens or 0 for a in answers)
    measured: dict[str, Any] = {
        "generated_tokens": generated,
        "drafts": drafts,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_per_position": _per_position(after, before, drafts),
        "mean_acceptance_length": rounded(1 + accepted / drafts) if drafts and accepted is not None else None,
        "decode_tokens_per_s": [rounded(s, 1) for s in speed],
    }
    expected = {"drafts": "above 0", "accepted_tokens": "above 0", "positions": session.draft_tokens}
    if drafts is None:
        # the counters exist in every version that speculates; other names would be another program
        if after.samples:
            return _not_drafting("the server has no speculative counters", measured, expected)
        return Result(NAME, ABSTAIN, "the counters of the server cannot be read", measured, expected)
    if drafts == 0:
        return _not_drafting(f"{generated} tokens were generated and nothing was drafted", measured, expected)
    if not accepted and session.random_weights:
        return Result(NAME, ABSTAIN, RANDOM_WEIGHTS, measured, expected, asked=False)
    if not accepted and drafts >= ENOUGH_DRAFTS:
        return _not_drafting(f"none of {drafted:g} drafted tokens was accepted", measured, expected)
    if not accepted:
        return Result(NAME, ABSTAIN, f"only {drafts:g} drafts, too few to judge", measured, expected)
    rates = ", ".join(f"{r:.0%}" for r in measured["acceptance_per_position"].values())
    length = measured["mean_acceptance_length"]
    why = f"{drafts:g} drafts, accepted by position {rates}; {length:.2f} tokens a step"
    return Result(NAME, PASS, why, measured, expected)


def _grown(after: names.Metrics, before: names.Metrics, name: str) -> float | None:
    now = after.total(name)
    return None if now is None else now - (before.total(name) or 0.0)


def _per_position(after: names.Metrics, before: names.Metrics, drafts: float | None) -> dict[str, float]:
    earlier = before.by(names.ACCEPTED_PER_POSITION, "position")
    later = after.by(names.ACCEPTED_PER_POSITION, "position")
    if not drafts:
        return {}
    return {p: round((later[p] - earlier.get(p, 0.0)) / drafts, 4) for p in sorted(later, key=_number)}


def _number(position: str) -> int:
    return int(position) if position.isdigit() else -1


def _not_drafting(why: str, measured: dict[str, Any], expected: dict[str, Any]) -> Result:
    finding = found(
        "mtp-not-drafting",
        Confidence.PROVEN,
        f"{why[0].upper()}{why[1:]}.",
        [
            Evidence("speculative.drafts", str(measured["drafts"]), f"/metrics {names.DRAFTS}"),
            Evidence(
                "speculative.accepted", str(measured["accepted_tokens"]), f"/metrics {names.ACCEPTED_TOKENS}"
            ),
        ],
    )
    return Result(NAME, FAIL, why, measured, expected, finding)
