"""Writes docs/fork-report.md: a best-practice report for one card in the form that the Turing fork accepts.

python docs/make_fork_report.py    (tests/memory/test_reference_pages.py fails when the page is stale)
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from docs.pages import ROOT, gib, table
from docs.reference_rows import CARD, NINE, TOTAL, VERSION, R
from doctor.memory.emit import env_text, serve_text
from doctor.memory.fit import Fit, evaluate
from doctor.memory.settings import Wish
from doctor.report import curve

TARGET = ROOT / "docs/fork-report.md"
BEST = R["best"]
#: The settings that the user found best on this card.
WISH = Wish(
    utilization=BEST["utilization"], max_model_len=BEST["max_model_len"], draft_tokens=BEST["mtp"],
    prefix_caching=True, max_num_seqs=BEST["max_num_seqs"], max_num_batched_tokens=BEST["max_num_batched_tokens"],
)  # fmt: skip
MODEL = "/models/Qwen3.5-9B-AWQ"
OPTIONS = (
    f"--util {BEST['utilization']:g} --max-model-len {BEST['max_model_len']} --mtp {BEST['mtp']} --prefix-caching "
    f"--max-num-seqs {BEST['max_num_seqs']} --max-num-batched-tokens {BEST['max_num_batched_tokens']}"
)


def fitted() -> Fit:
    """The profile on this card."""
    model = replace(NINE, given=MODEL, shape=replace(NINE.shape, name="Qwen3.5-9B-AWQ"))
    return evaluate(model, CARD, WISH, VERSION, purpose="chat")


def fenced(text: str, language: str = "text") -> list[str]:
    """A fence and an empty line."""
    return [f"```{language}", *text.rstrip("\n").splitlines(), "```", ""]


HEAD = """# A report for the Turing fork: one RTX 2080 Ti

For weicj/vLLM-2080Ti-Definitive. The fork has no launch profile for one card; this page is a best-practice
report to be filled in by somebody who has one. **Nothing here was measured by us.** Written by
`docs/make_fork_report.py`; the tests fail when it is out of date.

## What the fork accepts

- An issue, not a pull request: a pull request with benchmark data was closed, data belongs in an issue. A
  best-practice report first, a profile or a document later.
- English; logs as text in fences; full background and topology; exact reproduction. No advice on what to buy.
- The headings below: Issue Type, Summary (two to five sentences), Reproduction Steps, Expected, Actual, Exact
  Command / Profile / Model.
- Throughput as PP4096 and TG128: a prompt of 4,096 tokens of " the", 128 tokens with ignore_eos, one warm-up,
  three runs, median. Capacity with a really long prompt.
- A profile passes `bash -n`, `tools/validate_profiles.sh` (0.2.x) and `./launcher.sh --non-interactive
  --print-config`.

## The launch profile for one card

