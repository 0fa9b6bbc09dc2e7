"""Warming up a running server: every shape asked once and again, first against later times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from doctor.checks.registry import Judgement
from doctor.finding import Finding, verdict
from doctor.serve.client import Answer, Client, ServerError
from doctor.smoke.jit import JitLines
from doctor.smoke.probes import rounded, unusable
from doctor.smoke.running import Attached, attach
from doctor.smoke.shapes import LATER, ShapeTimes, shapes, time_shapes


@dataclass
class WarmupResult:
    """``kernels``: what the server's log says it compiled during the first requests and during later ones."""

    server: Attached
    times: list[ShapeTimes] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    kernels: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def judgement(self) -> Judgement:
        """Ready when every shape was answered."""
        findings = tuple(self.findings)
        return Judgement(verdict(findings), findings, tuple(t.shape.name for t in self.times if not t.error), ())

    @property
    def spikes(self) -> list[ShapeTimes]:
        """Shapes whose first request was clearly slower."""
        return [t for t in self.times if t.spike]

    def as_json(self) -> dict[str, Any]:
        """The ``warmup`` part of the answer."""
        return {
            "url": self.server.url,
            "model": self.server.model or None,
            "vllm": self.server.version or None,
            "shapes": [t.as_json() for t in self.times],
            "spikes": [t.shape.name for t in self.spikes],
            "first_s": rounded(sum(t.first_s or 0.0 for t in self.times)),
            "later_s": rounded(sum(t.usual_s or 0.0 for t in self.times)),
            "kernels": None
            if self.kernels is None
            else {"first": list(self.kernels[0]), "later": list(self.kernels[1])},
            "notes": self.notes,
        }


def warm_up(
    client: Client,
    model: str | None = None,
    log: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
    *,
    sampled: bool = True,
) -> WarmupResult:
    """Asks every shape. ``log`` is the server's log where it can be read."""
    server = attach(client, model)
    result = WarmupResult(server)
    if server.session is None:
        result.findings += [server.problem] if server.problem else []
        return result
    lines = JitLines(log)
    lines.new()
    if log is not None and not lines.readable:
        result.notes.append(f"{log} cannot be read: compiled kernels are not counted")
    wanted = shapes(server.session, server.session.server.block_size, sampled=sampled)
    kernels: list[tuple[str, ...]] = []
    said = [f"pass {n} of {LATER + 1}" for n in range(1, LATER + 2)]
    say(said[0])

    def on_pass(number: int) -> None:
        kernels.append(lines.new())
        if number <= LATER:
            say(said[number])

    try:
        result.times = time_shapes(server.session, wanted, on_pass)
    except ServerError as error:
        result.findings.append(_failed(f"no prompt could be made: {error}"))
        return result
    if lines.readable:
        result.kernels = (kernels[0], tuple(dict.fromkeys(k for p in kernels[1:] for k in p)))
    bad = next((t for t in result.times if t.error), None)
    if bad is not None:
        result.findings.append(_failed(f"{bad.shape.name} of {bad.shape.tokens} tokens: {bad.error}"))
    return result


def _failed(why: str) -> Finding:
    finding = unusable("warmup", Answer(error=why), "a warm-up request failed").finding
    assert finding is not None  # noqa: S101  for the type checker
    return finding
