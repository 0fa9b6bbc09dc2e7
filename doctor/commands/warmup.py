"""``vllm-doctor warmup``: ask a running server every shape of request once, so that users do not wait."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from doctor.finding import EXIT_CODES
from doctor.smoke.options import REQUEST_S


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", metavar="URL",
        help="the running server (default http://127.0.0.1:8000); requests go nowhere else",
    )  # fmt: skip
    parser.add_argument("--model", metavar="NAME", help="one of several served names (default: the first)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="the server's log: names the kernels compiled")
    parser.add_argument(
        "--request-timeout", type=float, default=REQUEST_S, metavar="S",
        help=f"seconds for one request (default {REQUEST_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--greedy-only", action="store_true",
        help="no sampled answer: a CPU build of vLLM with MTP dies of it, like of any sampled request",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")


def run(args: argparse.Namespace) -> int:
    """Returns the exit code: 0 when every shape was answered, 2 when one was not."""
    from doctor.commands.smoke import within
    from doctor.report import json_report
    from doctor.report.progress import Progress
    from doctor.report.redact import Redactor
    from doctor.serve.client import Client
    from doctor.smoke.warmup import warm_up

    within("--request-timeout", args.request_timeout, 0.1, 86400)
    client = Client.of_url(args.url, deadline_s=args.request_timeout, key=os.environ.get("VLLM_API_KEY", ""))
    with Progress("warm-up") as progress:
        result = warm_up(client, args.model, args.log, progress.update, sampled=not args.greedy_only)
    redactor = Redactor.of_this_host()
    result.findings = redactor.value_of(result.findings)
    result.notes = redactor.value_of(result.notes)
    judgement = result.judgement
    if args.json:
        extra = {"warmup": redactor.value(result.as_json())}
        sys.stdout.write(json_report.render("warmup", judgement, None, extra))
    else:
        from doctor.report.warmup import print_warmup

        print_warmup(result)
    return EXIT_CODES[judgement.verdict]
