"""The shapes of requests whose first one may compile kernels, and how long the first takes against later ones.

vLLM's own warm-up leaves some kernels to the first requests: those that depend on whether a prompt is
shorter or longer than a cache block, on its length, on decoding with drafts, on sampling, on several
sequences at once. Each shape is asked once, then all of them again, with new prompts of the same lengths.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from doctor.serve.client import Answer
from doctor.smoke.probes import Session, rounded
from doctor.smoke.prompts import unique_prompt

#: Later requests of each shape.
LATER = 2
#: A first request is a spike when it takes this many seconds more, and this many times as long.
SPIKE_S = 0.5
SPIKE_TIMES = 2.0
#: Longest prompt in tokens: more than any default of batched tokens, so that prompts in pieces are covered.
LONGEST = 4096
SEQUENCES = 4
#: Where the block size is not known.
USUAL_BLOCK = 544


@dataclass(frozen=True)
class Shape:
    """``tokens`` of prompt, ``answer`` tokens generated, ``at_once`` of them together."""

    name: str
    tokens: int
    answer: int = 4
    at_once: int = 1
    repeated: bool = False  # the prompt of the shape before it, so that its state comes from the cache
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ShapeTimes:
    """Seconds of the first request and of the later ones; ``error`` when one brought no whole answer."""

    shape: Shape
    first_ttft_s: float | None = None
    first_s: float | None = None
    later_ttft_s: tuple[float, ...] = ()
    later_s: tuple[float, ...] = ()
    error: str | None = None

    @property
    def usual_s(self) -> float | None:
        """Median of the later requests."""
        return statistics.median(self.later_s) if self.later_s else None

    @property
    def spike(self) -> bool:
        """True when the first request took clearly longer than the later ones."""
        if self.first_s is None or self.usual_s is None:
            return False
        return self.first_s - self.usual_s >= SPIKE_S and self.first_s >= SPIKE_TIMES * self.usual_s

    def as_json(self) -> dict[str, Any]:
        """For measured figures."""
        return {
            "shape": self.shape.name,
            "prompt_tokens": self.shape.tokens,
            "answer_tokens": self.shape.answer,
            "at_once": self.shape.at_once,
            "first_ttft_s": rounded(self.first_ttft_s),
            "first_s": rounded(self.first_s),
            "later_ttft_s": [rounded(s) for s in self.later_ttft_s],
            "later_s": [rounded(s) for s in self.later_s],
            "usual_s": rounded(self.usual_s),
            "spike": self.spike,
            "error": self.error,
        }


def shapes(session: Session, block: int | None, *, sampled: bool | None = None) -> tuple[Shape, ...]:
    """What fits into the context of this server.

    ``sampled`` None: a sampled answer is asked unless the server may die of it (:attr:`Session.fragile`).
    """
    if sampled is None:
        sampled = not session.fragile
    size = block or USUAL_BLOCK
    over = size + size // 8 + 2
    wanted = [
        Shape("short prompt", 12),
        Shape("prompt of 100 tokens", 100),
        Shape("prompt just under a block", size - 4),
        Shape("prompt over a block", over),
        Shape("prompt of two blocks", 2 * size + size // 8 + 2),
        Shape("prompt of two blocks, repeated", 2 * size + size // 8 + 2, repeated=True),
        Shape("long prompt", min(LONGEST, session.max_model_len - 32)),
        Shape("long answer", 24, answer=min(96, session.max_model_len // 4)),
        Shape("sampled answer", 24, answer=16, options={"temperature": 0.7, "top_p": 0.9, "top_k": 20}),
        Shape("several at once", 40, answer=16, at_once=SEQUENCES),
    ]
    if not sampled:
        wanted = [s for s in wanted if not s.options]
    if not session.prefix_caching:
        wanted = [s for s in wanted if not s.repeated]
    out: list[Shape] = []
    for shape in wanted:
        known = any((s.tokens, s.answer, s.repeated) == (shape.tokens, shape.answer, shape.repeated) for s in out)
        if 1 <= shape.tokens <= session.max_model_len - shape.answer and not known:
            out.append(shape)
    return tuple(out)


def time_shapes(
    session: Session, wanted: Sequence[Shape], on_pass: Callable[[int], None] = lambda _: None
) -> list[ShapeTimes]:
    """Asks every shape once, then again. ``on_pass`` is told the number of each finished pass, from 1.

    Stops with the first request that brings no whole answer. Raises ServerError when no prompt can be made.
    """
    seen: dict[str, list[Answer]] = {s.name: [] for s in wanted}
    error: dict[str, str] = {}
    for number in range(1, LATER + 2):
        prompt: list[int] = []
        for shape in wanted:
            if error:
                break
            prompts = [prompt] if shape.repeated and prompt else _prompts(session, shape)
            prompt = prompts[0]
            answers = _ask(session, shape, prompts)
            bad = next((a for a in answers if not a.ok), None)
            if bad is not None:
                error[shape.name] = bad.error or "no whole answer"
            else:
                # several at once are one request here: the slowest counts
                seen[shape.name].append(max(answers, key=lambda a: a.total_s))
        on_pass(number)
    return [_times(s, seen[s.name], error.get(s.name)) for s in wanted]


def _prompts(session: Session, shape: Shape) -> list[list[int]]:
    return [unique_prompt(session.client, shape.tokens) for _ in range(shape.at_once)]


def _ask(session: Session, shape: Shape, prompts: list[list[int]]) -> list[Answer]:
    def one(prompt: list[int]) -> Answer:
        return session.client.complete(prompt, shape.answer, ignore_eos=True, **shape.options)

    if len(prompts) == 1:
        return [one(prompts[0])]
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(one, prompts))


def _times(shape: Shape, answers: list[Answer], error: str | None) -> ShapeTimes:
    first = answers[0] if answers else None
    return ShapeTimes(
        shape,
        first.ttft_s if first else None,
        first.total_s if first else None,
        tuple(a.ttft_s for a in answers[1:] if a.ttft_s is not None),
        tuple(a.total_s for a in answers[1:]),
        error,
    )
