"""What a person sees of a plan, a repair, an undo and the history; and their JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from doctor import catalogue
from doctor.checks.registry import Judgement
from doctor.finding import Risk
from doctor.fix.action import Action
from doctor.fix.journal import Entry, Run
from doctor.fix.machine import Machine
from doctor.fix.plan import Plan
from doctor.fix.recheck import Comparison
from doctor.fix.runner import Result
from doctor.fix.undo import Undone

SCHEMA_VERSION = 1
_RISK = {Risk.SAFE: "green", Risk.CAUTION: "yellow", Risk.MANUAL: "cyan"}


def _console() -> Any:
    from doctor.report.terminal import console

    return console()


def print_plan(plan: Plan, judgement: Judgement, machine: Machine) -> None:
    """The plan with every command and diff, as it will be run."""
    from rich.padding import Padding
    from rich.text import Text

    out = _console()
    known = {f.id: f.summary or f.title for f in judgement.findings}
    titles = {c: known.get(c) or catalogue.cause(c).title for a in plan.actions for c in a.causes}
    done = _already(plan, machine)
    steps = [a for a in plan.actions if not a.manual]
    out.print(Text(_headline(plan, steps, done), style="bold"))
    for number, action in enumerate(plan.actions, 1):
        shown = action.preview(machine)
        out.print()
        line = Text.assemble(f"{number}. ", (action.summary, "bold"))
        marks = ["by hand"] if action.manual else [action.risk.value, *(["root"] if action.root else [])]
        if action.id in done:
            marks = ["already done"]
        out.print(line.append(f"  [{', '.join(marks)}]", style=_RISK[action.risk]))
        for cause in action.causes:
            out.print(Padding(Text(f"why: {titles[cause]} [{cause}]", style="dim"), (0, 0, 0, 3)))
        if action.id in done:
            continue
        for command in shown.commands:
            out.print(Text(f"     $ {shlex.join(command)}"), soft_wrap=True)  # whole, to be read and copied
        for row in shown.diff.splitlines():
            style = "green" if row.startswith("+") else "red" if row.startswith("-") else ""
            out.print(Text(f"     {row}", style=style), soft_wrap=True)
        for note in (*shown.notes, *(f"to take effect: {n}" for n in action.needs)):
            out.print(Padding(Text(note, style="dim"), (0, 0, 0, 5)))
    if plan.left:
        out.print()
        for cause, why in plan.left.items():
            out.print(Text(f"left alone: {cause} ({why})", style="dim"))
    if len(steps) > len(done):
        out.print()
        out.print(Text("vllm-doctor fix --apply carries it out; vllm-doctor undo takes it back", style="dim"))


def _headline(plan: Plan, steps: Sequence[Action], done: set[str]) -> str:
    by_hand = len(plan.actions) - len(steps)
    left = [a for a in steps if a.id not in done]
    hand = f", {by_hand} by hand" if by_hand else ""
    if not plan.actions:
        return "Nothing to repair."
    if not left:
        done_all = "The doctor's own steps are done" if steps else "The doctor can do nothing here itself"
        what = "1 step is" if by_hand == 1 else f"{by_hand} steps are"
        return f"{done_all}; {what} to be done by hand." if by_hand else "Nothing is left to do here."
    return f"{len(left)} step{'s' if len(left) != 1 else ''} to carry out{hand}. Nothing has been changed yet."


def _already(plan: Plan, machine: Machine) -> set[str]:
    from doctor.fix.runner import pending

    open_ = {a.id for a in pending(machine, plan.actions)}
    return {a.id for a in plan.actions if not a.manual and a.id not in open_}


def step_progress(total: int) -> Callable[[Action, str], None]:
    """Lines on stderr, one when a step begins and one when it ends."""
    number = 0

    def tell(action: Action, what: str) -> None:
        nonlocal number
        number += what == "begin"
        words = {"begin": "", "done": ": done", "failed": ": FAILED, taking everything back"}[what]
        print(f"[{number}/{total}] {action.summary}{words}", file=sys.stderr, flush=True)  # noqa: T201

    return tell


def print_result(result: Result, comparison: Comparison | None, plan: Plan) -> None:
    """How it ended, and what the same checks say now."""
    from rich.text import Text

    out = _console()
    out.print()
    if result.status == "nothing":
        left = (
            "what is left is to be done by hand"
            if any(a.manual for a in plan.actions)
            else "nothing is left to do here"
        )
        out.print(Text(f"Nothing was changed: {left}.", style="bold"))
    elif result.status == "applied":
        out.print(Text(f"Done. Run {result.run_id}; `vllm-doctor undo` takes it back.", style="bold green"))
    elif result.status == "interrupted":
        out.print(Text(f"Stopped. Run {result.run_id}: what was finished stays.", style="bold yellow"))
        out.print(f"`vllm-doctor fix --apply` goes on, `vllm-doctor undo {result.run_id}` takes it back.")
    else:
        out.print(Text(f"Failed: {result.why}", style="bold red"), soft_wrap=True)
        if result.undone is not None:
            print_undone(result.undone)
    if comparison is not None:
        rows = (
            ("fixed", comparison.fixed, "green"),
            ("still there", comparison.still_there, "red"),
            ("in place, not yet in effect", comparison.waiting, "yellow"),
            ("to be done by hand", comparison.by_hand, "cyan"),
            ("could not be judged again", comparison.not_judged, "yellow"),
            ("new", comparison.new, "red"),
        )
        for label, ids, style in rows:
            if ids:
                out.print(Text.assemble((f"{label}: ", style), ", ".join(ids)))
        for need in dict.fromkeys(n for a in plan.actions for n in a.needs):
            out.print(Text(f"to take effect: {need}", style="yellow"), soft_wrap=True)


def result_json(result: Result, comparison: Comparison | None) -> dict[str, Any]:
    """``run`` of the JSON answer."""
    out: dict[str, Any] = {
        "id": result.run_id or None,
        "status": result.status,
        "why": result.why,
        "actions": [{"id": i, "outcome": o} for i, o in result.outcomes.items()],
    }
    if result.undone is not None:
        out["problems"] = _problems(result.undone)
    if comparison is not None:
        out["after"] = {
            "fixed": list(comparison.fixed),
            "still_there": list(comparison.still_there),
            "waiting": list(comparison.waiting),
            "by_hand": list(comparison.by_hand),
            "not_judged": list(comparison.not_judged),
            "new": list(comparison.new),
        }
    return out


def unfinished_text(run: Run) -> str:
    """What an interrupted run left, and the two ways on."""
    open_ = ", ".join(f"{e.summary!r}" for e in run.open_steps)
    done = sum(1 for e in run.entries if e.outcome == "done")
    half = f"; half-done: {open_}" if open_ else ""
    return (
        f"Run {run.id} of {run.at} was cut off: {done} step{'s' if done != 1 else ''} finished{half}.\n"
        f"  finish: vllm-doctor fix --apply     take back: vllm-doctor undo {run.id}"
    )


def print_undo_plan(run: Run) -> None:
    """What an undo would take back."""
    out = _console()
    out.print(f"Run {run.id} of {run.at}: {len(run.standing)} to take back, last step first.")
    for entry in reversed(run.standing):
        state = "" if entry.outcome == "done" else f"  ({entry.outcome or 'half-done'})"
        out.print(f"  {entry.step}. {entry.summary}{state}", highlight=False)


def print_undone_step(entry: Entry, how: str, why: str) -> None:
    """One line a step."""
    word = {"reverted": "taken back", "kept": "KEPT", "failed": "FAILED"}[how]
    _console().print(f"  {word}: {entry.summary}{f': {why}' if why else ''}", soft_wrap=True, highlight=False)


def print_undone(undone: Undone) -> None:
    """The end of an undo or a rollback."""
    out = _console()
    if undone.complete:
        out.print("Everything was taken back.")
        return
    out.print(f"{len(undone.problems)} of {len(undone.problems) + len(undone.reverted)} could not be taken back:")
    for entry, why in undone.problems:
        out.print(f"  {entry.summary}: {why}", soft_wrap=True, highlight=False)


def undo_json(run_id: str | None, undone: Undone | None) -> dict[str, Any]:
    """The JSON answer of ``undo``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "undo",
        "run": run_id,
        "complete": undone is None or undone.complete,
        "reverted": [e.action for e in undone.reverted] if undone else [],
        "problems": _problems(undone) if undone else [],
        "notes": list(undone.notes) if undone else [],
    }


