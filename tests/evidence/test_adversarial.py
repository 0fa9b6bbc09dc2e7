"""Lines made to hurt: 1 MB of what a pattern nearly matches takes seconds, not minutes."""

from __future__ import annotations

import re
import time

import pytest

from doctor.evidence import scan as scanning
from doctor.evidence.scan import scan
from doctor.evidence.signals import Signal, all_signals

MEGABYTE = 1_000_000
#: CPU seconds for one line of 1 MB, on a slow machine.
LIMIT_S = 8.0
FILLS = ("a", "1", "/", " ", "(", "'", ".", "1.", "/a", "a=1, ", "sm_80 ", "\\n")


@pytest.mark.parametrize("fill", FILLS)
def test_megabyte_of_filling_around_every_literal(fill: str) -> None:
    literals = [text for s in all_signals() for text in s.literals]
    gap = fill * (MEGABYTE // len(literals) // len(fill))
    line = "".join(text + gap for text in literals).encode()
    began = time.process_time()
    scan([line + b"\n"], "x")
    assert time.process_time() - began < LIMIT_S


@pytest.mark.parametrize("offset", range(6))
def test_megabyte_of_examples_that_nearly_match(offset: int) -> None:
    texts = [e.replace("\n", " ") for s in all_signals() for e in s.examples][offset::6]
    line = "".join(text[:-4] * 3 for text in texts)
    data = (line * (MEGABYTE // len(line) + 1))[:MEGABYTE].encode()
    began = time.process_time()
    scan([data], "x")
    assert time.process_time() - began < LIMIT_S


@pytest.mark.parametrize(
    "text", ["/dev/shm", "killed", "No space left on device", "cannot open shared object file"]
)
def test_quarter_megabyte_of_one_literal(text: str) -> None:
    data = (text * (MEGABYTE // 4 // len(text))).encode()
    began = time.process_time()
    scan([data], "x")
    assert time.process_time() - began < LIMIT_S


@pytest.mark.parametrize("signal", all_signals(), ids=lambda s: s.name)
def test_patterns_have_bounded_repetition(signal: Signal) -> None:
    for expression in signal.expressions:
        bare = re.sub(r"\\.|\[[^\]]*\]", "x", expression)
        loose = [m.group() for m in re.finditer(r"(?<!\()[*+]|\{\d*,\}", bare)]
        # "\d+" and "\w+" alone are linear: digits and words end; more than one of them is not accepted
        assert len(loose) <= 2, expression


def test_long_lines_are_looked_at_in_windows() -> None:
    line = b"x" * 300_000 + b" RuntimeError: UVA is not available " + b"y" * 300_000
    found = scan([line], "x")
    assert [e.signal for e in found.events] == ["wsl.uva"]
    assert len(found.events[0].text) <= 2 * scanning.LONGEST
