"""Progress on stderr: a live line on a terminal, dated plain lines elsewhere. Never on stdout."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

#: Work shorter than this many seconds leaves no lines when stderr is not a terminal.
QUIET_S = 1.0


class Progress:
    """``with Progress("examining", total=9) as p: p.advance("system")``; ``total=None`` shows time only."""

    def __init__(self, title: str, total: int | None = None) -> None:
        self._title = title
        self._total = total
        self._began = time.monotonic()
        self._last = ""
        self._held = ""
        self._next_line = QUIET_S
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = [SpinnerColumn(), TextColumn("{task.description}")]
            if self._total:
                columns.append(BarColumn(bar_width=20))
            self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        else:
            # What began in the first second may last for minutes: it is told once the second is over.
            timer = threading.Timer(QUIET_S, self._tell_held)
            timer.daemon = True
            with suppress(RuntimeError):  # no thread is to be had: one line less
                timer.start()
                self._timer = timer
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._held = ""

    def advance(self, name: str) -> None:
        """One unit of work is done; ``name`` says which."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, description=f"{self._title}: {name}")
        else:
            self._line(name, apart_s=QUIET_S)

    def update(self, text: str) -> None:
        """What is happening now; equal texts in a row are shown once."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=f"{self._title}: {text}")
        else:
            self._line(text)

    def _line(self, text: str, apart_s: float = 0.0) -> None:
        with self._lock:
            seconds = time.monotonic() - self._began
            if seconds < QUIET_S:
                self._held = text
            elif seconds >= self._next_line and text != self._last:
                self._next_line = max(QUIET_S, seconds + apart_s)
                self._held, self._last = "", text
                self._print(seconds, text)

    def _tell_held(self) -> None:
        with self._lock:
            text, self._held = self._held, ""
            self._last = text or self._last
        if text:
            with suppress(OSError, ValueError):  # a line that nobody can read ends no work
                self._print(time.monotonic() - self._began, text)  # without the lock: it may wait for a reader

    def _print(self, seconds: float, text: str) -> None:
        print(f"[{seconds:4.0f} s] {self._title}: {text}", file=sys.stderr, flush=True)  # noqa: T201
