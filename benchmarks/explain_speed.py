"""Reading speed of `vllm-doctor explain` on a large log, against `grep -cE` of the same literals in the same run.

    python benchmarks/explain_speed.py [--mb 1000] [--rounds 3] [--errors]

The log is made of what a server prints all day (access lines, throughput, progress bars), with one start at its
head and one failure near its end; ``--errors`` repeats the failure every thousand lines. Both run pinned to one
core. Prints MB/s of each, the ratio and the doctor's peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from doctor.evidence.signals import all_signals  # noqa: E402

FAILURE = (
    "(EngineCore pid=51) ERROR 05-02 09:00:28 [core.py:1349] torch.OutOfMemoryError: CUDA out of memory. Tried to "
    "allocate 594.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 401.81 MiB is free.\n"
)
HEAD = (
    "(APIServer pid=1) INFO 05-02 09:00:08 [utils.py:302]   version 0.26.0\n"
    "(APIServer pid=1) INFO 05-02 09:00:15 [model.py:549] Resolved architecture: Qwen3_5ForConditionalGeneration\n"
    "(EngineCore pid=51) INFO 05-02 09:01:06 [kv_cache_utils.py:1319] GPU KV cache size: 201,216 tokens\n"
    "(APIServer pid=1) INFO:     Application startup complete.\n"
)


def write(path: Path, megabytes: int, errors: bool) -> None:
    """A log of that size; the same for the same arguments."""
    draw = random.Random(7)
    lines = []
    for number in range(20_000):
        kind = draw.random()
        if kind < 0.55:
            port = draw.randint(30000, 60000)
            lines.append(
                f'(APIServer pid=1) INFO:     172.17.0.1:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
            )
        elif kind < 0.97:
            speed = draw.uniform(0, 3000)
            lines.append(
                "(APIServer pid=1) INFO 06-07 09:05:10 [loggers.py:259] Engine 000: Avg prompt "
                f"throughput: {speed:.1f} "
                "tokens/s, Avg generation throughput: 61.4 tokens/s, Running: 1 reqs, Waiting: "
                "0 reqs, GPU KV cache "
                "usage: 3.1%, Prefix cache hit rate: 71.9%\n"
            )
        else:
            lines.append(f"Capturing CUDA graphs: {draw.randint(0, 99)}%|###  | {number}/20000 [00:01<00:09]\n")
        if errors and number % 1000 == 999:
            lines.append(FAILURE)
    block = "".join(lines).encode()
    with path.open("wb") as file:
        file.write(HEAD.encode())
        while file.tell() < megabytes * 1_000_000:
            file.write(block)
        file.write(FAILURE.encode() + block[:200_000])


def timed(argv: list[str], env: dict[str, str]) -> tuple[float, int, str]:
    """(CPU seconds, peak memory in MiB, stdout) of a program on one core."""
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        preexec_fn=lambda: os.sched_setaffinity(0, {0}),
    )
    assert process.stdout
    out = process.stdout.read().decode()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024, out


def main() -> int:
    """Prints the table; 0 when the speed is at least half of grep's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--errors", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, patterns = Path(folder, "server.log"), Path(folder, "patterns")
        write(log, args.mb, args.errors)
        literals = sorted({text for s in all_signals() for text in s.literals})
        escape = str.maketrans({c: "\\" + c for c in r"\.[]{}()*+?^$|"})
        patterns.write_text("\n".join(text.translate(escape) for text in literals) + "\n", encoding="utf-8")
        size = log.stat().st_size / 1e6
        log.read_bytes()[:1]  # in the page cache for both
        env = dict(os.environ, LC_ALL="C")
        doctor = [sys.executable, "-m", "doctor", "explain", "--json", str(log)]
        best: dict[str, float] = {}
        memory, answer = 0, ""
        for _ in range(args.rounds):
            seconds, memory, answer = timed(doctor, dict(env, PYTHONPATH=str(ROOT)))
            best["doctor"] = min(best.get("doctor", 1e9), seconds)
            seconds, _, _ = timed(["grep", "-cE", "-f", str(patterns), str(log)], env)
            best["grep"] = min(best.get("grep", 1e9), seconds)
        speed = {name: size / seconds for name, seconds in best.items()}
        ratio = speed["doctor"] / speed["grep"]
        ids = [f["id"] for f in json.loads(answer)["findings"]]
        print(f"{size:.0f} MB, {len(literals)} literals, findings {ids}")
        print(
            f"explain {speed['doctor']:.0f} MB/s, peak {memory} MiB; grep -cE "
            f"{speed['grep']:.0f} MB/s; ratio {ratio:.2f}"
        )
    return 0 if ratio >= 0.5 and memory < 150 else 1


if __name__ == "__main__":
    sys.exit(main())
