"""Do ``logit_bias`` and ``min_p`` work: with speculative decoding vLLM refuses or ignores them.

Read in vLLM 0.26.0 and 0.32.0: ``SamplingParams`` refuses both with HTTP 400 when drafts are on; the sampler
itself would ignore them ("min_p and logit_bias parameters won't work with speculative decoding"). A bias of
100 is the largest there is and forces its token. With ``min_p`` 1 only the most likely token is left, so a
sampled answer must be the greedy one. Not asked where a sampled request may kill the server (a CPU that drafts).
"""

from __future__ import annotations

from typing import Any

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence, Severity
from doctor.serve.client import Answer, ServerError
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, unusable
from doctor.smoke.prompts import unique_text

NAME = "sampling_limits"
TITLE = "logit_bias and min_p"
TOKENS = 8
BIAS = 100
#: Nats: two steps of bfloat16 logits between 16 and 32.
TIE = 0.25
#: Words whose first token is forced; the first that the model does not say by itself.
_WORDS = (" ship", " harbour", " lamp")


def probe(session: Session) -> Result:
    """A forced token, then a sampled answer that may only be the greedy one."""
    prompt = unique_text()
    greedy = _ask(session, prompt)
    if not greedy.ok:
        return unusable(NAME, greedy, "a greedy request failed")
    try:
        ids = [session.client.tokenize(word)[0] for word in _WORDS]
    except (ServerError, IndexError) as error:
        return Result(NAME, ABSTAIN, f"no token could be chosen: {error}", asked=False)
    token = next((i for i in ids if f"token_id:{i}" not in greedy.tokens), None)
    if token is None:
        return Result(NAME, ABSTAIN, "the model says every word that could be forced by itself", asked=False)
    biased = _ask(session, prompt, logit_bias={str(token): BIAS})
    states = {"logit_bias": _state(biased, all(t == f"token_id:{token}" for t in biased.tokens))}
    refusal = biased.error
    if not session.fragile:
        sampled = _ask(session, prompt, temperature=1.5, min_p=1.0)
        states["min_p"] = _state(sampled, _same(greedy, sampled) or _same(_ask(session, prompt), sampled))
        refusal = refusal or sampled.error
    for answer in (biased,) if "min_p" not in states else (biased, sampled):
        if not answer.ok and answer.status != 400:
            return unusable(NAME, answer, "a request with logit_bias or min_p failed")
    return judge(session, states, {"forced_token": token, "tokens": list(biased.tokens), "refusal": refusal})


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


def _same(greedy: Answer, sampled: Answer) -> bool:
    """Equal up to a place where two tokens are about as likely: there the sampler may choose."""
    pairs = zip(greedy.tokens, sampled.tokens, greedy.top_logprobs, strict=False)
    top = next((sorted(top.values(), reverse=True) for x, y, top in pairs if x != y), None)
    return top is None or (len(top) > 1 and top[0] - top[1] <= TIE)


def _state(answer: Answer, works: bool) -> str:
    if answer.status == 400:
        return "refused"
    return "works" if works else "ignored"


def _ask(session: Session, prompt: str, **options: Any) -> Answer:
    return session.client.complete(
        prompt, TOKENS, ignore_eos=True, logprobs=2, return_tokens_as_token_ids=True, **options
    )
