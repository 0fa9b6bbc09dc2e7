"""Reads vLLM's /metrics (Prometheus text). Names are matched exactly: every counter has a ``_created`` twin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
CACHE_CONFIG = "vllm:cache_config_info"

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Metrics:
    """Samples by name. ``bad_lines`` counts lines that are neither comments nor samples."""

    samples: Mapping[str, tuple[tuple[Labels, float], ...]] = field(default_factory=dict)
    bad_lines: int = 0

    def total(self, name: str) -> float | None:
        """The sum over all label sets (engines), or None when the server has no such metric."""
        values = self.samples.get(name)
        return sum(v for _, v in values) if values else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by one label, such as ``position``."""
        out: dict[str, float] = {}
        for labels, value in self.samples.get(name, ()):
            if label in labels:
                out[labels[label]] = out.get(labels[label], 0.0) + value
        return out

    def info(self, name: str) -> Labels:
        """The labels of an info metric; empty when it is absent."""
        values = self.samples.get(name)
        return values[0][0] if values else {}

    def since(self, earlier: Metrics, name: str) -> float | None:
        """By how much a counter grew, or None when either side lacks it or it was reset."""
        now, before = self.total(name), earlier.total(name)
        return None if now is None or before is None or now < before else now - before


def parse(text: str) -> Metrics:
    """Parses the exposition text. Never raises: what cannot be read is counted in ``bad_lines``."""
    samples: dict[str, list[tuple[Labels, float]]] = {}
    bad = 0
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        labels = _labels(match[2]) if match else None
        try:
            value = float(match[3]) if match else None
        except ValueError:
            value = None
        if match is None or labels is None or value is None:
            bad += 1
        elif not match[1].endswith("_created"):
            samples.setdefault(match[1], []).append((labels, value))
    return Metrics({name: tuple(values) for name, values in samples.items()}, bad)


def _labels(text: str | None) -> Labels | None:
    if not text:
        return {}
    out = {}
    position = 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if not match:
            return None
        out[match[1]] = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), match[2])
        position = match.end()
    return out
