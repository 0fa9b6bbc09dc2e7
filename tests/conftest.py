"""Shared by all tests: which outcome each check had while the suite ran."""

from __future__ import annotations

import signal
from collections import defaultdict

import hypothesis
import pytest

from doctor.checks import registry
from doctor.finding import Finding, Skipped
from doctor.snapshot import Snapshot

#: (cause, kind) -> outcomes seen: "fires", "silent", "not judged".
OUTCOMES: dict[tuple[str, str], set[str]] = defaultdict(set)
# a suite started in the background of a shell ignores Ctrl+C, and so would every program that a test interrupts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_WHOLE_SUITE = pytest.StashKey[bool]()

# a busy machine is no defect: what must be fast has a test of its own
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")


def _record() -> None:
    real = registry._run

    def recording(item: registry.Check, snapshot: Snapshot) -> registry.Result:
        result = real(item, snapshot)
        if item.function.__module__.startswith("doctor."):
            outcome = {Finding: "fires", Skipped: "not judged"}.get(type(result), "silent")
            OUTCOMES[item.id, item.kind].add(outcome)
        return result

    registry._run = recording


_record()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tally of outcomes comes last, and only after a run of everything."""
    last = [i for i in items if i.get_closest_marker("last")]
    items[:] = [i for i in items if i not in last] + last
    whole = (
        not config.option.keyword
        and not getattr(config.option, "lf", False)
        and all("::" not in a for a in config.args)
    )
    config.stash[_WHOLE_SUITE] = whole and set(config.args) <= {"tests", str(config.rootpath), "."}


@pytest.fixture
def whole_suite(request: pytest.FixtureRequest) -> None:
    """Skips unless the whole suite ran."""
    if not request.config.stash.get(_WHOLE_SUITE, False) or request.config.option.markexpr:
        pytest.skip("tells something only after a run of the whole suite")
