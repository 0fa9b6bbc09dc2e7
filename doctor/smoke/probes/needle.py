"""Is something said across a block border still known when the prompt comes from the cache.

Only a model that recalls it from the cold prompt can be judged; a small or untrained one says nothing.
"""

from __future__ import annotations

import uuid

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence
from doctor.serve.client import ServerError
from doctor.smoke.probes import ABSTAIN, FAIL, PASS, RANDOM_WEIGHTS, Result, Session, unusable
from doctor.smoke.probes.prefix_cache import block_size, prompt_length
from doctor.smoke.recall import Recall, listing, needle

NAME = "needle"
TITLE = "a number and a list across a block border"
TOKENS = 48
REPEATS = 2


def probe(session: Session) -> Result:
    """A needle and a list, each cold and then repeated from the cache."""
    if session.random_weights:
        return Result(NAME, ABSTAIN, RANDOM_WEIGHTS, asked=False)
    block = block_size(session, session.metrics()) or 16
    length = prompt_length(block, session.draft_tokens)
    if length + TOKENS > session.max_model_len:
        why = f"two blocks of {block} tokens need {length}, max-model-len is {session.max_model_len}"
        return Result(NAME, ABSTAIN, why, asked=False)
    salt = uuid.uuid4().hex
    # small blocks: far enough from the start that the text fits before the border
    border = block * max(1, -(-64 // block))
    try:
        asked = {
            "number": needle(session.client, border, length, salt),
            "list": listing(session.client, border, length, salt[::-1]),
        }
    except ServerError as error:
        return Result(NAME, ABSTAIN, f"no prompt could be made: {error}")
    recalled: dict[str, list[bool]] = {}
    cached: dict[str, list[int | None]] = {}
    for name, recall in asked.items():
        for _ in range(1 + REPEATS):
            answer = session.client.complete(list(recall.prompt), TOKENS)
            if not answer.ok:
                return unusable(NAME, answer, f"the {name} across a block border failed")
            recalled.setdefault(name, []).append(recall.recalled(answer.text))
            cached.setdefault(name, []).append(answer.cached_tokens)
    return judge(session, recalled, cached, asked)


def judge(
    session: Session,
    recalled: dict[str, list[bool]],
    cached: dict[str, list[int | None]],
    asked: dict[str, Recall],
) -> Result:
    """The first answer is the cold one."""
    measured = {"recalled": recalled, "cached_tokens": cached, "wanted": {n: r.wanted for n, r in asked.items()}}
    expected = {"recalled": "as often as from the cold prompt"}
    usable = [name for name, answers in recalled.items() if answers[0]]
    lost = [name for name in usable if not all(recalled[name])]
    if lost:
        why = f"the {' and the '.join(lost)} across a block border came back cold and was lost when repeated"
        both = session.draft_tokens and session.prefix_caching
        finding = found(
            "mtp-prefix-cache-corrupts-output" if both else "output-not-repeatable",
            Confidence.LIKELY,
            f"{why[0].upper()}{why[1:]}.",
            [Evidence(f"needle.{n}", str(recalled[n]), f"answers with {cached[n]} cached tokens") for n in lost],
        )
        return Result(NAME, FAIL, why, measured, expected, finding)
    if not usable:
        return Result(
            NAME, ABSTAIN, "this model recalls neither from the cold prompt", measured, expected, asked=False
        )
    return Result(NAME, PASS, f"the {' and the '.join(usable)} came back cold and repeated", measured, expected)
