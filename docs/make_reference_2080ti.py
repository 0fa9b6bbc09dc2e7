"""Writes docs/measurements/reference-2080ti.md: what a user measured on one RTX 2080 Ti, and what the model says.

python docs/make_reference_2080ti.py    (tests/memory/test_reference_pages.py fails when the page is stale)

Reported figures are data (reference-2080ti.json); every other figure is computed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from docs.pages import causes, gib, share, table
from docs.reference_rows import (
    BANDWIDTH,
    BATCH,
    NINE,
    REPORTED,
    TOTAL,
    R,
    cache_rows,
    choice_rows,
    kv_rows,
    large,
    nine,
    span,
    speed_rows,
    start_rows,
    started,
)
from doctor.memory.overhead import Compile
from doctor.memory.roofline import ceiling
from doctor.memory.start_check import GIB
from tests.memory.recipes import recipes

TARGET = REPORTED.with_suffix(".md")


def mtp_price() -> list[tuple[str, ...]]:
    """From the pool without MTP to the one reported with it, step by step."""
    pool = R["pool"]
    size = int(pool["gib"] * GIB)
    plain, cached = nine(pool["gib"], 8192), nine(pool["gib"], 8192, caching=True)
    layout = nine(pool["gib"], 8192, mtp=2, caching=True)
    without, with_head = (
        started(0.8, 8192, mtp=k, caching=True, compiled=Compile.WARM).available.likely for k in (0, 2)
    )
    headed = nine((size - without + with_head) / GIB, 8192, mtp=2, caching=True)
    # the smallest pool that prints the reported count
    blocks = -(-pool["with_mtp_tokens"] * layout.layout.blocks_per_request // 8192)
    left = blocks * layout.layout.bytes_per_block
    cold = started(0.8, 8192, mtp=2, caching=True, compiled=Compile.COLD)
    return [
        ("reported without MTP: prefix caching was "
        "off", gib(size), f"{plain.num_blocks}", f"{plain.capacity_tokens:,}"),
        ("prefix caching on", gib(size), f"{cached.num_blocks}", f"{cached.capacity_tokens:,}"),
        ("layout of MTP 2: 9 layers, blocks of 544, four states a group", gib(size), f"{layout.num_blocks}",
         f"{layout.capacity_tokens:,}"),
        (f"the MTP head is resident "
        f"({gib(NINE.weights.draft)})", gib(headed.available_bytes), f"{headed.num_blocks}",
         f"{headed.capacity_tokens:,}"),
        ("predicted for a first start (empty compile cache)", span(cold), f"{cold.likely.num_blocks}",
         f"{cold.low.capacity_tokens:,} to {cold.high.capacity_tokens:,}, likely {cold.likely.capacity_tokens:,}"),
        ("reported with MTP 2", f"at least {gib(left)}", f"{blocks}", f"{pool['with_mtp_tokens']:,}"),
        ("not explained by the layout and the "
        "head", gib(headed.available_bytes - left), f"{headed.num_blocks - blocks}",
         f"{headed.capacity_tokens - pool['with_mtp_tokens']:,}"),
    ]  # fmt: skip


def named(text: str) -> str:
    """Links to the causes that the doctor names for these lines."""
    return ", ".join(f"[{i}](../troubleshooting.md#{i}) ({sure})" for i, sure in causes(text))


def environment() -> list[tuple[str, ...]]:
    """The four records of the environment, put to `explain`."""
    check = R["start_check"]
    jit = "\n".join(
        f"Triton kernel JIT compilation during inference: {name}. This causes a latency spike; consider "
        f"extending warmup to cover this shape/config." for name in R["jit_kernels"]
    )  # fmt: skip
    refusal = (
        f"Free memory on device cuda:0 ({R['free_gib']}/{TOTAL / GIB} GiB) on startup is less than desired GPU "
        f"memory utilization ({check['refused']}, {check['asked_gib']} GiB). Decrease GPU memory utilization or "
        f"reduce GPU memory used by other processes."
    )
    compiler = "nvcc -ccbin /usr/bin/gcc-12 -c gdn_forward.cu\ncc1plus: execvp: cc1plus: No such file or directory"
    pin = "Using 'pin_memory=False' as WSL is detected. This may slow down the performance."
    kernels = ", ".join(f"`{name}`" for name in R["jit_kernels"])
    return [
        (f"start refused at {check['refused']}", f"`{refusal.split(' on startup')[0]} on startup "
        f"...`", named(refusal),
         "`vllm-doctor fit MODEL CARD`"),
        ("g++-12 missing: FlashQLA's legacy GDN kernel is compiled with gcc-12, Ubuntu 24.04 has gcc-13",
         "`cc1plus: execvp: cc1plus: No such file or directory`", named(compiler),
         "`vllm-doctor check --only gxx12-missing`; `vllm-doctor fix`"),
        ("pinned memory is off under WSL", f"`{pin}`", named(pin), "`vllm-doctor check`"),
        (f"first requests compile {len(R['jit_kernels'])} kernels: {kernels}",
         "`Triton kernel JIT compilation during inference: ...`", named(jit),
         "`vllm-doctor warmup --url URL --log server.log`"),
    ]  # fmt: skip


def curve() -> list[tuple[str, ...]]:
    """Context length against the pool; the lengths that were asked for and their neighbours."""
    rows = []
    for length in (8192, 16384, 32768, 65536, 131072, 262144):
        cells = [f"{length:,}"]
        for caching in (False, True):
            one = nine(R["pool"]["gib"], length, caching=caching)
            cells.append(f"{one.capacity_tokens:,} ({one.max_concurrency:.2f}x)" if one.fits else "refused")
        for compiled in (Compile.COLD, Compile.WARM):
            p = started(0.8, length, mtp=2, caching=True, compiled=compiled)
            low, high = p.low.capacity_tokens, p.high.capacity_tokens
            word = (
                f"{low:,} to {high:,}"
                if p.low.fits
                else ("refused" if not p.high.fits else "within the uncertainty")
            )
            cells.append(word)
        rows.append(tuple(cells))
    return rows


def batching() -> list[tuple[str, ...]]:
    """What more sequences and larger batches cost in the pool."""
    rows = []
    for sequences, batch in ((1, 1024), (2, 1024), (4, 1024), (1, 2048), (4, 2048), (4, 4096)):
        p = started(0.8, 8192, mtp=2, caching=True, compiled=Compile.WARM, batch=batch, sequences=sequences)
        rows.append((str(sequences), f"{batch:,}", f"{p.available.likely / GIB:.2f} GiB", span(p),
                     f"{p.likely.capacity_tokens:,}", f"{p.likely.max_concurrency:.2f}"))  # fmt: skip
    return rows


HEAD = """# One RTX 2080 Ti with 22 GB: reported and computed

