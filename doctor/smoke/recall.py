"""Prompts that ask for something said across a block border, and whether the answer has it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from doctor.serve.client import Client

_SENTENCE = (
    "The harbour master wrote the arrival of each ship, its cargo and its captain into the ledger, "
    "and the night watch read the entries aloud before the lamps went out. "
)
_GOODS = "amber barley copper dates elm flax ginger hemp indigo jute kelp linen myrrh nutmeg oak pepper".split()
#: Things to recall in a list; all of them must come back.
ITEMS = 8


@dataclass(frozen=True)
class Recall:
    """``wanted`` must all be in the answer to ``prompt`` (token ids)."""

    prompt: tuple[int, ...]
    wanted: tuple[str, ...]

    def recalled(self, text: str) -> bool:
        """Whether the answer has everything."""
        return all(w.lower() in text.lower() for w in self.wanted)


def needle(client: Client, border: int, length: int, salt: str) -> Recall:
    """A number that straddles the block border, asked for at the end. Raises ServerError."""
    number = str(random.Random(salt).randrange(10_000, 100_000))  # noqa: S311  not a secret
    said = f"The access code of the north gate is {number}. "
    question = "Question: what is the access code of the north gate? Answer with the number.\nAnswer: the code is"
    return _recall(client, border, length, salt, said, question, (number,))


def listing(client: Client, border: int, length: int, salt: str) -> Recall:
    """A list of goods across the border, to be said again. Raises ServerError."""
    goods = random.Random(salt).sample(_GOODS, ITEMS)  # noqa: S311
    said = f"The ship carries: {', '.join(goods)}. "
    question = "Question: list everything that the ship carries, in order.\nAnswer: the ship carries:"
    return _recall(client, border, length, salt, said, question, tuple(goods))


def _recall(
    client: Client, border: int, length: int, salt: str, said: str, question: str, wanted: tuple[str, ...]
) -> Recall:
    middle, last = client.tokenize(said), client.tokenize("\n" + question)
    head = filler(client, border - len(middle) // 2, f"Ledger {salt}. ")
    tail = filler(client, max(0, length - len(head) - len(middle) - len(last)))
    return Recall((*head, *middle, *tail, *last), wanted)


def filler(client: Client, tokens: int, start: str = "") -> list[int]:
    """``tokens`` ids of harmless text that begins with ``start``. Raises ServerError."""
    if tokens <= 0:
        return []
    # a sentence has at least 20 tokens in any vocabulary of words, and at most one a character
    ids = client.tokenize(start + _SENTENCE * (2 + tokens // 20))
    return ids[:tokens]
