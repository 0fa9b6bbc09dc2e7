"""The first start after an empty compile cache profiles a larger peak than later ones: is the pool larger now?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.host import Host
from doctor.memory.calibration import read_log
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, build
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import Readiness, wait_healthy
from doctor.smoke import ending
from doctor.smoke.attempt import empty
from doctor.smoke.options import SmokeOptions
from doctor.smoke.preflight import free_port
from doctor.smoke.probes import ABSTAIN, FAIL, PASS, Result, rounded
from doctor.smoke.result import SmokeResult

NAME = "second_start"
_EACH_TIME = "a container has an empty compile cache each time, unless a volume keeps it"

Say = Callable[[str], None]


def was_cold(result: SmokeResult) -> bool | None:
    """Whether the start compiled; None when its log does not tell, as in eager mode."""
    if result.log is None:
        return None
    try:
        return read_log(result.log.read_bytes().decode("utf-8", "replace"), result.log.name).cold
    except (OSError, DoctorError):
        return None


def offer(result: SmokeResult) -> str:
    """What is said when only one start was asked for; "" when there is nothing to say."""
    if not was_cold(result):
        return ""
    if result.environment.container is not None:
        return f"this start compiled; {_EACH_TIME}"
    return (
        "this start compiled (empty compile cache), which can leave a smaller KV cache than the next start has: "
        "run it again, or --full, which starts it twice"
    )


def start_again(options: SmokeOptions, result: SmokeResult, host: Host, log: Path, say: Say) -> Result:
    """Starts the same settings once more and sets both starts side by side. No probe is asked."""
    cold = was_cold(result)
    if result.settings is None or result.readiness is None or result.follower is None:
        return Result(NAME, ABSTAIN, "there was no first start", asked=False)
    if not cold:
        why = "the compile cache was warm already" if cold is False else "nothing was compiled"
        return Result(NAME, ABSTAIN, why, asked=False)
    if result.environment.container is not None:
        why = (
            "a container starts with an empty compile cache each time; a volume for it is kept by `docker run -v`"
        )
        return Result(NAME, ABSTAIN, why, asked=False)
    command = build(result.environment, result.settings, free_port())
    result.other_logs.append(empty(log))
    follower = LogFollower(log)
    with Server(command, log, env=host.env) as server:
        client = Client(command.port, SERVED_NAME, deadline_s=options.request_s)
        ready = wait_healthy(server, client, follower, options.timeout_s, lambda t: say(f"second start: {t}"))
    first, second = _figures(result.follower, result.readiness), _figures(follower, ready)
    measured = {"first": first, "second": second}
    if ready.state != "healthy":
        finding = ending.not_ready(ready, log, options.timeout_s)[0]
        return Result(NAME, FAIL, f"the second start failed: {finding.summary}", measured, finding=finding)
    return Result(NAME, PASS, _why(first, second), measured)


def _figures(follower: LogFollower, ready: Readiness) -> dict[str, Any]:
    facts = follower.facts
    return {
        "kv_tokens": facts.kv_tokens,
        "available_kv_gib": facts.available_kv_gib,
        "ready_s": ready.seconds if ready.state == "healthy" else None,
    }


def _why(first: dict[str, Any], second: dict[str, Any]) -> str:
    times = f"healthy after {second['ready_s']:.0f} s instead of {first['ready_s']:.0f}"
    before, now = first["kv_tokens"], second["kv_tokens"]
    if not before or not now:
        return times
    change = 100 * (now / before - 1)
    said = (
        "as large"
        if rounded(abs(change), 1) == 0
        else f"{abs(change):.1f} % {'larger' if change > 0 else 'smaller'}"
    )
    return f"KV cache {said}: {now:,} tokens, {before:,} at the first start (it compiled); {times}"
