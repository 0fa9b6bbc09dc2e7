"""Follows a server's log: which phase of the start it is in, and the figures it prints.

Texts as in vLLM 0.17.0, 0.26.0 and 0.32.0. Numbers carry thousands commas; nothing is anchored at the end
of a line, because later versions append to it.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from doctor.facts import ServingFacts

#: Phases in order. A server may skip some; it never goes back.
PHASES = ("spawning", "loading", "compiling", "profiling KV", "capturing", "warming", "healthy")

_PHASE_SIGNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        ("loading", r"Starting to load model|Loading model from scratch|Loading safetensors|Loading weights took"),
        (
            "compiling",
            r"for vLLM's torch\.compile|Starting torch\.compile|Dynamo bytecode transform time"
            r"|Compiling a graph for compile range|Directly load (?:AOT compilation|the \S+ graph)",
        ),
        (
            "profiling KV",
            r"Initial profiling/warmup run took|Encoder cache will be initialized|Profiling CUDA graph memory"
            r"|Estimated CUDA graph memory|Available KV cache memory|KV cache size: [\d,]+ tokens",
        ),
        ("capturing", r"Capturing CUDA graphs"),
        (
            "warming",
            r"Graph capturing finished|Warming up model for the compilation|JIT kernel warmup starting"
            r"|Running FlashInfer autotune|Using FlashInfer autotune cache file|init engine \(profile"
            r"|Starting vLLM (?:API )?server",
        ),
    )
)

#: What to look at when a start hangs in a phase.
HANG_HINTS = {
    "spawning": "imports, the configuration and, without a local model, the hub are read here",
    "loading": "a slow disk, a Windows or network drive, or host memory that swaps",
    "compiling": "torch.compile and kernel builds: a first start takes minutes; look for nvcc or cc1plus running",
    "profiling KV": "the first forward pass: kernels are built and autotuned here; look for nvcc or ptxas running",
    "capturing": "CUDA graphs: --enforce-eager tells whether the capture is the cause",
    "warming": "kernel warm-up and autotuning: look for nvcc or ptxas running, and at the GPU's load",
    "healthy": "it answers /health",
}

_NUMBER = r"([\d,.]+)"
_FIGURES: tuple[tuple[str, type, re.Pattern[str]], ...] = tuple(
    (name, kind, re.compile(pattern))
    for name, kind, pattern in (
        ("vllm", str, r"Initializing a V1 LLM engine \(v([^)\s]+)\)"),
        ("architecture", str, r"Resolved architecture: (\w+)"),
        ("max_model_len", int, rf"Using max model len {_NUMBER}"),
        ("mamba_cache_mode", str, r"Mamba cache mode is set to '(\w+)'"),
        ("block_size", int, rf"Setting attention block size to {_NUMBER} tokens"),
        ("weights_gib", float, rf"Model loading took {_NUMBER} GiB"),
        ("available_kv_gib", float, rf"Available KV cache memory: {_NUMBER} GiB"),
        ("kv_tokens", int, rf"KV cache size: {_NUMBER} tokens"),
        ("concurrency", float, rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"),
    )
)
#: vLLM 0.19 to 0.32 print it when the engine's process cannot go on; now and then the processes stay nevertheless.
_ENGINE_FAILED = re.compile(r"EngineCore failed to start|Engine core initialization failed")
#: The draft model prints these two again with its own values: the first is the model's.
_FIRST_COUNTS = ("architecture", "max_model_len", "vllm")


class LogFollower:
    """Reads what was appended since the last call. Lines end with a newline or a carriage return (tqdm)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.phase = PHASES[0]
        self.facts = ServingFacts()
        self.phases: list[tuple[str, float]] = [(PHASES[0], 0.0)]  # phase, seconds since the start
        self.tail: deque[str] = deque(maxlen=20)
        self.lines = 0
        self._began = time.monotonic()
        self.last_line_at = self._began
        self.engine_failed_at: float | None = None  # on the monotonic clock
        self._offset = 0
        self._rest = ""

    def read(self) -> None:
        """Takes in new lines. A log that does not exist yet has none."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(1 << 22)
        except OSError:
            return
        self._offset += len(data)
        if not data:
            return
        *lines, self._rest = re.split(r"[\r\n]+", self._rest + data.decode("utf-8", "replace"))
        for line in lines:
            self._take(line)

    def enter(self, phase: str) -> None:
        """Moves forward to a phase; an earlier one is ignored."""
        if PHASES.index(phase) > PHASES.index(self.phase):
            self.phase = phase
            self.phases.append((phase, round(time.monotonic() - self._began, 2)))

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    @property
    def last_line(self) -> str:
        """The last line with text, without its prefix."""
        return next((plain(line) for line in reversed(self.tail) if plain(line).strip()), "")

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        self.lines += 1
        self.last_line_at = time.monotonic()
        self.tail.append(line)
        if self.engine_failed_at is None and _ENGINE_FAILED.search(line):
            self.engine_failed_at = self.last_line_at
        for phase, pattern in _PHASE_SIGNS:
            if pattern.search(line):
                self.enter(phase)
        for name, kind, pattern in _FIGURES:
            match = pattern.search(line)
            if match and not (name in _FIRST_COUNTS and getattr(self.facts, name) is not None):
                text = match[1].rstrip(".,")
                value: Any = text if kind is str else kind(text.replace(",", ""))
                sources = {**self.facts.sources, name: f"{self.path.name}:{self.lines}"}
                changed: dict[str, Any] = {name: value, "sources": sources}
                self.facts = replace(self.facts, **changed)


_PREFIX = re.compile(
    r"^(?:\s*\((?P<tag>[^()\n]*pid=\d+)\)\s?)?(?:\[rank\d+\]:\s?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[?[\w./-]+:\d+\]\s?)?"
)


def plain(line: str) -> str:
    """A log line without process name, level, time and place."""
    return _PREFIX.sub("", line, count=1)


def split(line: str) -> tuple[str, str, str]:
    """(process tag, level, text) of a log line; tag and level may be empty. Leading blanks of text are kept."""
    match = _PREFIX.match(line)
    if not match:
        return "", "", line
    return match["tag"] or "", match["level"] or "", line[match.end() :] if match.end() else line
