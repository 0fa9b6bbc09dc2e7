"""Does it stop where it is told: exactly N tokens with ``ignore_eos``, and before a stop text that is left out.

The stop text is a piece of the model's own greedy answer, so it must come again. With drafts it may lie in the
middle of several tokens that are accepted at once.
"""

from __future__ import annotations

import re
from typing import Any

from doctor.serve.client import Answer
from doctor.smoke.probes import ABSTAIN, PASS, Result, Session, broken, unusable
from doctor.smoke.prompts import unique_text

NAME = "stop_and_length"
TITLE = "stop texts and lengths"
TOKENS = 24
SHORT = 7
#: A stop text of so many letters, digits or blanks: part of no half character.
_PIECE = re.compile(r"[A-Za-z0-9 ]{3,12}")


def probe(session: Session) -> Result:
    """A long answer, a short one, and the long one again with a stop text out of its middle."""
    client = session.client
    prompt = unique_text()
    long = client.complete(prompt, TOKENS, ignore_eos=True)
    short = client.complete(prompt, SHORT, ignore_eos=True)
    for answer in (long, short):
        if not answer.ok:
            return unusable(NAME, answer, "a generation of a fixed length failed")
    measured = {
        "completion_tokens": [long.completion_tokens, short.completion_tokens],
        "finish_reasons": [long.finish_reason, short.finish_reason],
    }
    expected = {"completion_tokens": [TOKENS, SHORT], "finish_reasons": ["length", "length"]}
    for answer, tokens in ((long, TOKENS), (short, SHORT)):
        if (answer.completion_tokens, answer.finish_reason) != (tokens, "length"):
            why = f"{tokens} tokens were asked for, {answer.completion_tokens} came ({answer.finish_reason})"
            return broken(NAME, why, measured, expected)
    stop = _stop_text(long.text)
    if stop is None:
        why = "exact lengths; its text has no piece to stop at"
        return Result(NAME, PASS, why, measured, expected)
    stopped = client.complete(prompt, TOKENS, ignore_eos=True, stop=[stop])
    if not stopped.ok:
        return unusable(NAME, stopped, "a generation with a stop text failed")
    return _judge(long, stopped, stop, dict(measured), dict(expected))


def _judge(long: Answer, stopped: Answer, stop: str, measured: dict[str, Any], expected: dict[str, Any]) -> Result:
    measured |= {"stop": stop, "text": stopped.text, "stop_reason": stopped.finish_reason}
    expected |= {"text": long.text.partition(stop)[0], "stop_reason": "stop"}
    if stop in stopped.text:
        return broken(NAME, f"the stop text {stop!r} is in the answer", measured, expected)
    if stopped.finish_reason != "stop":
        # the text parted from the first answer before: whether that is rounding, other probes judge
        why = "the second answer had no stop text in it, so nothing tells whether it stops there"
        return Result(NAME, ABSTAIN, why, measured, expected, asked=False)
    if stopped.text != expected["text"] and str(expected["text"]).startswith(stopped.text):
        return broken(NAME, f"it stopped before the stop text {stop!r} came", measured, expected)
    why = f"exactly {TOKENS} and {SHORT} tokens, and it stops before the stop text"
    return Result(NAME, PASS, why, measured, expected)


def _stop_text(text: str) -> str | None:
    """A piece from behind the first third whose first occurrence that is."""
    for match in _PIECE.finditer(text, len(text) // 3):
        if text.find(match[0]) == match.start() and match[0].strip():
            return match[0]
    return None
