"""Mutated inputs: no crash, and nothing proven that none of the texts they were made from proves.

``DOCTOR_FUZZ=10000`` runs as many inputs; the normal run draws few, always the same.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from doctor.checks.registry import judge, registered
from doctor.evidence import read_evidence
from doctor.finding import Confidence
from tests.cases.support import handed

SEEDS = sorted(str(c.path) for c in handed())
COUNT = int(os.environ.get("DOCTOR_FUZZ", "300"))

Mutation = Callable[[random.Random, bytes, bytes], bytes]


def cut(draw: random.Random, one: bytes, other: bytes) -> bytes:
    start, end = sorted(draw.randrange(len(one) + 1) for _ in range(2))
    return one[start:end]


def splice(draw: random.Random, one: bytes, other: bytes) -> bytes:
    return one[: draw.randrange(len(one) + 1)] + other[draw.randrange(len(other) + 1) :]


def shuffle(draw: random.Random, one: bytes, other: bytes) -> bytes:
    lines = one.splitlines(keepends=True)
    draw.shuffle(lines)
    return b"".join(lines)


def interleave(draw: random.Random, one: bytes, other: bytes) -> bytes:
    rows = [*one.splitlines(keepends=True), *other.splitlines(keepends=True)]
    draw.shuffle(rows)
    return b"".join(rows[: draw.randrange(len(rows)) + 1])


def noise(draw: random.Random, one: bytes, other: bytes) -> bytes:
    data = bytearray(one)
    for _ in range(draw.randrange(1, 40)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def nulls(draw: random.Random, one: bytes, other: bytes) -> bytes:
    at = draw.randrange(len(one))
    return one[:at] + b"\0" * draw.randrange(1, 2000) + one[at:]


def mixed(draw: random.Random, one: bytes, other: bytes) -> bytes:
    at = draw.randrange(len(one))
    return one[:at] + one[at:].decode("utf-8", "replace").encode("utf-16-le")


def double(draw: random.Random, one: bytes, other: bytes) -> bytes:
    return one.decode("utf-8", "replace").encode("utf-16") + other


def endless(draw: random.Random, one: bytes, other: bytes) -> bytes:
    return one.replace(b"\n", draw.choice([b"", b"\r", b" ", b"\\n"]))


MUTATIONS: tuple[Mutation, ...] = (cut, splice, shuffle, interleave, noise, nulls, mixed, double, endless)


def proven(path: str) -> frozenset[str]:
    judgement = judge(read_evidence([path]).snapshot, registered())
    broken = [s for s in judgement.skipped if "check itself failed" in s.why]
    assert broken == []
    return frozenset(f.id for f in judgement.findings if f.confidence is Confidence.PROVEN)


@cache
def proven_by_seed(path: str) -> frozenset[str]:
    return proven(path)


@pytest.mark.timeout(3600)
def test_mutated_inputs(tmp_path: Path) -> None:
    draw = random.Random(20261130)
    file = tmp_path / "fuzz.bin"
    for number in range(COUNT):
        one, other = draw.choice(SEEDS), draw.choice(SEEDS)
        mutation = draw.choice(MUTATIONS)
        file.write_bytes(mutation(draw, Path(one).read_bytes(), Path(other).read_bytes()))
        extra = proven(str(file)) - proven_by_seed(one) - proven_by_seed(other)
        assert not extra, (number, mutation.__name__, Path(one).name, Path(other).name, extra)


@pytest.mark.parametrize("size", [0, 1, 7, 4096])
def test_random_bytes(size: int, tmp_path: Path) -> None:
    file = tmp_path / "random.bin"
    for seed in range(20):
        file.write_bytes(random.Random(seed).randbytes(size))
        assert proven(str(file)) == frozenset()
