"""Why a server ended: the first real exception of its log, or how the process was killed.

vLLM's API server ends with "Engine core initialization failed. See root cause above."; the cause is an
earlier traceback of another process whose lines are mixed with everybody else's.
"""

from __future__ import annotations

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

#: kind -> (catalogue id, text that leaves no doubt). First match counts.
_KINDS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kind, cause, re.compile(pattern, re.I))
    for kind, cause, pattern in (
        ("port stolen", "port-in-use", r"address already in use"),
        (
            "out of memory",
            "util-above-free-memory",
            r"Free memory on device \S+ \(.*is less than desired GPU memory utilization",
        ),
        (
            "out of memory",
            "kv-cache-too-small-for-context",
            r"To serve at least one request with the model.{0,2}s max seq"
            r"|max seq len \(\d+\) is larger than the maximum",
        ),
        ("out of memory", "no-memory-for-cache-blocks", r"No available memory for the cache blocks"),
        ("out of memory", "sampler-warmup-oom", r"out of memory occurred when warming up sampler"),
        ("out of memory", "", r"OutOfMemoryError|CUDA out of memory"),  # of what, the phase must tell
        (
            "model unreadable",
            "model-weights-unreadable",
            r"SafetensorError|Error while deserializing header|PytorchStreamReader failed|UnpicklingError"
            r"|Cannot find any model weights",
        ),
        ("model unreadable", "model-path-invalid", r"Invalid repository ID|no supported config format"),
        ("arguments", "serve-arguments-refused", r"^vllm(?: serve)?: error: |\berror: unrecognized arguments"),
    )
)

_SIGNAL_TEXT = {
    4: "illegal instruction: this build of vLLM or torch does not fit this CPU",
    7: "bus error: usually /dev/shm or the disk is full",
    9: "SIGKILL: usually the kernel's out-of-memory killer (host memory, see dmesg), or a kill -9 by hand",
    11: "segmentation fault: usually libraries that do not fit together",
}


@dataclass(frozen=True)
class Death:
    """``text`` is the cause in one line; ``cause`` the catalogue's id when the text leaves no doubt."""

    text: str
    kind: str = "unknown"
    cause: str | None = None
    line: int | None = None  # of the log, from 1
    last_lines: tuple[str, ...] = ()


@dataclass
class _Open:
    """A traceback being read. ``head`` lines are indented frames."""

    line: int
    level: str
    exception: str = ""
    more: int = 0  # lines of a long message still to take


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
    errors = [(n, t) for n, t in enumerate(map(_error_text, lines), 1) if t and not _WRAPPERS.search(t)]
    if first is not None:
        # "out of memory when warming up the sampler" is raised from a plain out-of-memory error: the
        # more telling of all messages counts
        said = [(r.line, r.text) for r in real] + errors
        line, text = next(
            (s for _, _, sign in _KINDS for s in said if sign.search(s[1])), (first.line, first.text)
        )
        return Death(text[:400], *_kind(text), line, tail)
    for number, line_text in enumerate(lines, 1):
        text = plain(line_text).strip()
        if _kind(text)[1] in ("port-in-use", "serve-arguments-refused"):
            return Death(text[:400], *_kind(text), number, tail)
    if ended is not None and ended.code < 0:
        return Death(f"{ended.text}: {_SIGNAL_TEXT.get(-ended.code, 'no message')}", "signal", None, None, tail)
    # without a traceback's first line a log may still hold its last one
    error = next((e for e in errors if _NAMED.match(e[1])), errors[0] if errors else None)
    if error is not None:
        text = _with_reason(error[1], lines[error[0] : error[0] + _MORE])
        return Death(text, *_kind(text), error[0], tail)
    wrapper = next(iter(raised), None)
    if wrapper is not None:
        return Death(wrapper.text, "unknown", None, wrapper.line, tail)
    how = ended.text if ended else "no exit code known"
    return Death(f"{tail[-1]} ({how})" if tail else f"no output at all ({how})", "unknown", None, None, tail)


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
        if _TRACEBACK in text:
            if state is not None and state.exception:
                out.append(Raised(state.exception, state.line, state.level, tag))
            reading[tag] = _Open(number, level)
        elif state is None:
            continue
        elif not state.exception:
            match = _EXCEPTION.match(text) if text[:1].strip() else None
            if match and (match[2] is not None or "." in match[1] or match[1][0].isupper()):
                state.exception, state.line = text.strip()[:400], number
                # pydantic and torch say the reason on the lines that follow
                state.more = _MORE if _HEADLINE.search(text) else 0
                if state.more == 0:
                    out.append(Raised(state.exception, number, state.level, tag))
                    del reading[tag]
        elif state.more and text.strip() and (level == state.level or not level):
            state.exception = _with_reason(state.exception, [text])
            state.more -= 1
            if state.more == 0:
                out.append(Raised(state.exception, state.line, state.level, tag))
                del reading[tag]
        else:
            out.append(Raised(state.exception, state.line, state.level, tag))
            del reading[tag]
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


def _kind(text: str) -> tuple[str, str | None]:
    for kind, cause, pattern in _KINDS:
        if pattern.search(text):
            return kind, cause or None
    return "unknown", None


def _read(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LIMIT))
            data = file.read(LIMIT)
    except OSError:
        return []
    return re.split(r"\r\n|\n|\r", data.decode("utf-8", "replace"))
