"""How small a damage of restored state the correctness A/B still sees.

    python benchmarks/corruption_threshold.py VLLM_ENV MODEL [--repeats 5] [--strengths 1 0.7 0.5] [--out FILE]

Starts the four servers of the A/B side by side on the CPU (3.3 GB of memory each): base, prefix caching, MTP,
and both with the state-damaging plugin of tests/server/cpu_vllm. Each repeat asks new prompts of all four; then
the damaged server is asked the same prompts again for each strength, its prefix cache emptied before, so that
strengths are compared on equal prompts. They are in standard deviations of the state; 0 is the healthy server.
Prints JSON lines and, at the end, a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from doctor.host import LocalHost
from doctor.serve.environment import locate
from tests.server.ab_servers import AbServers


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: how often each strength was seen, and by how much it moved answers."""
    yield "| noise (sd) | seen | largest difference: lowest, median, highest | comparisons above the tolerance |"
    yield "|---|---|---|---|"
    for damage in sorted({r["damage"] for r in rows}, reverse=True):
        same = [r for r in rows if r["damage"] == damage]
        seen = sum(r["status"] == "fail" for r in same)
        worst = [max(list(r["largest"].values())[-1]) for r in same]
        wrong = sum(r["wrong"] for r in same)
        apart = f"{min(worst):.3f}, {statistics.median(worst):.3f}, {max(worst):.3f}"
        yield f"| {damage:g} | {seen} of {len(same)} | {apart} | {wrong} of {sum(r['compared'] for r in same)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environment")
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--strengths", type=float, nargs="*", default=[1, 0.7, 0.5, 0.4, 0.3])
    parser.add_argument("--kinds", nargs="*", default=[], help="other damage at the end, at 3: restored drafted")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def keep(**row: Any) -> None:
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")

    folder = Path(tempfile.mkdtemp(prefix="corruption-"))
    with AbServers(locate(LocalHost(), options.environment), options.model, folder) as servers:
        for number in range(options.repeats):
            for strength in (0, *options.strengths):
                servers.damage(strength)
                if strength:
                    servers.ask_again([servers.both])
                else:
                    servers.ask()
                rows.append({"repeat": number, "damage": strength, **servers.judge()})
                keep(**rows[-1])
        for kind in options.kinds:
            servers.damage(3, kind)
            servers.ask_again(c for c in servers.clients if c.name != "base")
            keep(kind=kind, damage=3, **servers.judge())
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
