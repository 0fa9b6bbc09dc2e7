"""Does JSON follow its schema: ``response_format`` json_schema, parsed and compared with what the schema allows.

The schema allows six answers, so a model of random weights can be judged too: it may put blanks anywhere and
run out of tokens, but what came must be the beginning of one of the six. CPU builds of vLLM 0.32 end with
``causal_conv1d_update_cpu: num_accepted_tokens must be in [1, seqlen]`` when a grammar cuts drafts short
(measured with MTP 2), so a server that may run on a CPU and drafts is not asked.
"""

from __future__ import annotations

import json
from typing import Any

from doctor.serve.client import Reply
from doctor.smoke.probes import ABSTAIN, FAIL, PASS, Result, Session, broken, unusable_reply
from doctor.smoke.probes.chat_template import no_template

NAME = "structured_output"
TITLE = "JSON by a schema"
TOKENS = 96
GOODS = ("barley", "copper", "timber")
SCHEMA = {
    "type": "object",
    "properties": {"cargo": {"type": "string", "enum": list(GOODS)}, "docked": {"type": "boolean"}},
    "required": ["cargo", "docked"],
    "additionalProperties": False,
}
QUESTION = "A ship with copper lies in the harbour. Describe it as JSON with the fields cargo and docked."


def fragile(session: Session) -> str:
    """Why a server that may die of a grammar is not asked."""
    where = "it may run on a CPU: there," if session.shared else "on a CPU"
    return f"not asked: {where} with drafts a grammar ends vLLM's engine (0.32)"


def probe(session: Session) -> Result:
    """One chat (a completion where there is no template) with a schema."""
    if session.fragile:
        return Result(NAME, ABSTAIN, fragile(session), asked=False)
    wanted = {"type": "json_schema", "json_schema": {"name": "ship", "schema": SCHEMA}}
    limits = {"max_tokens": TOKENS, "response_format": wanted}
    messages = [{"role": "user", "content": QUESTION}]
    # a template that knows no enable_thinking ignores it; others would think before the JSON
    chat = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}, **limits}
    reply = session.client.reply("/v1/chat/completions", chat)
    if reply.status == 400 and no_template(reply.error):
        reply = session.client.reply("/v1/completions", {"prompt": QUESTION, **limits})
    if reply.status == 400:
        return Result(NAME, ABSTAIN, f"refused: {reply.error}", {"refusal": reply.error}, asked=False)
    if reply.error:
        return unusable_reply(NAME, reply, "a request with a JSON schema failed")
    return judge(reply)


def judge(reply: Reply) -> Result:
    """Validates the answer by the schema."""
    message = reply.choice.get("message")
    text = str((message.get("content") if isinstance(message, dict) else reply.choice.get("text")) or "")
    finish = reply.choice.get("finish_reason")
    measured: dict[str, Any] = {"text": text[:400], "finish_reason": finish}
    expected = {"text": "an object with cargo (barley, copper or timber) and docked (true or false)"}
    state = follows(text)
    if state == FAIL:
        return broken(NAME, f"the answer does not follow the schema: {text.strip()[:60]!r}", measured, expected)
    if state == ABSTAIN:
        if finish == "length":
            why = f"follows the schema as far as {TOKENS} tokens go (the model writes blanks)"
            return Result(NAME, PASS, why, measured, expected)
        return broken(NAME, f"the JSON ends too early: {text.strip()[:60]!r}", measured, expected)
    return Result(NAME, PASS, f"{' '.join(text.split())[:60]}, as the schema wants it", measured, expected)


def follows(text: str) -> str:
    """PASS for a whole object by the schema, ABSTAIN for the beginning of one, FAIL for anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        # blanks may stand anywhere between, and no value has one
        compact = "".join(text.split())
        whole = (f'{{"cargo":"{g}","docked":{d}}}' for g in GOODS for d in ("true", "false"))
        return ABSTAIN if any(w.startswith(compact) for w in whole) else FAIL
    good = isinstance(value, dict) and set(value) == {"cargo", "docked"}
    return PASS if good and value["cargo"] in GOODS and isinstance(value["docked"], bool) else FAIL
