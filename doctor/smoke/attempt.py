"""One server: started with the settings of a result, asked by every probe, and ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from doctor.errors import DoctorError
from doctor.finding import Confidence
from doctor.host import Host
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings, build
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke import ab_judge, ending, full
from doctor.smoke.options import SmokeOptions
from doctor.smoke.preflight import free_port
from doctor.smoke.probes import ABSTAIN, FAIL, RANDOM_WEIGHTS, Result, Session, all_probes
from doctor.smoke.result import SmokeResult

#: Seconds a server gets to end by itself after an answer that was not whole: its log then has the cause.
_DEATH_WAIT_S = 10.0

Say = Callable[[str], None]


def attempt(options: SmokeOptions, result: SmokeResult, host: Host, log: Path, say: Say) -> None:
    """Fills ``result``, whose settings are chosen; with ``--full`` the other servers are asked too."""
    wanted = result.settings
    assert wanted is not None  # noqa: S101  for the type checker
    result.command = build(result.environment, wanted, options.port or free_port())
    result.log = empty(log)
    with Server(result.command, log, env=host.env) as server:
        result.pid = server.pid
        try:
            _serve(options, result, wanted, server, host, say)
        finally:
            say("stopping")
            began = time.monotonic()
            server.stop()
            result.stop_s = round(time.monotonic() - began, 2)
            result.left = server.left
    if options.full:
        _compare(options, result, wanted, host, say)
    if result.left:
        result.notes.append(f"processes {', '.join(map(str, result.left))} did not end even after SIGKILL")


def empty(log: Path) -> Path:
    """The log file, made or emptied: a server appends, and lines of an earlier one would be believed."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
    except OSError as error:
        raise DoctorError(f"cannot write to {log.parent}: {error.strerror}; give another --out") from None
    return log


def _serve(
    options: SmokeOptions, result: SmokeResult, wanted: Settings, server: Server, host: Host, say: Say
) -> None:
    follower = result.follower = LogFollower(server.log)
    client = Client(server.command.port, SERVED_NAME, deadline_s=options.request_s)
    ready = result.readiness = wait_healthy(server, client, follower, options.timeout_s, say)
    if ready.state != "healthy":
        result.findings += ending.not_ready(ready, server.log, options.timeout_s)
        result.results += [
            Result(p.NAME, ABSTAIN, "the server did not become ready", asked=False)
            for p in all_probes()
            if p.NAME not in {r.name for r in result.results}
        ]
        return
    session = Session(
        client=client,
        server=follower.facts,
        cpu=result.environment.cpu,
        draft_tokens=wanted.draft_tokens,
        prefix_caching=wanted.prefix_caching,
        max_model_len=_max_model_len(client, wanted.max_model_len),
        random_weights=wanted.random_weights,
        log=server.log,
        full=options.full,
        settings=wanted,
        model_folder=result.model.path,
        host=host,
        pid=None if result.environment.container else server.pid,  # the client's, not the server's
    )
    probe_all(result, session, server, say)
    if options.full and not session.random_weights and _can_answer(result):
        result.comparison = full.ask_chosen(session, wanted, say)
    follower.read()


def _can_answer(result: SmokeResult) -> bool:
    return not any(f.area == "serving" and f.blocks for f in result.findings)


def _compare(options: SmokeOptions, result: SmokeResult, wanted: Settings, host: Host, say: Say) -> None:
    """The A/B of --full: the other servers, and what all of them say together."""
    if result.comparison is None or result.log is None:
        why = RANDOM_WEIGHTS if wanted.random_weights else "the chosen settings gave no usable answers"
        result.results.append(Result(ab_judge.NAME, ABSTAIN, why, asked=False))
        return
    timeouts = (options.timeout_s, options.request_s)
    full.ask_others(result.comparison, result.environment, wanted, result.log, host.env, timeouts, say)
    speculative = next((r.measured for r in result.results if r.name == "speculative"), {})
    mean_length = speculative.get("mean_acceptance_length")
    judged = full.judge(result.comparison, wanted, cpu=result.environment.cpu, mean_length=mean_length)
    if judged[0].finding is not None:
        # what one server alone made likely is proven now, or has another cause
        likely = ("mtp-prefix-cache-corrupts-output", "output-not-repeatable")
        result.findings = [
            f for f in result.findings if f.id not in likely or f.confidence is not Confidence.LIKELY
        ]
    result.results += judged
    result.findings += [r.finding for r in judged if r.finding]


def _max_model_len(client: Client, asked: int) -> int:
    """What the server itself says: the user's own arguments or vLLM may have changed it."""
    try:
        told = client.get("/v1/models")["data"][0]["max_model_len"]
    except Exception:  # noqa: BLE001  any odd answer: then what was asked for counts
        return asked
    return told if isinstance(told, int) else asked


def probe_all(result: SmokeResult, session: Session, server: Server | None, say: Say) -> None:
    """Asks every probe; the first death of the server ends the asking. ``server`` None: not ours."""
    done = {r.name for r in result.results}
    stopped = ""
    for item in all_probes():
        if item.NAME in done:
            continue
        if stopped:
            result.results.append(Result(item.NAME, ABSTAIN, stopped, asked=False))
            continue
        say(item.TITLE)
        one = item.probe(session)
        failed_request = one.finding is not None and one.finding.id == "server-gives-no-answer"
        ended = server.poll(_DEATH_WAIT_S if failed_request else 0.0) if server else None
        if server and (ended is not None or (failed_request and _engine_dead(server.log))):
            dead = ending.died_on_request(server.log, ended, item.TITLE)
            result.findings += dead
            one = replace(one, status=FAIL, why=f"the server died: {dead[0].summary}", finding=None)
            stopped = "the server died before"
        elif failed_request and item.NAME == "liveness":
            stopped = "the server gives no usable answer"
        result.results.append(one)
        if one.finding is not None:
            result.findings.append(one.finding)


def _engine_dead(log: Path) -> bool:
    """The API server may outlive its engine for a while and answer HTTP 500."""
    text = log.read_bytes()[-ending.LIMIT :]
    return b"EngineDeadError" in text or b"EngineCore encountered an issue" in text
