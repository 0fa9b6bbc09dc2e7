"""Our speed figures beside those of `vllm bench serve`, in turn on one server.

    python benchmarks/against_vllm_bench.py --python ENV --model DIR [--url URL] [--out FILE.json] [-- SERVE_ARGS]

Without --url a server is started from ENV (MTP with --mtp K) and ended afterwards; with it DIR is only the
tokenizer, and the server must serve that model. `vllm bench serve` (random dataset, no network, options as in
vLLM 0.26.0 and 0.32.0) sends a request every so often, and our client one in the middle of each pause: the same
prompt and answer lengths, temperature 0, end-of-text ignored, never two at a time, so what the machine does
meanwhile is the same for both. Prompts are made as its random dataset makes them, runs of consecutive token ids
from a random start, because acceptance of drafts depends on the text, and sent as text, because the server's
tokenizer is part of the time to the first token. Each side warms up first.
Prints medians, their ratio and the spread (half of the distance between the quartiles, of the median).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.host import LocalHost
from doctor.serve.client import Client
from doctor.serve.command import SERVED_NAME, Settings, build
from doctor.serve.environment import VllmEnvironment, locate
from doctor.serve.log import LogFollower
from doctor.serve.server import Server
from doctor.serve.watch import wait_healthy
from doctor.smoke.preflight import free_port
from doctor.smoke.running import attach

#: The two agree when the medians differ by less.
AGREE = 0.05
#: Requests of each side that are not counted: connections, and what the client compiles.
WARMUPS = 3
#: Their requests are so many times our slowest warm request apart: one of each fits, and some room.
PERIOD = 2.4


@dataclass(frozen=True)
class Request:
    """One answer: seconds to the first token and in all, tokens of prompt and answer."""

    ttft_s: float
    total_s: float
    prompt_tokens: int
    answer_tokens: int

    def figures(self) -> dict[str, float]:
        """What is compared."""
        decode = self.total_s - self.ttft_s
        return {
            "TTFT ms": self.ttft_s * 1e3,
            "prefill tokens/s": self.prompt_tokens / self.ttft_s,
            "decode tokens/s": (self.answer_tokens - 1) / decode,
            "request tokens/s": self.answer_tokens / self.total_s,
        }


def ordinary_ids(model: Path) -> list[int]:
    """Token ids without the special ones, in order."""
    data = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    special = {row["id"] for row in data.get("added_tokens", ()) if row.get("special")}
    vocabulary = data["model"]["vocab"]
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    return sorted(set(ids) - special)


def as_text(client: Client, ids: list[int], length: int) -> str:
    """A text that the server reads as ``length`` tokens, or nearly: what the other side sends is text too."""
    tokens = ids[:length]
    text = ""
    for _ in range(8):
        text = client.detokenize(tokens)
        read = client.tokenize(text)
        if len(read) == length:
            break
        tokens = (read + ids[length:])[:length]
    return text


def make_prompts(client: Client, ids: list[int], args: argparse.Namespace, count: int) -> list[str]:
    """Texts of ``--input-len`` tokens."""
    prompts = []
    for _ in range(count):
        start = random.SystemRandom().randrange(len(ids))
        # consecutive ids seldom read back as themselves: a few more than are wanted
        run = [ids[(start + i) % len(ids)] for i in range(args.input_len + 64)]
        prompts.append(as_text(client, run, args.input_len))
    return prompts


def ask(client: Client, prompt: str, args: argparse.Namespace) -> Request:
    """One request of our client."""
    answer = client.complete(prompt, args.output_len, ignore_eos=True)
    if not answer.ok or answer.ttft_s is None:
        sys.exit(f"a request failed: {answer.error}")
    return Request(answer.ttft_s, answer.total_s, answer.prompt_tokens or 0, answer.completion_tokens or 0)


def in_turn(
    environment: VllmEnvironment, client: Client, args: argparse.Namespace, folder: Path
) -> tuple[list[Request], list[Request]]:
    """(our requests, theirs). Theirs are sent every ``period`` seconds, ours half of that later."""
    ids = ordinary_ids(args.model)
    warm = [ask(client, p, args).total_s for p in make_prompts(client, ids, args, WARMUPS)]
    period = max(PERIOD * max(warm), 0.2)
    prompts = make_prompts(client, ids, args, args.requests)
    name = "bench.json"
    argv = [
        *environment.command, "bench", "serve", "--backend", "openai", "--base-url", client.url,
        "--endpoint", "/v1/completions", "--model", str(args.model), "--tokenizer", str(args.model),
        "--served-model-name", client.model, "--dataset-name", "random",
        "--random-input-len", str(args.input_len), "--random-output-len", str(args.output_len),
        "--num-prompts", str(args.requests), "--request-rate", str(1 / period), "--burstiness", "inf",
        "--ignore-eos", "--temperature", "0", "--seed", str(random.SystemRandom().randrange(1 << 30)),
        "--num-warmups", str(WARMUPS), "--disable-tqdm", "--save-result", "--save-detailed",
        "--result-dir", str(folder), "--result-filename", name,
    ]  # fmt: skip
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
    log, mine = folder / "bench.log", []
    with log.open("wb") as out, subprocess.Popen(argv, env=env, stdout=out, stderr=subprocess.STDOUT) as bench:
        try:
            began = _main_part(bench, log)
            print(f"a request of each every {period:.2f} s", file=sys.stderr, flush=True)
            for number, prompt in enumerate(prompts):  # its first one comes after one period
                time.sleep(max(0.0, began + (number + 1.5) * period - time.monotonic()))
                mine.append(ask(client, prompt, args))
            bench.wait(600)
        finally:
            bench.kill()
    if bench.returncode != 0 or not (folder / name).exists():
        sys.exit(f"vllm bench serve failed ({bench.returncode}):\n{log.read_text(errors='replace')[-2000:]}")
    result: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    bad = [e for e in result["errors"] if e]
    if bad:
        sys.exit(f"vllm bench serve: a request failed: {bad[0][-500:]}")
    rows = zip(result["ttfts"], result["itls"], result["input_lens"], result["output_lens"], strict=True)
    return mine, [Request(ttft, ttft + sum(itl), prompt, answer) for ttft, itl, prompt, answer in rows]


def _main_part(bench: subprocess.Popen[bytes], log: Path) -> float:
    """When its warm-up is over and it begins to send, on the monotonic clock."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline and bench.poll() is None:
        if "Starting main benchmark run" in log.read_text(errors="replace"):
            return time.monotonic()
        time.sleep(0.02)
    sys.exit(f"vllm bench serve did not begin:\n{log.read_text(errors='replace')[-2000:]}")


