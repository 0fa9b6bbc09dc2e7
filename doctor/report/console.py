"""The console every report prints on; loads nothing of what is reported."""

from __future__ import annotations

import re
import sys
from typing import IO, Any, cast

from rich.console import Console


class _Trimmed:
    """A text stream that gets no blanks before a line's end: rich pads lines to the width."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(re.sub(r" +(?=\n)", "", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Console(Console):
    """Leaves a pipe without a reader to the command line: rich itself ends the program with 1."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that rich is handling


def console(file: IO[str] | None = None) -> Console:
    """A console on stdout: coloured on a terminal, plain and 100 columns wide when piped.

    Printing raises BrokenPipeError when the reader of the pipe has gone.
    """
    out = _Console(file=file, highlight=False, soft_wrap=False)
    if out.is_terminal:
        return out
    trimmed = cast("IO[str]", _Trimmed(file or sys.stdout))
    return _Console(file=trimmed, highlight=False, width=100, no_color=True)