The launcher's detector answers only when two cards are there; with one it falls back to devices 0,1 and two-way
tensor parallelism ([cause](troubleshooting.md#single-card-launcher-defaults-tp2)). A profile of 0.1.x may carry
neither `TP_SIZE` nor `GPU_DEVICES` nor `MODEL_DIR`, so they stand outside. 0.2.x keeps profiles by hardware and
has none for one card: give the same values with `--set`. `MODE` is `normal`: fast and aggressive garble the
output with MTP ([cause](troubleshooting.md#jit-fast-mode-mtp-garbles)). The values are those that a user
reported as the best; `CARD` is `--gpu "RTX 2080 Ti" --vram 22 --free {free} --vllm {vllm}`:

```sh
vllm-doctor fit MODEL CARD {options} --for chat --emit env
```
"""

OUTSIDE = """The same for `vllm serve`. For the fork's own kernels the launcher adds `--dtype half` and, as
`--additional-config`, `{"gdn_prefill_backend":"flashqla_legacy"}`:
"""

TEMPLATE_HEAD = """## The issue

`vllm-doctor report` writes `report.md` under the same headings from what was run: environment, topology,
findings, server, probes, sweep, plots and logs, redacted and fenced. The text below adds what only `fit` knows,
the profile and the fork's own benchmark. Put the measured values where a command stands, and the parts of
`report.md` under theirs.

```sh
vllm-doctor check --deep --save check.json
vllm-doctor smoke --model MODEL --mtp 2 --util 0.8 --max-model-len 8192 --full --out smoke
vllm-doctor warmup --url http://127.0.0.1:8000 --log server.log
vllm-doctor sweep --model MODEL --util 0.8 --sequences 1,2,3,4 --batched 1K,2K,4K --out sweep
vllm-doctor report check.json smoke/smoke.json sweep/sweep.jsonl --log server.log --markdown report.md
python benchmarks/pp_tg.py http://127.0.0.1:8000
```
"""


def issue(fit: Fit) -> str:
    """The text of the issue."""
    if fit.first is None or fit.later is None or fit.profile is None or fit.ceiling_short is None:
        raise ValueError("a card is needed")
    first, later, top = fit.first, fit.later, fit.ceiling_short
    kernels = "\n".join(f"    {name}" for name in R["jit_kernels"])
    rows = [
        ("start check", f"{gib(first.requested_bytes)} of {TOTAL / 2**30:g} GiB asked for, {R['free_gib']} free",
         "`vllm-doctor check`"),
        ("weights, text only, with the MTP head", gib(first.weights_bytes), "log: `Model loading took`"),
        ("KV pool, first start", f"{first.available.low / 2**30:.2f} to {gib(first.available.high)}",
         "log: `Available KV cache memory`"),
        ("KV pool, later starts", f"{later.available.low / 2**30:.2f} to {gib(later.available.high)}",
         "the same, second start"),
        ("KV cache, later starts", f"{later.low.capacity_tokens:,} to {later.high.capacity_tokens:,} tokens",
         "log: `GPU KV cache size`"),
        ("block", f"{fit.pool.block_size} tokens", "log: `Setting attention block size to`"),
        ("shortest prompt that hits the prefix cache", f"{fit.pool.smallest_prefix_hit:,} tokens",
         "`vllm-doctor smoke`: prefix_cache"),
        ("decode ceiling, short context", f"{top.tokens_per_s or 0:.1f} tokens/s at {top.acceptance:.2f} tokens "
        f"a step",
         "`vllm-doctor smoke --full`: mtp_speed"),
        ("PP4096", "not predicted", "`benchmarks/pp_tg.py`"),
        ("TG128", f"at most the ceiling; {BEST['tokens_per_s']} tokens/s over 256 tokens, prefill included (a "
        f"user's report)",
         "`benchmarks/pp_tg.py`"),
        ("acceptance, positions 0 and 1", " / ".join(map(str, R["mtp"]["positions"])) + " (a user's report)",
         "`vllm-doctor smoke`: speculative"),
        ("memory used at the end", "asked for + about 0.5 GiB", "`nvidia-smi`"),
    ]  # fmt: skip
    lines = [
        "### Issue Type", "", "best-practice report", "",
        "### Summary", "",
        "One RTX 2080 Ti with 22 GB (tensor parallel 1), WSL2, Qwen3.5-9B-AWQ with MTP 2 and prefix caching. "
        "The launcher "
        "needs GPU_DEVICES=0 and TP_SIZE=1 from outside. This report gives a profile for one card, what the first "
        "requests compile after the built-in warm-up, and context length against KV cache.", "",
        "### Reproduction Steps", "",
        "1. Topology: `Environment and topology` of report.md, and `nvidia-smi topo -m` (empty under WSL2).",
        "2. Profile and start: see Exact Command. Start twice: the first start has an empty compile cache.",
        "3. Warm up, then measure: `vllm-doctor warmup --url http://127.0.0.1:8000 --log server.log`, "
        "`python benchmarks/pp_tg.py http://127.0.0.1:8000`.",
        "4. Capacity: the context curve, `vllm-doctor sweep --model MODEL --util 0.8`, and one prompt of the "
        "whole context.", "",
        "### Expected", "", "Computed before the start, for vLLM " + VERSION.version + ":", "",
        *table(("figure", "computed", "measured with"), rows),
        "Context length against KV cache (requests = full requests at once), computed for later starts:", "",
        *fenced(curve.text(curve.lines(fit), ascii_only=True)),
        "### Actual", "",
        "*To be measured on the card*: the third column of the table, three runs each, and:", "",
        "- first against later request of each shape, before and after the warm-up: `vllm-doctor warmup --url "
        "http://127.0.0.1:8000 --log server.log`. Reported to be compiled by the first requests:", "",
        *fenced(kernels), "- the tables, plots and logs of report.md.", "",
        "### Exact Command / Profile / Model", "",
        "Model QuantTrio/Qwen3.5-9B-AWQ at revision: *to be filled in*. Profile:", "",
        *fenced(env_text(fit.model, fit.profile), "sh"),
    ]  # fmt: skip
    return "\n".join(lines)


def text() -> str:
    """The whole page."""
    fit = fitted()
    if fit.profile is None:
        raise ValueError("a card is needed")
    out = [HEAD.format(options=OPTIONS, free=R["free_gib"], vllm=R["vllm"])]
    out += fenced(env_text(fit.model, fit.profile), "sh")
    out += [OUTSIDE, *fenced(serve_text(fit.model, fit.profile), "sh"), GAP, TEMPLATE_HEAD]
    out += ["````markdown", issue(fit).rstrip("\n"), "````"]
    return "\n".join(out).rstrip() + "\n"


GAP = """## The warm-up gap

The fork's start-up warm-up leaves kernels of hybrid models out: FlashInfer's runs only when every attention
group is FlashInfer's, which a hybrid never is, its autotuning starts at compute capability 9.0, and the second
model runner's rejects `align`, which prefix caching needs. The first requests compile {count} kernels, with a
warning each and a pause. Until the fork covers them, ask the server once after every start: a prompt under a
block, one above it, several lengths, a decode and a step with drafts. That is what `vllm-doctor warmup --url
URL --log FILE` does, three times, with the first time beside the later ones. How much it saves on this card is
to be measured; on other machines it is in [measurements](measurements/). The gap itself is a change in the
fork's warm-up, not in a profile.
""".format(count=len(R["jit_kernels"]))

if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
