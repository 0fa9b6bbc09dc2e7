"""Is a greedy answer repeatable: A, then B, then A again, the last one from the cache.

A prompt of more than two blocks is asked cold, another one in between, then the first again, so that its
state is restored from the prefix cache. Where the texts part, the two most likely tokens tell whether it is
rounding: logits are bfloat16 or half, so tokens whose log-probabilities lie closer than one or two rounding
steps may swap legitimately when the prompt is computed in other pieces.
"""

from __future__ import annotations

from typing import Any

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence
from doctor.serve.client import Answer, ServerError
from doctor.smoke.probes import ABSTAIN, ADVISE, FAIL, PASS, RANDOM_WEIGHTS, Result, Session, unusable
from doctor.smoke.probes.prefix_cache import block_size, prompt_length
from doctor.smoke.prompts import unique_prompt

NAME = "consistency"
TITLE = "same prompt, same text"
TOKENS = 24
#: bfloat16 has 8 significant bits: between 16 and 32, where logits lie, its steps are 0.125. Two steps.
TIE = 0.25


def probe(session: Session) -> Result:
    """A, B, A; once more A when the second A was not served from the cache."""
    if session.random_weights:
        return Result(NAME, ABSTAIN, RANDOM_WEIGHTS, asked=False)
    block = block_size(session, session.metrics()) or 16
    length = prompt_length(block, session.draft_tokens)
    if length + TOKENS > session.max_model_len:
        length = max(16, session.max_model_len - TOKENS - 1)
    try:
        a, b = unique_prompt(session.client, length), unique_prompt(session.client, 32)
    except ServerError as error:
        return Result(NAME, ABSTAIN, f"no prompt could be made: {error}")
    answers: list[Answer] = []
    for prompt, tokens in ((a, TOKENS), (b, 4), (a, TOKENS)):
        answer = _ask(session, prompt, tokens)
        if not answer.ok:
            return unusable(NAME, answer, "a greedy request failed")
        answers.append(answer)
    first, _, again = answers
    if session.prefix_caching and not again.cached_tokens and again.text == first.text:
        third = _ask(session, a, TOKENS)
        if not third.ok:
            return unusable(NAME, third, "a greedy request failed")
        again = third
    return judge(session, first, again)


def judge(session: Session, first: Answer, again: Answer) -> Result:
    """Compares the cold and the repeated answer token by token."""
    measured: dict[str, Any] = {
        "tokens": first.completion_tokens,
        "cached_tokens": again.cached_tokens,
        "same_text": first.text == again.text,
    }
    expected = {"same_text": True}
    if not first.tokens or not again.tokens:
        if first.text == again.text:
            return Result(NAME, PASS, "the repeated greedy prompt gave the same text", measured, expected)
        return Result(NAME, ADVISE, "texts differ, and no probabilities tell why", measured, expected)
    place = next((i for i, (x, y) in enumerate(zip(first.tokens, again.tokens, strict=False)) if x != y), None)
    if place is None and len(first.tokens) == len(again.tokens):
        how = f", {again.cached_tokens} tokens of it from the cache" if again.cached_tokens else ""
        return Result(NAME, PASS, f"the repeated greedy prompt gave the same text{how}", measured, expected)
    if place is None:
        why = f"one answer has {len(first.tokens)} tokens, the other {len(again.tokens)}"
        return Result(NAME, FAIL, why, measured, expected, _finding(session, why, measured))
    gap = _gap(first, again, place)
    measured |= {"differs_at": place, "gap_nats": gap, "tokens_there": [first.tokens[place], again.tokens[place]]}
    if gap is None:
        return Result(NAME, ADVISE, f"texts part at token {place}; no probabilities tell why", measured, expected)
    if gap <= TIE:
        why = f"texts part at token {place}, where two tokens are as likely as each other ({gap:.2f} nats apart)"
        return Result(NAME, ADVISE, why, measured, expected)
    why = f"texts part at token {place}, where the first answer was sure by {gap:.2f} nats"
    return Result(NAME, FAIL, why, measured, expected, _finding(session, why, measured))


def _ask(session: Session, prompt: list[int], tokens: int) -> Answer:
    return session.client.complete(prompt, tokens, ignore_eos=True, logprobs=2)


def _gap(first: Answer, again: Answer, place: int) -> float | None:
    """How much the first answer preferred its own token, in nats; at least, when the other is not listed."""
    if place >= len(first.top_logprobs):
        return None
    top = first.top_logprobs[place]
    mine = top.get(first.tokens[place])
    if mine is None or not top:
        return None
    other = top.get(again.tokens[place], min(top.values()))
    return round(mine - other, 4)


def _finding(session: Session, why: str, measured: dict[str, Any]) -> Any:
    both = session.draft_tokens and session.prefix_caching and measured["cached_tokens"]
    return found(
        "mtp-prefix-cache-corrupts-output" if both else "output-not-repeatable",
        Confidence.LIKELY,
        f"One greedy prompt asked again: {why}.",
        [
            Evidence("consistency.differs_at", str(measured.get("differs_at", "length")), "two greedy answers"),
            Evidence("consistency.cached_tokens", str(measured["cached_tokens"]), "usage.prompt_tokens_details"),
        ],
    )
