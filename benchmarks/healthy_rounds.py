"""How often the probes accuse a healthy server, and how far their figures spread.

    python benchmarks/healthy_rounds.py VLLM_ENV MODEL [--starts 3] [--rounds 20] [--ab-rounds 5] [--out FILE]

The rounds of ``--quick`` are spread over several starts of one server with MTP and prefix caching; those of the
correctness A/B ask four servers side by side (3.3 GB of memory each on a CPU). Each round asks new prompts. Prints
one JSON line a round and, at the end, Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from doctor.host import LocalHost
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings, build
from doctor.serve.environment import VllmEnvironment, locate
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke.attempt import probe_all
from doctor.smoke.model import inspect
from doctor.smoke.preflight import free_port
from doctor.smoke.probes import Session
from doctor.smoke.result import SmokeResult
from tests.server.ab_servers import LENGTH, AbServers

#: What is worth a range in the table: probe, figure, and its part where it is a list or an object.
FIGURES = (
    ("prefix_cache", "cached_tokens", -1),
    ("speculative", "acceptance_per_position", "0"),
    ("speculative", "acceptance_per_position", "1"),
    ("speculative", "mean_acceptance_length", None),
)


def quick_rounds(environment: VllmEnvironment, model: str, count: int, log: Path) -> Iterator[dict[str, Any]]:
    """``count`` rounds of every probe on one started server."""
    host = LocalHost()
    settings = Settings(model, True, 2, LENGTH, 0.9)
    command = build(environment, settings, free_port())
    with Server(command, log, env=host.env) as server:
        client = Client(command.port, SERVED_NAME)
        follower = LogFollower(log)
        ready = wait_healthy(server, client, follower, 900, lambda _: None)
        if ready.state != "healthy":
            raise SystemExit(f"the server did not become ready: {log.read_text()[-2000:]}")
        for _ in range(count):
            began = time.monotonic()
            result = SmokeResult(inspect(host, model), environment, command, settings, readiness=ready, log=log)
            session = Session(
                client, follower.facts, True, settings.draft_tokens, settings.prefix_caching, LENGTH,
                log=log, settings=settings, model_folder=model, host=host, pid=server.pid,
            )  # fmt: skip
            probe_all(result, session, server, lambda _: None)
            yield {
                "verdict": result.judgement.verdict.value,
                "accused": [f.id for f in result.findings],
                "probes": {r.name: r.status for r in result.results},
                "why": {r.name: r.why for r in result.results if r.status in ("fail", "advise")},
                "figures": dict(figures({r.name: dict(r.measured) for r in result.results})),
                "seconds": round(time.monotonic() - began, 1),
            }


def figures(measured: dict[str, dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """The figures of the table that this round has."""
    for probe, name, part in FIGURES:
        value = measured.get(probe, {}).get(name)
        if value is not None and part is not None:
            value = value[part]
        if value is not None:
            yield f"{probe}.{name}" + (f"[{part}]" if isinstance(part, str) else ""), value


def tables(quick: list[dict[str, Any]], ab: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown."""
    if quick:
        yield f"{len(quick)} rounds of the probes, {sum(bool(r['accused']) for r in quick)} accused"
        yield "\n| probe | pass | advise | fail | abstain |\n|---|---|---|---|---|"
        for probe in dict.fromkeys(p for r in quick for p in r["probes"]):
            seen = Counter(r["probes"].get(probe) for r in quick)
            yield f"| {probe} | " + " | ".join(str(seen[s]) for s in ("pass", "advise", "fail", "abstain")) + " |"
        yield "\n| figure | lowest | median | highest |\n|---|---|---|---|"
        for name in dict.fromkeys(f for r in quick for f in r["figures"]):
            values = [r["figures"][name] for r in quick if name in r["figures"]]
            yield f"| {name} | {min(values):g} | {statistics.median(values):g} | {max(values):g} |"
        seconds = [r["seconds"] for r in quick]
        yield f"| seconds a round | {min(seconds)} | {statistics.median(seconds)} | {max(seconds)} |"
    if ab:
        yield f"\n{len(ab)} rounds of the A/B, {sum(r['finding'] is not None for r in ab)} accused\n"
        names = list(ab[0]["largest"])
        yield f"| round | status | tolerance | base spread | {' | '.join(names)} |"
        yield "|---" * (4 + len(names)) + "|"
        for number, row in enumerate(ab):
            largest = " | ".join(f"{max(row['largest'][n]):.3f}" for n in names)
            yield f"| {number} | {row['status']} | {row['tolerance']:.3f} | {row['base_spread']:.4f} | {largest} |"


def main(arguments: list[str] | None = None) -> int:
    """0 when nothing was accused, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environment")
    parser.add_argument("model")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ab-rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    environment = locate(LocalHost(), options.environment)
    folder = Path(tempfile.mkdtemp(prefix="healthy-"))
    quick: list[dict[str, Any]] = []
    ab: list[dict[str, Any]] = []

    def keep(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")

    for start in range(options.starts):
        count = len(range(start, options.rounds, options.starts))
        for row in quick_rounds(environment, options.model, count, folder / f"{start}.log"):
            keep(quick, {"start": start, **row})
    if options.ab_rounds:
        with AbServers(environment, options.model, folder) as servers:
            for number in range(options.ab_rounds):
                servers.ask()
                keep(ab, {"ab_round": number, **servers.judge()})
    print("\n".join(tables(quick, ab)))
    return int(any(r["accused"] for r in quick) or any(r["finding"] for r in ab))


if __name__ == "__main__":
    sys.exit(main())
