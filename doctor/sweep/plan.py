"""Which starts a sweep consists of: the points of its axes, each one set of settings for one model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from doctor.errors import DoctorError

#: Axes in the order in which their points are run.
AXES = ("context", "sequences", "batched", "mtp")
#: Tokens. From the smallest useful context to the longest that Qwen3.5 was trained for.
CONTEXTS = (8192, 16384, 32768, 65536, 131072, 262144)
SEQUENCES = (1, 2, 3, 4)
#: Tokens of one scheduled batch.
BATCHED = (1024, 2048, 4096, 8192)
DRAFTS = (0, 2)
#: What an axis that is not asked for stays at. 2,048 batched tokens keep the profiled peak small on any card
#: (vLLM's own default depends on the card: 2,048 or 8,192).
BASE_BATCHED = 2048


@dataclass(frozen=True)
class Values:
    """The values of each axis; the first of ``contexts``, ``sequences`` and ``batched`` are the base."""

    contexts: tuple[int, ...] = CONTEXTS
    sequences: tuple[int, ...] = SEQUENCES
    batched: tuple[int, ...] = BATCHED
    drafts: tuple[int, ...] = DRAFTS
    axes: tuple[str, ...] = AXES


@dataclass(frozen=True)
class Subject:
    """One model of the sweep, as far as planning needs it.

    ``longest`` is its own limit in tokens, ``edges`` the longest context predicted to fit by draft tokens;
    both None when not known. ``has_mtp`` False drops the points with drafts.
    """

    path: str
    fingerprint: str
    name: str
    longest: int | None = None
    has_mtp: bool | None = None
    edges: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """One start. ``axes`` are those it belongs to; they do not change what is measured."""

    model: str
    fingerprint: str
    name: str
    max_model_len: int
    draft_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    axes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """For people: "tiny-qwen35, 8K, MTP 2, 1 sequence, 2,048 batched"."""
        drafts = f"MTP {self.draft_tokens}" if self.draft_tokens else "no MTP"
        several = f"{self.max_num_seqs} sequence{'s' if self.max_num_seqs > 1 else ''}"
        return (
            f"{self.name}, {tokens(self.max_model_len)}, {drafts}, {several}, "
            f"{self.max_num_batched_tokens:,} batched"
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What is written into the row."""
        return {
            "max_model_len": self.max_model_len,
            "draft_tokens": self.draft_tokens,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }


@dataclass(frozen=True)
class Setup:
    """What all rows of one table share. Rows of another setup are another experiment."""

    vllm: str
    card: str
    card_bytes: int | None
    cpu: str
    cpus: int | None
    utilization: float | None
    serve_args: tuple[str, ...] = ()
    images: bool = False  # the image encoder is kept

    def as_json(self) -> dict[str, Any]:
        """With lists, so that it can be redacted like any answer."""
        return {**asdict(self), "serve_args": list(self.serve_args)}

    @property
    def id(self) -> str:
        """12 hex digits; rows are told apart by it, as what they show of their setup is redacted."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """For people: "vLLM 0.26.0 on NVIDIA H200"."""
        return f"vLLM {self.vllm} on {self.card or self.cpu or 'a CPU'}"


def key(point: Point, setup: Setup) -> str:
    """16 hex digits: equal for equal settings, model files, vLLM version and machine, and only then."""
    what = {"settings": point.settings, "model": point.fingerprint, "setup": setup.id}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def tokens(count: int) -> str:
    """8192 as "8K", 1000 as "1,000"."""
    return f"{count // 1024}K" if count % 1024 == 0 else f"{count:,}"


def points(subjects: Sequence[Subject], values: Values) -> tuple[Point, ...]:
    """The first model's axes, then every further model at the edge of what fits. Equal points are one.

    Raises DoctorError when no point is left.
    """
    found: dict[Point, set[str]] = {}
    for number, subject in enumerate(subjects):
        make = _first if number == 0 else _edge
        for axis, point in make(subject, values):
            found.setdefault(point, set()).add(axis)
    if not found:
        raise DoctorError("the plan is empty: every context is longer than the model's own limit")
    order = (*AXES, "edge")
    return tuple(
        Point(**{**asdict(point), "axes": tuple(a for a in order if a in axes)}) for point, axes in found.items()
    )


def _drafts(subject: Subject, values: Values) -> tuple[int, ...]:
    """Draft tokens to try; only the last value without the axis ``mtp``, none without a draft head."""
    wanted = values.drafts if "mtp" in values.axes else values.drafts[-1:]
    if subject.has_mtp is False:
        return (0,)
    return wanted


def _first(subject: Subject, values: Values) -> list[tuple[str, Point]]:
    contexts = [c for c in values.contexts if subject.longest is None or c <= subject.longest]
    if not contexts:
        return []
    base, one = contexts[0], values.sequences[0]
    batched = BASE_BATCHED if BASE_BATCHED in values.batched else values.batched[0]
    drafts = _drafts(subject, values)
    out: list[tuple[str, Point]] = []
    for axis in AXES:
        if axis not in values.axes:
            continue
        for k in drafts:
            if axis == "context":
                out += [(axis, _point(subject, c, k, one, batched)) for c in contexts]
            elif axis == "sequences":
                out += [(axis, _point(subject, base, k, n, batched)) for n in values.sequences]
            elif axis == "mtp":
                out.append((axis, _point(subject, base, k, one, batched)))
        if axis == "batched":  # what a larger batch costs is the same question with and without drafts
            out += [(axis, _point(subject, base, drafts[-1], one, b)) for b in values.batched]
    return out


def _edge(subject: Subject, values: Values) -> list[tuple[str, Point]]:
    """The longest context predicted to fit, and the next power of two, which is predicted not to."""
    batched = BASE_BATCHED if BASE_BATCHED in values.batched else values.batched[0]
    out: list[tuple[str, Point]] = []
    for k in _drafts(subject, values):
        edge = subject.edges.get(k)
        if edge is None:  # nothing is predicted: the plan's shortest context
            lengths = [values.contexts[0]]
        else:
            beyond = next((c for c in CONTEXTS if c > edge), None)
            lengths = [edge] if edge else []
            lengths += [beyond] if beyond and beyond <= (subject.longest or beyond) else []
        out += [("edge", _point(subject, c, k, values.sequences[0], batched)) for c in lengths]
    return out


def _point(subject: Subject, context: int, drafts: int, sequences: int, batched: int) -> Point:
    return Point(subject.path, subject.fingerprint, subject.name, context, drafts, sequences, batched)