def _problems(undone: Undone) -> list[dict[str, str]]:
    return [{"action": e.action, "summary": e.summary, "why": why} for e, why in undone.problems]


def print_history(runs: Sequence[Run]) -> None:
    """The runs, newest first."""
    from rich.table import Table

    out = _console()
    if not runs:
        out.print("Nothing was ever changed here.")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "when", "status", "steps"):
        table.add_column(column, overflow="fold", no_wrap=column == "run")
    for run in reversed(runs):
        table.add_row(run.id, run.at, run.status(), "; ".join(e.summary for e in run.entries) or "none")
    out.print(table)
    damaged = [r.id for r in runs if r.damaged]
    if damaged:
        out.print(f"damaged lines in the journal of: {', '.join(damaged)}")


def history_json(runs: Sequence[Run]) -> dict[str, Any]:
    """The JSON answer of ``history``, oldest first."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "history",
        "runs": [
            {
                "id": r.id,
                "at": r.at,
                "status": r.status(),
                "unfinished": r.unfinished,
                "damaged_lines": r.damaged,
                "actions": [
                    {"id": e.action, "kind": e.kind, "summary": e.summary, "for": list(e.causes),
                     "outcome": e.outcome or "half-done", "why": e.why}
                    for e in r.entries
                ],
            }
            for r in runs
        ],
    }  # fmt: skip
