"""``vllm-doctor check``: examine this machine (or a recorded one) and judge it. Changes nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

from doctor.checks.registry import Judgement, judge, registered
from doctor.errors import DoctorError
from doctor.files import write
from doctor.finding import EXIT_CODES, Verdict
from doctor.snapshot import Snapshot, dumps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument("-v", "--verbose", action="store_true", help="evidence, passed and skipped checks")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ID", help="run only this check (repeatable)"
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="ID", help="waive this check, recorded as such"
    )
    parser.add_argument("--list", action="store_true", help="list all checks")
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="judge a saved snapshot or evidence (- for stdin)"
    )
    parser.add_argument("--save", metavar="FILE", help="save the snapshot, redacted")
    parser.add_argument("--python", metavar="ENV", help="interpreter or environment folder that runs vLLM")
    parser.add_argument("--model", metavar="DIR", help="model folder that will be served")
    parser.add_argument("--port", type=int, metavar="N", help="port that will be served (default 8000)")
    parser.add_argument("--deep", action="store_true", help="also start small GPU and container trials")
    parser.add_argument("--strict", action="store_true", help="anything but ready counts as blocked (exit 2)")
    parser.add_argument("--inside-image", action="store_true", help="this is an image build: no GPU is expected")


def run(args: argparse.Namespace) -> int:
    """Returns the exit code of the verdict."""
    from doctor.report import json_report
    from doctor.report.redact import Redactor

    checks = registered()
    if args.list:
        sys.stdout.write(json_report.check_list(checks) if args.json else _terminal().check_list(checks))
        return 0
    unknown = {*args.only, *args.skip} - {c.id for c in checks}
    if unknown:
        raise DoctorError(f"no check is called {sorted(unknown)[0]!r}; see `vllm-doctor check --list`")
    for option, value in (("--python", args.python), ("--model", args.model), ("--save", args.save)):
        if value is not None and not value.strip():
            raise DoctorError(f"{option} needs a value, it is empty")
    if args.port is not None and not 0 < args.port < 65536:
        raise DoctorError(f"--port {args.port} is no port: 1 to 65535")
    redactor = Redactor.of_this_host()
    snapshot = redactor.snapshot(_evidence(args.source) if args.source else _examine(args))
    judgement = judge(snapshot, checks, args.only, args.skip)
    if args.save:
        write(Path(args.save), dumps(snapshot))
    if args.json:
        sys.stdout.write(json_report.render("check", judgement, snapshot))
    else:
        _terminal().print_judgement(judgement, snapshot, verbose=args.verbose)
    return exit_code(judgement, strict=args.strict)


def _terminal() -> ModuleType:
    """The report for people; a quarter of the doctor's own CPU time goes into importing what it draws with."""
    from doctor.report import terminal

    return terminal


def exit_code(judgement: Judgement, strict: bool) -> int:
    """The verdict's exit code; with ``strict`` everything but ready is 2."""
    return 2 if strict and judgement.verdict is not Verdict.READY else EXIT_CODES[judgement.verdict]


def _examine(args: argparse.Namespace) -> Snapshot:
    from doctor.host import LocalHost
    from doctor.host.examine import PROBES, Options, examine
    from doctor.report.progress import Progress

    options = Options(
        python=args.python,
        model=args.model,
        port=args.port,
        deep=args.deep,
        inside_image=args.inside_image,
    )
    with Progress("examining", total=len(PROBES)) as progress:
        return examine(LocalHost(), options, on_done=lambda status: progress.advance(status.name))


def _evidence(path: str) -> Snapshot:
    from doctor.evidence.load import snapshot_from

    return snapshot_from(path)
