"""Whole files as people paste them: the right answer, in every wrapping that text goes through on its way."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.checks.registry import Judgement, judge, registered
from doctor.evidence import read_evidence
from tests.cases.support import Case, handed, score

CASES = handed()


def answer(path: Path) -> Judgement:
    return judge(read_evidence([str(path)]).snapshot, registered())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_file(case: Case) -> None:
    assert case.path
    judgement = answer(case.path)
    assert score(case, judgement) == []


def compose(text: str) -> bytes:
    return "".join(f"vllm-1  | {line}\n" for line in text.splitlines()).encode()


def journald(text: str) -> bytes:
    return "".join(f"Aug 01 09:00:08 box vllm[4242]: {line}\n" for line in text.splitlines()).encode()


def kubernetes(text: str) -> bytes:
    return "".join(f"2026-08-01T09:00:08.123456789Z {line}\n" for line in text.splitlines()).encode()


def cri(text: str) -> bytes:
    return "".join(f"2026-08-01T09:00:08.123456789+00:00 stderr F {line}\n" for line in text.splitlines()).encode()


def desktop(text: str) -> bytes:
    return "".join(f"2026-08-01 20:48:42.107 | {line}\n" for line in text.splitlines()).encode()


def docker_json(text: str) -> bytes:
    rows = (
        {"log": line + "\n", "stream": "stderr", "time": "2026-08-01T09:00:08.1Z"} for line in text.splitlines()
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def markdown(text: str) -> bytes:
    quoted = "".join(f"> {line}\n" for line in text.splitlines())
    return f"### Your environment\n\n> ```text\n{quoted}> ```\n\nAny idea?\n".encode()


def coloured(text: str) -> bytes:
    """As vLLM prints on a terminal: the process in bold cyan, errors in red."""
    lines = (re.sub(r"^(\([A-Z]\w* pid=\d+\))", "\x1b[1;36m\\1\x1b[0;0m", line) for line in text.splitlines())
    return "".join(f"\x1b[31m{line}\x1b[0m\r\n" for line in lines).encode()


def utf16(text: str) -> bytes:
    return b"\xff\xfe" + "\r\n".join(text.splitlines()).encode("utf-16-le")


def utf16_bare(text: str) -> bytes:
    return "\n".join(text.splitlines()).encode("utf-16-le")


def packed(text: str) -> bytes:
    return gzip.compress(text.encode())


def junk(text: str) -> bytes:
    return b"\xff\xfe\x00"[2:] + b"\xc3\x28\xa0\xa1\n" + text.encode() + b"\n\xf0\x28\x8c\x28"


def progress(text: str) -> bytes:
    bar = "".join(f"\rmodel-00001-of-00002.safetensors: {n}%|##    | 1.0G/4.0G" for n in range(0, 100, 5))
    return (bar + "\n" + text).encode()


WRAPPINGS: tuple[Callable[[str], bytes], ...] = (
    compose, journald, kubernetes, cri, desktop, docker_json, markdown, coloured, utf16, utf16_bare, packed, junk,
    progress,
)  # fmt: skip


@pytest.mark.parametrize("wrap", WRAPPINGS, ids=lambda w: w.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name[:3] + c.name[-4:])
def test_wrapped(case: Case, wrap: Callable[[str], bytes], tmp_path: Path) -> None:
    assert case.path
    file = tmp_path / "paste.txt"
    file.write_bytes(wrap(case.path.read_text(encoding="utf-8")))
    assert score(case, answer(file)) == []


@pytest.mark.parametrize("case", [c for c in CASES if c.name.endswith(".log")], ids=lambda c: c.name)
def test_truncated_beginning(case: Case, tmp_path: Path) -> None:
    """The first third of the lines is missing: nothing may be claimed that the whole does not show."""
    assert case.path
    lines = case.path.read_text(encoding="utf-8").splitlines(keepends=True)
    file = tmp_path / "paste.txt"
    file.write_text("".join(lines[len(lines) // 3 :]), encoding="utf-8")
    proven = {f.id for f in answer(file).findings if f.confidence.value == "proven"}
    whole = {f.id for f in answer(case.path).findings if f.confidence.value == "proven"}
    assert proven <= whole


@pytest.mark.parametrize("width", [72, 80, 100, 132])
def test_hard_wrapped(width: int, tmp_path: Path) -> None:
    """A narrow terminal broke every long line: most causes are still found, none is claimed wrongly."""
    missed = []
    for case in CASES:
        assert case.path
        lines = case.path.read_text(encoding="utf-8").splitlines()
        cut = [line[i : i + width] for line in lines for i in range(0, max(len(line), 1), width)]
        file = tmp_path / "paste.txt"
        file.write_text("\n".join(cut), encoding="utf-8")
        wrong = score(case, answer(file))
        missed += [f"{case.name}: {w}" for w in wrong if "not found" in w]
        assert [w for w in wrong if "not found" not in w] == [], case.name
    assert len(missed) <= 3, missed