**Reported by a user, not verified by us**: we have no such card.

{setup}

Written by `docs/make_reference_2080ti.py`; the tests fail when it is out of date. The reported figures are data
([reference-2080ti.json](reference-2080ti.json)); everything in the columns "computed" and "difference" comes
from the memory model, with the weights computed from the model's shape and, where a start is meant, {total} GiB
of card and {free} GiB free. "Difference" is the report against the model. 1 GB is 10^9 bytes, 1 GiB 2^30.

In the commands, `MODEL` is `QuantTrio/Qwen3.5-9B-AWQ` or its folder, `MODEL27` a 27B with all projections in 4
bit, and `CARD` stands for `--gpu "RTX 2080 Ti" --vram 22 --free {free} --vllm {vllm} --max-num-seqs 1
--max-num-batched-tokens {batch} --max-model-len 8K` (a later option wins).
"""

CORRECTIONS = """## Where a figure was misread

- **51 tokens/s is not the ceiling.** Dividing the bandwidth by the checkpoint counts the image encoder, the MTP
  head and the embedding table, of which a token reads one row. {read:.2f} of {files:.2f} GB are read, so the
  ceiling is {top:.1f} tokens/s, and the best setting has used {share} of the one with MTP ({drafted:.1f}).
- **There is no GDN pool of 1.3 GB.** The logged cache size counts whole blocks and states for every request
  that could run, {requests:.2f} of them at 8K. One real request keeps {states} blocks of state.
- **27B does not cost 111 KB a token.** That is one log line at 4K. It is {floor} KiB and a fixed part for each
  request.
- **6,864 cached tokens were not measured with MTP 2**: hits would come in steps of 544.
- **The pool did not fall by 61 % because of MTP alone**: see the next table.
- **16 layers x 2 x 4 x 128 x 2 gives the right product by accident**: the model has 8 attention layers with
  heads of 256.
