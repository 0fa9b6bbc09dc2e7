"""Does prefix caching hit: one prompt of more than two blocks, three times.

Hits come in whole blocks. A hybrid model's block is hundreds of tokens (544 for Qwen3.5-9B with two draft
tokens) and MTP costs a hit one block more, so a shorter prompt proves nothing. Some servers hit only from
the third request on (seen on a CPU with blocks of 640), so a single repetition proves nothing either.
"""

from __future__ import annotations

from typing import Any

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence
from doctor.memory.kv import size_pool
from doctor.memory.layout import UnsupportedOption, lay_out
from doctor.serve import metrics as names
from doctor.serve.client import Answer, ServerError
from doctor.serve.metrics import Metrics
from doctor.smoke.outlook import outlook
from doctor.smoke.probes import ABSTAIN, ADVISE, FAIL, PASS, Result, Session, rounded, unusable
from doctor.smoke.prompts import unique_prompt

NAME = "prefix_cache"
TITLE = "prefix caching"
TOKENS = 4
REQUESTS = 3
#: A hit that saves less than this share of the time to the first token deserves a look (never on a CPU).
LEAST_SAVING = 0.2
#: Seconds to a cold first token below which nothing can be saved: what a request costs anyway is as long.
LEAST_COLD_S = 0.1


def probe(session: Session) -> Result:
    """Asks three times and compares cached tokens with whole blocks."""
    if "prefix_caching" in session.unknown:
        return Result(NAME, ABSTAIN, "the server does not tell whether prefix caching is on")
    if not session.prefix_caching:
        return Result(NAME, ABSTAIN, "prefix caching is off", asked=False)
    before = session.metrics()
    block = block_size(session, before)
    if block is None:
        return Result(NAME, ABSTAIN, "the server does not tell its block size")
    length = prompt_length(block, session.draft_tokens)
    if length + TOKENS > session.max_model_len:
        why = f"two blocks of {block} tokens need {length}, max-model-len is {session.max_model_len}; "
        why += "shorter prompts never hit, which is no fault"
        return Result(NAME, ABSTAIN, why, {"block_size": block})
    try:
        prompt = unique_prompt(session.client, length)
    except ServerError as error:
        return Result(NAME, ABSTAIN, f"no prompt could be made: {error}")
    answers: list[Answer] = []
    for number in range(1, REQUESTS + 1):
        answer = session.client.complete(prompt, TOKENS, ignore_eos=True)
        if not answer.ok:
            return unusable(NAME, answer, f"request {number} of {REQUESTS} with {length} tokens failed")
        answers.append(answer)
    return judge(session, block, length, answers, before, session.metrics())


def block_size(session: Session, counters: Metrics | None) -> int | None:
    """Tokens of a cache block: the logged hybrid block, or the one in the cache configuration."""
    if session.server.block_size:
        return session.server.block_size
    text = counters.info(names.CACHE_CONFIG).get("block_size", "") if counters else ""
    return int(text) if text.isdigit() and int(text) > 0 else None


