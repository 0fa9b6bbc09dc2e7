"""The command line: finds the command's module, calls it, returns its exit code. No work is done here."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Sequence

from doctor import __version__, streams
from doctor.errors import DoctorError

#: name -> one line for --help. The module is doctor.commands.NAME.
COMMANDS: dict[str, str] = {
    "check": "what is wrong on this machine, in seconds, read-only",
    "explain": "what killed this run: read a log, a report or any pasted text",
    "fix": "repair what was found: a plan first, applied only with --apply",
    "undo": "take a repair back",
    "history": "what was repaired, and what was taken back",
    "smoke": "prove it with a real vLLM server",
    "sweep": "a whole measurement plan of real starts, one row each, resumable",
    "report": "one HTML page and a Markdown text to paste, redacted",
    "warmup": "ask a running server every shape of request once, so that users do not wait",
    "fit": "will a model fit on a card, and with which settings",
    "build": "one pinned image in which compiler, CUDA, torch and vLLM fit together",
}

#: Standard output leads to a full disk, a broken one, or a file that may not grow.
_CANNOT_WRITE = {errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT}

EXIT_CODES = """exit codes:
  0  ready, fits, done        1  degraded or unknown
  2  blocked or failed        3  the doctor failed or was misused
  4  a repair failed, rolled back    5  undo incomplete
  130  interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code; a DoctorError becomes one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams.prepare()
    try:
        return _run(arguments)
    except DoctorError as error:
        print(f"vllm-doctor: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        print("vllm-doctor: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    except BrokenPipeError:
        streams.silence()  # the reader of a pipe has gone
        return 0
    except Exception as error:  # noqa: BLE001  Python would end with 1, which means "degraded" here
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and error.filename is None:
            streams.silence()
            print(f"vllm-doctor: the answer cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
            return 3
        import traceback

        traceback.print_exc()
        print(f"vllm-doctor: the doctor itself failed: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return 3


def _run(arguments: Sequence[str]) -> int:
    """What was printed has left when this ends, so that an error of the stream is met here and not by Python."""
    parser = _parser(arguments)
    try:
        args = parser.parse_args(arguments)
    except SystemExit:  # after --help, --version or misuse
        sys.stdout.flush()
        raise
    code = 0
    if args.command:
        code = args.run(args)
    else:
        parser.print_help()
    sys.stdout.flush()
    return code


class _Parser(argparse.ArgumentParser):
    """argparse ends with 2 on misuse, which means "blocked" here: 3 instead."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(3, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="vllm-doctor",
        description="Finds, proves and repairs what stops vLLM on one NVIDIA card.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"vllm-doctor {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == wanted:  # only the command that runs is imported
            module = importlib.import_module(f"doctor.commands.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser
