"""``vllm-doctor build``: one pinned image in which compiler, CUDA, torch and vLLM fit together."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.errors import DoctorError
from doctor.finding import EXIT_CODES

if TYPE_CHECKING:
    from doctor.image.build import BuildOptions, BuildResult
    from doctor.snapshot import Snapshot

#: Seconds between two reports of a step that still runs: on a terminal, and as lines of a log.
LIVE_S, LINES_S = 1.0, 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    what = parser.add_argument_group("what is built")
    what.add_argument("--target", metavar="NAME", help="target of docker/pins.json (default: by driver and card)")
    what.add_argument(
        "--base", metavar="REF", help="own base image, for machines without a registry; its distribution decides"
    )
    what.add_argument("--tag", metavar="NAME:TAG", help="name of the image (default: versions and lock hash)")
    what.add_argument(
        "--ignore-hardware", action="store_true", help="do not judge this machine: the image is for another one"
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--engine", metavar="NAME", help="docker, podman, or the path of one (default: what can build)"
    )
    how.add_argument("--wheels", type=Path, metavar="DIR", help="take the wheels from DIR, ask no package index")
    how.add_argument(
        "--ca", metavar="FILE", help="CA certificates for pip in the build, as a secret; `none` for no such secret"
    )
    how.add_argument("--network", metavar="MODE", help="network of the build's steps, such as host or none")
    how.add_argument("--no-cache", action="store_true", help="run every step anew")
    how.add_argument(
        "--ignore-room",
        action="store_true",
        help="build with less room than a whole build needs (layers are cached)",
    )
    after = parser.add_argument_group("after the build")
    after.add_argument("--sbom", type=Path, metavar="FILE", help="write the bill of materials (CycloneDX) to FILE")
    after.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="save the image as an OCI archive, with checksum and bill of materials",
    )
    other = parser.add_argument_group("instead of a build")
    other.add_argument("--print", action="store_true", help="the Dockerfile and all arguments; builds nothing")
    other.add_argument(
        "--update-pins", action="store_true", help="show what newer pins would change; writes nothing"
    )
    other.add_argument(
        "--verify-pins", action="store_true", help="ask the registry and the hub whether the pins stand"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument("-v", "--verbose", action="store_true", help="evidence and the engine's command line")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when the image was made, 2 when something stops it."""
    from doctor.image.build import BuildOptions
    from doctor.image.pins import valid_name
    from doctor.serve.interrupt import like_ctrl_c

    for option in ("target", "base", "tag", "engine", "ca", "network"):
        value = getattr(args, option)
        if value is not None and (not value.strip() or value.startswith("-")):
            raise DoctorError(f"--{option} needs a value, not {value!r}")
    if args.tag is not None and not valid_name(args.tag):
        raise DoctorError(
            f"--tag {args.tag!r} is no name for an image: lower-case letters and digits with . _ - / between "
            "them, then :TAG, such as registry.example:5000/team/vllm:1"
        )
    modes = [f"--{m.replace('_', '-')}" for m in ("print", "update_pins", "verify_pins") if getattr(args, m)]
    if len(modes) > 1:
        raise DoctorError(f"{modes[0]} and {modes[1]} cannot go together")
    if args.verify_pins:
        return _verify(as_json=args.json)
    if args.update_pins:
        return _update(as_json=args.json)
    options = BuildOptions(
        base=args.base,
        target=args.target,
        tag=args.tag,
        engine=args.engine,
        wheels=args.wheels,
        ca=args.ca,
        network=args.network,
        no_cache=args.no_cache,
        ignore_hardware=args.ignore_hardware,
        ignore_room=args.ignore_room,
        sbom=args.sbom,
        save=args.save,
    )
    if args.print:
        return _print(options, as_json=args.json)
    like_ctrl_c()
    result = _build(options, _examine())
    _answer(result, as_json=args.json, verbose=args.verbose)
    return EXIT_CODES[result.judgement.verdict]


def _examine() -> Snapshot:
    from doctor.host import LocalHost
    from doctor.image.preflight import NEEDED, look
    from doctor.report.progress import Progress

    with Progress("examining", total=len(NEEDED)) as progress:
        return look(LocalHost(), lambda status: progress.advance(status.name))


def _build(options: BuildOptions, snapshot: Snapshot) -> BuildResult:
    from doctor.host import LocalHost
    from doctor.image.build import run_build
    from doctor.report.progress import Progress

    with Progress("building") as progress:
        apart = LIVE_S if sys.stderr.isatty() else LINES_S
        return run_build(options, snapshot, LocalHost(), progress.update, apart_s=apart)


def _answer(result: BuildResult, *, as_json: bool, verbose: bool) -> None:
    if not as_json:
        from doctor.report.build_view import print_build

        print_build(result, verbose=verbose)
        return
    from doctor.report import build_view, json_report
    from doctor.report.redact import Redactor

    answer = json_report.answer("build", result.judgement, None, {"build": build_view.as_json(result)})
    sys.stdout.write(json.dumps(Redactor.of_this_host().value(answer), indent=1, ensure_ascii=False) + "\n")


def _print(options: BuildOptions, *, as_json: bool) -> int:
    """The Dockerfile and the arguments; asks no engine, so that it works without one."""
    from doctor.host import LocalHost
    from doctor.image.print import printed

    text, document = printed(options, _examine(), LocalHost())
    if as_json:
        text = json.dumps({"schema_version": 1, "command": "build", "print": document}, indent=1) + "\n"
    sys.stdout.write(text)
    return 0


def _verify(*, as_json: bool) -> int:
    import os
    from dataclasses import asdict

    from doctor.image import pins, verify
    from doctor.report.progress import Progress

    with Progress("pins") as progress:
        results = verify.verify(pins.load(), os.environ, progress.update)
    if as_json:
        document = {"schema_version": 1, "command": "build", "pins": [asdict(r) for r in results]}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(verify.lines(results)) + "\n")
    return verify.exit_code(results)


def _update(*, as_json: bool) -> int:
    import os

    from doctor.host import LocalHost
    from doctor.image import pins, update, verify
    from doctor.report.progress import Progress

    known = pins.load()
    with Progress("pins") as progress:
        results = verify.verify(known, os.environ, progress.update)
        text = update.diff(known, LocalHost(), results, progress.update)
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": 1, "command": "build", "update": text}, indent=1) + "\n")
        return 0
    unheard = [r.name for r in results if r.status == verify.UNREACHABLE]
    if unheard:
        print(f"not asked, no answer: {', '.join(unheard)}", file=sys.stderr)  # noqa: T201
    sys.stdout.write(f"{text}\n" if text else "Nothing would change.\n")
    return 0
