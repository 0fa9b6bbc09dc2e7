"""Do ``logit_bias`` and ``min_p`` work: with speculative decoding vLLM refuses or ignores them.

Read in vLLM 0.26.0 and 0.32.0: ``SamplingParams`` refuses both when drafts are on (HTTP 400; in a stream an
error object after HTTP 200, measured with 0.32.0); the sampler itself would ignore them ("min_p and logit_bias
parameters won't work with speculative decoding"). A bias of 100 is the largest there is and forces its token.
With ``min_p`` 1 only the most likely token is left, so a sampled answer must be the greedy one. Not asked where a
sampled request may kill the server (a CPU that drafts).
"""

from __future__ import annotations

from typing import Any

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence, Severity
from doctor.serve.client import Reply, ServerError
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, unusable_reply
from doctor.smoke.probes.consistency import TIE
from doctor.smoke.prompts import unique_text

NAME = "sampling_limits"
TITLE = "logit_bias and min_p"
TOKENS = 8
BIAS = 100
#: Words whose first token is forced; the first that the model does not say by itself.
_WORDS = (" ship", " harbour", " lamp")


def probe(session: Session) -> Result:
    """A forced token, then a sampled answer that may only be the greedy one."""
    prompt = unique_text()
    greedy = _ask(session, prompt)
    if greedy.error:
        return unusable_reply(NAME, greedy, "a greedy request failed")
    try:
        ids = [session.client.tokenize(word)[0] for word in _WORDS]
    except (ServerError, IndexError) as error:
        return Result(NAME, ABSTAIN, f"no token could be chosen: {error}", asked=False)
    token = next((i for i in ids if f"token_id:{i}" not in _tokens(greedy)), None)
    if token is None:
        return Result(NAME, ABSTAIN, "the model says every word that could be forced by itself", asked=False)
    biased = _ask(session, prompt, logit_bias={str(token): BIAS})
    replies = {"logit_bias": biased}
    states = {"logit_bias": _state(biased, all(t == f"token_id:{token}" for t in _tokens(biased)))}
    if not session.fragile:
        sampled = replies["min_p"] = _ask(session, prompt, temperature=1.5, min_p=1.0)
        same = sampled.error is None and (
            _same(greedy, sampled) or _same(_ask(session, prompt), sampled)  # a greedy text may drift by itself
        )
        states["min_p"] = _state(sampled, same)
    for reply in replies.values():
        if reply.error and reply.status != 400:
            return unusable_reply(NAME, reply, "a request with logit_bias or min_p failed")
    refusal = next((r.error for r in replies.values() if r.error), None)
    return judge(session, states, {"forced_token": token, "tokens": _tokens(biased), "refusal": refusal})


def judge(session: Session, states: dict[str, str], measured: dict[str, Any]) -> Result:
    """``states`` of each parameter: "works", "refused" or "ignored"."""
    measured = {**states, **measured}
    expected = dict.fromkeys(states, "works")
    ignored = [name for name, state in states.items() if state == "ignored"]
    refused = [name for name, state in states.items() if state == "refused"]
    drafts = "with speculative decoding" if session.draft_tokens else "although nothing speculates"
    if ignored:
        why = f"no effect {drafts}: {' and '.join(ignored)}; do not rely on it"
        finding = found(
            "mtp-drops-logit-bias-min-p",
            Confidence.PROVEN if session.draft_tokens else Confidence.LIKELY,
            f"{why[0].upper()}{why[1:]}.",
            [Evidence(f"sampling_limits.{n}", s, "HTTP") for n, s in states.items()],
            severity=Severity.NOTE if session.draft_tokens else None,
        )
        return Result(NAME, ADVISE, why, measured, expected, finding)
    if refused and session.draft_tokens:
        why = "requests with logit_bias or min_p are refused while MTP is on"
        return Result(NAME, ADVISE, why, measured, expected)
    if refused:
        why = f"{' and '.join(refused)} refused: {measured['refusal']}"
        return Result(NAME, ABSTAIN, why, measured, expected, asked=False)
    names = " and ".join(states)
    return Result(NAME, PASS, f"{names} {'work' if len(states) > 1 else 'works'}", measured, expected)


def _same(greedy: Reply, sampled: Reply) -> bool:
    """Equal up to a place where two tokens are about as likely: there the sampler may choose."""
    tops = (greedy.choice.get("logprobs") or {}).get("top_logprobs") or []
    pairs = zip(_tokens(greedy), _tokens(sampled), tops, strict=False)
    top = next((sorted(top.values(), reverse=True) for x, y, top in pairs if x != y), None)
    return top is None or (len(top) > 1 and top[0] - top[1] <= TIE)


def _state(reply: Reply, works: bool) -> str:
    if reply.status == 400:
        return "refused"
    return "works" if works else "ignored"


def _ask(session: Session, prompt: str, **options: Any) -> Reply:
    # in one piece: a stream has begun with HTTP 200 when vLLM refuses these two
    limits = {"max_tokens": TOKENS, "ignore_eos": True, "logprobs": 2, "return_tokens_as_token_ids": True}
    return session.client.reply("/v1/completions", {"prompt": prompt, **limits, **options})


def _tokens(reply: Reply) -> list[str]:
    return list((reply.choice.get("logprobs") or {}).get("tokens") or [])
