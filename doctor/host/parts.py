"""Helpers of the probes: a probe made of guarded parts, and calls that may hang but cost only a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Read(NamedTuple):
    """A value and where it was read (a path or a command)."""

    value: Any
    source: str


#: One part of a probe: {field: what was read}. A field that is left out stays unknown.
Part = Callable[[], Mapping[str, Read]]


def gather(parts: Iterable[Part]) -> tuple[dict[str, Any], dict[str, str]]:
    """Runs the parts and returns (values, sources).

    A part that raises costs only its own fields; ``sources`` then says why under ``!name``.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for part in parts:
        try:
            read = part()
        except Exception as error:  # noqa: BLE001  whatever a file holds, it may cost its own fields only
            name = getattr(part, "__name__", None) or getattr(getattr(part, "func", None), "__name__", "part")
            sources[f"!{name}"] = f"{type(error).__name__}: {error}"[:200]
            continue
        for field, (value, source) in read.items():
            if value is not None:
                values[field] = value
                sources[field] = source
    return values, sources


class Bounded:
    """Calls that run side by side in daemon threads, each of which may block for ever (a dead mount).

    ``start`` returns at once; ``result`` waits until the common deadline at most.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._threads: dict[str, threading.Thread] = {}
        self._results: dict[str, Any] = {}
        self._errors: dict[str, BaseException] = {}

    def start(self, name: str, function: Callable[[], Any]) -> None:
        """Starts one call under a name."""

        def target() -> None:
            try:
                self._results[name] = function()
            except Exception as error:  # noqa: BLE001  handed to result()
                self._errors[name] = error

        self._threads[name] = threading.Thread(target=target, name=f"bounded-{name}", daemon=True)
        self._threads[name].start()

    def result(self, name: str) -> Any:
        """What the call returned. Raises TimeoutError, or what the call raised."""
        self._threads[name].join(max(0.0, self._deadline - time.monotonic()))
        if name in self._errors:
            raise self._errors[name]
        if name not in self._results:
            raise TimeoutError(f"no answer from {name}")
        return self._results[name]


def bounded(function: Callable[[], T], seconds: float, default: T) -> T:
    """One call that may hang: its result, or ``default`` after ``seconds`` or when it raises OSError."""
    calls = Bounded(seconds)
    calls.start("call", function)
    try:
        result: T = calls.result("call")
    except OSError:  # TimeoutError is one
        return default
    return result


def number(text: str | None) -> int | None:
    """The first word as a decimal number; None when it is none (or absurdly long)."""
    words = (text or "").split(None, 1)
    if not words or len(words[0]) > 20:
        return None
    digits = words[0].lstrip("-")
    return int(words[0]) if digits.isascii() and digits.isdigit() and len(words[0]) - len(digits) <= 1 else None
