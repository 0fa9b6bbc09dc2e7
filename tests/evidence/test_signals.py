"""Every signal matches its own examples, through the prefilter as well, and none of its counter-examples."""

from __future__ import annotations

import pytest

from doctor.evidence.scan import scan
from doctor.evidence.signals import Signal, all_signals

EXAMPLES = [(s, text) for s in all_signals() for text in s.examples]
COUNTER = [(s, text) for s in all_signals() for text in s.not_examples]


@pytest.mark.parametrize(("signal", "text"), EXAMPLES, ids=lambda v: v.name if isinstance(v, Signal) else v[:40])
def test_example_is_found(signal: Signal, text: str) -> None:
    found = scan([b"first line\n", text.encode() + b"\n"], "x.log")
    event = next((e for e in [*found.events, *found.facts] if e.signal == signal.name), None)
    assert event is not None
    assert event.line == 2
    assert event.source == "x.log:2"


@pytest.mark.parametrize(("signal", "text"), COUNTER, ids=lambda v: v.name if isinstance(v, Signal) else v[:40])
def test_counter_example_is_left_alone(signal: Signal, text: str) -> None:
    found = scan([text.encode() + b"\n"], "x.log")
    assert signal.name not in {e.signal for e in found.events}


def test_every_signal_has_an_example_and_a_source() -> None:
    assert [s.name for s in all_signals() if not s.examples or not s.source] == []


def test_literals_are_specific_enough() -> None:
    """A literal of three letters would make every line of a log a candidate."""
    short = [(s.name, text) for s in all_signals() for text in s.literals if len(text) < 3]
    assert short == []
