"""Prompts of a wanted length that no cache can know."""

from __future__ import annotations

import uuid

from doctor.serve.client import Client, ServerError

_SENTENCE = (
    "The harbour master wrote the arrival of each ship, its cargo and its captain into the ledger, "
    "and the night watch read the entries aloud before the lamps went out. "
)


def unique_text(words: int = 12) -> str:
    """A few sentences that start with something never asked before."""
    return f"Ledger {uuid.uuid4().hex}. " + (_SENTENCE * (1 + words // 24))


def unique_prompt(client: Client, tokens: int) -> list[int]:
    """Token ids of exactly ``tokens`` length, new from the first block on. Raises ServerError."""
    ids: list[int] = []
    text = unique_text()
    while len(ids) < tokens:
        # a sentence has at least 20 tokens in any vocabulary of words
        text += _SENTENCE * (1 + (tokens - len(ids)) // 20)
        ids = client.tokenize(text)
        if len(text) > 200 * tokens + 10_000:
            raise ServerError(f"/tokenize turns {len(text)} characters into {len(ids)} tokens")
    return ids[:tokens]
