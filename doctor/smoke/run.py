"""One smoke test from the preflight to the verdict."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.checks.registry import Judgement, fold
from doctor.errors import DoctorError
from doctor.finding import Confidence, Finding, Skipped, Verdict, order, verdict
from doctor.host import Host
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, ServeCommand, Settings, build, check_extra
from doctor.serve.environment import VllmEnvironment, locate
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import Readiness, wait_healthy
from doctor.smoke import ab_judge, ending, full, preflight
from doctor.smoke.full import Comparison
from doctor.smoke.model import ModelInfo, inspect
from doctor.smoke.options import CPU_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN, DEFAULT_UTILIZATION, SmokeOptions
from doctor.smoke.probes import ABSTAIN, FAIL, PASS, RANDOM_WEIGHTS, Result, Session, all_probes
from doctor.smoke.running import Attached, attach

if TYPE_CHECKING:
    from doctor.report.redact import Redactor

#: Seconds a server gets to end by itself after an answer that was not whole: its log then has the cause.
_DEATH_WAIT_S = 10.0

Say = Callable[[str], None]


@dataclass
class SmokeResult:
    """Everything that was tried and seen."""

    model: ModelInfo
    environment: VllmEnvironment
    command: ServeCommand | None = None
    settings: Settings | None = None
    results: list[Result] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    readiness: Readiness | None = None
    log: Path | None = None
    follower: LogFollower | None = None
    pid: int | None = None
    left: tuple[int, ...] = ()
    stop_s: float | None = None
    comparison: Comparison | None = None  # the other servers of --full
    attached: Attached | None = None  # the running server of --url

    @property
    def judgement(self) -> Judgement:
        """Verdict and findings by the contract of every command."""
        findings = fold(order({f.id: f for f in reversed(self.findings)}.values()))
        open_ = [Skipped(r.name, r.why, essential=r.asked) for r in self.results if r.status == ABSTAIN]
        passed = tuple(r.name for r in self.results if r.status == PASS)
        return Judgement(verdict(findings, open_), findings, passed, tuple(open_))


def run_smoke(options: SmokeOptions, host: Host, say: Say) -> SmokeResult:
    """Runs the whole test. ``say`` gets what is happening now. Raises DoctorError for misuse."""
    if options.url is not None:
        return _run_attached(options, host, say)
    check_extra(options.serve_args)
    environment = locate(host, options.python)
    model = inspect(host, options.model)
    result = SmokeResult(model, environment)
    wanted = _settings(options, environment, model)
    causes = [preflight.model_invalid(model), preflight.vllm_missing(environment)]
    if model.problem is None and not wanted.random_weights:
        causes.append(preflight.weights_damaged(host, model))
    if options.port is not None:
        causes.append(preflight.port_taken(host, options.port))
    result.findings += [c for c in causes if c]
    if result.findings:
        return result
    without = preflight.mtp_missing(model, wanted.mtp)
    if without:
        result.findings.append(without)
        result.results.append(Result("speculative", FAIL, "the checkpoint has no mtp.* tensors", finding=without))
        wanted = replace(wanted, mtp=0)
    if environment.cpu and options.utilization is not None:
        result.notes.append("--util means nothing on a CPU and was left out")
    result.settings = wanted
    result.command = build(environment, wanted, options.port or preflight.free_port())
    result.log = _folder(options) / "server.log"
    with Server(result.command, result.log, env=host.env) as server:
        result.pid = server.pid
        try:
            _serve(options, result, wanted, server, say)
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
    return result


def _run_attached(options: SmokeOptions, host: Host, say: Say) -> SmokeResult:
    """The probes on a server that somebody else started."""
    client = Client.of_url(options.url or "", deadline_s=options.request_s, key=host.env.get("VLLM_API_KEY", ""))
    say(f"asking {client.url}")
    server = attach(client, options.model or None)
    environment = VllmEnvironment("", "", "--url", server.version)
    result = SmokeResult(ModelInfo(server.model or options.model, server.root), environment, attached=server)
    if server.session is None:
        result.findings += [server.problem] if server.problem else []
        return result
    result.readiness = Readiness("healthy", "healthy", 0.0)
    _probe(result, server.session, None, say)
    if options.full:
        why = "it compares servers with other settings, and --url has only one"
        result.results.append(Result(ab_judge.NAME, ABSTAIN, why))
    return result


def _settings(options: SmokeOptions, environment: VllmEnvironment, model: ModelInfo) -> Settings:
    wanted = Settings(
        model=model.path or options.model,
        model_is_local=True,
        mtp=options.mtp,
        max_model_len=options.max_model_len or (CPU_MAX_MODEL_LEN if environment.cpu else DEFAULT_MAX_MODEL_LEN),
        utilization=DEFAULT_UTILIZATION if options.utilization is None else options.utilization,
        extra=options.serve_args,
    )
    # the user's own speculative config replaces --mtp
    return wanted if wanted.draft_tokens == wanted.mtp else replace(wanted, mtp=0)


def _folder(options: SmokeOptions) -> Path:
    if options.out is None:
        return Path(tempfile.mkdtemp(prefix="vllm-doctor-smoke-"))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "server.log").write_bytes(b"")
    except OSError as error:
        raise DoctorError(f"cannot write to {options.out}: {error.strerror}; give another --out") from None
    return options.out


def _serve(options: SmokeOptions, result: SmokeResult, wanted: Settings, server: Server, say: Say) -> None:
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
    )
    _probe(result, session, server, say)
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
    full.ask_others(result.comparison, result.environment, wanted, result.log.parent, host.env, timeouts, say)
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


def _probe(result: SmokeResult, session: Session, server: Server | None, say: Say) -> None:
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


def redact(result: SmokeResult, redactor: Redactor) -> None:
    """Takes secrets and names out of everything that is shown or saved, the server's log included."""
    result.model = replace(redactor.value_of(replace(result.model, config={})), config=result.model.config)
    for part in ("environment", "command", "settings", "readiness"):
        setattr(result, part, redactor.value_of(getattr(result, part)))
    result.results = redactor.value_of(result.results)
    result.findings = redactor.value_of(result.findings)
    result.notes = redactor.value_of(result.notes)
    for log in _logs(result):
        if not log.exists():
            continue
        try:
            text = log.read_bytes().decode("utf-8", "replace")
            log.write_text(redactor.text(text), encoding="utf-8")
        except OSError as error:
            result.notes.append(f"the log {log.name} could not be redacted: {error.strerror}")


def _logs(result: SmokeResult) -> list[Path]:
    others = result.comparison.logs if result.comparison else []
    return [*others, *([result.log] if result.log else [])]


def remove_log(result: SmokeResult, options: SmokeOptions) -> None:
    """A temporary log of a test that passed is of no use; others are kept and named."""
    if options.out is None and result.log is not None and result.judgement.verdict is Verdict.READY:
        for path in (*_logs(result), result.log.parent):
            try:
                (os.rmdir if path.is_dir() else os.unlink)(path)
            except OSError:
                return
