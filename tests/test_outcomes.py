"""Every check was seen to fire and to stay silent while the suite ran."""

from __future__ import annotations

import pytest

from doctor.checks.registry import registered
from tests.conftest import OUTCOMES

#: Tells a figure whenever it is known and is not judged otherwise: no fault that could be absent.
ALWAYS_TELLS = {"usable-vram-fraction"}


def silent(cause: str, kind: str) -> bool:
    """A text that says nothing of a cause does not clear it: there "not judged" is the silence."""
    quiet = {"silent"} if kind == "facts" and cause not in ALWAYS_TELLS else {"silent", "not judged"}
    return bool(quiet & OUTCOMES[cause, kind])


@pytest.mark.last
@pytest.mark.usefixtures("whole_suite")
def test_every_check_fired_and_stayed_silent() -> None:
    checks = registered()
    never_fired = [f"{c.id} ({c.kind})" for c in checks if "fires" not in OUTCOMES[c.id, c.kind]]
    never_silent = [f"{c.id} ({c.kind})" for c in checks if not silent(c.id, c.kind)]
    assert (never_fired, never_silent) == ([], [])
