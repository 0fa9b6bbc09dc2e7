"""Failures of the doctor itself or of its use: one line that names what, where and what to do."""

from __future__ import annotations


class DoctorError(Exception):
    """Ends a command with ``exit_code`` and one line on stderr; never a traceback."""

    def __init__(self, message: str, exit_code: int = 3) -> None:
        super().__init__(message)
        self.exit_code = exit_code