def compare(mine: list[Request], bench: list[Request]) -> list[dict[str, Any]]:
    """One row a figure."""
    rows = []
    for figure in mine[0].figures():
        sides = [[r.figures()[figure] for r in side] for side in (mine, bench)]
        medians = [statistics.median(side) for side in sides]
        spreads = [_spread(side) for side in sides]
        ratio = medians[0] / medians[1]
        rows.append(
            {
                "figure": figure,
                "ours": medians[0],
                "vllm_bench": medians[1],
                "ratio": ratio,
                "spread": spreads,
                "agrees": abs(ratio - 1) <= AGREE,
                "within_spread": abs(ratio - 1) <= max(spreads),
            }
        )
    return rows


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / statistics.median(values)


@contextlib.contextmanager
def serving(environment: VllmEnvironment, args: argparse.Namespace, folder: Path) -> Iterator[Client]:
    """The running server, or one of our own for as long as it is needed."""
    if args.url:
        client = Client.of_url(args.url, deadline_s=600.0)
        found = attach(client)
        if found.session is None:
            sys.exit(f"{args.url} cannot be asked")
        yield client
        return
    settings = Settings(
        str(args.model), True, args.mtp, args.max_model_len, args.util, tuple(args.serve_args),
        caching=not args.no_prefix_caching,
    )  # fmt: skip
    command = build(environment, settings, free_port())
    with Server(command, folder / "server.log", env=os.environ) as server:
        client = Client(command.port, SERVED_NAME, deadline_s=600.0)
        ready = wait_healthy(server, client, LogFollower(server.log), 900.0, lambda _: None)
        if ready.state != "healthy":
            sys.exit(f"the server did not become ready ({ready.state}): {ready.last_line}")
        yield client


def main() -> int:
    """0 when every figure agrees within 5 %."""
    parser = argparse.ArgumentParser(description="Our speed figures beside those of vllm bench serve.")
    parser.add_argument("--python", required=True, help="environment with vLLM")
    parser.add_argument("--model", type=Path, required=True, help="model folder (its tokenizer with --url)")
    parser.add_argument("--url")
    parser.add_argument("--mtp", type=int, default=0)
    parser.add_argument("--util", type=float, default=0.9)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--input-len", type=int, default=1024)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--requests", type=int, default=30, help="of each side")
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("serve_args", nargs="*", metavar="-- SERVE_ARGS")
    args = parser.parse_args()
    args.model = args.model.resolve()
    environment = locate(LocalHost(), args.python)
    with tempfile.TemporaryDirectory() as name, serving(environment, args, Path(name)) as client:
        mine, bench = in_turn(environment, client, args, Path(name))
    rows = compare(mine, bench)
    print("| figure | ours | vllm bench serve | ratio | spread, ours / bench | within 5 % |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        spread = " / ".join(f"{s:.1%}" for s in row["spread"])
        line = f"{row['figure']} | {row['ours']:.2f} | {row['vllm_bench']:.2f} | {row['ratio']:.3f}"
        print(f"| {line} | {spread} | {'yes' if row['agrees'] else 'no'} |")
    answer = {
        "vllm": environment.vllm,
        "model": args.model.name,
        "mtp": args.mtp,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "requests": len(mine),
        "rows": rows,
        "raw": {"ours": [vars(r) for r in mine], "vllm_bench": [vars(r) for r in bench]},
    }
    if args.out:
        args.out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
