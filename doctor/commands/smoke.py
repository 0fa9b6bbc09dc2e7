"""``vllm-doctor smoke``: start a real vLLM server, ask it, judge it, and leave nothing behind."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.errors import DoctorError
from doctor.files import write
from doctor.finding import EXIT_CODES
from doctor.serve.interrupt import like_ctrl_c
from doctor.smoke.options import (
    CPU_MAX_MODEL_LEN,
    DEFAULT_MAX_MODEL_LEN,
    DEFAULT_MTP,
    DEFAULT_TIMEOUT_S,
    DEFAULT_UTILIZATION,
    REQUEST_S,
    Missing,
    SmokeOptions,
)

if TYPE_CHECKING:
    from doctor.host import LocalHost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument(
        "--model", metavar="MODEL",
        help="folder or hub name, @REVISION behind it; with --url a served name (default: the model of our image)",
    )  # fmt: skip
    parser.add_argument(
        "--download", "--yes", action="store_true",
        help="fetch a hub model that is not here; without it a terminal is asked, and a pipe gets nothing",
    )  # fmt: skip
    parser.add_argument(
        "--url", metavar="URL", help="ask this running server instead of starting one; requests go nowhere else"
    )
    parser.add_argument(
        "--python", metavar="ENV", help="environment folder or interpreter that has vLLM (default: the active one)"
    )
    parser.add_argument(
        "--image", metavar="IMAGE", help="in a container of this image instead; nothing is pulled, nothing is left"
    )
    parser.add_argument(
        "--mtp",
        type=int,
        metavar="K",
        help=f"draft tokens, 0 for none (default: by `fit`, else {DEFAULT_MTP})",
    )
    parser.add_argument(
        "--util", type=float, metavar="U",
        help=f"share of the card's memory (default: by `fit`, else {DEFAULT_UTILIZATION:g})",
    )  # fmt: skip
    parser.add_argument(
        "--max-model-len", type=int, metavar="N",
        help=f"context in tokens (default: by `fit`, else {DEFAULT_MAX_MODEL_LEN}; CPU {CPU_MAX_MODEL_LEN})",
    )  # fmt: skip
    parser.add_argument("--port", type=int, metavar="P", help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S",
        help=f"seconds until the server must be ready (default {DEFAULT_TIMEOUT_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--request-timeout", type=float, default=REQUEST_S, metavar="S",
        help=f"seconds for one request (default {REQUEST_S:g})",
    )  # fmt: skip
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="one server with the chosen settings (the default)")
    depth.add_argument(
        "--full", action="store_true",
        help="also without MTP, without prefix caching and without both: the same greedy prompts must agree",
    )  # fmt: skip
    parser.add_argument(
        "--ladder", action=argparse.BooleanOptionalAction, default=None,
        help="after a failure try other settings until all probes pass (default: with --full)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep logs, the answer and the settings that passed"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="evidence and the server's command line")
    parser.add_argument("serve_args", nargs="*", metavar="-- SERVE_ARGS", help="more options for `vllm serve`")


def run(args: argparse.Namespace) -> int:
    """Returns the exit code of the verdict."""
    options = _options(args)
    like_ctrl_c()

    from doctor.host import LocalHost
    from doctor.report import json_report
    from doctor.report.progress import Progress
    from doctor.report.redact import Redactor
    from doctor.smoke.answer import as_json
    from doctor.smoke.emitted import files
    from doctor.smoke.run import redact, remove_log, run_smoke

    host = LocalHost()
    if options.url is None:
        options = replace(options, missing=_obtain(options.model, host, args.download))
    with Progress("smoke test") as progress:
        result = run_smoke(options, host, progress.update)
    remove_log(result, options)
    redactor = Redactor.of_this_host()
    if options.out is not None:
        _save_settings(options.out, files(result, redactor, host.env))
    redact(result, redactor)
    judgement = result.judgement
    answer = json_report.render("smoke", judgement, None, {"smoke": redactor.value(as_json(result))})
    if options.out is not None:
        write(options.out / "smoke.json", answer, folders=True)
    if args.json:
        sys.stdout.write(answer)
    else:
        from doctor.report.smoke import print_smoke

        print_smoke(result, verbose=args.verbose)
    return EXIT_CODES[judgement.verdict]


def _obtain(model: str, host: LocalHost, download: bool) -> Missing:
    """Fetches a hub model when that was asked for or is agreed to; why it is not here, or ""."""
    from doctor.report.progress import Progress
    from doctor.smoke.download import obtain

    terminal = sys.stdin.isatty() and sys.stderr.isatty()

    def agree(text: str) -> bool:
        print(f"vllm-doctor: {text}", file=sys.stderr)  # noqa: T201
        if download or not terminal:
            return download
        print("Fetch it? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    with contextlib.ExitStack() as stack:
        shown: list[Progress] = []

        def say(text: str) -> None:
            if not shown:  # a live line and a question do not go together
                shown.append(stack.enter_context(Progress("download")))
            shown[0].update(text)

        return obtain(model, host, agree, say, every_s=0.5 if terminal else 10.0)


def _default_model() -> str:
    """The model that the image is pinned to; it is named in one place."""
    from doctor.image.pins import load

    pinned = load().model
    if pinned is None:
        raise DoctorError("--model is missing; give the folder that holds config.json, or a hub name")
    return f"{pinned.id}@{pinned.revision}"


def _options(args: argparse.Namespace) -> SmokeOptions:
    within("--mtp", args.mtp, 0, 16)
    within("--util", args.util, 0.01, 1.0)
    within("--max-model-len", args.max_model_len, 64, 1 << 24)
    within("--port", args.port, 1, 65535)
    within("--timeout", args.timeout, 0.1, 86400)
    within("--request-timeout", args.request_timeout, 0.1, 86400)
    if args.url is not None:
        given = {
            "--python": args.python,
            "--image": args.image,
            "--port": args.port,
            "--util": args.util,
            "--ladder": args.ladder,
            "--download": args.download,
            "arguments after --": args.serve_args,
        }
        wrong = [name for name, value in given.items() if value]
        if wrong:
            raise DoctorError(f"{wrong[0]} cannot go with --url: that server is already running")
    elif args.image is not None and args.python is not None:
        raise DoctorError("--image and --python are two places to look for vLLM: give one")
    elif args.model is not None and not args.model:
        raise DoctorError("--model is empty; give the folder that holds config.json")
    return SmokeOptions(
        model=args.model or ("" if args.url is not None else _default_model()),
        url=args.url,
        full=args.full,
        ladder=args.ladder,
        image=args.image,
        python=args.python,
        mtp=args.mtp,
        utilization=args.util,
        max_model_len=args.max_model_len,
        port=args.port,
        timeout_s=args.timeout,
        request_s=args.request_timeout,
        out=args.out,
        serve_args=tuple(args.serve_args),
    )


def within(name: str, value: float | None, low: float, high: float) -> None:
    """Raises DoctorError for an option out of its range."""
    if value is not None and not low <= value <= high:
        raise DoctorError(f"{name} {json.dumps(value)} is out of range: {low:g} to {high:g}")


def _save_settings(folder: Path, written: dict[str, str]) -> None:
    """Writes the files of what passed; those of an earlier test would not be true any more."""
    for name in ("serve.sh", "compose.yaml", "settings.env"):
        if name in written:
            write(folder / name, written[name], folders=True)
            if name == "serve.sh":
                (folder / name).chmod(0o755)
        else:
            (folder / name).unlink(missing_ok=True)
