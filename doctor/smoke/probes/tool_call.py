"""Do tool calls work: one function that is forced, and one that the model may choose.

vLLM makes the model write the arguments of a forced function by a grammar; 0.32.0 wants ``--tool-call-parser``
for that too, and a free choice needs ``--enable-auto-tool-choice`` beside it. The server says so, and that is no
fault. With a parser a call that comes back as plain text means that the parser is not the model's.
"""

from __future__ import annotations

from typing import Any

from doctor.serve.client import Reply
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, broken, unusable_reply
from doctor.smoke.probes.chat_template import no_template
from doctor.smoke.probes.structured_output import SCHEMA, follows, fragile

NAME = "tool_call"
TITLE = "tool calls"
TOKENS = 160
FUNCTION = "describe_ship"
TOOL = {
    "type": "function",
    "function": {"name": FUNCTION, "description": "Describes a ship.", "strict": True, "parameters": SCHEMA},
}
QUESTION = f"A ship with copper lies in the harbour. Call the function {FUNCTION} for it."


def probe(session: Session) -> Result:
    """The forced call, then the free one."""
    if session.fragile:
        return Result(NAME, ABSTAIN, fragile(session), asked=False)
    forced = _ask(session, {"type": "function", "function": {"name": FUNCTION}})
    if forced.status == 400:
        why = "the model has no chat template" if no_template(forced.error) else f"refused: {forced.error}"
        return Result(NAME, ABSTAIN, why, {"refusal": forced.error}, asked=False)
    if forced.error:
        return unusable_reply(NAME, forced, "a forced tool call failed")
    free = _ask(session, "auto")
    if free.error and free.status != 400:
        return unusable_reply(NAME, free, "a free tool call failed")
    return judge(forced, free)


def judge(forced: Reply, free: Reply) -> Result:
    """``free`` may be a refusal."""
    called, text = _call(forced), _text(forced)
    measured: dict[str, Any] = {
        "forced": called,
        "forced_finish_reason": forced.choice.get("finish_reason"),
        "free": free.error or _call(free) or _text(free)[:200],
    }
    expected = {"forced": [FUNCTION, "arguments by the schema"]}
    cut = forced.choice.get("finish_reason") == "length"
    if called is None:
        if cut:
            why = f"the call did not end within {TOKENS} tokens"
            return Result(NAME, ABSTAIN, why, measured | {"text": text[:200]}, expected, asked=False)
        return broken(NAME, "a function was forced and no call came", measured, expected)
    if called[0] != FUNCTION:
        return broken(NAME, f"{FUNCTION} was forced and {called[0]} came", measured, expected)
    state = follows(called[1])
    if state != PASS and not (state == ABSTAIN and cut):
        why = f"the arguments of the forced call do not follow the schema: {called[1][:60]!r}"
        return broken(NAME, why, measured, expected)
    why = (
        "the forced call came with valid arguments" if state == PASS else "the forced call came, cut by the limit"
    )
    if free.error:
        return Result(NAME, PASS, f"{why}; free choice is off here", measured, expected)
    if _call(free) is None and FUNCTION in _text(free) and "arguments" in _text(free):
        why += "; a free call came back as text: the server's --tool-call-parser is not this model's"
        return Result(NAME, ADVISE, why, measured, expected)
    chose = "called by itself" if _call(free) else "answered in words by itself"
    return Result(NAME, PASS, f"{why}; the model {chose}", measured, expected)


def _ask(session: Session, choice: Any) -> Reply:
    messages = [{"role": "user", "content": QUESTION}]
    body = {"messages": messages, "tools": [TOOL], "tool_choice": choice, "max_tokens": TOKENS}
    return session.client.reply(
        "/v1/chat/completions", {**body, "chat_template_kwargs": {"enable_thinking": False}}
    )


def _call(reply: Reply) -> tuple[str, str] | None:
    """(function, arguments) of the first tool call."""
    message = reply.choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    function = calls[0].get("function") if isinstance(calls, list) and calls else None
    if not isinstance(function, dict):
        return None
    return str(function.get("name")), str(function.get("arguments"))


def _text(reply: Reply) -> str:
    message = reply.choice.get("message")
    return str((message.get("content") if isinstance(message, dict) else None) or "")
