"""After a failure: other settings, one change at a time and then together, until everything passes.

Which changes are tried, and in which order, follows from what was found. A change that made another cause
appear is kept, one that changed nothing is taken back. What passes is started a second time before it is
claimed. Starts and time are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from doctor.host import Host
from doctor.serve.command import Settings, build
from doctor.smoke import ab_judge, profile, rungs
from doctor.smoke.attempt import attempt
from doctor.smoke.options import SmokeOptions
from doctor.smoke.probes import FAIL
from doctor.smoke.result import SmokeResult
from doctor.smoke.rungs import Rung

#: Servers that are started at most, the second start of what passed included.
STARTS = 10
#: Seconds after which no further server is started.
BUDGET_S = 3600.0
#: Seconds between two servers: a driver frees memory a little after a process has ended.
_PAUSE_S = 3.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One server of the ladder. ``changes`` are in words; ``again``: the second start of what passed."""

    changes: tuple[str, ...]
    passed: bool
    why: str
    seconds: float
    again: bool = False


@dataclass
class Ladder:
    """What was tried. ``best`` is the second start of what passed; ``why`` says how it ended."""

    steps: list[Step] = field(default_factory=list)
    runs: list[SmokeResult] = field(default_factory=list)
    best: SmokeResult | None = None
    gave_up: tuple[str, ...] = ()
    why: str = ""


@dataclass
class _Climb:
    """One climb. ``ends``: on the monotonic clock; ``with_ab``: each trial is compared with its base."""

    options: SmokeOptions
    first: SmokeResult
    host: Host
    folder: Path
    say: Say
    ladder: Ladder
    ends: float
    with_ab: bool

    def run(self, settings: Settings, changes: tuple[str, ...], again: bool = False) -> SmokeResult | None:
        """One server, or None when the bound is reached."""
        if len(self.ladder.runs) >= STARTS or time.monotonic() > self.ends:
            return None
        number = len(self.ladder.runs) + 1
        title = (
            f"ladder, start {number} of at most {STARTS}: {', '.join(changes)}{' (second start)' if again else ''}"
        )
        self.say(title)
        if not self.first.environment.cpu:
            time.sleep(_PAUSE_S)
        began = time.monotonic()
        result = SmokeResult(self.first.model, self.first.environment, settings=settings, fit=self.first.fit)
        self.ladder.runs.append(result)
        if not self.first.environment.cpu:
            result.findings += profile.start_check(profile.look(self.host), settings.utilization)
        if not result.findings:
            options = replace(self.options, full=self.with_ab and not again)
            log = self.folder / f"ladder-{number}.log"
            attempt(options, result, self.host, log, lambda text: self.say(f"{title}: {text}"))
        seconds = round(time.monotonic() - began, 1)
        self.ladder.steps.append(Step(changes, result.passed, _why(result), seconds, again))
        return result

    def changed(self, rung: Rung, settings: Settings, last: SmokeResult) -> Settings | None:
        """``settings`` one level further; None when the rung changes nothing."""
        card = None if self.first.environment.cpu else profile.card_in(profile.look(self.host))
        if rung.name == "mtp" and "mtp-weights-missing" in rungs.causes(last):
            return settings  # done without it already
        further = rung.apply(settings, rungs.known(last, card))
        return further if further is not None and self._tells(further) != self._tells(settings) else None

    def _tells(self, settings: Settings) -> tuple[object, ...]:
        """What a server is told: a CPU has no memory fraction, and is eager unless the user says otherwise."""
        command = build(self.first.environment, settings, 0)
        # what stands before it is, in a container, a new name each time
        return command.argv[command.argv.index("serve") :], sorted(command.env.items())


def climb(options: SmokeOptions, first: SmokeResult, host: Host, folder: Path, say: Say) -> Ladder | None:
    """Tries other settings after ``first`` failed; None when nothing failed, or before a server was thought of."""
    if first.settings is None or not rungs.causes(first):
        return None
    ladder = Ladder()
    if not rungs.plan(first):
        ladder.why = f"no other setting helps against: {_why(first)}"
        return ladder
    # what only the comparison of servers shows has to be compared again
    with_ab = any(r.name == ab_judge.NAME and r.status == FAIL for r in first.results)
    state = _Climb(options, first, host, folder, say, ladder, time.monotonic() + BUDGET_S, with_ab)
    say(f"ladder: other settings, at most {STARTS} starts and {BUDGET_S / 60:.0f} min")
    for settings, kept in _search(state):
        again = state.run(settings, _words(kept), again=True)
        if again is not None and again.passed:
            ladder.best = again
            ladder.gave_up = tuple(dict.fromkeys(r.gives_up for r in kept))
            ladder.why = f"passed twice with {', '.join(_words(kept))}"
            return ladder
    if not ladder.runs:
        ladder.why = f"no other setting helps against: {_why(first)}"
        return ladder
    bounded = len(ladder.runs) >= STARTS or time.monotonic() > state.ends
    limit = f"; the limit is {STARTS} starts or {BUDGET_S / 60:.0f} min" if bounded else ""
    ladder.why = f"{len(ladder.runs)} starts with other settings, none passed twice{limit}"
    return ladder


def _search(state: _Climb) -> Iterator[tuple[Settings, list[Rung]]]:
    """Settings that passed once, with the changes that lead to them."""
    settings, last = state.first.settings, state.first
    assert settings is not None  # noqa: S101  checked by the caller
    queue = list(rungs.plan(last))
    kept: list[Rung] = []
    alone: list[Rung] = []
    while queue:
        rung = queue.pop(0)
        trial, result = settings, last
        for _ in range(rung.levels):
            further = state.changed(rung, trial, result)
            if further is None:
                break
            tried = state.run(further, _words([*kept, rung]))
            if tried is None:
                return
            trial, result = further, tried
            if result.passed:
                yield trial, [*kept, rung]
            if not rungs.causes(last) & rungs.causes(result):
                break
        if result is last:
            continue  # it changes nothing here
        if rungs.causes(result) and not rungs.causes(last) & rungs.causes(result):
            # something else fails now: this change did its work
            settings, last, kept = trial, result, [*kept, rung]
            queue = [r for r in rungs.plan(result) if r not in kept]
            alone = []
        else:
            alone.append(rung)
    yield from _together(state, settings, last, kept, alone)


def _together(
    state: _Climb, settings: Settings, last: SmokeResult, kept: list[Rung], alone: list[Rung]
) -> Iterator[tuple[Settings, list[Rung]]]:
    """None of these helped alone: one more each time."""
    for number, rung in enumerate(alone):
        further = state.changed(rung, settings, last)
        if further is None:
            continue
        settings, kept = further, [*kept, rung]
        if number == 0:
            continue  # tried already
        result = state.run(settings, _words(kept))
        if result is None:
            return
        if result.passed:
            yield settings, kept


def _words(kept: list[Rung]) -> tuple[str, ...]:
    return tuple(r.title for r in kept)


def _why(result: SmokeResult) -> str:
    """What failed, in one line."""
    findings = [f for f in result.judgement.findings if f.blocks] or list(result.judgement.findings)
    if findings:
        return findings[0].title
    return next((r.why for r in result.results if r.status == FAIL), "" if result.passed else "not judged")
