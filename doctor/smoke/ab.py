"""The correctness A/B: the same greedy prompts on servers that differ only in MTP and prefix caching.

Each server is asked every prompt cold, interleaved so that A is asked again after B with which it shares its
beginning (A-B-A), then all again in turn, then all at the same time. Token ids and log-probabilities are kept.
What the answers say is judged in :mod:`doctor.smoke.ab_judge`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from doctor.serve.client import Answer, Client
from doctor.serve.command import Settings, without_option
from doctor.smoke.recall import Recall, filler, listing, needle

#: Tokens of each answer: enough to cross a block border where the prompt ends just before one.
TOKENS = 24
RECALL_TOKENS = 48
#: Tokens of the answers whose speed counts, and how many of them.
SPEED_TOKENS = 96
SPEED_RUNS = 3
#: What is asked at the same time, twice.
AT_ONCE_ROUNDS = 2

COLD, AGAIN, AT_ONCE = "cold", "again", "at once"


@dataclass(frozen=True)
class Config:
    """One of the servers: ``draft_tokens`` 0 without MTP."""

    draft_tokens: int
    prefix_caching: bool

    @property
    def name(self) -> str:
        """ "base", "prefix caching", "MTP" or "MTP + prefix caching"."""
        parts = (["MTP"] if self.draft_tokens else []) + (["prefix caching"] if self.prefix_caching else [])
        return " + ".join(parts) or "base"

    def settings(self, chosen: Settings) -> Settings:
        """``chosen`` with these two changed."""
        extra = chosen.extra
        if not self.draft_tokens:
            extra = without_option(extra, "--speculative-config")
        if not self.prefix_caching:
            extra = (*extra, "--no-enable-prefix-caching")
        return replace(chosen, mtp=chosen.mtp if self.draft_tokens else 0, extra=extra)


def configs(chosen: Settings) -> tuple[Config, ...]:
    """The servers to compare: the base first, the chosen settings last; one when nothing can be compared."""
    drafts = (0, chosen.draft_tokens) if chosen.draft_tokens else (0,)
    caching = (False, True) if chosen.prefix_caching else (False,)
    return tuple(Config(d, c) for d in drafts for c in caching)


@dataclass(frozen=True)
class Prompts:
    """Prompts by name, as token ids, and what two of them ask for. ``block`` and ``border`` in tokens."""

    block: int
    plain: dict[str, list[int]]
    recall: dict[str, Recall]


@dataclass
class Run:
    """What one server answered. ``error`` when a request brought no whole answer or the server did not start."""

    config: Config
    answers: dict[tuple[str, str, int], Answer] = field(default_factory=dict)  # (prompt, how, number)
    speeds: list[float] = field(default_factory=list)  # decoded tokens a second
    error: str | None = None

    @property
    def speed(self) -> float | None:
        """Median of the decode speeds."""
        return statistics.median(self.speeds) if self.speeds else None

    def of(self, prompt: str) -> list[Answer]:
        """All answers to one prompt, the cold one first."""
        return [a for (name, _, _), a in self.answers.items() if name == prompt]

    def prompts(self) -> list[str]:
        """Names in the order of asking."""
        return list(dict.fromkeys(name for name, _, _ in self.answers))


def make_prompts(client: Client, block: int, max_model_len: int, salt: str) -> Prompts:
    """Prompts whose cached beginnings end at block borders in several ways. Raises ServerError.

    With MTP a hit is one block shorter, so the prompts have at least two whole blocks where they fit.
    """
    step = block if block > 64 else block * 4  # small blocks: enough text between the borders
    a = filler(client, 2 * step + 10, f"Ledger {salt} A. ")
    wanted = {
        "A": a,
        "B": a[: step + 4] + filler(client, step + 20, f"Ledger {salt} B. "),
        # its answer crosses a border, so state is kept there while drafts are verified
        "border": filler(client, 2 * step - TOKENS // 2, f"Ledger {salt} C. "),
        "short": filler(client, min(40, step), f"Ledger {salt} D. "),
        "long": filler(client, 3 * step + step // 2, f"Ledger {salt} E. "),
    }
    room = max_model_len - RECALL_TOKENS
    recall = {
        "needle": needle(client, step, 2 * step + 16, f"{salt} F"),
        "list": listing(client, step, 2 * step + 16, f"{salt} G"),
    }
    return Prompts(
        step,
        {n: p for n, p in wanted.items() if len(p) <= room},
        {n: r for n, r in recall.items() if len(r.prompt) <= room},
    )


def next_turn(client: Client, prompts: Prompts, base: Run, max_model_len: int) -> list[int] | None:
    """The conversation goes on: "border", its answer on the base server, and a block more. Raises ServerError.

    The border that the answer crossed is inside the cached part, also with MTP, which costs a block.
    """
    answers = base.of("border")
    ids = token_ids(answers[0]) if answers else None
    if ids is None:
        return None
    prompt = [*prompts.plain["border"], *ids, *filler(client, prompts.block + 10, "\nAnd then? ")]
    return prompt if len(prompt) <= max_model_len - RECALL_TOKENS else None


def token_ids(answer: Answer) -> list[int] | None:
    """Ids of an answer's tokens; None from a server that gives texts instead."""
    ids = [t.removeprefix("token_id:") for t in answer.tokens]
    return [int(i) for i in ids] if ids and all(i.isdigit() for i in ids) else None


