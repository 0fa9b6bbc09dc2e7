"""Reads cases with their expected answers, and compares an answer with them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from doctor.checks.registry import Judgement
from doctor.finding import Severity

HERE = Path(__file__).parent
RANK = {"hint": 1, "likely": 2, "proven": 3}
#: The lowest rank that counts as found: evidence that proves must give at least "likely".
NEED = {"proven": 2, "likely": 1, "hint": 1}
#: True of many files, so never counted against an answer.
TOLERATED = {
    "wsl2-pin-memory-off", "eager-mode-enabled", "pynvml-shim-installed", "triton-jit-first-request",
    "vllm-doctor-name-clash", "hybrid-kv-pool-accounting",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """``expect``: (ids of which one must be found, what the evidence allows); ``never`` must not be reported."""

    name: str
    text: str
    expect: tuple[tuple[tuple[str, ...], str], ...] = ()
    also: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    origin: str = ""
    path: Path | None = None
    exact: bool = True  # the confidence must be reached exactly, not only nearly


def variants(folder: Path) -> list[Case]:
    """All cases of the ``*.txt`` files in a folder."""
    cases = []
    for path in sorted(folder.glob("*.txt")):
        for block in re.split(r"^### ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
            head, _, text = block.partition("\n")
            name, *parts = (p.strip() for p in head.split(" | "))
            cases.append(_case(f"{path.stem}:{name}", parts, text))
    return cases


def _case(name: str, parts: list[str], text: str) -> Case:
    expect: list[tuple[tuple[str, ...], str]] = []
    also: set[str] = set()
    never: set[str] = set()
    origin = ""
    for part in parts:
        word, _, rest = part.partition(" ")
        if word == "expect":
            ids, sure = rest.split()
            expect.append((tuple(ids.split("/")), sure))
        elif word == "also":
            also |= {i.strip() for i in rest.split(",")}
        elif word == "not":
            never |= {i.strip() for i in rest.split(",")}
        elif word == "from":
            origin = rest
        else:
            raise ValueError(f"{name}: {word}?")
    return Case(name, text, tuple(expect), frozenset(also), frozenset(never), origin)


def handed() -> list[Case]:
    """The whole files in ``files/`` with the answers in ``expected.json``."""
    document = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
    return [
        Case(
            name=row["file"],
            text="",
            expect=tuple((tuple(e["id"].split("|")), e["confidence"]) for e in row["expect"]),
            also=frozenset(row["also_ok"]),
            never=frozenset(row["must_not"]),
            path=HERE / "files" / row["file"],
            exact=False,
        )
        for row in document["files"]
    ]


def score(case: Case, judgement: Judgement) -> list[str]:
    """What is wrong with an answer; an empty list when nothing is."""
    got = {f.id: RANK[f.confidence.value] for f in judgement.findings}
    wrong = []
    expected: set[str] = set()
    for ids, sure in case.expect:
        expected |= set(ids)
        best = max((got.get(i, 0) for i in ids), default=0)
        if best < (RANK[sure] if case.exact else NEED[sure]):
            wrong.append(f"{'/'.join(ids)} ({sure}) not found: {got}")
        if sure == "hint" and best > RANK["likely"]:
            wrong.append(f"{'/'.join(ids)} claimed proven, the evidence allows no more than likely")
        if sure == "likely" and case.exact and best > RANK["likely"]:
            wrong.append(f"{'/'.join(ids)} claimed proven, the evidence makes it likely")
    for finding in judgement.findings:
        rank = got[finding.id]
        if finding.id in case.never and rank > 1:
            wrong.append(f"{finding.id} must not be reported ({finding.confidence.value})")
        if (
            rank == 3
            and finding.severity is not Severity.NOTE
            and finding.id not in expected | case.also | TOLERATED
        ):
            wrong.append(f"{finding.id} claimed proven, not among the expected")
    return wrong
