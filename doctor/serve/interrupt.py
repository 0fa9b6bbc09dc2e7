"""A hang-up of the terminal and a service manager's SIGTERM end a command as Ctrl+C does."""

from __future__ import annotations

import signal
from types import FrameType


def like_ctrl_c() -> None:
    """SIGTERM and SIGHUP raise KeyboardInterrupt from now on, so that a server is ended and rows are kept."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
