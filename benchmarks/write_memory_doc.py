"""Writes docs/memory.md: how the memory model works, and predicted against reported for every reference point."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.memory.reference import Point, points  # noqa: E402
from tests.memory.support import rows, shape  # noqa: E402

TARGET = ROOT / "docs/memory.md"

HEAD = """# The memory model

`vllm-doctor fit` predicts what vLLM prints before anything is loaded. This page is written by
`benchmarks/write_memory_doc.py`; the tests fail when it is out of date.

## From memory to tokens

    requested = ceil(total * gpu_memory_utilization)          refused at once when less is free
    pool      = requested - weights - activation - runtime - graphs
    blocks    = pool // bytes_per_block

The step from the pool to tokens is exact. The pool itself is a range until one real start was measured on the
machine (`fit MODEL --calibrate LOG`).

- **Weights** come from the safetensors headers, else the index, else shapes and the quantisation config. The image
  encoder is not loaded with `--language-model-only`, the MTP head only with MTP. Tables of rotary positions (four
  times the context for multimodal models) and the matrix library's workspace are counted by vLLM as weights too.
- **Activation** is what one full batch needs at once. The first start of a configuration has an empty
  torch.compile cache and needs about one vocabulary matrix more (1.8 GiB for Qwen3.5-9B, measured with
  0.26.0; what allocates it is not known). It does not grow with the batch, and every later start has it back.
- **Recurrent layers** (gated delta net, Mamba 2) keep a state of fixed size for every sequence instead of keys and
  values. All layers share one pool of equal pages, so the block of the attention layers grows until its page holds
  a state: 528 tokens for Qwen3.5-9B, 544 with two draft tokens, 1056 with an fp8 cache.

      attn_tok = 2 * kv_heads * head_dim * bytes
      state    = conv_channels * (conv_kernel - 1 + K) * 2 + heads * state_values * 4
      block    = 16 * ceil(state / (16 * attn_tok))
      group    = layers that share block ids; n layers of the rarer kind, or of the more frequent one when the
                 counts are within a factor of 1.5
      blocks of one request = ceil(length / block) + recurrent groups * (1 + K, or 2 + K with prefix caching)

  K is the number of draft tokens. A request of any length pays for whole blocks and for its states, which is why
  the printed cache size grows with `--max-model-len`.
- **Prefix caching** hits whole blocks; with MTP the last one is computed again, so a prompt under two blocks never
  hits.
- **Sliding windows** keep the window and what is in flight: `min(window - 1 + 2 * max_num_batched_tokens, length)`
  tokens from 0.26.0 on, one batch before.

What changed between versions is data: `doctor/catalogue/tables/vllm_memory.json`.

## Compared with vLLM's own code

Answers of vLLM {version} itself, recorded in `tests/memory/oracle` and asked anew by `test_oracle_live.py`. Equal
means: fits or not, block size, number of blocks, capacity in tokens and concurrency, bit for bit.

"""


def families() -> str:
    """One line for every model that was compared."""
    header, qwen = rows("qwen35")
    counts: dict[str, int] = defaultdict(int)
    for row in qwen:
        counts[row["model"]] += 1
    _, others = rows("families")
    for row in others:
        counts[f"families/{row['model']}"] += 1
    lines = [
        "| model | architecture | family | layers with a cache | pools compared, all equal |",
        "|---|---|---|---|---|",
    ]
    for name, count in counts.items():
        s = shape(name)
        kinds: dict[str, int] = defaultdict(int)
        for layer in s.layers:
            kinds[layer.kind.value if hasattr(layer.kind, "value") else layer.kind] += 1
        layers = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        lines.append(f"| {name.removeprefix('families/')} | {s.architecture} | {s.family} | {layers} | {count} |")
    text = HEAD.format(version=header["vllm"]) + "\n".join(lines)
    return text + (
        "\n\nShapes without the prefix Qwen3.5 are the defaults of transformers. The weight bytes of those models,"
        "\ncomputed from their shapes, equal vLLM's own parameters to 2 parts in a million (Phi: 40).\n"
    )


def row(point: Point) -> str:
    """One reference point."""
    gib = f"{point.gib:g}{'*' if point.inferred else ''}"
    refused = ", refused" if point.refused else ""
    if point.reported_about is not None:
        error = f"{point.predicted_tokens / point.reported_about - 1:+.1%}"
        return f"| {point.case} | {gib} | {point.reported_text} | {point.predicted_tokens:,} | {error} |"
    if point.reported_tokens is None:
        seen = "refused" if point.refused else "starts"
        return f"| {point.case} | {gib} | {seen} | {'starts' if point.predicted_fits else 'refused'} | 0 |"
    error = str(point.predicted_tokens - point.reported_tokens)
    tokens = f"{point.reported_tokens:,}{refused} | {point.predicted_tokens:,}{refused}"
    return f"| {point.case} | {gib} | {tokens} | {error} |"


def text() -> str:
    """The whole page."""
    table = ["| case | KV pool GiB | reported tokens | predicted | error |", "|---|---|---|---|---|"]
    table += [row(point) for point in points()]
    return (
        families()
        + "\n## Predicted and reported\n\n"
        + "\n".join(table)
        + "\n\nRows of the same pool or of 4 GiB were answered by vLLM's own code, all others printed by real"
        " starts.\n\\* the report names no pool: it was computed back from the tokens, so the row shows that the\n"
        "layout can produce this count. A pool printed with two decimals stands for every pool that prints so.\n"
        "\nPools of real starts, predicted beforehand: [measurements/predictions-9b-h200.md]"
        "(measurements/predictions-9b-h200.md).\nOther estimators: "
        "[measurements/fit-peers.md](measurements/fit-peers.md).\n"
    )


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
