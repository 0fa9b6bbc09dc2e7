"""Does it answer: two completions, whole, with tokens and a finish reason."""

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
    """A completion twice: the first may compile kernels."""
    answers: list[Answer] = []
    for number in ("first", "second"):
        answer = session.client.complete(unique_text(), TOKENS, ignore_eos=True)
        if not answer.ok:
            return unusable(NAME, answer, f"the {number} completion failed")
        answers.append(answer)
    measured = {
        "first_request_s": rounded(answers[0].total_s),
        "second_request_s": rounded(answers[1].total_s),
        "first_ttft_s": rounded(answers[0].ttft_s),
        "second_ttft_s": rounded(answers[1].ttft_s),
        "completion_tokens": [a.completion_tokens for a in answers],
        "finish_reasons": [a.finish_reason for a in answers],
    }
    expected = {"completion_tokens": TOKENS, "finish_reasons": ["length", "stop"]}
    problem = next((p for p in map(_problem, answers) if p), None)
    if problem:
        finding = found(
            "server-gives-no-answer",
            Confidence.PROVEN,
            f"The server answers, but {problem}.",
            [Evidence("request.finish_reasons", str(measured["finish_reasons"]), "HTTP")],
        )
        return Result(NAME, FAIL, problem, measured, expected, finding)
    return Result(NAME, PASS, "completions came back whole", measured, expected)


def _problem(answer: Answer) -> str | None:
    if not answer.completion_tokens:
        return "an answer has no token"
    if answer.finish_reason not in ("length", "stop"):
        return f"an answer ended with finish reason {answer.finish_reason!r}"
    return None
