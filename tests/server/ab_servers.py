"""The four servers of the correctness A/B, running side by side, whose state can be damaged while they run."""

from __future__ import annotations

import os
import urllib.request
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings, build
from doctor.serve.environment import VllmEnvironment
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke import ab, ab_judge
from doctor.smoke.ab import Config, Prompts, Run, configs
from doctor.smoke.preflight import free_port
from tests.server.cpu_vllm.plugins import install

LENGTH = 4096
BLOCK = 544


class AbServers:
    """A context manager; it needs 3.3 GB of memory a server on a CPU."""

    def __init__(self, environment: VllmEnvironment, model: str, folder: Path) -> None:
        self.environment = environment
        self.chosen = Settings(model, True, 2, LENGTH, 0.9)
        self.folder = folder
        self.clients: dict[Config, Client] = {}
        self.runs: dict[Config, Run] = {}
        self.prompts: Prompts | None = None
        self.turn: list[int] | None = None
        self._strength = folder / "strength"
        self._stack = ExitStack()

    def __enter__(self) -> AbServers:
        self.damage(0)
        env = {
            **os.environ,
            "PYTHONPATH": str(install("corrupt_plugin", self.folder / "plugin")),
            "CORRUPT_STATE": str(self._strength),
            "VLLM_SERVER_DEV_MODE": "1",  # has /reset_prefix_cache
        }
        with ExitStack() as stack:
            servers = {}
            for config in configs(self.chosen):
                command = build(self.environment, config.settings(self.chosen), free_port())
                log = self.folder / f"{config.name.replace(' ', '-')}.log"
                servers[config] = stack.enter_context(Server(command, log, env=env))
                self.clients[config] = Client(command.port, SERVED_NAME, deadline_s=300)
            for config, server in servers.items():
                ready = wait_healthy(server, self.clients[config], LogFollower(server.log), 900, lambda _: None)
                if ready.state != "healthy":
                    raise SystemExit(f"{config.name} did not become ready: {server.log.read_text()[-2000:]}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def both(self) -> Config:
        """The chosen settings: MTP and prefix caching."""
        return list(self.clients)[-1]

    def damage(self, strength: float, when: str = "both") -> None:
        """Sets what the plugin damages from now on, and by how many standard deviations."""
        self._strength.write_text(f"{strength} {when}")

    def ask(self) -> None:
        """New prompts, asked of all four."""
        first = self.clients[self.both]
        self.prompts = ab.make_prompts(first, BLOCK, LENGTH, uuid.uuid4().hex)
        self.runs, self.turn = {}, None
        self._ask(self.both)
        self.turn = ab.next_turn(first, self.prompts, self.runs[self.both], LENGTH)
        if self.turn:
            ab.ask_turn(first, self.runs[self.both], self.turn)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._ask, [c for c in self.clients if c != self.both]))

    def ask_again(self, wanted: Iterable[Config]) -> None:
        """The same prompts again, cold, of some of the servers."""
        for config in wanted:
            client = self.clients[config]
            urllib.request.urlopen(f"{client.url}/reset_prefix_cache", data=b"", timeout=30).close()
            self._ask(config)

    def _ask(self, config: Config) -> None:
        assert self.prompts is not None
        run = self.runs[config] = Run(config)
        ab.ask(self.clients[config], run, self.prompts)
        if self.turn:
            ab.ask_turn(self.clients[config], run, self.turn)

    def judge(self) -> dict[str, Any]:
        """What the A/B says, in short."""
        assert self.prompts is not None
        result = ab_judge.judge([self.runs[c] for c in self.clients], self.prompts)
        servers = result.measured.get("servers", {})
        both = servers.get(self.both.name, {})
        return {
            "status": result.status,
            "finding": result.finding.id if result.finding else None,
            "tolerance": result.measured.get("tolerance_nats"),
            "base_spread": result.measured.get("base_spread_nats"),
            "largest": {n: [s["to_base"], s["to_itself"]] for n, s in servers.items()},
            "one_at_a_time": both.get("to_itself_one_at_a_time"),
            "wrong": len(both.get("wrong", ())),
            "compared": both.get("compared"),
            "errors": result.measured.get("errors"),
            "why": result.why,
        }
