"""Probes of a running server, one file each. A probe asks and measures; it changes nothing.

A module has ``NAME``, ``TITLE`` and ``probe(session) -> Result``. It must not raise for what the server
does: an answer that is not whole is a result. What a server cannot be asked is an abstention with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from doctor.facts import ServingFacts
from doctor.finding import Finding
from doctor.serve.client import Answer, Client, Reply, ServerError
from doctor.serve.metrics import Metrics

if TYPE_CHECKING:
    from doctor.host import Host
    from doctor.serve.command import Settings
    from doctor.smoke.usage import Usage

PASS = "pass"  # noqa: S105
ADVISE = "advise"
FAIL = "fail"
ABSTAIN = "abstain"

#: Why nothing that depends on the text is judged with ``--load-format dummy``.
RANDOM_WEIGHTS = "the weights are random (--load-format dummy): drafts are not accepted and text says nothing"


@dataclass(frozen=True)
class Result:
    """What one probe says.

    ``asked`` is False for an abstention because the feature is not in use: that leaves nothing open.
    ``finding`` is the cause for a failure, or a note for an advice.
    """

    name: str
    status: str
    why: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    finding: Finding | None = None
    asked: bool = True


@dataclass
class Session:
    """A running server and what is known of it. ``cpu`` servers are never judged by speed.

    The last six are known of a server of our own only: None or "" mean that what needs them abstains.
    """

    client: Client
    server: ServingFacts
    cpu: bool
    draft_tokens: int
    prefix_caching: bool
    max_model_len: int
    random_weights: bool = False
    log: Path | None = None  # the server's log, where it can be read
    shared: bool = False  # others may ask it at the same time, so counters may count more
    unknown: frozenset[str] = frozenset()  # fields above that the server does not tell
    full: bool = False  # also what takes many requests
    settings: Settings | None = None  # what it was started with
    model_folder: str = ""  # with config.json and the weights
    host: Host | None = None  # the machine it runs on
    pid: int | None = None  # its main process
    warm: Usage | None = None  # memory after the warm-up, taken by the probe of first requests

    @property
    def fragile(self) -> bool:
        """Whether it may run on a CPU and drafts: vLLM's CPU builds up to 0.32 then die of requests that are
        sampled (no rejection kernel, uninitialised memory is read) or bound by a grammar."""
        return self.cpu and (self.draft_tokens > 0 or "draft_tokens" in self.unknown)

    def metrics(self) -> Metrics | None:
        """The counters, or None when they cannot be read."""
        try:
            return self.client.metrics()
        except ServerError:
            return None


class Probe(Protocol):
    """A probe module."""

    NAME: str
    TITLE: str

    def probe(self, session: Session) -> Result:
        """Asks and measures."""


def all_probes() -> tuple[Probe, ...]:
    """In the order they run: whether it answers at all comes first."""
    from doctor.smoke.probes import (
        chat_template,
        concurrency,
        consistency,
        decode_speed,
        first_requests,
        liveness,
        memory,
        needle,
        prediction,
        prefill_speed,
        prefix_cache,
        sampling_limits,
        speculative,
        stop_and_length,
        streaming,
        structured_output,
        tool_call,
    )

    return (
        liveness,
        first_requests,
        chat_template,
        stop_and_length,
        streaming,
        structured_output,
        tool_call,
        sampling_limits,
        prefix_cache,
        speculative,
        consistency,
        needle,
        decode_speed,
        prefill_speed,
        concurrency,
        memory,
        prediction,
    )


def rounded(value: float | None, digits: int = 3) -> float | None:
    """A measured figure with sensible digits."""
    return None if value is None else round(value, digits)


def unusable(name: str, answer: Answer, during: str) -> Result:
    """A failure because a request brought no whole answer."""
    from doctor.checks.registry import found
    from doctor.finding import Confidence, Evidence

    return Result(
        name,
        FAIL,
        f"{during}: {answer.error}",
        {"error": answer.error, "http_status": answer.status, "seconds": rounded(answer.total_s)},
        {"error": None},
        found(
            "server-gives-no-answer",
            Confidence.PROVEN,
            f"{during[0].upper()}{during[1:]}: {(answer.error or '').rstrip('.')}.",
            [Evidence("request.error", str(answer.error), "HTTP")],
        ),
    )


def unusable_reply(name: str, reply: Reply, during: str) -> Result:
    """The same for an answer in one piece."""
    return unusable(name, Answer(status=reply.status, error=reply.error), during)


def broken(name: str, why: str, measured: Mapping[str, Any], expected: Mapping[str, Any]) -> Result:
    """A failure because an answer came whole and is not what was asked for."""
    from doctor.checks.registry import found
    from doctor.finding import Confidence, Evidence

    shown = {k: measured[k] for k in expected if k in measured}
    evidence = [Evidence(f"{name}.{key}", str(value), f"expected {expected[key]}") for key, value in shown.items()]
    summary = f"{why[0].upper()}{why[1:]}."
    return Result(
        name, FAIL, why, measured, expected, found("answer-breaks-request", Confidence.PROVEN, summary, evidence)
    )
