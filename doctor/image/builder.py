"""Runs the engine's build command: its arguments, its progress, and its end whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from doctor.errors import DoctorError
from doctor.image.engine import Engine
from doctor.image.plan import Plan
from doctor.image.steps import Steps, declared, stage_names, total

#: The stage that becomes the image.
STAGE = "runtime"
#: Seconds that a client gets to cancel its build after SIGINT and after SIGTERM, before SIGKILL.
INTERRUPT_S, TERMINATE_S = 15.0, 5.0
#: Variables that both engines hand to a build as predefined arguments, which leave nothing in the image.
PROXIES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "FTP_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "ftp_proxy",
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What changes the way a build is run and not what it gives."""

    ca: Path | None = None
    network: str | None = None
    no_cache: bool = False
    proxies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """The build command: ``env`` is added to the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Ended:
    """How a build ended. ``step`` and ``error`` are those of the failure, in the engine's words."""

    code: int
    seconds: float
    steps: int
    cached: int
    step: str = ""
    error: str = ""


def command(plan: Plan, engine: Engine, root: str, dockerfile: str, settings: Settings) -> Command:
    """The command for a context in ``root``; ``dockerfile`` is the text, which says what it takes."""
    argv = [engine.path, "build"]
    if engine.kind == "podman":
        argv += ["--format", "docker"]  # the other format has no HEALTHCHECK
    else:
        argv += ["--progress", "plain"]
        if engine.builder == "buildx":
            argv.append("--load")  # whatever builder is the current one, the image goes to the daemon
    argv += ["--file", f"{root}/{plan.target.dockerfile}"]
    stage = STAGE if STAGE in stage_names(dockerfile) else None
    if stage:
        argv += ["--target", stage]
    takes = declared(dockerfile)
    for name, value in plan.arguments.items():
        if name in takes:
            argv += ["--build-arg", f"{name}={value}"]
    for name in settings.proxies:
        argv += ["--build-arg", name]  # the client takes the value from its environment
    if settings.ca is not None:
        argv += ["--secret", f"id=ca,src={settings.ca}"]
    if settings.network is not None:
        argv += ["--network", settings.network]
    if settings.no_cache:
        argv.append("--no-cache")
    return Command((*argv, "--tag", plan.tag, root), engine.environment)


def proxies(env: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the proxy variables that are set."""
    return tuple(name for name in PROXIES if env.get(name))


def build(
    what: Command,
    env: Mapping[str, str],
    log: Path,
    steps: Steps,
    say: Say,
    *,
    apart_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Runs the command to its end, all output into ``log``. A Ctrl+C ends the build, then goes on.

    ``apart_s``: seconds between two reports of a step that is still running.
    """
    began = clock()
    try:
        process = subprocess.Popen(
            list(what.argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in {**env, **what.env, "LC_ALL": "C"}.items() if v},
            start_new_session=True,  # a Ctrl+C reaches the doctor alone, which then ends the build in order
        )
    except OSError as error:
        raise DoctorError(f"cannot start {what.argv[0]}: {error.strerror}", 2) from None
    assert process.stdout is not None  # noqa: S101  for the type checker
    try:
        with log.open("wb") as file, process.stdout as stream:
            _follow(stream, file, steps, say, apart_s, clock)
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    return Ended(
        code,
        clock() - began,
        steps.begun,
        steps.cached,
        *(("", "") if code == 0 else (steps.failed, steps.reason)),
    )


def _follow(
    stream: IO[bytes], file: IO[bytes], steps: Steps, say: Say, apart_s: float, clock: Callable[[], float]
) -> None:
    """Copies the output to the log, and tells each step that begins and, now and then, how a long one goes."""
    buffer, told, since = b"", "", clock()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if selector.select(1.0):
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    break
                file.write(data)
                file.flush()
                *lines, buffer = re.split(rb"\r?\n|\r", buffer + data)
                for line in lines:
                    steps.take(line.decode("utf-8", "replace"))
                    if steps.title != told:
                        told, since = steps.title, clock()
                        say(steps.told())
            if told and clock() - since >= apart_s:
                since = clock()
                say(steps.told())
    if buffer:
        steps.take(buffer.decode("utf-8", "replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the client and what it started; the engine cancels a build whose client is gone."""
    for number, seconds in ((signal.SIGINT, INTERRUPT_S), (signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            continue  # impatience: the next signal at once
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # what the client left of its own children


def steps_of(dockerfile: str, engine: Engine) -> Steps:
    """The follower of a build's progress, which knows how many steps there will be."""
    return Steps(total(dockerfile, STAGE) if engine.kind == "docker" else None)


def shown(what: Command) -> Sequence[str]:
    """The command as words, its environment first."""
    return (*(f"{k}={v}" for k, v in what.env.items()), *what.argv)
