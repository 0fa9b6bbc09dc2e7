"""How long the doctor takes to start, to check and to judge a model, and its memory, beside ``vllm collect-env``.

    python benchmarks/startup.py --vllm ENV [--repeats N] [--json FILE]

ENV is an environment folder with vLLM in it. All commands run in one session, in turn, so that a busy
moment of the machine meets all of them. Wall and CPU time are medians in seconds. Memory is the peak
resident size in MiB of the largest single process (ru_maxrss of wait4), not a sum over processes.
Compiled files are made by a first run that is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What is promised: name -> (seconds, MiB or None)
TARGETS: Mapping[str, tuple[float, float | None]] = {
    "--help": (0.150, None),
    "check": (1.0, 60.0),
    "fit": (0.300, None),
}
PEER = "vllm collect-env"
#: A local config.json; the whole answer with settings and reasons, drawn for a person.
MODEL = Path(__file__).resolve().parent.parent / "tests/memory/configs/qwen3.5-9b-awq"
FIT = ["fit", str(MODEL), "--gpu", "RTX 3090", "--for", "chat"]


@dataclass
class Series:
    """Runs of one command."""

    name: str
    argv: Sequence[str]
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)
    statuses: set[int] = field(default_factory=set)

    def run(self, count: bool = True) -> None:
        """One run, output thrown away."""
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
        environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        began = time.perf_counter()
        process = subprocess.Popen(
            self.argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if count:
            self.wall_s.append(wall)
            self.cpu_s.append(usage.ru_utime + usage.ru_stime)
            self.peak_mib.append(usage.ru_maxrss / 1024)
            self.statuses.add(process.returncode)

    def figures(self) -> dict[str, Any]:
        """Medians, and all single values."""
        return {
            "command": list(self.argv),
            "wall_s": statistics.median(self.wall_s),
            "wall_s_min": min(self.wall_s),
            "cpu_s": statistics.median(self.cpu_s),
            "peak_mib": statistics.median(self.peak_mib),
            "exit_statuses": sorted(self.statuses),
            "all_wall_s": self.wall_s,
            "all_peak_mib": self.peak_mib,
        }


def main() -> int:
    """Prints a table; returns 1 when a target is missed, 2 when a command did not work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="ENV", type=Path, help="environment with vLLM; without it no ratios")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="counted runs of each (default 7)")
    parser.add_argument("--json", metavar="FILE", help="also write all figures there (- for stdout)")
    args = parser.parse_args()
    beside = Path(sys.executable).parent / "vllm-doctor"
    ours = [str(beside)] if beside.exists() else [sys.executable, "-m", "doctor"]
    series = [Series("--help", [*ours, "--help"]), Series("check", [*ours, "check", "--json"])]
    series.append(Series("fit", [*ours, *FIT]))
    if args.vllm:
        series.append(Series(PEER, [str(args.vllm / "bin" / "vllm"), "collect-env"]))
    for one in series:
        one.run(count=False)
    for number in range(args.repeats):
        if sys.stderr.isatty():
            print(f"\r\033[Krun {number + 1} of {args.repeats} ", end="", file=sys.stderr, flush=True)
        for one in series:
            one.run()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    results = {one.name: one.figures() for one in series}
    print_table(results)
    document = {"machine": machine(args.vllm), "repeats": args.repeats, "results": results}
    if args.json == "-":
        print(json.dumps(document, indent=1))
    elif args.json:
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return judge(results)


def print_table(results: Mapping[str, Mapping[str, Any]]) -> None:
    """One line a command: medians, ratio to the peer, target."""
    peer = results.get(PEER)
    print(
        f"{'command':<18}{'wall s':>9}{'CPU s':>9}{'peak MiB':>10}{'wall ratio':>12}{'memory ratio':>14}  target"
    )
    for name, r in results.items():
        ratios = ("", "")
        if peer and name != PEER:
            ratios = (f"1 : {peer['wall_s'] / r['wall_s']:.0f}", f"1 : {peer['peak_mib'] / r['peak_mib']:.0f}")
        target = ""
        if name in TARGETS:
            seconds, mib = TARGETS[name]
            target = f"{seconds:g} s" + (f", {mib:g} MiB" if mib else "")
            target += " met" if met(name, r) else " MISSED"
        figures = f"{name:<18}{r['wall_s']:>9.3f}{r['cpu_s']:>9.3f}{r['peak_mib']:>10.1f}"
        print(f"{figures}{ratios[0]:>12}{ratios[1]:>14}  {target}".rstrip())


def met(name: str, result: Mapping[str, Any]) -> bool:
    """Whether the medians keep what TARGETS promises."""
    seconds, mib = TARGETS[name]
    return bool(result["wall_s"] < seconds and (mib is None or result["peak_mib"] < mib))


def judge(results: Mapping[str, Mapping[str, Any]]) -> int:
    """The exit status."""
    expected = {"--help": {0}, "check": {0, 1, 2}, "fit": {0}, PEER: {0}}
    for name, result in results.items():
        if not set(result["exit_statuses"]) <= expected[name]:
            print(f"{name} ended with {result['exit_statuses']}", file=sys.stderr)
            return 2
    return 0 if all(met(name, results[name]) for name in TARGETS) else 1


def machine(vllm: Path | None) -> dict[str, Any]:
    """What the figures were measured on."""
    from importlib.metadata import version

    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "vllm-env-doctor": version("vllm-env-doctor"),
        "load_1min": os.getloadavg()[0],
    }
    if vllm:
        code = "import importlib.metadata as m; print(m.version('vllm'), m.version('torch'))"
        done = subprocess.run(
            [str(vllm / "bin" / "python"), "-c", code], capture_output=True, text=True, timeout=60
        )
        found["vllm"], _, found["torch"] = done.stdout.strip().partition(" ")
    return found


if __name__ == "__main__":
    sys.exit(main())
