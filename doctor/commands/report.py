"""``vllm-doctor report``: one HTML page and a Markdown text, from saved answers or a fresh check; redacted."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.files import write
from doctor.finding import Verdict

_LIMIT = 64 << 20
#: Lines at the end of a server's log that are shown.
_LOG_LINES = 80
_LOG_BYTES = 1 << 20
#: Logs of a sweep that are shown.
_LOGS = 4
_NAME = "vllm-doctor-report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE",
        help="answers saved with --json or --out, a sweep.jsonl, or a snapshot of check --save "
        "(default: a fresh check)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for both (default: here)")
    parser.add_argument("--html", metavar="FILE", help="only the page, under this name (- for stdout)")
    parser.add_argument("--markdown", metavar="FILE", help="only the Markdown, under this name (- for stdout)")
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="also show the end of this log")
    parser.add_argument("--check", action="store_true", help="also examine this machine, beside the files")
    parser.add_argument("--python", metavar="ENV", help="for a fresh check: the environment that runs vLLM")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when everything was written."""
    from doctor.report import html, markdown
    from doctor.report.document import build
    from doctor.report.redact import Redactor

    redactor = Redactor.of_this_host()
    answers = [a for f in args.files for a in _read(f)]
    if args.check or not answers:
        answers.insert(0, _fresh(args.python))
    logs = [(Path(f).name, _text(f)) for f in args.log]
    beside: list[Path] = []
    for given in args.files:
        # smoke --out leaves them beside its answer; a path inside an answer is never followed
        beside += [p for p in _beside(Path(given), answers) if p not in beside]
    logs += [(p.name, _text(str(p))) for p in beside]
    made = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    document = build(
        [redactor.value(a) for a in answers], [(redactor.text(n), _tail(redactor.text(t))) for n, t in logs], made
    )
    wanted = [(args.html, html.render), (args.markdown, markdown.render)]
    if not args.html and not args.markdown:
        wanted = [(str(args.out / f"{_NAME}.html"), html.render), (str(args.out / f"{_NAME}.md"), markdown.render)]
    for path, render in wanted:
        if path:
            _write(path, render(document))
    return 0


def _beside(given: Path, answers: Sequence[Mapping[str, Any]]) -> list[Path]:
    """The logs of a smoke test, and of those starts of a sweep that did not end well."""
    folder = given.absolute().parent
    failed = [
        str(row.get("key"))
        for answer in answers
        for row in (answer.get("sweep") or {}).get("rows") or ()
        if row.get("outcome") != "ok"
    ]
    logs = [folder / "logs" / f"server-{key}.log" for key in failed if re.fullmatch(r"[0-9a-f]{1,64}", key)]
    return [*sorted(folder.glob("server*.log")), *(p for p in logs[:_LOGS] if p.is_file())]


def _read(path: str) -> list[Mapping[str, Any]]:
    """One answer; of a file with the rows of several sweeps one for each setup."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LIMIT)
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from None
    from doctor.sweep.store import parse

    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, dict) and "verdict" in found and "findings" in found:
        if _answer(found):
            return [found]
        raise DoctorError(f"{path} looks like an answer of --json, but its verdict or findings have another form")
    if rows := parse(data).by_key():
        return swept(rows.values())
    from doctor.snapshot import SnapshotError, loads

    try:
        return [_judged(loads(data.decode("utf-8", "replace"), path))]
    except SnapshotError:
        raise DoctorError(
            f"{path} is neither an answer saved with --json nor a sweep.jsonl nor a snapshot of check --save"
        ) from None


def _answer(found: Mapping[str, Any]) -> bool:
    """Whether the parts that every answer has are of the form that --json gives them."""
    findings = found["findings"]
    return (
        found["verdict"] in [v.value for v in Verdict]
        and isinstance(findings, list)
        and all(isinstance(f, dict) and isinstance(f.get("id"), str) for f in findings)
    )


def swept(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of a sweep as answers, one for each setup: other versions and machines are not mixed."""
    from doctor.report import json_report
    from doctor.sweep.answer import judge

    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row.get("setup_id")), []).append(row)
    return [
        json_report.answer(
            "sweep", judge(several), None, {"sweep": {"setup": several[0].get("setup"), "rows": several}}
        )
        for several in groups.values()
    ]


def _fresh(python: str | None) -> Mapping[str, Any]:
    from doctor.host import LocalHost
    from doctor.host.examine import PROBES, Options, examine
    from doctor.report.progress import Progress

    with Progress("examining", total=len(PROBES)) as progress:
        snapshot = examine(
            LocalHost(), Options(python=python), on_done=lambda status: progress.advance(status.name)
        )
    return _judged(snapshot)


def _judged(snapshot: Any) -> Mapping[str, Any]:
    from doctor.checks.registry import judge, registered
    from doctor.report import json_report
    from doctor.report.redact import Redactor

    redacted = Redactor.of_this_host().snapshot(snapshot)
    return json_report.answer("check", judge(redacted, registered()), redacted)


def _text(path: str) -> str:
    """The last part of a log."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from None
    # the cut may have gone through a private key, whose rest would not be known as one
    return re.sub(r"\A(?:(?!-----BEGIN)[\s\S])*?-----END [A-Z ]{0,40}PRIVATE KEY-----", "<private-key>", text)


def _tail(text: str) -> str:
    """The last lines; taken after redaction, which needs the whole of what it takes out."""
    return "\n".join(text.splitlines()[-_LOG_LINES:])


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    write(Path(path), text, folders=True)
    print(f"written: {path}", file=sys.stderr)  # noqa: T201
