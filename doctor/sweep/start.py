"""One point: a real server started, measured and ended; what came of it is one row."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doctor.codec import encode
from doctor.errors import DoctorError
from doctor.finding import Finding
from doctor.host import Host
from doctor.memory.calibration import Measured, read_log
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings, build, option
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import Readiness, wait_healthy
from doctor.smoke import ending
from doctor.smoke.options import DEFAULT_UTILIZATION
from doctor.smoke.preflight import free_port
from doctor.smoke.probes import Session
from doctor.smoke.profile import card_in, look
from doctor.sweep.forecast import compared
from doctor.sweep.measure import Figures, Unanswered, measure
from doctor.sweep.options import SweepOptions
from doctor.sweep.prepare import Item, Prepared
from doctor.sweep.store import DIED, OK, REFUSED

#: Causes that only say that and where it ended: what is not explained is not a refusal.
_UNEXPLAINED = frozenset({"server-died-while-loading", "server-never-healthy", "server-died-on-request"})
#: "... GiB for peak activation" in vLLM 0.26.0 and 0.32.0 (gpu_worker.py), which word the rest differently.
_PEAK = re.compile(r"([\d.]+) GiB for peak activation")
#: Seconds an engine gets to end after an answer that was not whole, so that its log has the cause.
DEATH_WAIT_S = 10.0
#: Seconds in which a card must be as free as before; a driver frees memory a little after the process ends.
_FREE_WAIT_S = 30.0

Say = Callable[[str], None]


def start(item: Item, prepared: Prepared, options: SweepOptions, log: Path, host: Host, *, vision: bool,
          say: Say) -> dict[str, Any]:  # fmt: skip
    """Runs one point. Raises KeyboardInterrupt when interrupted: then there is no row, and no process left."""
    began = time.monotonic()
    point, cpu = item.point, prepared.environment.cpu
    settings = Settings(
        model=point.model,
        model_is_local=True,
        mtp=point.draft_tokens,
        max_model_len=point.max_model_len,
        utilization=prepared.setup.utilization or DEFAULT_UTILIZATION,
        extra=options.serve_args,
        max_num_seqs=point.max_num_seqs,
        max_num_batched_tokens=point.max_num_batched_tokens,
        # frees the image encoder and its profiling, as `fit` assumes
        text_only=vision and not options.images and not cpu,
        dtype="" if option(options.serve_args, "--dtype") else item.forecast.dtype,
    )
    command = build(prepared.environment, settings, free_port())
    row: dict[str, Any] = {
        "key": item.key,
        "label": point.label,
        "model": point.name,
        "fingerprint": point.fingerprint,
        "axes": list(point.axes),
        "settings": point.settings,
        "setup": prepared.setup.as_json(),
        "setup_id": prepared.setup.id,
        "argv": list(command.argv),
        "env": dict(command.env),
        "log": f"{log.parent.name}/{log.name}",
    }
    free_before = None if cpu else free_bytes(host)
    findings: list[Finding] = []
    with Server(command, log, env=host.env) as server:
        follower = LogFollower(log)
        client = Client(command.port, SERVED_NAME, deadline_s=options.request_s)
        ready = wait_healthy(server, client, follower, options.timeout_s, say)
        figures = Figures()
        if ready.state == "healthy":
            session = Session(
                client=client,
                server=follower.facts,
                cpu=cpu,
                draft_tokens=settings.draft_tokens,
                prefix_caching=settings.prefix_caching,
                max_model_len=point.max_model_len,
                random_weights=settings.random_weights,
                log=log,
                full=True,
                settings=settings,
                model_folder=point.model,
                host=host,
                pid=server.pid,
            )
            try:
                figures = measure(session, point.max_num_seqs, say)
            except Unanswered as error:
                ended = server.poll(DEATH_WAIT_S)
                findings = ending.died_on_request(log, ended, str(error))
        else:
            findings = ending.not_ready(ready, log, options.timeout_s)
        say("stopping")
    follower.read()
    row |= _outcome(ready, findings, figures)
    row |= _printed(log, follower)
    row |= figures.values
    measured = _measured(log)
    row["compile"] = _compile(measured, prepared)
    cold = measured.cold if measured and not measured.eager else None
    row["predicted"] = compared(item.forecast, cold, row.get("kv_tokens"))
    if server.left:
        row["left_processes"] = list(server.left)
    if free_before is not None:
        wait_until_free(host, free_before)
    row["seconds"] = round(time.monotonic() - began, 1)
    return row


def _outcome(ready: Readiness, findings: list[Finding], figures: Figures) -> dict[str, Any]:
    out: dict[str, Any] = {
        "outcome": OK,
        "state": ready.state,
        "phase": ready.phase,
        "ready_s": ready.seconds if ready.state == "healthy" else None,
    }
    shown = findings or [r.finding for r in figures.failed if r.finding]
    if findings:
        out["outcome"] = DIED if findings[0].id in _UNEXPLAINED else REFUSED
        out["cause"], out["why"] = findings[0].id, findings[0].summary
    elif figures.failed:
        out["why"] = "; ".join(r.why for r in figures.failed)
    out["findings"] = [encode(f) for f in shown]
    return out


def _printed(log: Path, follower: LogFollower) -> dict[str, Any]:
    """vLLM's own figures."""
    facts = follower.facts
    out = {
        "weights_gib": facts.weights_gib,
        "kv_gib": facts.available_kv_gib,
        "kv_tokens": facts.kv_tokens,
        "concurrency": facts.concurrency,
        "block_size": facts.block_size,
    }
    peak = _PEAK.findall(_text(log))
    out["peak_activation_gib"] = float(peak[-1].rstrip(".")) if peak else None
    return out


def _measured(log: Path) -> Measured | None:
    try:
        return read_log(_text(log), log.name)
    except DoctorError:  # it ended before its pool was known
        return None


def _compile(measured: Measured | None, prepared: Prepared) -> str | None:
    """ "cold", "warm" or "eager"; None when the log does not tell."""
    if prepared.environment.cpu or (measured and measured.eager):
        return "eager"
    if measured is None or measured.cold is None:
        return None
    return "cold" if measured.cold else "warm"


def _text(log: Path) -> str:
    try:
        return log.read_bytes()[-(16 << 20) :].decode("utf-8", "replace")
    except OSError:
        return ""


def free_bytes(host: Host) -> int | None:
    """Bytes that are free on the card that a server would use; None when the driver does not tell."""
    card = card_in(look(host))
    return card.free_bytes if card else None


def wait_until_free(host: Host, before: int) -> None:
    """Returns when the card is as free as before within 64 MiB, or after half a minute."""
    deadline = time.monotonic() + _FREE_WAIT_S
    while time.monotonic() < deadline:
        free = free_bytes(host)
        if free is None or free >= before - (64 << 20):
            return
        time.sleep(1.0)
