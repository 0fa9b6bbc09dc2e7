"""Every check was seen to fire and to stay silent while the suite ran."""

from __future__ import annotations

import pytest

from doctor.checks.registry import registered
from tests.conftest import OUTCOMES


@pytest.mark.last
@pytest.mark.usefixtures("whole_suite")
def test_every_check_fired_and_stayed_silent() -> None:
    lacking = {
        f"{item.id} ({item.kind})": sorted({"fires", "silent"} - OUTCOMES[item.id, item.kind])
        for item in registered()
        if not OUTCOMES[item.id, item.kind] >= {"fires", "silent"}
    }
    assert not lacking
