"""Everything that one smoke test tried and saw."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.checks.registry import Judgement, fold
from doctor.finding import Finding, Skipped, Verdict, order, verdict
from doctor.serve.command import ServeCommand, Settings
from doctor.serve.environment import VllmEnvironment
from doctor.serve.log import LogFollower
from doctor.serve.watch import Readiness
from doctor.smoke.model import ModelInfo
from doctor.smoke.options import SmokeOptions
from doctor.smoke.probes import ABSTAIN, FAIL, PASS, Result

if TYPE_CHECKING:
    from doctor.memory.fit import Fit
    from doctor.report.redact import Redactor
    from doctor.smoke.full import Comparison
    from doctor.smoke.ladder import Ladder
    from doctor.smoke.running import Attached


@dataclass
class SmokeResult:
    """One server with one set of settings, and what came of it. Seconds since the test began."""

    model: ModelInfo
    environment: VllmEnvironment
    command: ServeCommand | None = None
    settings: Settings | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)  # setting -> where its value comes from
    fit: Fit | None = None  # the prediction that the settings rest on
    results: list[Result] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    readiness: Readiness | None = None
    log: Path | None = None
    follower: LogFollower | None = None
    pid: int | None = None
    left: tuple[int, ...] = ()
    stop_s: float | None = None
    seconds: float | None = None
    comparison: Comparison | None = None  # the other servers of --full
    attached: Attached | None = None  # the running server of --url
    ladder: Ladder | None = None  # what was tried after a failure
    other_logs: list[Path] = field(default_factory=list)

    @property
    def judgement(self) -> Judgement:
        """Verdict and findings by the contract of every command."""
        findings = fold(order({f.id: f for f in reversed(self.findings)}.values()))
        open_ = [Skipped(r.name, r.why, essential=r.asked) for r in self.results if r.status == ABSTAIN]
        passed = tuple(r.name for r in self.results if r.status == PASS)
        judged = verdict(findings, open_)
        if self.ladder is not None and self.ladder.best is not None:
            judged = Verdict.DEGRADED  # it works, at the cost of what was given up
        return Judgement(judged, findings, passed, tuple(open_))

    @property
    def passed(self) -> bool:
        """Whether these very settings passed: slow first requests and the like leave them as they are."""
        if self.readiness is None or self.settings is None or self.command is None:
            return False
        open_ = any(r.status == FAIL or (r.status == ABSTAIN and r.asked) for r in self.results)
        judged = self.judgement.verdict
        return judged is Verdict.READY or (judged is Verdict.DEGRADED and not open_)

    @property
    def best(self) -> SmokeResult | None:
        """The run whose settings passed: this one, or the last one of the ladder; None when none did."""
        if self.ladder is not None:
            return self.ladder.best
        return self if self.passed else None

    @property
    def logs(self) -> list[Path]:
        """Every log of this test."""
        others = self.comparison.logs if self.comparison else []
        tried = [p for r in (self.ladder.runs if self.ladder else ()) for p in r.logs]
        return [*others, *self.other_logs, *tried, *([self.log] if self.log else [])]


def redact(result: SmokeResult, redactor: Redactor) -> None:
    """Takes secrets and names out of everything that is shown or saved, the server's log included."""
    result.model = replace(redactor.value_of(replace(result.model, config={})), config=result.model.config)
    for part in ("environment", "command", "settings", "readiness"):
        setattr(result, part, redactor.value_of(getattr(result, part)))
    result.results = redactor.value_of(result.results)
    result.findings = redactor.value_of(result.findings)
    result.notes = redactor.value_of(result.notes)
    if result.ladder is not None:
        result.ladder.steps = redactor.value_of(result.ladder.steps)
        result.ladder.why = redactor.text(result.ladder.why)
        for run in result.ladder.runs:
            redact(run, redactor)
    for log in result.logs:
        if not log.exists():
            continue
        try:
            text = log.read_bytes().decode("utf-8", "replace")
            log.write_text(redactor.text(text), encoding="utf-8")
        except OSError as error:
            result.notes.append(f"the log {log.name} could not be redacted: {error.strerror}")


def remove_log(result: SmokeResult, options: SmokeOptions) -> None:
    """A temporary log of a test that passed is of no use; others are kept and named."""
    if options.out is None and result.log is not None and result.judgement.verdict is Verdict.READY:
        for path in (*result.logs, result.log.parent):
            try:
                (os.rmdir if path.is_dir() else os.unlink)(path)
            except OSError:
                return