def ask(client: Client, run: Run, prompts: Prompts) -> None:
    """Asks everything of one server; stops at the first answer that is not whole."""
    plan = [(n, p, TOKENS) for n, p in prompts.plain.items()]
    plan += [(n, list(r.prompt), RECALL_TOKENS) for n, r in prompts.recall.items()]
    for name, prompt, tokens in plan:
        _one(client, run, (name, COLD, 0), prompt, tokens)
        if name == "B":
            _one(client, run, ("A", AGAIN, 0), prompts.plain["A"], TOKENS)  # A-B-A
    for name, prompt, tokens in plan:
        _one(client, run, (name, AGAIN, 1), prompt, tokens)
    _at_once(client, run, plan)


def ask_turn(client: Client, run: Run, prompt: list[int]) -> None:
    """The next turn: first straight after the answer that it continues, then again."""
    for number in range(2):
        _one(client, run, ("next turn", AGAIN if number else COLD, number), prompt, TOKENS)


def measure_speed(client: Client, run: Run, prompts: Prompts) -> None:
    """Decode speed of one stream after a short prompt."""
    for _ in range(SPEED_RUNS):
        if run.error:
            return
        answer = client.complete(prompts.plain["short"], SPEED_TOKENS, ignore_eos=True)
        if not answer.ok:
            run.error = f"a generation of {SPEED_TOKENS} tokens failed: {answer.error}"
        elif answer.decode_tokens_per_s:
            run.speeds.append(answer.decode_tokens_per_s)


def _at_once(client: Client, run: Run, plan: Sequence[tuple[str, list[int], int]]) -> None:
    for number in range(AT_ONCE_ROUNDS):
        if run.error:
            return
        with ThreadPoolExecutor(len(plan)) as pool:
            answers = list(pool.map(lambda item: _complete(client, item[1], item[2]), plan))
        for (name, _, _), answer in zip(plan, answers, strict=True):
            _keep(run, (name, AT_ONCE, number), answer)


def _one(client: Client, run: Run, key: tuple[str, str, int], prompt: list[int], tokens: int) -> None:
    if run.error is None:
        _keep(run, key, _complete(client, prompt, tokens))


def _keep(run: Run, key: tuple[str, str, int], answer: Answer) -> None:
    if answer.ok:
        run.answers[key] = answer
    elif run.error is None:
        run.error = f"{key[0]} ({key[1]}): {answer.error}"


def _complete(client: Client, prompt: list[int], tokens: int) -> Answer:
    # ids instead of texts: two tokens may have the same text
    return client.complete(prompt, tokens, ignore_eos=True, logprobs=5, return_tokens_as_token_ids=True)
