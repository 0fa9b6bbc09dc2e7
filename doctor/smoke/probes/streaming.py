"""Does a stream arrive piece by piece, and is it the same answer as in one piece.

Pieces that all come at the end were held back on the way, by a proxy for example. Both kinds of answer are asked
in turn and twice: streams are to blame only when both of them agree, both whole answers agree, and not with each
other. A text that differs otherwise differs for another reason.
"""

from __future__ import annotations

from typing import Any

from doctor.serve.client import Answer, Reply
from doctor.smoke.probes import ADVISE, PASS, Result, Session, broken, rounded, unusable, unusable_reply
from doctor.smoke.prompts import unique_text

NAME = "streaming"
TITLE = "streaming"
TOKENS = 32
#: Held back: the last piece follows the first within this share of the time, of an answer of some length.
LEAST_SPREAD = 0.1
LEAST_S = 0.2


def probe(session: Session) -> Result:
    """A stream and the same in one piece, twice."""
    prompt = unique_text()
    body = {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True}
    streams: list[Answer] = []
    wholes: list[Reply] = []
    for _ in range(2):
        streams.append(session.client.complete(prompt, TOKENS, ignore_eos=True))
        if not streams[-1].ok:
            return unusable(NAME, streams[-1], "a streamed answer failed")
        wholes.append(session.client.reply("/v1/completions", body))
        if wholes[-1].error:
            return unusable_reply(NAME, wholes[-1], "an answer in one piece failed")
    return judge(streams, [str(w.choice.get("text")) for w in wholes], wholes[-1].body.get("usage"))


def judge(streams: list[Answer], texts: list[str], usage: Any) -> Result:
    """``texts`` of the answers in one piece, ``usage`` of the last of them."""
    last = streams[-1]
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    measured: dict[str, Any] = {
        "pieces": len(last.arrivals_s),
        "first_piece_s": rounded(last.ttft_s),
        "last_piece_s": rounded(last.total_s),
        "same_text": any(s.text in texts for s in streams),
        "completion_tokens": [last.completion_tokens, counted],
        "usage_last": last.usage_last,
    }
    expected = {"pieces": "several", "same_text": True, "completion_tokens": [TOKENS, TOKENS], "usage_last": True}
    if not measured["same_text"] and len({s.text for s in streams}) == len(set(texts)) == 1:
        return broken(NAME, "the streamed pieces do not add up to the answer in one piece", measured, expected)
    if not last.usage_last:
        return broken(NAME, "the stream ends without the usage that was asked for", measured, expected)
    if last.completion_tokens != TOKENS:
        why = f"{TOKENS} tokens were asked for, the stream counts {last.completion_tokens}"
        return broken(NAME, why, measured, expected)
    spread = last.total_s - (last.ttft_s or 0.0)
    if len(last.arrivals_s) < 2 or (last.total_s >= LEAST_S and spread < LEAST_SPREAD * last.total_s):
        why = (
            f"{len(last.arrivals_s)} pieces came within {spread:.2f} s after {last.ttft_s or 0:.2f} s of nothing: "
        )
        why += "something holds the stream back"
        return Result(NAME, ADVISE, why, measured, expected)
    why = f"{len(last.arrivals_s)} pieces over {spread:.2f} s, the same text as in one piece"
    if not measured["same_text"]:
        why = f"{len(last.arrivals_s)} pieces over {spread:.2f} s; the text is another each time, see consistency"
    return Result(NAME, PASS, why, measured, expected)
