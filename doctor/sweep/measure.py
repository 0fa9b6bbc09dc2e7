"""What one healthy server of a sweep is asked: the smoke test's probes, and several requests at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from doctor.serve.client import Answer
from doctor.smoke import usage
from doctor.smoke.probes import (
    FAIL,
    Result,
    Session,
    decode_speed,
    prefill_speed,
    prefix_cache,
    rounded,
    speculative,
)
from doctor.smoke.prompts import unique_text

#: Rounds of requests at once; their median counts.
ROUNDS = 3
_GIB = 1 << 30


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
    # kernels that the first requests compile are not the server's speed: nothing is timed before both shapes,
    # a short prompt and one of several blocks, were asked
    _together(session, sequences, 1)
    for module in (prefix_cache, prefill_speed, decode_speed, speculative):
        say(module.TITLE)
        _keep(module.probe(session), out)
    say("one sequence at a time" if sequences == 1 else f"{sequences} sequences at once")
    out.values["together_tokens_per_s"] = rounded(_together(session, sequences, ROUNDS), 2)
    memory = usage.read(session)
    if memory is not None:
        out.values["memory_used_gib"] = rounded(memory.used_bytes / _GIB, 2)
        out.values["memory_read"] = memory.how
    return out


def _together(session: Session, sequences: int, rounds: int) -> float:
    """Median tokens a second over all sequences, from the first request sent to the last token."""
    tokens = decode_speed.CPU_TOKENS if session.cpu else decode_speed.TOKENS
    rates = []

    def ask(text: str) -> Answer:
        return session.client.complete(text, tokens, ignore_eos=True)

    for _ in range(rounds):
        texts = [unique_text() for _ in range(sequences)]
        began = time.monotonic()
        with ThreadPoolExecutor(sequences) as pool:
            answers = list(pool.map(ask, texts))
        seconds = time.monotonic() - began
        bad = next((a for a in answers if not a.ok), None)
        if bad is not None:
            raise Unanswered(f"a generation of {tokens} tokens", bad.error or "no whole answer")
        rates.append(sum(a.completion_tokens or 0 for a in answers) / seconds)
    return statistics.median(rates)


def _keep(result: Result, out: Figures) -> None:
    measured = result.measured
    if result.finding is not None and result.finding.id == "server-gives-no-answer":
        raise Unanswered(result.name, str(measured.get("error")))
    if result.status == FAIL:
        out.failed.append(result)
    if result.name == speculative.NAME:
        out.values["acceptance_per_position"] = measured.get("acceptance_per_position") or None
        out.values["mean_acceptance_length"] = measured.get("mean_acceptance_length")
    elif result.name == prefix_cache.NAME:
        out.values["cached_tokens"] = measured.get("cached_tokens")
        out.values["cache_ttft_s"] = measured.get("ttft_s")
    elif result.name == decode_speed.NAME:
        out.values["decode_tokens_per_s"] = measured.get("tokens_per_s")
        out.values["decode_runs"] = measured.get("runs")
    else:
        out.values["prefill_tokens_per_s"] = measured.get("tokens_per_s")
        out.values["prefill_prompt_tokens"] = measured.get("prompt_tokens")
        # to the first token of a short prompt, where what is read hardly counts
        taken = [t for t in measured.get("short_ttft_s") or () if t is not None]
        out.values["ttft_s"] = rounded(statistics.median(taken)) if taken else None
