"""Writes docs/measurements/predictions-9b-h200.{md,json}: KV pools of real starts, predicted beforehand.

One H200 as CUDA sees it, vLLM 0.26.0, the Qwen3.5-9B AWQ shape with dummy weights, fraction 0.16,
``--language-model-only``. Run it before the starts; :func:`compare` fills the measured side afterwards:

    python benchmarks/predict_9b_h200.py
    python benchmarks/predict_9b_h200.py --measured docs/measurements/starts-9b-h200.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from doctor.memory.config import read_json, shape_of
from doctor.memory.layout import KvOptions
from doctor.memory.overhead import Compile
from doctor.memory.predict import Card, Start, predict
from doctor.memory.versions import switches
from doctor.memory.weights import weights_from_shapes

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "tests/memory/configs/qwen3.5-9b-awq/config.json"
GIB = 1 << 30
CARD = Card("NVIDIA H200", 150_109_880_320, None, (9, 0))
FRACTION = 0.16

#: name -> (extra serve arguments, compile cache, KvOptions fields, measured GiB, measured tokens)
STARTS: dict[str, tuple[str, Compile, dict[str, Any], float | None, int | None]] = {
    "eager": ("--enforce-eager", Compile.EAGER, {}, 11.6, 310_002),
    "plain cold": ("", Compile.COLD, {}, 9.7, 259_125),
    "plain warm": ("", Compile.WARM, {}, 11.51, 307_846),
    "prefix caching cold": ("--enable-prefix-caching", Compile.COLD, {"prefix_caching": True}, 9.7, 224_162),
    "MTP 2 cold": ("MTP 2", Compile.COLD, {"draft_tokens": 2}, 9.18, 160_890),
    "MTP 2, prefix caching, cold": (
        "MTP 2 --enable-prefix-caching", Compile.COLD, {"draft_tokens": 2, "prefix_caching": True}, 9.18, 143_652),
    "32K cold": ("--max-model-len 32768", Compile.COLD, {"max_model_len": 32768}, 9.7, 298_387),
    "(a) MTP 2 warm": ("MTP 2", Compile.WARM, {"draft_tokens": 2}, None, None),
    "(b) MTP 2, prefix caching, warm": (
        "MTP 2 --enable-prefix-caching", Compile.WARM, {"draft_tokens": 2, "prefix_caching": True}, None, None),
    "(c) fp8 KV warm": ("--kv-cache-dtype fp8", Compile.WARM, {"kv_cache_dtype": "fp8"}, None, None),
    "(d) 16 sequences warm": ("--max-num-seqs 16", Compile.WARM, {"max_num_seqs": 16}, None, None),
    "(e) 4,096 batched tokens cold": (
        "--max-num-batched-tokens 4096", Compile.COLD, {"max_num_batched_tokens": 4096}, None, None),
    "(e) 4,096 batched tokens warm": (
        "--max-num-batched-tokens 4096", Compile.WARM, {"max_num_batched_tokens": 4096}, None, None),
    "(f) MTP 2, prefix caching, fp8 KV, warm": (
        "MTP 2 --enable-prefix-caching --kv-cache-dtype fp8", Compile.WARM,
        {"draft_tokens": 2, "prefix_caching": True, "kv_cache_dtype": "fp8"}, None, None),
    "(f) MTP 2, prefix caching, fp8 KV, cold": (
        "MTP 2 --enable-prefix-caching --kv-cache-dtype fp8", Compile.COLD,
        {"draft_tokens": 2, "prefix_caching": True, "kv_cache_dtype": "fp8"}, None, None),
    # the explanation of the cold peak, put to the test: without the benchmark a cold start is like a warm one
    "(g) plain cold, combo kernel benchmark off": (
        """--compilation-config '{"inductor_compile_config": {"combo_kernels": false, """
        """"benchmark_combo_kernel": false}}'""",
        Compile.WARM, {}, None, None),
}  # fmt: skip


def predictions(measured: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """One row for each start; ``measured`` maps a start's name to {"gib": ..., "tokens": ...}."""
    shape = shape_of(read_json(CONFIG), "Qwen3.5-9B AWQ")
    weights, version, rows = weights_from_shapes(shape), switches("0.26.0"), []
    for name, (arguments, compiled, fields, gib, tokens) in STARTS.items():
        fields = {"max_model_len": 8192, "max_num_batched_tokens": 1024, "prefix_caching": False, **fields}
        p = predict(shape, weights, CARD, Start(FRACTION, compiled), KvOptions(**fields), version)
        seen = measured.get(name, {"gib": gib, "tokens": tokens})
        rows.append({
            "start": name, "arguments": arguments, "compile_cache": compiled.value,
            "weights_gib": (p.weights_bytes + p.overhead.rounding.likely) / GIB,
            "peak_activation_gib": p.overhead.activation.likely / GIB,
            "available_gib": [b / GIB for b in (p.available.low, p.available.likely, p.available.high)],
            "block_size": p.likely.block_size,
            "blocks_per_request": p.likely.layout.blocks_per_request,
            "bytes_per_block": p.likely.layout.bytes_per_block,
            "tokens": [p.low.capacity_tokens, p.likely.capacity_tokens, p.high.capacity_tokens],
            "measured_gib": seen["gib"], "measured_tokens": seen["tokens"],
        })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| start | cache | KV pool GiB: low / **likely** / high | KV tokens: low / **likely** / high | block "
        "| measured GiB | measured tokens | error | in range |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, likely, high = row["available_gib"]
        a, b, c = row["tokens"]
        gib, tokens = row["measured_gib"], row["measured_tokens"]
        error = f"{100 * (likely - gib) / gib:+.2f} %" if gib else ""
        inside = ("yes" if low <= gib <= high else "**no**") if gib else ""
        lines.append(
            f"| {row['start']} | {row['compile_cache']} | {low:.2f} / **{likely:.2f}** / {high:.2f} "
            f"| {a:,} / **{b:,}** / {c:,} | {row['block_size']} | {gib if gib else ''} "
            f"| {f'{tokens:,}' if tokens else ''} | {error} | {inside} |"
        )
    return "\n".join(lines)


TEXT = """# Predicted KV pools: Qwen3.5-9B AWQ shape on one H200, vLLM 0.26.0

Fraction {fraction} of {total:.2f} GiB (as CUDA sees the card), 8,192 tokens, one sequence, 1,024 batched tokens,
prefix caching off and no MTP unless said, dummy weights, `--language-model-only`. Written by
`benchmarks/predict_9b_h200.py`. The constants of the overhead model come from the first seven starts;
the lettered ones were predicted before they were run.

Where "cold" and "warm" differ: an empty torch.compile cache makes Inductor benchmark combined kernels with random
inputs of full size, the embedding table (1.89 GiB) among them. (g) tests this explanation: it is a cold start with
that benchmark switched off, predicted like a warm one.

{table}
"""


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(description="Predict the KV pools of real starts.")
    parser.add_argument("--measured", type=Path, help='JSON: {"start name": {"gib": 9.7, "tokens": 259125}}')
    parser.add_argument("--out", type=Path, default=ROOT / "docs/measurements")
    args = parser.parse_args()
    measured = json.loads(args.measured.read_text()) if args.measured else {}
    rows = predictions(measured)
    text = TEXT.format(fraction=FRACTION, total=CARD.total_bytes / GIB, table=table(rows))
    (args.out / "predictions-9b-h200.md").write_text(text)
    (args.out / "predictions-9b-h200.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
