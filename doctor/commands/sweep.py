"""``vllm-doctor sweep``: a whole measurement plan of real starts in one command, one row each, resumable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.commands.smoke import within
from doctor.errors import DoctorError
from doctor.finding import EXIT_CODES
from doctor.sweep.options import SweepOptions
from doctor.sweep.plan import AXES, BATCHED, CONTEXTS, DRAFTS, SEQUENCES, Values, tokens

if TYPE_CHECKING:
    from doctor.memory.predict import Card
    from doctor.sweep.run import SweepResult

_EPILOG = """The first model is swept along the axes; every further --model is started at the edge: at the longest
context predicted to fit. OUT/sweep.jsonl gets one line for every finished point, and the same command later
starts only what is missing. Kept there too: sweep.md, plots (*.svg), logs/.

"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.epilog = _EPILOG + (parser.epilog or "")
    parser.add_argument(
        "--model", action="append", default=[], metavar="DIR",
        help="model folder, or a hub name in the local cache; a second one is tried at its edge",
    )  # fmt: skip
    parser.add_argument("--python", metavar="ENV", help="environment that has vLLM (default: the active one)")
    parser.add_argument(
        "--axes", default=",".join(AXES), metavar="LIST", help=f"what is varied (default {','.join(AXES)})"
    )
    parser.add_argument(
        "--context", type=_sizes, default=CONTEXTS, metavar="LIST",
        help=f"context lengths, the first is the base of the other axes (default {_listed(CONTEXTS)})",
    )  # fmt: skip
    parser.add_argument(
        "--mtp", type=_counts, default=DRAFTS, metavar="LIST", help=f"draft tokens (default {_listed(DRAFTS)})"
    )
    parser.add_argument(
        "--sequences", type=_counts, default=SEQUENCES, metavar="LIST",
        help=f"sequences at once (default {_listed(SEQUENCES)})",
    )  # fmt: skip
    parser.add_argument(
        "--batched", type=_sizes, default=BATCHED, metavar="LIST",
        help=f"max batched tokens (default {_listed(BATCHED)})",
    )  # fmt: skip
    parser.add_argument("--util", type=float, metavar="U", help="share of the card's memory (default: as `fit`)")
    parser.add_argument("--images", action="store_true", help="keep the image encoder (default: text only)")
    parser.add_argument("--edges", action="store_true", help="also start what is predicted not to fit")
    parser.add_argument("--retry", action="store_true", help="start what was refused or died once more")
    parser.add_argument("--plan", action="store_true", help="show points, predictions and time; start nothing")
    parser.add_argument("--gpu", metavar="NAME", help="with --plan: another card than this machine's")
    parser.add_argument("--vram", type=float, metavar="GiB", help="with --plan: its memory")
    parser.add_argument(
        "--timeout", type=float, default=900.0, metavar="S", help="seconds until a server must be ready (900)"
    )
    parser.add_argument(
        "--request-timeout", type=float, default=180.0, metavar="S", help="seconds for one request (180)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument(
        "--out", type=Path, default=Path("vllm-doctor-sweep"), metavar="DIR", help="folder (vllm-doctor-sweep)"
    )
    parser.add_argument("serve_args", nargs="*", metavar="-- SERVE_ARGS", help="more options for `vllm serve`")


def run(args: argparse.Namespace) -> int:
    """Returns the exit code of the verdict; 0 for a plan."""
    options = _options(args)
    from doctor.host import LocalHost
    from doctor.report.progress import Progress
    from doctor.report.redact import Redactor
    from doctor.serve.interrupt import like_ctrl_c
    from doctor.sweep.prepare import prepare
    from doctor.sweep.run import run_sweep, stored

    if not args.plan:
        like_ctrl_c()
    host, redactor = LocalHost(), Redactor.of_this_host()
    with Progress("sweep") as progress:
        prepared = prepare(options, host, _named(args), progress.update, plan=args.plan)
        prepared.findings = redactor.value_of(prepared.findings)
        result = stored(options, prepared)
        if not args.plan:
            try:
                result = run_sweep(options, prepared, host, redactor, progress.update)
            except KeyboardInterrupt:
                _interrupted(options, stored(options, prepared))
                raise
    files = [] if args.plan else _files(options, result)
    if args.json:
        from doctor.report import json_report
        from doctor.sweep.run import as_json

        part = redactor.value(as_json(result))
        sys.stdout.write(json_report.render("sweep", redactor.value_of(result.judgement), None, {"sweep": part}))
    elif args.plan:
        _show_plan(options, result)
    else:
        from doctor.report.sweep_view import print_sweep

        print_sweep(result, [redactor.text(f) for f in files])
    return EXIT_CODES[result.judgement.verdict]


