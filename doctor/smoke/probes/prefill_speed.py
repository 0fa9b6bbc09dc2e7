"""How fast a prompt is read: tokens of a cold prompt of known length by the time to the first token.

Two lengths: the difference is free of what a request costs whatever its length. Reading is work on many tokens
at once, so it is many times faster than writing them; where it is not, prompts are cut into small pieces
(``--max-num-batched-tokens``) or the card is held up. On a CPU the figure is shown only.
"""

from __future__ import annotations

import statistics

from doctor.serve.client import Answer, ServerError
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, rounded, unusable
from doctor.smoke.prompts import unique_prompt

NAME = "prefill_speed"
TITLE = "reading speed of a prompt"
SHORT = 64
LONG = 4096
RUNS = 3
#: On a CPU reading takes milliseconds a token.
CPU_LONG = 512
#: Reading is at least so many times as fast as decoding one stream; the 9B on an H200 reads 77 times as fast.
LEAST_TIMES = 4.0
#: Room for the answer and the template.
_MARGIN = 32


def probe(session: Session) -> Result:
    """Cold prompts of two lengths, and the decode speed of the answers in between."""
    long = min(CPU_LONG if session.cpu else LONG, session.max_model_len - _MARGIN)
    if long < 2 * SHORT:
        return Result(NAME, ABSTAIN, f"max-model-len {session.max_model_len} leaves no long prompt", asked=False)
    taken: dict[int, list[float]] = {SHORT: [], long: []}
    decode: list[float] = []
    for _ in range(1 if session.cpu else RUNS):
        for length, times in taken.items():
            try:
                prompt = unique_prompt(session.client, length)
            except ServerError as error:
                return Result(NAME, ABSTAIN, f"no prompt could be made: {error}", asked=False)
            answer: Answer = session.client.complete(prompt, 16, ignore_eos=True)
            if not answer.ok or answer.ttft_s is None:
                return unusable(NAME, answer, f"a prompt of {length} tokens failed")
            times.append(answer.ttft_s)
            if length == SHORT and answer.decode_tokens_per_s:
                decode.append(answer.decode_tokens_per_s)
    return judge(session, long, taken[SHORT], taken[long], decode)


def judge(session: Session, long: int, short_s: list[float], long_s: list[float], decode: list[float]) -> Result:
    """Seconds to the first token of short and long prompts, decode speeds in tokens a second."""
    short, first = statistics.median(short_s), statistics.median(long_s)
    speed = long / first
    measured = {
        "prompt_tokens": long,
        "ttft_s": [rounded(s) for s in long_s],
        "short_ttft_s": [rounded(s) for s in short_s],
        "tokens_per_s": rounded(speed, 1),
        "tokens_per_s_without_overhead": rounded((long - SHORT) / (first - short), 1) if first > short else None,
        "times_decode": rounded(speed / statistics.median(decode), 1) if decode else None,
    }
    expected = {"times_decode": f"{LEAST_TIMES:g} or more"}
    why = f"{speed:,.0f} tokens/s: the first token of a cold prompt of {long:,} comes after {first:.2f} s"
    times = measured["times_decode"]
    if session.cpu or times is None:
        return Result(NAME, PASS, why, measured)
    if isinstance(times, float) and times < LEAST_TIMES:
        return Result(NAME, ADVISE, f"{why}; that is only {times:g} times the decode speed", measured, expected)
    return Result(NAME, PASS, why, measured, expected)
