"""The library and the plain search give the same hits."""

from __future__ import annotations

import importlib.util
import random

import pytest

from doctor.evidence.multi import Finder

LITERALS = [b"Out of Memory", b"memory", b"no such file", b"z", b"\xc3\xa4", b"x.y*z"]


def text(seed: int) -> bytes:
    draw = random.Random(seed)
    words = [b"out of MEMORY", b"Memory ", b"No such File", b"zzz", b"\n", b"x.y*z", b"xxyyz", b"\xc3\xa4"]
    return b" ".join(draw.choice(words) for _ in range(90_000))


@pytest.mark.skipif(importlib.util.find_spec("hyperscan") is None, reason="hyperscan is not installed")
def test_library_and_plain_search_agree() -> None:
    for seed in range(3):
        block = text(seed)
        assert Finder(LITERALS).find(block) == Finder(LITERALS, library=False).find(block)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doctor.evidence.multi._compile", lambda literals: None)
    block = text(1)
    assert Finder(LITERALS).find(block) == Finder(LITERALS, library=False).find(block)


@pytest.mark.parametrize("library", [True, False])
def test_dropped_literals_are_not_found(library: bool) -> None:
    finder = Finder(LITERALS, library)
    for _ in range(6):  # the library keeps its database for some blocks
        assert {n for _, n in finder.find(text(2))} == {0, 1, 2, 3, 4, 5} - set(finder_dropped(finder))
        finder.drop([1, 3])
    finder.drop(range(6))
    assert finder.find(text(2)) == []


def finder_dropped(finder: Finder) -> list[int]:
    return [n for n in range(len(LITERALS)) if n not in finder._alive]
