"""Runs all probes side by side and makes one Snapshot. A crash or a time-out is a recorded fact."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from doctor import __version__
from doctor.host.access import Host
from doctor.snapshot import ProbeStatus, Snapshot


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line, as far as probes care."""

    python: str | None = None  # interpreter or environment folder that runs vLLM
    model: str | None = None
    port: int | None = None
    deep: bool = False
    inside_image: bool = False
    deadline_scale: float = 1.0


@dataclass(frozen=True)
class Probe:
    """``module`` must have ``probe(host, options) -> {snapshot field: facts}``; imported when run."""

    name: str
    module: str
    deadline_s: float
    deep_deadline_s: float | None = None


PROBES: tuple[Probe, ...] = (
    Probe("system", "doctor.host.system", 3.0),
    Probe("wsl", "doctor.host.wsl", 3.0),
    Probe("toolchain", "doctor.host.toolchain", 10.0, 60.0),
    Probe("driver", "doctor.host.driver", 5.0),
    Probe("gpus", "doctor.host.gpu", 5.0, 30.0),
    Probe("container", "doctor.host.container", 4.0, 90.0),
    Probe("python", "doctor.host.python_env", 5.0),
    Probe("storage", "doctor.host.storage", 3.0),
    Probe("network", "doctor.host.network", 3.0),
    Probe("serving", "doctor.host.serving", 1.0),
)


def examine(
    host: Host,
    options: Options | None = None,
    probes: tuple[Probe, ...] = PROBES,
    on_done: Callable[[ProbeStatus], None] | None = None,
) -> Snapshot:
    """Examines a host. Each probe has its own thread and deadline; one that overruns is left behind.

    The threads are daemons: a probe stuck in a dead mount or a hung driver call cannot hold the
    process at its end.
    """
    options = options or Options()
    runs = [_Run(p, host, options) for p in probes]
    for run in runs:
        run.start()
    snapshot = Snapshot(
        taken_at=datetime.fromtimestamp(host.time(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        doctor_version=__version__,
        deep=options.deep,
        inside_image=options.inside_image,
    )
    statuses = []
    for run in runs:
        status, fields = run.result()
        statuses.append(status)
        if fields:
            snapshot = replace(snapshot, **fields)
        if on_done:
            on_done(status)
    return replace(snapshot, probes=tuple(statuses))


class _Run:
    def __init__(self, probe: Probe, host: Host, options: Options) -> None:
        self.probe = probe
        self.host = host
        self.options = options
        self.began = time.monotonic()
        limit = (probe.deep_deadline_s if options.deep else None) or probe.deadline_s
        self.deadline = limit * options.deadline_scale
        self.fields: Mapping[str, Any] = {}
        self.error: str | None = None
        self.ended: float | None = None
        self.thread = threading.Thread(target=self._target, name=f"probe-{probe.name}", daemon=True)

    def start(self) -> None:
        try:
            self.thread.start()
        except RuntimeError as error:  # no memory or no more processes for this user
            self.error = f"{error}: the limits of memory or processes (ulimit -v, -u) are too low"
            self.ended = time.monotonic()

    def _target(self) -> None:
        try:
            module = importlib.import_module(self.probe.module)
            self.fields = module.probe(self.host, self.options)
        except Exception as error:  # noqa: BLE001  a probe that raises is itself a result
            self.error = f"{type(error).__name__}: {error}".rstrip(": ")[:300]
        self.ended = time.monotonic()

    def result(self) -> tuple[ProbeStatus, Mapping[str, Any]]:
        if self.thread.ident is not None:
            self.thread.join(max(0.0, self.began + self.deadline - time.monotonic()))
        name = self.probe.name
        if self.thread.is_alive() or self.ended is None:
            why = f"no answer within {self.deadline:g} s"
            return ProbeStatus(name, "timeout", round(time.monotonic() - self.began, 3), why), {}
        seconds = round(self.ended - self.began, 3)
        if self.error is not None:
            return ProbeStatus(name, "failed", seconds, self.error), {}
        return ProbeStatus(name, "ok", seconds), self.fields
