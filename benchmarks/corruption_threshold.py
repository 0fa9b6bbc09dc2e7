"""How small a damage of restored state `smoke --full` still sees, and how often it accuses healthy servers.

    python benchmarks/corruption_threshold.py VLLM_ENV MODEL [--rounds 20] [--strengths 1 0.3 0.1] [--port 8340]

Starts the four servers of the A/B side by side on the CPU (3.3 GB of memory each): base, prefix caching, MTP, and
both with the state-damaging plugin of tests/server/cpu_vllm. Each round asks new prompts. With damage 0 it is the
healthy server; then each strength has one round. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from doctor.host import LocalHost
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings, build
from doctor.serve.environment import locate
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke import ab, ab_judge
from doctor.smoke.ab import Run, configs
from tests.server.cpu_vllm.corrupt_plugin import install

LENGTH = 4096
BLOCK = 544


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environment")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--strengths", type=float, nargs="*", default=[3, 1, 0.5, 0.3, 0.2, 0.1, 0.03, 0.01])
    parser.add_argument("--port", type=int, default=8340)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="corruption-"))
    strength = folder / "strength"
    strength.write_text("0")
    plugin = install(folder / "plugin")
    environment = locate(LocalHost(), options.environment)
    chosen = Settings(options.model, True, 2, LENGTH, 0.9)
    clients = {}
    with ExitStack() as stack:
        for number, config in enumerate(configs(chosen)):
            command = build(environment, config.settings(chosen), options.port + number)
            env = {**os.environ, "PYTHONPATH": str(plugin), "CORRUPT_STATE": str(strength)}
            server = stack.enter_context(Server(command, folder / f"{number}.log", env=env))
            clients[config] = (server, Client(command.port, SERVED_NAME))
        for config, (server, client) in clients.items():
            ready = wait_healthy(server, client, LogFollower(server.log), 900, lambda _: None)
            print(json.dumps({"server": config.name, "ready": ready.state, "s": ready.seconds}), flush=True)
        for number in range(options.rounds):
            print(json.dumps({"round": number, "damage": 0, **one_round(clients)}), flush=True)
        for value in options.strengths:
            strength.write_text(str(value))
            print(json.dumps({"damage": value, **one_round(clients)}), flush=True)


def one_round(clients: dict) -> dict:
    chosen = list(clients)[-1]
    first = clients[chosen][1]
    prompts = ab.make_prompts(first, BLOCK, LENGTH, uuid.uuid4().hex)
    runs = {config: Run(config) for config in clients}
    ab.ask(first, runs[chosen], prompts)
    turn = ab.next_turn(first, prompts, runs[chosen], LENGTH)
    if turn:
        ab.ask_turn(first, runs[chosen], turn)

    def others(config: object) -> None:
        if config is not chosen:
            ab.ask(clients[config][1], runs[config], prompts)
            if turn:
                ab.ask_turn(clients[config][1], runs[config], turn)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(others, clients))
    result = ab_judge.judge(list(runs.values()), prompts)
    both = result.measured.get("servers", {}).get(chosen.name, {})
    return {
        "status": result.status,
        "finding": result.finding.id if result.finding else None,
        "tolerance": result.measured.get("tolerance_nats"),
        "base_spread": result.measured.get("base_spread_nats"),
        "largest": {n: [s["to_base"], s["to_itself"]] for n, s in result.measured.get("servers", {}).items()},
        "one_at_a_time": both.get("to_itself_one_at_a_time"),
        "wrong": len(both.get("wrong", ())),
        "errors": result.measured.get("errors"),
        "why": result.why,
    }


if __name__ == "__main__":
    main()
