"""``vllm-doctor undo``: takes a repair back, as far as the machine is still as the repair left it."""

from __future__ import annotations

import argparse
import json
import os
import sys

from doctor.errors import DoctorError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument(
        "run_id", nargs="?", metavar="RUN", help="which run (default: the last one not taken back)"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; needed without a terminal")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when nothing of the run is left, 5 when something had to stay."""
    from doctor.fix.journal import Journal, all_runs
    from doctor.fix.machine import Machine
    from doctor.fix.privilege import Privilege
    from doctor.fix.state import State, place
    from doctor.fix.undo import take_back
    from doctor.report import fix_view

    state = State(place(os.environ, os.geteuid()))
    runs = all_runs(state)
    if args.run_id:
        chosen = next((r for r in runs if r.id == args.run_id), None)
        if chosen is None:
            raise DoctorError(f"there is no run {args.run_id!r}; see `vllm-doctor history`")
    else:
        chosen = next((r for r in reversed(runs) if r.standing), None)
    if chosen is None or not chosen.standing:
        if args.json:
            run_id = chosen.id if chosen else None
            sys.stdout.write(json.dumps(fix_view.undo_json(run_id, None), indent=1) + "\n")
        else:
            print("Nothing to take back.")  # noqa: T201
        return 0
    if not args.json:
        fix_view.print_undo_plan(chosen)
    if not args.yes:
        if not sys.stdin.isatty():
            raise DoctorError("nothing was changed: without a terminal, --yes is needed")
        print("Take these steps back? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return 1
    machine = Machine(
        Privilege.of_this_process(os.environ, ask=sys.stdin.isatty()), staging=state.folder, tag=chosen.id
    )
    with state.lock():
        journal = Journal.reopen(chosen, state.calls)
        try:
            journal.undo("begun")
            undone = take_back(machine, journal, None if args.json else fix_view.print_undone_step)
            journal.undo("complete" if undone.complete else "incomplete")
        finally:
            journal.close()
    if args.json:
        sys.stdout.write(json.dumps(fix_view.undo_json(chosen.id, undone), indent=1, ensure_ascii=False) + "\n")
    else:
        fix_view.print_undone(undone)
    return 0 if undone.complete else 5
