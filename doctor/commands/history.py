"""``vllm-doctor history``: the runs on this machine, with what was done and what was taken back."""

from __future__ import annotations

import argparse
import json
import os
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")


def run(args: argparse.Namespace) -> int:
    """Returns 0."""
    from doctor.fix.journal import all_runs
    from doctor.fix.state import State, place
    from doctor.report import fix_view

    runs = all_runs(State(place(os.environ, os.geteuid())))
    if args.json:
        sys.stdout.write(json.dumps(fix_view.history_json(runs), indent=1, ensure_ascii=False) + "\n")
    else:
        fix_view.print_history(runs)
    return 0
