"""The four servers of ``--full``: the chosen settings, without MTP, without prefix caching, without both."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from doctor.serve.client import Client, ServerError
from doctor.serve.command import SERVED_NAME, Settings, build
from doctor.serve.environment import VllmEnvironment
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke import ab, ab_judge, ab_speed, ending
from doctor.smoke.ab import Config, Prompts, Run, configs
from doctor.smoke.preflight import free_port
from doctor.smoke.probes import ABSTAIN, Result, Session
from doctor.smoke.probes.prefix_cache import block_size

#: Seconds after a server's end until the next one is started: a driver frees memory a little later.
_PAUSE_S = 3.0

Say = Callable[[str], None]


@dataclass
class Comparison:
    """What was asked of each server. ``problem``: why nothing could be asked."""

    runs: dict[Config, Run] = field(default_factory=dict)
    prompts: Prompts | None = None
    turn: list[int] | None = None
    problem: str | None = None
    logs: list[Path] = field(default_factory=list)


def ask_chosen(session: Session, chosen: Settings, say: Say) -> Comparison:
    """The first server is the one with the chosen settings; its tokenizer makes the prompts for all."""
    say("correctness: asking the chosen settings")
    out = Comparison()
    config = configs(chosen)[-1]
    run = out.runs[config] = Run(config)
    try:
        block = block_size(session, session.metrics()) or 16
        out.prompts = ab.make_prompts(session.client, block, session.max_model_len, uuid.uuid4().hex)
        _ask(session.client, run, out)
        if run.error is None:
            out.turn = ab.next_turn(session.client, out.prompts, run, session.max_model_len)
        if run.error is None and out.turn is not None:
            ab.ask_turn(session.client, run, out.turn)
    except ServerError as error:
        out.problem = f"no prompt could be made: {error}"
    return out


def ask_others(
    comparison: Comparison,
    environment: VllmEnvironment,
    chosen: Settings,
    first_log: Path,
    env: Mapping[str, str],
    timeouts_s: tuple[float, float],
    say: Say,
) -> None:
    """Starts the other servers one after the other. ``timeouts_s``: until ready, for one request.

    Their logs lie beside ``first_log``, that of the chosen settings, and have its name in front.
    """
    if comparison.problem or comparison.prompts is None:
        return
    for config in configs(chosen)[:-1]:
        if not environment.cpu:
            time.sleep(_PAUSE_S)
        run = comparison.runs[config] = Run(config)
        log = first_log.with_name(f"{first_log.stem}-{config.name.replace(' ', '-')}.log")
        log.write_bytes(b"")  # a server appends
        comparison.logs.append(log)
        command = build(environment, config.settings(chosen), free_port())

        def phase(text: str, name: str = config.name) -> None:
            say(f"{name}: {text}")

        with Server(command, log, env=env) as server:
            client = Client(command.port, SERVED_NAME, deadline_s=timeouts_s[1])
            ready = wait_healthy(server, client, LogFollower(log), timeouts_s[0], phase)
            if ready.state != "healthy":
                run.error = ending.not_ready(ready, log, timeouts_s[0])[0].summary
                continue
            phase("asking")
            _ask(client, run, comparison)
            if run.error is None and comparison.turn is not None:
                ab.ask_turn(client, run, comparison.turn)


def _ask(client: Client, run: Run, comparison: Comparison) -> None:
    assert comparison.prompts is not None  # noqa: S101  for the type checker
    # the first requests may compile kernels: they are for warmth only
    client.complete(comparison.prompts.plain["short"], ab.TOKENS, ignore_eos=True)
    ab.ask(client, run, comparison.prompts)
    ab.measure_speed(client, run, comparison.prompts)


def judge(comparison: Comparison, chosen: Settings, *, cpu: bool, mean_length: float | None) -> list[Result]:
    """Correctness and speed over all servers."""
    runs = [comparison.runs[c] for c in configs(chosen) if c in comparison.runs]
    if comparison.problem or comparison.prompts is None:
        return [Result(ab_judge.NAME, ABSTAIN, comparison.problem or "nothing was asked")]
    return [ab_judge.judge(runs, comparison.prompts), ab_speed.judge(runs, cpu=cpu, mean_length=mean_length)]
