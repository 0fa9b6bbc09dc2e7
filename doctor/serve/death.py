"""Why a server ended: the first real exception of its log, or how the process was killed.

vLLM's API server ends with "Engine core initialization failed. See root cause above."; the cause is an
earlier traceback of another process whose lines are mixed with everybody else's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from doctor.serve.log import plain, split
from doctor.serve.server import Exit

#: Bytes read from the end of a log. A failing start writes far less.
LIMIT = 8 << 20

_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::\s*(.*))?$")
_FRAME = re.compile(r'\s+File "([^"]+)", line (\d+), in ')
#: A line that names an exception by itself.
_NAMED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Errno)\b\w*: |^Value error, ")
#: A message whose reason is on the lines below it.
_HEADLINE = re.compile(r"validation errors? for \w+$|:$")
_NINJA_NOISE = re.compile(r"ninja: Entering|\[\d+/\d+\]|FAILED:")
#: Lines of such a reason that are read.
_MORE = 6
#: Exceptions that only report that another process failed.
_WRAPPERS = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue|EngineCore failed to start"
    r"|WorkerProc initialization failed|Executor failed|Worker failed with error|Failed core proc|cancelled"
    r"|^(?:SystemExit|KeyboardInterrupt|asyncio\.\w*CancelledError|CancelledError)\b"
)

_SIGNAL_TEXT = {
    4: "illegal instruction: this build of vLLM or torch does not fit this CPU",
    7: "bus error: usually /dev/shm or the disk is full",
    9: "SIGKILL: usually the kernel's out-of-memory killer (host memory, see dmesg), or a kill -9 by hand",
    11: "segmentation fault: usually libraries that do not fit together",
}


@dataclass(frozen=True)
class Death:
    """``text`` is the cause in one line, as the log says it; what it means is for the evidence checks."""

    text: str
    line: int | None = None  # of the log, from 1
    last_lines: tuple[str, ...] = ()


@dataclass
class _Open:
    """A traceback being read."""

    line: int
    level: str
    exception: str = ""
    frame: str = ""  # the last code line of the stack, with its place
    more: int = 0  # lines of a long message still to take

    def take(self, text: str, number: int, level: str) -> bool:
        """Takes one line of the same process; False when the traceback was over before it."""
        if self.exception:
            if not self.more or not text.strip() or level not in ("", self.level):
                return False
            self.exception = _with_reason(self.exception, [text])
            self.more -= 1
            return True
        match = _EXCEPTION.match(text) if text[:1].strip() else None
        if match and (match[2] is not None or "." in match[1] or match[1][0].isupper()):
            self.exception, self.line = text.strip()[:400], number
            if not match[2]:  # a bare assertion: where it stands is all that is known
                self.exception += f" at {self.frame}" if self.frame else ""
            # pydantic and ninja say the reason on the lines that follow
            self.more = _MORE if _HEADLINE.search(text) else 0
        elif place := _FRAME.match(text):
            self.frame = f"{os.path.basename(place[1])}:{place[2]}"
        elif self.frame and ": " not in self.frame and text.strip(" ^~"):
            self.frame += f": {text.strip()[:160]}"
        return True


@dataclass(frozen=True)
class Raised:
    """One exception of a log: ``text`` is "Name: message"."""

    text: str
    line: int
    level: str
    tag: str


def explain(log: Path, ended: Exit | None) -> Death:
    """The cause of a server's end, from its log and its exit."""
    lines = _read(log)
    tail = tuple(plain(line).rstrip()[:300] for line in lines if plain(line).strip())[-6:]
    raised = exceptions(lines)
    real = [r for r in raised if not _WRAPPERS.search(r.text)]
    # a warning may carry a traceback that the server survived
    first = next((r for r in real if r.level not in ("WARNING", "INFO", "DEBUG")), None)
    if first is not None:
        return Death(first.text, first.line, tail)
    if ended is not None and ended.code < 0:
        return Death(f"{ended.text}: {_SIGNAL_TEXT.get(-ended.code, 'no message')}", None, tail)
    errors = [(n, t) for n, t in enumerate(map(_error_text, lines), 1) if t and not _WRAPPERS.search(t)]
    # without a traceback's first line a log may still hold its last one
    error = next((e for e in errors if _NAMED.match(e[1])), errors[0] if errors else None)
    if error is not None:
        return Death(_with_reason(error[1], lines[error[0] : error[0] + _MORE]), error[0], tail)
    wrapper = next(iter(raised), None)
    if wrapper is not None:
        return Death(wrapper.text, wrapper.line, tail)
    how = ended.text if ended else "no exit code known"
    return Death(f"{tail[-1]} ({how})" if tail else f"no output at all ({how})", None, tail)


def _error_text(line: str) -> str:
    _, level, text = split(line)
    text = text.strip()
    if level in ("WARNING", "INFO", "DEBUG") or text.startswith(("File ", "raise ", "^")):
        return ""
    return text if level in ("ERROR", "CRITICAL") or _NAMED.match(text) else ""


def exceptions(lines: Iterable[str]) -> list[Raised]:
    """Every exception printed with a traceback, in order of its last line. Processes may be interleaved."""
    out: list[Raised] = []
    reading: dict[str, _Open] = {}
    for number, line in enumerate(lines, 1):
        tag, level, text = split(line)
        state = reading.get(tag)
        if _TRACEBACK in text or (state is not None and not state.take(text, number, level)):
            ended = reading.pop(tag, None)
            if ended is not None and ended.exception:
                out.append(Raised(ended.exception, ended.line, ended.level, tag))
        if _TRACEBACK in text:
            reading[tag] = _Open(number, level)
    out += [Raised(s.exception, s.line, s.level, t) for t, s in reading.items() if s.exception]
    return sorted(out, key=lambda r: r.line)


def _with_reason(text: str, following: Iterable[str]) -> str:
    """Adds the lines that say the reason to one that only announces it, such as "1 validation error for X"."""
    if _HEADLINE.search(text.split("  ")[0]):
        for line in following:
            words = " ".join(plain(line).split())
            if words and not _NINJA_NOISE.match(words):
                text = f"{text}  {words}"
    return text[:400]


def _read(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LIMIT))
            data = file.read(LIMIT)
    except OSError:
        return []
    return re.split(r"\r\n|\n|\r", data.decode("utf-8", "replace"))
