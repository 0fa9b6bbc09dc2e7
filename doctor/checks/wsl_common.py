"""What the checks of WSL share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from doctor.checks.registry import CheckFunction
from doctor.facts import WslFacts
from doctor.finding import Finding, Skipped
from doctor.snapshot import Snapshot


def facts(s: Snapshot) -> WslFacts:
    """The WSL facts of a check that needs them."""
    assert s.wsl is not None  # noqa: S101  needs=
    return s.wsl


def under_wsl2(cause: str) -> Callable[[CheckFunction], CheckFunction]:
    """The check passes anywhere but under WSL 2, and is skipped when that is not known."""

    def decorate(function: CheckFunction) -> CheckFunction:
        @wraps(function)
        def judged(s: Snapshot) -> Finding | Skipped | None:
            if s.is_wsl2 is None:
                return Skipped(cause, "it is not known whether this is WSL")
            return function(s) if s.is_wsl2 else None

        return judged

    return decorate
