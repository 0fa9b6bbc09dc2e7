"""Runs `vllm-doctor smoke` once for each start of a plan and keeps what each server printed.

    python benchmarks/gpu_starts.py PLAN.json --python ENV --models DIR --out DIR [--deadline SECONDS]

PLAN is a list of {"name", "gpu", "model", "cache", "args": [smoke arguments]}; starts of the same GPU run one
after another, GPUs side by side. "cache" names a folder of compile caches: the first start with a name is
a cold one. "env" adds variables, "leave_gib" has another process hold all but so much of the card, "again"
starts the script that was handed over, in the same surroundings, and asks that server. Each answer goes to
DIR/starts.json as soon as it is there; no start begins that would probably end after the deadline.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from doctor.serve.client import Client
from doctor.serve.command import ServeCommand
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke.preflight import free_port

#: Log lines worth keeping: figures and versions, no paths or names of the machine.
KEY = re.compile(
    r"Model loading took|Available KV cache memory|GPU KV cache size|Maximum concurrency|"
    r"Free memory on device|torch.compile took|Directly load|Graph capturing finished|"
    r"CUDA graph pool memory|Setting attention block size|Padding mamba page|padding layers|init engine|"
    r"Kernel JIT|kernel JIT compilation|SpecDecoding metrics|Resolved architecture|Estimated CUDA graph|"
    r"Using .{1,40} backend"
)
_PREFIX = re.compile(r"^.{0,120}?\] ")


class Runner:
    """Runs the plan; one thread a GPU."""

    def __init__(self, python: str, models: Path, out: Path, deadline: float) -> None:
        self.python, self.models, self.out, self.end = python, models, out, time.monotonic() + deadline
        self.rows: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def stream(self, starts: list[dict[str, Any]]) -> None:
        """All starts of one GPU, in order."""
        for start in starts:
            left = self.end - time.monotonic()
            expected = float(start.get("expected_s", 120))
            row = (
                self.one(start, left)
                if left > expected
                else {"name": start["name"], "skipped": f"{left:.0f} s left"}
            )
            with self.lock:
                self.rows.append(row)
                (self.out / "starts.json").write_text(json.dumps(self.rows, indent=1))
            print(
                json.dumps({k: row.get(k) for k in ("name", "verdict", "wall_s", "skipped", "kv_tokens")}),
                flush=True,
            )

    def one(self, start: dict[str, Any], left: float) -> dict[str, Any]:
        """One smoke test; its answer, key log lines and the card's memory before and after."""
        folder = Path(os.environ.get("TMPDIR", "/tmp")) / ("start-" + re.sub(r"\W+", "-", start["name"]))
        caches = Path(os.environ.get("TMPDIR", "/tmp")) / f"caches-{start.get('cache', 'default')}"
        env = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": str(start.get("gpu", 0)),
            "VLLM_CACHE_ROOT": str(caches / "vllm"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            **start.get("env", {}),
        }
        cold = not caches.exists()
        model = str(self.models / start["model"])
        argv = [sys.executable, "-m", "doctor", "smoke", "--python", self.python, "--model", model]
        argv += ["--json", "--out", str(folder), "--timeout", f"{max(30.0, left - 30):.0f}", *start["args"]]
        began = time.monotonic()
        row: dict[str, Any] = {"name": start["name"], "cold": cold}
        stdout, stderr = "", ""
        with _reported(row), _held(self.python, start.get("leave_gib"), env):
            try:
                done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=max(40.0, left))
                stdout, stderr = done.stdout, done.stderr
            except subprocess.TimeoutExpired:
                stdout, stderr = "", "stopped at the deadline"
            row["wall_s"] = round(time.monotonic() - began, 1)
            if start.get("again") and (folder / "serve.sh").exists():
                row["again"] = _again(folder, env, self.end - time.monotonic())
        try:
            answer = json.loads(stdout)
        except ValueError:
            row.setdefault("error", stderr.strip().splitlines()[-1:] or ["no answer"])
            answer = {}
        row["verdict"] = answer.get("verdict")
        row["findings"] = [{k: f[k] for k in ("id", "confidence", "summary")} for f in answer.get("findings", [])]
        smoke = answer.get("smoke", {})
        row["server"] = {
            k: v
            for k, v in smoke.get("server", {}).items()
            if k not in ("log", "environment", "pid", "model", "env")
        }
        row["kv_tokens"] = row["server"].get("kv_tokens")
        row["probes"] = smoke.get("probes", [])
        row["ladder"] = smoke.get("ladder")
        row["settings_that_passed"] = smoke.get("settings_that_passed")
        row["log"] = _key_lines(folder / "server.log")
        return row


