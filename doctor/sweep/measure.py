"""What one healthy server of a sweep is asked: speed of prefill and decoding, drafts, cached tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from doctor.serve.client import Answer, ServerError
from doctor.smoke.probes import FAIL, Result, Session, prefix_cache, rounded, speculative
from doctor.smoke.prompts import unique_prompt

#: Tokens of the answers whose speed counts, and how many of them; as in the A/B of the smoke test.
DECODE_TOKENS = 96
ROUNDS = 3
#: Tokens of the prompts whose speed counts: two batches of the usual size, where the context allows it.
PREFILL_TOKENS = 4096
#: Tokens of a short prompt.
SHORT = 24


class Unanswered(Exception):
    """A request brought no whole answer."""

    def __init__(self, during: str, error: str) -> None:
        super().__init__(f"{during}: {error}")


@dataclass
class Figures:
    """What was measured, by the names of the row, and what the probes said on the way."""

    values: dict[str, Any] = field(default_factory=dict)
    failed: list[Result] = field(default_factory=list)


def measure(session: Session, sequences: int, say: Callable[[str], None]) -> Figures:
    """Asks everything. Raises Unanswered at the first request that brings no whole answer."""
    out = Figures()
    say("first requests")
    _decode(session, 1)  # kernels that are compiled by the first requests are not the server's speed
    _prefill(session)
    say("prefill speed")
    rates = []
    for _ in range(ROUNDS):
        answer = _prefill(session)
        if answer.prompt_tokens and answer.ttft_s:
            rates.append((answer.prompt_tokens / answer.ttft_s, answer.ttft_s, answer.prompt_tokens))
    if rates:
        middle = sorted(rates)[len(rates) // 2]
        out.values |= {
            "prefill_tokens_per_s": rounded(middle[0], 1),
            "prefill_prompt_tokens": middle[2],
            "prefill_ttft_s": rounded(middle[1]),
        }
    say("decode speed")
    speeds, first, whole = [], [], []
    for _ in range(ROUNDS):
        (answer,) = _decode(session, 1)
        if answer.decode_tokens_per_s:
            speeds.append(answer.decode_tokens_per_s)
            whole.append((answer.completion_tokens or 0) / answer.total_s)
        if answer.ttft_s is not None:
            first.append(answer.ttft_s)
    out.values["decode_tokens_per_s"] = rounded(statistics.median(speeds), 2) if speeds else None
    out.values["decode_runs"] = [rounded(s, 2) for s in speeds]
    out.values["ttft_s"] = rounded(statistics.median(first)) if first else None
    if sequences > 1:
        say(f"{sequences} sequences at once")
        out.values["together_tokens_per_s"] = rounded(_together(session, sequences), 2)
    else:  # counted as for several: with the time to the first token
        out.values["together_tokens_per_s"] = rounded(statistics.median(whole), 2) if whole else None
    for module in (speculative, prefix_cache):
        say(module.TITLE)
        result = module.probe(session)
        _keep(result, out)
    return out


def _together(session: Session, sequences: int) -> float | None:
    """Median tokens a second over all sequences, from the first request sent to the last token."""
    rates = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        answers = _decode(session, sequences)
        seconds = time.monotonic() - began
        rates.append(sum(a.completion_tokens or 0 for a in answers) / seconds)
    return statistics.median(rates) if rates else None


def _decode(session: Session, at_once: int) -> list[Answer]:
    length = max(1, min(DECODE_TOKENS, session.max_model_len - SHORT))
    try:
        prompts = [unique_prompt(session.client, SHORT) for _ in range(at_once)]
    except ServerError as error:
        raise Unanswered("making a prompt", str(error)) from None

    def ask(prompt: list[int]) -> Answer:
        return session.client.complete(prompt, length, ignore_eos=True)

    if at_once == 1:
        answers = [ask(prompts[0])]
    else:
        with ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(ask, prompts))
    bad = next((a for a in answers if not a.ok), None)
    if bad is not None:
        raise Unanswered(f"a generation of {length} tokens", bad.error or "no whole answer")
    return answers


def _prefill(session: Session) -> Answer:
    length = max(1, min(PREFILL_TOKENS, session.max_model_len - 2))
    try:
        prompt = unique_prompt(session.client, length)
    except ServerError as error:
        raise Unanswered("making a prompt", str(error)) from None
    answer = session.client.complete(prompt, 1, ignore_eos=True)
    if not answer.ok:
        raise Unanswered(f"a prompt of {length} tokens", answer.error or "no whole answer")
    return answer


def _keep(result: Result, out: Figures) -> None:
    measured = result.measured
    if result.finding is not None and result.finding.id == "server-gives-no-answer":
        raise Unanswered(result.name, str(measured.get("error")))
    if result.status == FAIL:
        out.failed.append(result)
    if result.name == speculative.NAME:
        out.values["acceptance_per_position"] = measured.get("acceptance_per_position") or None
        out.values["mean_acceptance_length"] = measured.get("mean_acceptance_length")
    else:
        out.values["cached_tokens"] = measured.get("cached_tokens")
        out.values["cache_ttft_s"] = measured.get("ttft_s")
