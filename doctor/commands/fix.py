"""``vllm-doctor fix``: a plan from the findings; with ``--apply`` it is carried out, journalled, checked again."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doctor.checks.registry import Judgement, judge, registered
from doctor.errors import DoctorError
from doctor.snapshot import Snapshot

if TYPE_CHECKING:
    from doctor.fix.journal import Run
    from doctor.fix.machine import Machine
    from doctor.fix.plan import Plan
    from doctor.fix.runner import Result
    from doctor.fix.state import State
    from doctor.host import Host
    from doctor.host.examine import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument("--apply", action="store_true", help="carry the plan out; without it nothing changes")
    parser.add_argument(
        "--plan", metavar="FILE", help="with --apply: only if the plan is still the one saved in FILE"
    )
    parser.add_argument("--save", metavar="FILE", help="save the plan")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this finding (repeatable)")
    parser.add_argument(
        "--container", action="store_true",
        help="plan the container way: repair the container engine only, then `vllm-doctor build`",
    )  # fmt: skip
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; needed without a terminal")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument("--python", metavar="ENV", help="interpreter or environment folder that runs vLLM")
    parser.add_argument("--model", metavar="DIR", help="model folder that will be served")
    parser.add_argument("--port", type=int, metavar="N", help="port that will be served (default 8000)")
    parser.add_argument("--deep", action="store_true", help="also start small GPU and container trials")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when the plan was shown, or carried out and the findings are gone; see docs/safety.md."""
    from doctor.fix import plan as planning
    from doctor.fix.journal import all_runs
    from doctor.fix.machine import Machine
    from doctor.fix.privilege import Privilege
    from doctor.fix.state import State, place
    from doctor.host import LocalHost
    from doctor.host.examine import Options

    saved = _saved(args.plan) if args.plan else None
    if args.plan and not args.apply:
        raise DoctorError("--plan FILE goes with --apply")
    only = list(saved.get("only") or ()) if saved else args.only
    container = saved.get("container") is True if saved else args.container
    if container and only:
        raise DoctorError("--container and --only exclude each other")
    known = {c.id for c in registered()}
    if set(only) - known:
        raise DoctorError(f"no check is called {sorted(set(only) - known)[0]!r}; see `vllm-doctor check --list`")
    asking = sys.stdin.isatty() and not args.yes
    host = LocalHost()
    options = Options(python=args.python, model=args.model, port=args.port, deep=args.deep)
    state = State(place(host.env, os.geteuid()))
    machine = Machine(Privilege.of_this_process(host.env, ask=sys.stdin.isatty()), staging=state.folder)
    unfinished = [r for r in all_runs(state) if r.unfinished]
    view = _View(args.json)
    view.unfinished(unfinished)
    if args.apply and unfinished:
        _settle(state, machine, unfinished, view, asking=asking, yes=args.yes)
    snapshot, judgement = _examine(host, options)
    plan = planning.make(
        snapshot, judgement, host, is_root=machine.privilege.is_root, only=only, container=container
    )
    if args.save:
        _save(args.save, plan, machine)
    if not args.apply:
        view.answer(judgement, snapshot, plan, machine)
        return 0
    if saved is not None and saved["facts_fingerprint"] != plan.fingerprint:
        raise DoctorError(
            f"the facts have changed since {args.plan} was saved; make a new plan. Nothing was changed."
        )
    return _apply(args, state, machine, host, options, plan, judgement, snapshot, view, asking)


def _apply(
    args: argparse.Namespace,
    state: State,
    machine: Machine,
    host: Host,
    options: Options,
    plan: Plan,
    before: Judgement,
    snapshot: Snapshot,
    view: _View,
    asking: bool,
) -> int:
    from doctor.fix.journal import Journal
    from doctor.fix.recheck import compare
    from doctor.fix.runner import Stop, apply, pending

    todo = pending(machine, plan.actions)
    view.plan(before, plan, machine)
    if todo and not args.yes:
        if not asking:
            raise DoctorError("nothing was changed: without a terminal, --yes is needed to apply")
        if not view.confirm(f"Carry out {len(todo)} step{'s' if len(todo) > 1 else ''}?"):
            view.say("Nothing was changed.")
            return 1
    stop = Stop()
    if todo:
        with state.lock(), stop.listening():
            result = apply(
                machine,
                plan.actions,
                lambda: Journal.start(state, plan.dump(machine), host.time()),
                stop,
                view.progress(len(todo)),
            )
    else:
        result = apply(machine, plan.actions, _no_journal)
    after, judged = snapshot, before
    comparison = None
    if result.status == "applied":
        after, judged = _examine(_as_started(host), options)
        comparison = compare(before, judged, plan)
    view.answer(judged, after, plan, machine, result, comparison)
    if result.exit_code:
        return result.exit_code
    return 1 if comparison is not None and (comparison.still_there or comparison.not_judged) else 0