#: Takes the memory of GPU 0 but for so many GiB, says so, and keeps it until its input ends.
_HOLD = """
import sys, torch
free = torch.cuda.mem_get_info()[0]
held = torch.empty(free - int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _reported(row: dict[str, Any]) -> Iterator[None]:
    """An error of the benchmark's own is told in the row; in a thread it would be lost."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        row["error"] = [str(error)]


@contextlib.contextmanager
def _held(python: str, leave_gib: float | None, env: Mapping[str, str]) -> Iterator[None]:
    """Another process holds the rest of the card meanwhile; nothing when ``leave_gib`` is None."""
    if leave_gib is None:
        yield
        return
    argv = [str(Path(python) / "bin" / "python"), "-c", _HOLD, str(leave_gib)]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin
        assert holder.stdout
        if holder.stdout.readline().strip() != "held":
            raise RuntimeError("the memory could not be held")
        try:
            yield
        finally:
            holder.stdin.close()


def _again(folder: Path, env: Mapping[str, str], left: float) -> dict[str, Any]:
    """The script that was handed over, started as a user would, and asked by ``smoke --url``."""
    if left < 60:
        return {"skipped": f"{left:.0f} s left"}
    port = free_port()
    (folder / "again.log").write_bytes(b"")  # a server appends
    command = ServeCommand(("sh", str(folder / "serve.sh"), "--port", str(port)), {}, (), port)
    began = time.monotonic()
    with Server(command, folder / "again.log", env=env) as server:
        client = Client(port, "")
        ready = wait_healthy(server, client, LogFollower(server.log), left - 20, lambda _: None)
        row: dict[str, Any] = {"state": ready.state, "ready_s": round(time.monotonic() - began, 1)}
        if ready.state != "healthy":
            return row
        argv = [sys.executable, "-m", "doctor", "smoke", "--url", client.url, "--json"]
        try:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=left)
            row["verdict"] = json.loads(done.stdout)["verdict"]
        except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
            row["error"] = type(error).__name__
    return row


def _key_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    kept = [_PREFIX.sub("", line)[:400] for line in lines if KEY.search(line)]
    if not any("GPU KV cache size" in line for line in kept):  # it did not get that far: the end says why
        kept += [line[:300] for line in lines[-25:]]
    return list(dict.fromkeys(kept))[:80]


def main() -> int:
    """Runs the plan; 0 when every start ran."""
    parser = argparse.ArgumentParser(description="Run a plan of real starts.")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--python", required=True)
    parser.add_argument("--models", type=Path, default=Path("."), help="folder of the model folders")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=540.0)
    args = parser.parse_args()
    plan = json.loads(args.plan.read_text())
    args.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(args.python, args.models, args.out, args.deadline)
    by_gpu: dict[int, list[dict[str, Any]]] = {}
    for start in plan:
        by_gpu.setdefault(start.get("gpu", 0), []).append(start)
    threads = [threading.Thread(target=runner.stream, args=(starts,)) for starts in by_gpu.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [*runner.rows, *(r["again"] for r in runner.rows if r.get("again"))]
    ran = len(runner.rows) == len(plan) and all("skipped" not in r and "error" not in r for r in rows)
    return 0 if ran else 1


if __name__ == "__main__":
    sys.exit(main())