def _show_plan(options: SweepOptions, result: SweepResult) -> None:
    from doctor.report.sweep_view import print_plan
    from doctor.sweep.run import duration, estimate_s, to_start

    left = to_start(result)
    seconds = estimate_s(left, result.rows, result.prepared)
    print_plan(result, f"{len(left)} starts, about {duration(seconds)}", edges=options.edges)


def _files(options: SweepOptions, result: SweepResult) -> list[str]:
    """Writes the table and the plots; the rows are there already."""
    from doctor.files import write
    from doctor.report import plot
    from doctor.report.sweep_view import markdown, plots
    from doctor.sweep.store import NAME

    if not result.rows:
        return []
    skipped = [(item.point.label, why) for item, why in result.skipped]
    written = [options.out / NAME, options.out / "sweep.md"]
    write(written[1], markdown(result.prepared.setup.title, result.rows, skipped, result.notes))
    for one in plots(result.rows):
        written.append(options.out / f"{one.name}.svg")
        write(written[-1], plot.svg(one))
    return [str(path) for path in written]


def _interrupted(options: SweepOptions, result: SweepResult) -> None:
    _files(options, result)
    wanted = len(result.prepared.items) - len(result.skipped)
    print(  # noqa: T201
        f"{len(result.rows)} of {wanted} points are kept in {options.out}; the same command starts the others",
        file=sys.stderr,
    )


def _named(args: argparse.Namespace) -> Card | None:
    if args.gpu is None and args.vram is None:
        return None
    if not args.plan:
        raise DoctorError("--gpu and --vram go with --plan: a sweep measures this machine's card")
    from doctor.memory.cards import named_cards, plain_card

    if args.gpu is None:
        return plain_card(args.vram, None)
    cards = named_cards(args.gpu, args.vram, None)
    if len(cards) > 1:
        raise DoctorError(f"{args.gpu} is sold with several sizes; give --vram GiB")
    return cards[0]


def _options(args: argparse.Namespace) -> SweepOptions:
    within("--util", args.util, 0.01, 1.0)
    within("--vram", args.vram, 1, 100_000)
    within("--timeout", args.timeout, 0.1, 86400)
    within("--request-timeout", args.request_timeout, 0.1, 86400)
    for name, values, low, high in (
        ("--context", args.context, 64, 1 << 24),
        ("--mtp", args.mtp, 0, 16),
        ("--sequences", args.sequences, 1, 1024),
        ("--batched", args.batched, 16, 1 << 20),
    ):
        for value in values:
            within(name, value, low, high)
    axes = tuple(args.axes.split(","))
    wrong = [a for a in axes if a not in AXES]
    if wrong:
        raise DoctorError(f"--axes: {wrong[0]!r} is not one of {', '.join(AXES)}")
    if not args.model or not all(args.model):
        raise DoctorError("--model is missing; give the folder that holds config.json")
    return SweepOptions(
        models=tuple(args.model),
        out=args.out,
        python=args.python,
        values=Values(args.context, args.sequences, args.batched, args.mtp, axes),
        utilization=args.util,
        edges=args.edges,
        retry=args.retry,
        images=args.images,
        timeout_s=args.timeout,
        request_s=args.request_timeout,
        serve_args=tuple(args.serve_args),
    )


def _listed(values: Sequence[int]) -> str:
    return ",".join(tokens(v) if v % 1024 == 0 and v else str(v) for v in values)


def _sizes(text: str) -> tuple[int, ...]:
    """ "8K,16384" as (8192, 16384)."""
    return tuple(_whole(part.lower().removesuffix("k")) * (1024 if part.lower().endswith("k") else 1)
                 for part in text.split(","))  # fmt: skip


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split(","))


def _whole(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
