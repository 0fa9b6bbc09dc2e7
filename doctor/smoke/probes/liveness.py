"""Does it answer: two completions and a chat, whole, with tokens and a finish reason."""

from __future__ import annotations

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence
from doctor.serve.client import Answer
from doctor.smoke.probes import FAIL, PASS, Result, Session, rounded, unusable
from doctor.smoke.prompts import unique_text

NAME = "liveness"
TITLE = "answers requests"
TOKENS = 16


def probe(session: Session) -> Result:
    """Completion twice (the first may compile kernels), chat once where the model has a template."""
    client = session.client
    answers: list[Answer] = []
    for number in ("first", "second"):
        answer = client.complete(unique_text(), TOKENS, ignore_eos=True)
        if not answer.ok:
            return unusable(NAME, answer, f"the {number} completion failed")
        answers.append(answer)
    chat = client.chat("Say hello.", TOKENS)
    has_template = not (chat.status == 400 and "template" in (chat.error or "").lower())
    if has_template and not chat.ok:
        return unusable(NAME, chat, "the chat completion failed")
    measured = {
        "first_request_s": rounded(answers[0].total_s),
        "second_request_s": rounded(answers[1].total_s),
        "first_ttft_s": rounded(answers[0].ttft_s),
        "second_ttft_s": rounded(answers[1].ttft_s),
        "completion_tokens": [a.completion_tokens for a in answers],
        "finish_reasons": [a.finish_reason for a in answers] + ([chat.finish_reason] if has_template else []),
        "chat": "answered" if has_template else "the model has no chat template",
    }
    expected = {"completion_tokens": TOKENS, "finish_reasons": ["length", "stop"]}
    asked = [*answers, chat] if has_template else answers
    problem = next((p for p in map(_problem, asked) if p), None)
    if problem:
        finding = found(
            "server-gives-no-answer",
            Confidence.PROVEN,
            f"The server answers, but {problem}.",
            [Evidence("request.finish_reasons", str(measured["finish_reasons"]), "HTTP")],
        )
        return Result(NAME, FAIL, problem, measured, expected, finding)
    why = (
        "completions and a chat came back whole"
        if has_template
        else "completions came back whole; no chat template"
    )
    return Result(NAME, PASS, why, measured, expected)


def _problem(answer: Answer) -> str | None:
    if not answer.completion_tokens:
        return "an answer has no token"
    if answer.finish_reason not in ("length", "stop"):
        return f"an answer ended with finish reason {answer.finish_reason!r}"
    return None
