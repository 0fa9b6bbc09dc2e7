"""One smoke test from the preflight to the verdict."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from doctor.host import Host
from doctor.serve.client import Client
from doctor.serve.command import check_extra
from doctor.serve.environment import VllmEnvironment, locate
from doctor.serve.watch import Readiness
from doctor.smoke import ab_judge, ladder, preflight, profile, second_start
from doctor.smoke.attempt import attempt, empty, probe_all
from doctor.smoke.model import ModelInfo, inspect
from doctor.smoke.options import SmokeOptions
from doctor.smoke.probes import ABSTAIN, FAIL, Result
from doctor.smoke.result import SmokeResult, redact, remove_log
from doctor.smoke.running import attach

__all__ = ["SmokeResult", "redact", "remove_log", "run_smoke"]

Say = Callable[[str], None]


def run_smoke(options: SmokeOptions, host: Host, say: Say) -> SmokeResult:
    """Runs the whole test. ``say`` gets what is happening now. Raises DoctorError for misuse."""
    began = time.monotonic()
    result = _run_attached(options, host, say) if options.url is not None else _run(options, host, say)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _run(options: SmokeOptions, host: Host, say: Say) -> SmokeResult:
    check_extra(options.serve_args)
    if options.image is None:
        environment = locate(host, options.python)
    else:
        from doctor.smoke.container import locate_image

        say(f"looking into {options.image}")
        environment = locate_image(host, options.image)
    model = inspect(host, options.model, options.missing)
    result = SmokeResult(model, environment)
    causes = [preflight.model_invalid(model), preflight.vllm_missing(environment)]
    result.findings += [c for c in causes if c]
    if result.findings:
        return result
    say("choosing the settings for this device")
    chosen = profile.choose(options, host, environment, model)
    wanted = chosen.settings
    causes = [None if wanted.random_weights else preflight.weights_damaged(host, model)]
    if options.port is not None:
        causes.append(preflight.port_taken(host, options.port))
    result.findings += [c for c in causes if c]
    result.notes += chosen.notes
    if result.findings:
        return result
    without = preflight.mtp_missing(model, chosen.asked_drafts)
    if without:
        result.findings.append(without)
        result.results.append(Result("speculative", FAIL, "the checkpoint has no mtp.* tensors", finding=without))
        wanted = replace(wanted, mtp=0)
    result.settings, result.reasons, result.fit = wanted, chosen.reasons, chosen.fit
    with _folder(options) as folder:
        if chosen.findings:  # vLLM would refuse too, after it has imported everything
            result.findings += chosen.findings
        else:
            attempt(options, result, host, folder / "server.log", say)
            _second_start(options, result, host, folder, say)
        if options.ladder or (options.ladder is None and options.full):
            result.ladder = ladder.climb(options, result, host, folder, say)
    return result


def _second_start(options: SmokeOptions, result: SmokeResult, host: Host, folder: Path, say: Say) -> None:
    """With ``--full`` the settings that passed are started once more; else that is offered."""
    if not result.passed:
        return
    if options.full:
        again = second_start.start_again(options, result, host, folder / "server-again.log", say)
        result.results.append(again)
        result.findings += [again.finding] if again.finding else []
    elif offered := second_start.offer(result):
        result.notes.append(offered)


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
    server.session.full = options.full
    probe_all(result, server.session, None, say)
    if options.full:
        why = "it compares servers with other settings, and --url has only one"
        result.results.append(Result(ab_judge.NAME, ABSTAIN, why, asked=False))
    return result


@contextlib.contextmanager
def _folder(options: SmokeOptions) -> Iterator[Path]:
    """Where the logs go. A temporary folder stays only for logs that the answer names."""
    if options.out is not None:
        yield empty(options.out / "server.log").parent
        return
    folder = Path(tempfile.mkdtemp(prefix="vllm-doctor-smoke-"))
    try:
        yield folder
    except BaseException:  # Ctrl+C as well: there is no answer
        shutil.rmtree(folder, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):
        folder.rmdir()  # where nothing was started it is empty
