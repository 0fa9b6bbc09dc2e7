"""``vllm-doctor explain FILE...|-``: name the cause in a log, or show the page of a cause. Changes nothing."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from doctor import catalogue
from doctor.checks.registry import Judgement, judge, registered
from doctor.errors import DoctorError
from doctor.evidence.load import Reading, read_evidence
from doctor.finding import EXIT_CODES, Finding
from doctor.report.redact import Redactor

#: Progress is shown for texts from this size on.
_LARGE = 32 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument(
        "what", nargs="+", metavar="FILE|CAUSE-ID", help="any text (- for stdin), or the id of a cause"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="evidence, harmless warnings, what was not judged"
    )


def run(args: argparse.Namespace) -> int:
    """Returns the exit code of the verdict; 0 for the page of a cause."""
    first = args.what[0]
    if len(args.what) == 1 and first != "-" and not os.path.exists(first) and _is_cause(first):
        return _page(first, args.json)
    reading = _read(args.what)
    redactor = Redactor.of_this_host()
    reading = replace(reading, snapshot=redactor.snapshot(reading.snapshot))
    judgement = by_place(judge(reading.snapshot, registered()))
    if args.json:
        from doctor.report import explain_json, json_report

        extra = {"texts": redactor.value(explain_json.texts_json(reading))}
        sys.stdout.write(json_report.render("explain", judgement, reading.snapshot, extra))
    else:
        from doctor.report.explain_view import print_explanation

        print_explanation(judgement, reading, redactor, verbose=args.verbose)
    return EXIT_CODES[judgement.verdict]


def by_place(judgement: Judgement) -> Judgement:
    """Findings of equal weight in the order in which the text shows them: the first cause first."""

    def key(item: Finding) -> tuple[int, int, int]:
        lines = [int(tail) for row in item.evidence if (tail := row.source.rpartition(":")[2]).isdigit()]
        return item.severity.rank, item.confidence.rank, min(lines, default=1 << 30)

    return replace(judgement, findings=tuple(sorted(judgement.findings, key=key)))


def _read(paths: list[str]) -> Reading:
    sizes = [Path(p).stat().st_size for p in paths if p != "-" and Path(p).is_file()]
    if sum(sizes) < _LARGE:
        return read_evidence(paths)
    from doctor.report.progress import Progress

    total, done, shown = sum(sizes), 0, -1
    with Progress("reading") as progress:

        def on_bytes(count: int) -> None:
            nonlocal done, shown
            done += count
            percent = min(100, done * 100 // total)
            if percent >= shown + 5:
                shown = percent
                progress.update(f"{percent} % of {total / 2**20:,.0f} MiB")

        return read_evidence(paths, on_bytes)


def _is_cause(name: str) -> bool:
    try:
        catalogue.cause(name)
    except KeyError:
        if "/" in name or "." in name:
            return False
        raise DoctorError(
            f"{name} is neither a file nor a cause; `vllm-doctor check --list` names the causes"
        ) from None
    return True


def _page(cause_id: str, as_json: bool) -> int:
    if as_json:
        from doctor.report.explain_json import page_json

        sys.stdout.write(page_json(cause_id))
    else:
        from doctor.report.explain_view import print_page

        print_page(cause_id)
    return 0