def _no_journal() -> Any:
    raise DoctorError("there was nothing to do, and then there was")


def _as_started(host: Host) -> Host:
    """The host as vLLM sees it when it is started with the environment file that the plan wrote."""
    from doctor.fix.actions.merge_keyvalue import parse
    from doctor.fix.draft import config_folder
    from doctor.host import LocalHost

    text = host.read(f"{config_folder(host.env)}/vllm.env")
    return LocalHost(env={**host.env, **parse(text)}) if text else host


def _examine(host: Host, options: Options) -> tuple[Snapshot, Judgement]:
    from doctor.host.examine import PROBES, examine
    from doctor.report.progress import Progress

    with Progress("examining", total=len(PROBES)) as progress:
        snapshot = examine(host, options, on_done=lambda status: progress.advance(status.name))
    return snapshot, judge(snapshot)


def _settle(state: State, machine: Machine, runs: list[Run], view: _View, *, asking: bool, yes: bool) -> None:
    """An earlier run was cut off: take its half-done step back, keep the finished ones, then plan afresh."""
    from doctor.fix.journal import Journal
    from doctor.fix.runner import settle

    if not yes and not asking:
        raise DoctorError(
            f"run {runs[-1].id} was cut off: --yes finishes it, `vllm-doctor undo {runs[-1].id}` takes it back. "
            "Nothing was changed."
        )
    if not yes and not view.confirm("Take its half-done step back, keep the finished ones, and go on?"):
        raise DoctorError(f"nothing was changed; `vllm-doctor undo {runs[-1].id}` takes that run back", 1)
    with state.lock():
        for run_ in runs:
            journal = Journal.reopen(run_, state.calls)
            try:
                settle(machine, journal)
            finally:
                journal.close()


def _saved(path: str) -> dict[str, Any]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DoctorError(f"cannot read the plan {path}: {error}") from None
    if isinstance(data, dict) and isinstance(data.get("plan"), dict):
        data = data["plan"]
    if not isinstance(data, dict) or not isinstance(data.get("facts_fingerprint"), str):
        raise DoctorError(f"{path} is not a plan; save one with `vllm-doctor fix --save FILE`")
    return data


def _save(path: str, plan: Plan, machine: Machine) -> None:
    from doctor.fix.files import Syscalls, write_durably

    text = json.dumps(plan.dump(machine), indent=1, ensure_ascii=False) + "\n"
    try:
        write_durably(Syscalls(), os.path.abspath(path), text.encode(), mode=0o644)
    except OSError as error:
        raise DoctorError(f"cannot write {path}: {error.strerror}") from None


class _View:
    """Where the words go: tables on stdout, or one JSON object there and everything else on stderr."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def say(self, text: str) -> None:
        print(text, file=sys.stderr if self._json else sys.stdout)

    def confirm(self, question: str) -> bool:
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def unfinished(self, runs: list[Run]) -> None:
        if runs:
            from doctor.report.fix_view import unfinished_text

            self.say("\n".join(unfinished_text(r) for r in runs))

    def plan(self, judgement: Judgement, plan: Plan, machine: Machine) -> None:
        if not self._json:
            from doctor.report.fix_view import print_plan

            print_plan(plan, judgement, machine)

    def progress(self, total: int) -> Any:
        from doctor.report.fix_view import step_progress

        return step_progress(total)

    def answer(
        self,
        judgement: Judgement,
        snapshot: Snapshot,
        plan: Plan,
        machine: Machine,
        result: Result | None = None,
        comparison: Any = None,
    ) -> None:
        from doctor.report import fix_view

        if not self._json:
            if result is None:
                fix_view.print_plan(plan, judgement, machine)
            else:
                fix_view.print_result(result, comparison, plan)
            return
        from doctor.report import json_report
        from doctor.report.redact import Redactor

        answer = Redactor.of_this_host().value(json_report.answer("fix", judgement, None))
        extra: Mapping[str, Any] = {"plan": plan.dump(machine)}
        if result is not None:
            extra = {**extra, "run": fix_view.result_json(result, comparison)}
        sys.stdout.write(json.dumps({**answer, **extra}, indent=1, ensure_ascii=False) + "\n")
