"""Writes files of an answer or a report: whole ones or none."""

from __future__ import annotations

import os
from pathlib import Path

from doctor.errors import DoctorError


def write(target: Path, text: str) -> None:
    """Replaces ``target`` by ``text`` in one step. Raises DoctorError when it cannot be written."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise DoctorError(f"cannot write {target}: {error.strerror}") from None