def prompt_length(block: int, draft_tokens: int) -> int:
    """Two whole blocks and some: with MTP one of them can hit, else both."""
    blocks = 2 if block > 64 else 8  # small blocks: enough tokens that a hit can be felt
    return blocks * block + max(8, min(64, block // 4)) + draft_tokens


def judge(
    session: Session, block: int, length: int, answers: list[Answer], before: Metrics | None, after: Metrics | None
) -> Result:
    """Compares; every figure is the server's own."""
    cached = [a.cached_tokens for a in answers]
    hits = after.since(before, names.PREFIX_HITS) if after and before else None
    queries = after.since(before, names.PREFIX_QUERIES) if after and before else None
    least = smallest_hit(session, block)
    best = (length - least) // block * block + block
    measured: dict[str, Any] = {
        "block_size": block,
        "prompt_tokens": length,
        "cached_tokens": cached,
        "ttft_s": [rounded(a.ttft_s) for a in answers],
        "ttft_ratio": _ratio(answers),
        "smallest_prompt_that_hits": least,
        "hit_counter": hits,
        "query_counter": queries,
    }
    expected = {"cached_tokens": best, "multiple_of": block, "first_request": 0}
    known = [c for c in cached if c is not None]
    if not known and hits is None:
        return Result(NAME, ABSTAIN, "neither usage nor counters tell of cached tokens", measured, expected)
    if not known:
        return _by_counter(hits or 0.0, block, measured, expected)
    odd = _impossible(cached, block, length)
    if odd:
        return Result(NAME, FAIL, odd, measured, expected, _finding("prefix-cache-miscounts", odd, measured))
    if not any(known[1:]):
        why = f"the same {length} tokens asked {REQUESTS} times: none came from the cache"
        return Result(NAME, FAIL, why, measured, expected, _finding("prefix-cache-not-hitting", why, measured))
    if hits is not None and hits != sum(known) and not (session.shared and hits > sum(known)):
        why = f"answers tell of {sum(known)} cached tokens, the hit counter of {hits:g}"
        return Result(NAME, ADVISE, why, measured, expected)
    got = max(known)
    first = next(n for n, c in enumerate(known, 1) if c)
    share = f"{got // block} of {length // block} blocks"
    why = f"{got} of {length} tokens ({share}) came from the cache from request {first} on"
    if got > best:
        why += f", more than the {best} predicted"  # other kinds of drafts than MTP cost no block
    cold, warm = answers[0].ttft_s, answers[-1].ttft_s
    if not session.cpu and cold and warm and cold >= LEAST_COLD_S and warm > cold * (1 - LEAST_SAVING):
        why += f"; but the first token came after {warm:.2f} s instead of {cold:.2f} s"
        return Result(NAME, ADVISE, why, measured, expected)
    why += f"; a prompt under {least} tokens never hits, which is no fault"
    return Result(NAME, PASS, why, measured, expected)


def smallest_hit(session: Session, block: int) -> int:
    """Tokens of the shortest prompt that hits: a whole block and one to compute, with MTP a block more."""
    known = outlook(session)
    if not isinstance(known, str):
        try:
            layout = lay_out(known.model.shape, known.options, known.version)
            predicted = size_pool(known.model.shape, 1, known.options, known.version).smallest_prefix_hit
        except UnsupportedOption:
            predicted = None
        # a block of another size than predicted has its own probe; the rule stays the same
        if predicted is not None and layout.block_size == block:
            return predicted
    return block * (2 if session.draft_tokens else 1) + 1


def _ratio(answers: list[Answer]) -> float | None:
    """How many times later the first token comes cold."""
    cold, warm = answers[0].ttft_s, answers[-1].ttft_s
    return rounded(cold / warm, 2) if cold and warm else None


def _by_counter(hits: float, block: int, measured: dict[str, Any], expected: dict[str, Any]) -> Result:
    if not hits:
        why = "the hit counter did not move while one prompt was repeated"
        return Result(NAME, FAIL, why, measured, expected, _finding("prefix-cache-not-hitting", why, measured))
    if hits % block:
        why = f"the hit counter grew by {hits:g}, which is no multiple of the block of {block}"
        return Result(NAME, FAIL, why, measured, expected, _finding("prefix-cache-miscounts", why, measured))
    return Result(
        NAME, PASS, f"the hit counter grew by {hits:g} tokens; usage gives no details", measured, expected
    )


def _impossible(cached: list[int | None], block: int, length: int) -> str | None:
    for number, tokens in enumerate(cached, 1):
        if tokens is None or tokens == 0:
            continue
        if number == 1:
            return f"a prompt that was never asked before is said to have {tokens} cached tokens"
        if tokens % block:
            return f"{tokens} cached tokens are no multiple of the block of {block}"
        if tokens >= length:
            return f"{tokens} cached tokens of a prompt of {length}: at least one must be computed"
    return None


def _finding(cause: str, why: str, measured: dict[str, Any]) -> Any:
    evidence = [
        Evidence("prefix_cache.cached_tokens", str(measured["cached_tokens"]), "usage.prompt_tokens_details"),
        Evidence("prefix_cache.hit_counter", str(measured["hit_counter"]), f"/metrics {names.PREFIX_HITS}"),
        Evidence("prefix_cache.block_size", str(measured["block_size"]), "server log or /metrics"),
    ]
    return found(cause, Confidence.PROVEN, f"{why[0].upper()}{why[1:]}.", evidence)
