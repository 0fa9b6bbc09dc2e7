"""Decode speed of one stream against the ceiling that memory bandwidth sets, and what keeps it below.

Each step reads the weights once (:mod:`doctor.memory.roofline`). What a step takes beyond that read is launches,
the sampler, the scheduler and the way to the client. Measured on healthy servers with a 9B AWQ: 0.76 of the
ceiling on an RTX 2080 Ti (MTP 2, CUDA graphs: 7.1 ms a step beside the read), 0.6 without graphs (9.7 ms); on an
H200 0.40 (2.8 ms), with MTP 2 and prefix caching 0.31 (6.5 ms). So the share alone says little on a fast card or
with a small model: a step is slow when it is far from the ceiling and also takes long beside the read. On a CPU
the figure is shown only.
"""

from __future__ import annotations

import statistics
from typing import Any

from doctor.memory.layout import UnsupportedOption, lay_out
from doctor.memory.roofline import Ceiling, ceiling
from doctor.serve import metrics as names
from doctor.serve.client import Answer
from doctor.smoke.outlook import Outlook, outlook
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, rounded, unusable
from doctor.smoke.prompts import unique_text

NAME = "decode_speed"
TITLE = "decode speed of one stream"
TOKENS = 128
RUNS = 3
#: On a CPU: enough to see a figure.
CPU_TOKENS = 32
CPU_RUNS = 2
#: A step is slow below this share of the ceiling when it also takes so many seconds beside the read: about twice
#: what was measured on healthy servers.
LEAST_SHARE = 0.5
MOST_BESIDE_S = 0.008
MOST_BESIDE_DRAFT_S = 0.003  # more for each draft token
MOST_BESIDE_EAGER_S = 0.018
#: Clock limits that slow a card down, as NVML names them.
_THROTTLES = {
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
}


def probe(session: Session) -> Result:
    """Several generations after a short prompt, the acceptance meanwhile, and the ceiling for that."""
    tokens, runs = (CPU_TOKENS, CPU_RUNS) if session.cpu else (TOKENS, RUNS)
    before = session.metrics()
    answers: list[Answer] = []
    for _ in range(runs):
        answer = session.client.complete(unique_text(), tokens, ignore_eos=True)
        if not answer.ok:
            return unusable(NAME, answer, f"a generation of {tokens} tokens failed")
        answers.append(answer)
    speeds = [a.decode_tokens_per_s for a in answers if a.decode_tokens_per_s]
    if not speeds:
        return Result(NAME, ABSTAIN, "every answer came in one piece, so no speed can be taken", asked=False)
    known = outlook(session)
    return judge(session, speeds, _acceptance(session, before), known, answers[-1].prompt_tokens or 0)


def judge(
    session: Session, speeds: list[float], acceptance: float | None, known: Outlook | str, prompt_tokens: int
) -> Result:
    """``acceptance``: tokens a step while these were generated."""
    speed = statistics.median(speeds)
    measured: dict[str, Any] = {
        "tokens_per_s": rounded(speed, 2),
        "runs": [rounded(s, 2) for s in speeds],
        "tokens_a_step": rounded(acceptance),
    }
    shown = f"{speed:.1f} tokens/s"
    if isinstance(known, str) or session.cpu or known.card is None or not known.card.bandwidth:
        missing = _missing(session, known)
        return Result(
            NAME, ABSTAIN, f"{shown}; {missing}, so there is no ceiling to compare", measured, asked=False
        )
    if acceptance is None:
        return Result(NAME, ABSTAIN, f"{shown}; no counter tells how many drafts count", measured, asked=False)
    try:
        kept = lay_out(known.model.shape, known.options, known.version).kept_token_bytes
    except UnsupportedOption as error:
        return Result(NAME, ABSTAIN, f"{shown}; {error}", measured, asked=False)
    eager = known.settings.enforce_eager
    top = ceiling(
        known.model.weights, kept, prompt_tokens + TOKENS // 2, known.card.bandwidth,
        draft_tokens=session.draft_tokens, acceptance=acceptance, eager=eager, tp=known.options.tp,
    )  # fmt: skip
    return _against(top, known.card.bandwidth, speed, known, measured)


def _against(top: Ceiling, bandwidth: float, speed: float, known: Outlook, measured: dict[str, Any]) -> Result:
    step, read = top.acceptance / speed, top.step_bytes / bandwidth
    most, share = top.acceptance / read, read / step
    eager = known.settings.enforce_eager
    throttles = sorted(_THROTTLES & set((known.gpu.throttle_reasons if known.gpu else None) or ()))
    measured |= {
        "ceiling_tokens_per_s": rounded(most, 1),
        "share_of_ceiling": rounded(share),
        "step_ms": rounded(step * 1e3, 2),
        "read_ms": rounded(read * 1e3, 2),
        "beside_ms": rounded((step - read) * 1e3, 2),
        "step_gb": rounded(top.step_bytes / 1e9),
        "throttle_reasons": throttles,
    }
    beside = MOST_BESIDE_EAGER_S if eager else MOST_BESIDE_S
    beside += MOST_BESIDE_DRAFT_S * known.options.draft_tokens
    expected = {"share_of_ceiling": f"{LEAST_SHARE:g} or more", "beside_ms": f"or up to {beside * 1e3:g}"}
    why = f"{speed:.1f} tokens/s, {share:.0%} of the {most:.0f} that the memory's bandwidth allows; "
    why += f"a step takes {step * 1e3:.1f} ms, {read * 1e3:.1f} of it to read {top.step_bytes / 1e9:.2f} GB: "
    if share > 1.05:
        # nothing reads faster than the memory is: the table or the size is wrong, not the server
        return Result(
            NAME, ABSTAIN, f"{why}more than can be, so the ceiling is wrong", measured, expected, asked=False
        )
    if share >= LEAST_SHARE or step - read <= beside:
        limit = "the bandwidth limits" if read > step / 2 else "launches and the scheduler limit"
        return Result(NAME, PASS, f"{why}{limit}", measured, expected)
    if throttles:
        limit = f"the card is throttled ({', '.join(throttles)})"
    elif eager:
        limit = "launching kernels one by one limits (--enforce-eager)"
    else:
        limit = "something beside the card limits: a busy or slow CPU, or another process on the card"
    return Result(NAME, ADVISE, f"{why}{limit}", measured, expected)


def _missing(session: Session, known: Outlook | str) -> str:
    if session.shared and isinstance(known, str):
        return "what the server runs on is not known"
    if session.cpu:
        return "it runs on a CPU"
    if isinstance(known, str):
        return known
    if known.card is None:
        return "the driver does not tell of the card"
    return f"the bandwidth of {known.card.name} is not in the table of cards"


def _acceptance(session: Session, before: names.Metrics | None) -> float | None:
    """Tokens a step from the counters; 1 without drafts, None when it cannot be told."""
    if not session.draft_tokens:
        return 1.0
    after = session.metrics()
    if before is None or after is None:
        return None
    drafts, accepted = after.since(before, names.DRAFTS), after.since(before, names.ACCEPTED_TOKENS)
    return 1 + accepted / drafts if drafts and accepted is not None else None
