"""Does a chat go through the model's own template: the same ids as /tokenize, the same answer as from them.

``/tokenize`` renders ``messages`` with the template (vLLM 0.19 and later). The chat must report as many prompt
tokens, and a completion of exactly these ids must begin with the same token. A model without a template
(base models) refuses chats: no fault.
"""

from __future__ import annotations

from typing import Any

from doctor.serve.client import Reply, ServerError
from doctor.smoke.probes import ABSTAIN, PASS, Result, Session, broken, unusable_reply

NAME = "chat_template"
TITLE = "chat template"
TOKENS = 8
QUESTION = "Name three harbours."


def no_template(error: str | None) -> bool:
    """Whether this refusal of a chat says that the model has no template."""
    text = (error or "").lower()
    return "chat template" in text or "chat_template" in text


def probe(session: Session) -> Result:
    """One chat, the same message through /tokenize, and a completion of those ids."""
    client = session.client
    body = {"messages": [{"role": "user", "content": QUESTION}]}
    limits = {"max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True}
    chat = client.reply("/v1/chat/completions", {**body, **limits})
    if chat.status == 400 and no_template(chat.error):
        return Result(NAME, ABSTAIN, "the model has no chat template", {"refusal": chat.error}, asked=False)
    if chat.status == 404:
        return Result(NAME, ABSTAIN, "the server has no /v1/chat/completions", asked=False)
    if chat.status == 400:
        # a template that fails to render is a refusal too
        return broken(NAME, f"a chat is refused: {chat.error}", {"refusal": chat.error}, {"refusal": None})
    if chat.error:
        return unusable_reply(NAME, chat, "a chat failed")
    usage = chat.body.get("usage")
    prompt_tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    measured: dict[str, Any] = {"prompt_tokens": prompt_tokens, "answer_ids": ids_of(chat)}
    try:
        rendered = client.tokenize_chat(QUESTION)
    except ServerError as error:
        why = f"a chat was answered; /tokenize does not render chats here ({error})"
        return Result(NAME, PASS, why, measured)
    measured["rendered_tokens"] = len(rendered)
    measured["same_ids"] = _same(chat.body.get("prompt_token_ids"), rendered)
    expected: dict[str, Any] = {"prompt_tokens": len(rendered), "same_ids": True}
    if prompt_tokens != len(rendered) or measured["same_ids"] is False:
        how = "other tokens" if prompt_tokens == len(rendered) else f"{prompt_tokens} tokens"
        return broken(NAME, f"the template makes {len(rendered)} tokens of a message, the chat used {how}",
                      measured, expected)  # fmt: skip
    direct = client.reply("/v1/completions", {"prompt": rendered, **limits})
    if direct.error:
        return unusable_reply(NAME, direct, "a completion of the rendered chat failed")
    measured["completion_ids"] = ids_of(direct)
    expected["answer_ids"] = "as from the rendered prompt"
    if session.random_weights or not measured["answer_ids"] or not measured["completion_ids"]:
        return Result(
            NAME, PASS, f"a chat of {prompt_tokens} tokens, as the template renders it", measured, expected
        )
    if measured["answer_ids"][0] != measured["completion_ids"][0] and _again(session, body, limits, measured):
        return broken(NAME, "the chat begins with another token than a completion of the rendered prompt",
                      measured, expected)  # fmt: skip
    return Result(
        NAME, PASS, f"a chat of {prompt_tokens} tokens, as the template renders it, and the same answer",
        measured, expected,
    )  # fmt: skip


def _again(session: Session, body: Any, limits: Any, measured: dict[str, Any]) -> bool:
    """Whether the chat's first token is the same again: else two tokens are as likely as each other."""
    again = ids_of(session.client.reply("/v1/chat/completions", {**body, **limits}))
    return bool(again) and again[0] == measured["answer_ids"][0]  # type: ignore[index]


def ids_of(reply: Reply) -> list[int] | None:
    """Ids of the generated tokens, where the server returns them (``return_token_ids``)."""
    ids = reply.choice.get("token_ids")
    return ids if isinstance(ids, list) and all(isinstance(i, int) for i in ids) else None


def _same(told: Any, rendered: list[int]) -> bool | None:
    return told == rendered if isinstance(told, list) else None