- **262K is not nearly free.** A long *limit* costs little; a filled context reads {filled:.1f} GB more for
  every token.

## The price of MTP

188,847 to 73,728 tokens at 8K and 0.80. {explained} of it follow from the layout and the head. The rest is most
likely a first start: another number of drafts is another entry of the compile cache, and the first start of
each profiles a larger peak
([cold-compile-inflates-memory-peak](../troubleshooting.md#cold-compile-inflates-memory-peak)). `Model loading
took` and `Available KV cache memory` of both starts would tell. To be measured on the card: `vllm-doctor smoke
--model MODEL --mtp 2 --max-model-len 8192 --util 0.8` twice.
"""


def text() -> str:
    """The whole page."""
    head = ("reported", "figure", "computed", "difference", "command")
    pool = nine(R["pool"]["gib"], 8192)
    price = mtp_price()
    tokens = [int(row[3].replace(",", "")) for row in (price[0], price[3], price[5])]
    full = ceiling(NINE.weights, pool.layout.kept_token_bytes, 262144, BANDWIDTH)
    drafted = ceiling(NINE.weights, 0, 0, BANDWIDTH, draft_tokens=2, acceptance=R["mtp"]["mean_length"])
    top = ceiling(NINE.weights, 0, 0, BANDWIDTH)
    out = [HEAD.format(setup=R["setup"], total=TOTAL // GIB, free=R["free_gib"], vllm=R["vllm"], batch=BATCH)]
    for title, rows in (
        ("Start check", start_rows()), ("Which model", choice_rows()), ("Speed", speed_rows()),
        ("KV cache", kv_rows()), ("Prefix caching and MTP", cache_rows()),
    ):  # fmt: skip
        out += [f"## {title}", "", *table(head, list(rows))]
    out.append(
        CORRECTIONS.format(
            read=top.step_bytes / 1e9, files=recipes()["9b-awq"].checkpoint_bytes / 1e9, top=top.tokens_per_s,
            drafted=drafted.tokens_per_s, share=share(R["best"]["tokens_per_s"] / (drafted.tokens_per_s or 1)),
            requests=pool.max_concurrency, states=sum(g.kind == "state" for g in pool.layout.groups),
            floor=large(2, 4096).layout.kept_token_bytes // 1024, filled=full.kv_bytes / 1e9,
            explained=share((tokens[0] - tokens[1]) / (tokens[0] - tokens[2])),
        )
    )  # fmt: skip
    out += table(("step", "pool", "blocks", "tokens"), price)
    out += ["## Environment", "", "What `vllm-doctor explain FILE` says about the lines of the four records.", ""]
    out += table(("record", "line", "cause", "command"), environment())
    out += ["## What was wanted next", "",
            f"Computed; each needs a run on the card. The first two columns are what the reported pool of "
            f"{R['pool']['gib']} GiB", "makes of each length, the last two the predicted range at "
            "0.80.", ""]  # fmt: skip
    out += table(("context", "no MTP, no prefix caching", "no MTP, prefix caching", "MTP 2 and prefix caching, "
    "first start",
                  "later starts"), curve())  # fmt: skip
    out += ["Sequences and batched tokens, MTP 2 and prefix caching, 8K, later starts. The speed of each is to "
    "be measured.",
            ""]  # fmt: skip
    out += table(("sequences", "batched tokens", "pool, likely", "range", "tokens", "requests of 8K"), batching())
    eight = large(R["m27"]["pool_gib"], 8192)
    out += [
        f"- 27B at 8K in {R['m27']['pool_gib']} GiB: {'fits' if eight.fits else 'refused'}, "
        f"{eight.capacity_tokens:,} tokens.",
        "- All of it on the card, resumable, a row for each start: `vllm-doctor sweep --model MODEL --model "
        "MODEL27 --util 0.8 "
        "--sequences 1,2,3,4 --batched 1K,2K,4K`. What it would start here: `vllm-doctor sweep --model MODEL "
        "--plan --gpu "
        '"RTX 2080 Ti" --vram 22`. The curve alone, computed: `vllm-doctor fit MODEL CARD --curve`.',
        "- A launch profile for one card, and the report for the fork: [the report](../fork-report.md). What "
        "fits on this and other",
        "  cards: [one card](../single-card.md).",
    ]
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
