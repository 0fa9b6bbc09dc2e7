"""Writes docs/single-card.md: which models fit on one card, and what to do when memory runs out.

python docs/make_single_card.py    (tests/memory/test_reference_pages.py fails when the page is stale)

Cards, formats and causes are the doctor's own tables; weights are computed from shapes and published recipes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from docs.pages import ROOT, gib, share, table
from doctor.catalogue.loader import cause
from doctor.catalogue.loader import table as data
from doctor.catalogue.render import messages
from doctor.memory.cards import named_cards
from doctor.memory.compatibility import kv_dtype_problem, quantisation_support
from doctor.memory.emit import serve_text
from doctor.memory.fit import Fit, evaluate
from doctor.memory.layout import KvOptions
from doctor.memory.model import Model
from doctor.memory.overhead import Compile
from doctor.memory.predict import Card, Start, predict
from doctor.memory.refusals import sequences_refusal
from doctor.memory.roofline import measured_acceptance
from doctor.memory.settings import Wish, highest, plain_options
from doctor.memory.shape import Quantisation
from doctor.memory.start_check import GIB
from doctor.memory.versions import switches
from tests.memory.recipes import Recipe, recipes

TARGET = ROOT / "docs/single-card.md"
VERSION = switches(None)
#: (name, GB), by memory.
CARDS = (("RTX 2080 Ti", 11), ("RTX 3060", 12), ("RTX 4070", 12), ("RTX 4060 Ti", 16), ("RTX 5060 Ti", 16),
         ("RTX 5080", 16), ("RTX 2080 Ti", 22), ("RTX 3090", 24), ("RTX 4090", 24), ("RTX 5090", 32))  # fmt: skip
EFFICIENCY = data("decoding")["efficiency"]
LINUX: float = data("decoding")["cuda_share"]["linux"]
EAGER = EFFICIENCY["eager"] / EFFICIENCY["graphs"]
LENGTH, BATCH = 8192, 2048
#: Contexts below this are of no use.
LEAST = 2048
#: The cards of the out-of-memory guide, each with a model that is near its edge.
EDGES = (("RTX 2080 Ti", 22, "9b-awq"), ("RTX 4090", 24, "27b-int4"), ("RTX 3060", 12, "4b-awq"))
#: Causes of the out-of-memory guide, in the order in which a start meets them.
CAUSES = ("util-above-free-memory", "gpu-memory-held-by-other-process", "weights-exceed-vram",
          "memory-profiling-race", "no-memory-for-cache-blocks", "kv-cache-too-small-for-context",
          "mamba-align-block-exceeds-batched-tokens", "mamba-cache-blocks-below-max-seqs", "sampler-warmup-oom",
          "cuda-out-of-memory", "cold-compile-inflates-memory-peak")  # fmt: skip
#: Of several wordings of a message the one that current versions print.
CURRENT = "To serve at least one request"
#: Which lever of the guide to begin with.
FIRST_LEVER = {
    "util-above-free-memory": "close what uses the card, then 6 downwards",
    "gpu-memory-held-by-other-process": "end the other process",
    "weights-exceed-vram": "2, 7, then a smaller checkpoint",
    "memory-profiling-race": "wait until the figure is steady, then 3",
    "no-memory-for-cache-blocks": "1, 2, 3, 4, 6, 7",
    "kv-cache-too-small-for-context": "3, 5, then 1, 2, 6, 7, 8, 9",
    "mamba-align-block-exceeds-batched-tokens": "4 upwards, or 8",
    "mamba-cache-blocks-below-max-seqs": "1",
    "sampler-warmup-oom": "1, then 6 downwards",
    "cuda-out-of-memory": "6 downwards, 4, 1",
    "cold-compile-inflates-memory-peak": "3",
}
WSL = ("wsl2-linux-driver-installed", "wsl2-libcuda-not-on-loader-path", "wsl2-uva-unavailable",
       "wsl2-pin-memory-off", "wsl2-expandable-segments", "wsl2-memory-limit-small",
       "wsl2-model-on-windows-drive")  # fmt: skip
COMPILERS = ("gxx12-missing", "cxx-compiler-missing", "gcc-too-new-for-nvcc", "python-headers-missing",
             "nvcc-missing", "ninja-missing")  # fmt: skip
FORK = ("single-card-launcher-defaults-tp2", "jit-fast-mode-mtp-garbles", "bfloat16-unsupported-gpu",
        "triton-jit-first-request")  # fmt: skip


@cache
def card(name: str, size: int) -> Card:
    """A card of the table; its memory as CUDA reports it on Linux."""
    nominal = size * GIB * LINUX
    return min(named_cards(name, None, None), key=lambda c: abs(c.total_bytes - nominal))


def label(name: str, size: int) -> str:
    """A card's name in a table."""
    return f"{name.removeprefix('RTX ')} {size} GB"


@cache
def judged(recipe_id: str, name: str, size: int, mtp: int) -> Fit:
    """One model on one card with the settings of the table."""
    wish = Wish(max_model_len=LENGTH, draft_tokens=mtp, prefix_caching=True, max_num_seqs=1,
                max_num_batched_tokens=BATCH)  # fmt: skip
    return evaluate(recipes()[recipe_id].model, card(name, size), wish, VERSION)


def gate(fit: Fit) -> str:
    """What keeps this model from this card, "" when nothing does."""
    if fit.support.ok is False:
        return "format"
    if fit.later is None or fit.later.likely.highest_context < LEAST:
        return "weights"
    return ""


def kilo(tokens: int) -> str:
    """A context length as people write it."""
    return f"{tokens // 1024}K"


def longest(fit: Fit) -> str:
    """The longest context: on later starts, and marked when a first start could not even hold 8K."""
    if word := gate(fit):
        return word
    if fit.first is None or fit.later is None:
        raise ValueError("a card is needed")
    return kilo(fit.later.likely.highest_context) + ("" if fit.first.likely.fits else "*")


def overview() -> list[str]:
    """Models against cards."""
    rows = []
    for recipe in recipes().values():
        cells = [recipe.title]
        for name, size in CARDS:
            plain, drafted = (longest(judged(recipe.id, name, size, k)) for k in (0, 2))
            cells.append(plain if plain == drafted else f"{plain} / {drafted}")
        rows.append(cells)
    return table(("model", *(label(*c) for c in CARDS)), rows)


def sources() -> list[str]:
    """Where each weight figure comes from."""
    rows = []
    for r in recipes().values():
        w = r.model.weights
        size = r.checkpoint_bytes
        published = "-"
        if r.published_bytes:
            published = f"{r.published_text} ({(size / r.published_bytes - 1) * 100:+.1f} %)"
        resident = gib(w.resident(vision=False, draft=False))
        computed = f"{size / 1e9:.2f} GB, {gib(size)}"
        rows.append((r.title, r.quantised, computed, published, resident, gib(w.vision), gib(w.draft), r.source))
    head = ("model", "quantised", "files, computed", "published", "text only, resident", "image encoder",
            "MTP head", "recipe and size from")  # fmt: skip
    return table(head, rows)


def details(recipe: Recipe) -> list[str]:
    """One model on every card that can hold it."""
    rows = []
    kept_out: dict[str, list[str]] = {}
    for name, size in CARDS:
        plain, drafted = (judged(recipe.id, name, size, k) for k in (0, 2))
        if word := gate(plain):
            kept_out.setdefault(word, []).append(label(name, size))
            continue
        pairs = zip(_cells(plain), _cells(drafted), strict=True)
        rows.append((label(name, size), *(cell for pair in pairs for cell in pair)))
    head = ("card", "8K fits", "MTP 2", "KV pool", "MTP 2", "KV tokens at 8K", "MTP 2", "longest", "MTP 2",
            "ceiling", "MTP 2")  # fmt: skip
    out = [f"### {recipe.title}", ""]
    if rows:
        out += table(head, rows)
    for word, cards in kept_out.items():
        out += [f"Kept out by {word}: {', '.join(cards)}.", ""]
    return out


def _cells(fit: Fit) -> tuple[str, str, str, str, str]:
    first, later, top = fit.first, fit.later, fit.ceiling_short
    if first is None or later is None or top is None:
        raise ValueError("a card is needed")
    if gate(fit):
        return ("no", "-", "-", "-", "-")
    word = {True: "yes", None: "close", False: "no"}[fit.fits]
    low = max(0, first.available.likely) / GIB
    return (
        word, f"{low:.1f} to {later.available.likely / GIB:.1f} GiB", f"{later.likely.capacity_tokens:,}",
        kilo(later.likely.highest_context), f"{top.tokens_per_s:.0f}" if top.tokens_per_s else "-",
    )  # fmt: skip


def formats() -> list[str]:
    """Quantisation formats against compute capabilities."""
    seen: dict[tuple[int, int], list[str]] = {}
    for name, size in CARDS:
        capability = card(name, size).capability
        names = seen.setdefault(capability or (0, 0), [])
        if name.removeprefix("RTX ") not in names:
            names.append(name.removeprefix("RTX "))
    rows = []
    for method, row in data("quantization").items():
        cells = [f"{row['title']} (`{method}`)"]
        for capability in sorted(seen):
            support = quantisation_support(Quantisation(method, 0, 0), capability, VERSION)
            word = "no" if support.ok is False else "yes"
            cells.append(f"{word}: {support.why}")
        rows.append(cells)
    return table(("format", *(f"{a}.{b}: {', '.join(seen[a, b])}" for a, b in sorted(seen))), rows)


# -- out of memory ---------------------------------------------------------------------------------------


def said() -> list[str]:
    """Message, cause, where to begin."""
    known = [(message.replace("`", "'"), answers[0][0]) for _, message, answers in messages()]
    rows = []
    for wanted in CAUSES:
        mine = [m for m, i in known if i == wanted]
        message = next((m for m in mine if CURRENT in m), mine[0] if mine else "")
        shown = f"`{message}`" if message else cause(wanted).decisive[0]
        steps = "; ".join(r.summary for r in cause(wanted).remedies)
        rows.append((shown, f"[{wanted}](troubleshooting.md#{wanted})", FIRST_LEVER[wanted], steps))
    return table(("message", "cause", "levers, in this order", "remedies of the cause"), rows)


Setup = tuple[Start, KvOptions]
#: (what is changed, what it costs, how); each on top of those above it.
LEVERS: tuple[tuple[str, str, Callable[[Card, Start, KvOptions], Setup | None]], ...] = (
    ("1. `--max-num-seqs 4`", "a fifth request waits", lambda c, s, o: (s, replace(o, max_num_seqs=4))),
    ("2. `--language-model-only`", "images", lambda c, s, o: (replace(s, vision=False), o)),
    ("3. start once more: the compile cache is warm now", "nothing",
     lambda c, s, o: (replace(s, compiled=Compile.WARM), o)),
    ("4. `--max-num-batched-tokens 1024`", "slower prefill",
     lambda c, s, o: (s, replace(o, max_num_batched_tokens=1024))),
    ("5. `--max-model-len 8192`", "long requests; the pool stays as it is, one request needs less of it",
     lambda c, s, o: (s, replace(o, max_model_len=LENGTH))),
    ("6. `--gpu-memory-utilization` at the highest that passes the start check", "room for a desktop",
     lambda c, s, o: (replace(s, utilization=highest(c)), o)),
    ("7. MTP off", "speed", lambda c, s, o: (s, replace(o, draft_tokens=0))),
    ("8. `--no-enable-prefix-caching`", "repeated beginnings are computed again",
     lambda c, s, o: (s, replace(o, prefix_caching=False))),
    ("9. `--kv-cache-dtype fp8`", "precision; from compute capability 8.9",
     lambda c, s, o: None if kv_dtype_problem("fp8", c.capability) else (s, replace(o, kv_cache_dtype="fp8"))),
    ("10. `--enforce-eager`", f"speed: {share(EAGER)} of what CUDA graphs reach",
     lambda c, s, o: (replace(s, compiled=Compile.EAGER), o)),
)  # fmt: skip


def ladder(name: str, size: int, recipe_id: str) -> list[str]:
    """Pool and longest context at first, and after each lever, one on top of the other."""
    model, one = recipes()[recipe_id].model, card(name, size)
    options = plain_options(model, Wish(draft_tokens=2, prefix_caching=True), VERSION, one)
    start = Start(VERSION.default_utilization, Compile.COLD, vision=True)
    out = [rung(model, one, start, options)]
    for _, _, change in LEVERS:
        changed = change(one, start, options)
        if changed is None:
            out.append("not on this card")
            continue
        start, options = changed
        out.append(rung(model, one, start, options))
    return out


def rung(model: Model, one: Card, start: Start, options: KvOptions) -> str:
    """One start in a cell."""
    p = predict(model.shape, model.weights, one, start, options, VERSION)
    missing = p.available.likely
    if missing <= 0:
        return f"{-missing / GIB:.2f} GiB short"
    if refused := sequences_refusal(p.likely, options, VERSION, eager=start.compiled is Compile.EAGER):
        word = "refused (sequences)" if p.likely.fits and refused else "refused"
    else:
        word = "starts" if p.likely.fits else "refused"
    return f"{gib(missing)}, up to {kilo(p.likely.highest_context)}: {word}"


def guide() -> list[str]:
    """The levers on three cards."""
    columns = [ladder(*edge) for edge in EDGES]
    first = ("as it is often started", "")
    rows = [(what, cost, *cells) for (what, cost), *cells in zip(
        (first, *((w, c) for w, c, _ in LEVERS)), *columns, strict=True)]  # fmt: skip
    names = [f"{label(n, s)}, {recipes()[r].title}" for n, s, r in EDGES]
    return table(("what is changed", "what it costs", *names), rows)


def profiles() -> list[str]:
    """Settings for the cards of the guide, as `fit --for chat --emit serve` prints them."""
    out = []
    for name, size, recipe_id in EDGES:
        model = replace(recipes()[recipe_id].model, given="MODEL")
        fit = evaluate(model, card(name, size), Wish(), VERSION, purpose="chat")
        if fit.profile is None or fit.later is None:
            raise ValueError("a card is needed")
        pool = fit.later.likely
        without = "" if fit.profile.options.draft_tokens else ", without MTP"
        out += [
            f"{recipes()[recipe_id].title} on {label(name, size)}{without}: "
            f"{pool.capacity_tokens:,} tokens of cache, {pool.max_concurrency:.1f} requests of full length.", "",
            "```sh", *serve_text(model, fit.profile).splitlines(), "```", "",
        ]  # fmt: skip
    return out


def named(ids: tuple[str, ...]) -> list[str]:
    """A list of links to causes."""
    return [f"- [{cause(i).title}](troubleshooting.md#{i})" for i in ids] + [""]


HEAD = """# One card: what fits, and what to do when memory runs out

Written by `docs/make_single_card.py`; the tests fail when it is out of date. Nothing on this page was measured
on the cards named here: it is what `vllm-doctor fit` computes for vLLM {version}. How exact that is:
[memory.md](memory.md). For your own card and model:

```sh
vllm-doctor fit MODEL
vllm-doctor fit MODEL --gpu "RTX 3090" --max-model-len 8K --mtp 2 --max-num-seqs 1
vllm-doctor fit MODEL --gpu "RTX 2080 Ti" --gpu "RTX 3060" --gpu "RTX 4090" --max-model-len 8K
vllm-doctor fit MODEL --for chat --emit serve
```

## Which model on which card

The longest context, without MTP / with MTP 2, on later starts ({limit} is the models' own limit). One sequence,
{batch:,} batched tokens, prefix caching, text only, 16-bit cache, fraction {util}, {share} of the nominal
memory as CUDA reports it on Linux (under WSL2 all of it). Three gates keep a model from a card:

- **weights**: they leave no room for a context of {least:,} tokens;
- **format**: the card cannot run the quantisation ([table](#quantisation-formats));
- **architecture**: unknown ones are refused by name, never guessed; known are
  {families}.

\\* the first start, with an empty compile cache, may be refused at 8K; start once more.
"""

SOURCES = """## Where the weights come from

No weight file was read: the sizes are computed from the model's shape and from what the named checkpoint leaves
at 16 bits. The name does not tell: "AWQ 27B" can be {small} or {large}; AWQ and GPTQ of the same modules have
the same size. Before a download, `vllm-doctor fit` reads the index of the checkpoint itself.
"""

DETAILS = """## Model by model

"KV pool" is the likely value of a first start to that of later ones, "ceiling" the tokens a second that memory
bandwidth allows one stream with a short context (with MTP 2 at the {length:.2f} tokens a step that were
reported for Qwen3.5-9B). Real servers reached {graphs} of it with CUDA graphs and {eager} without.
"""

SETTINGS = "From `vllm-doctor fit MODEL --gpu NAME --for chat --emit serve`.\n"

GUIDE = """## Out of memory

`vllm-doctor explain FILE` finds the message in a log. The levers are those of the second table.
"""

LADDER = """\
What each lever gives, computed, **one on top of the other**: the likely KV pool, the longest context that it
holds, and whether vLLM starts. An RTX 3090 is like the RTX 4090 here but for the fp8 cache. At first: vLLM's
own defaults with MTP 2, images, the model's whole context, an empty compile cache. When all of it is not
enough, only a smaller checkpoint helps.
"""


def families() -> str:
    """The families that are known, in words."""
    from doctor.memory.families import builders

    return f"{len(builders())} architectures ([list](memory.md#compared-with-vllms-own-code))"


def text() -> str:
    """The whole page."""
    made = recipes()
    out = [
        HEAD.format(version=VERSION.version, limit=kilo(262144), batch=BATCH, util=VERSION.default_utilization,
                    share=share(LINUX), least=LEAST, families=families()),
        *overview(),
        SOURCES.format(small=gib(made["27b-int4"].checkpoint_bytes),
                       large=gib(made["27b-awq-mlp"].checkpoint_bytes)),
        *sources(),
        DETAILS.format(length=measured_acceptance(2), graphs=share(EFFICIENCY["graphs"]),
                       eager=share(EFFICIENCY["eager"])),
    ]  # fmt: skip
    for recipe in made.values():
        out += details(recipe)
    out += ["## Settings for a few conversations at a time", "", SETTINGS, *profiles()]
    out += ["## Quantisation formats", "", "By compute capability, from the sources of vLLM.", "", *formats()]
    out += [GUIDE, *said(), LADDER, *guide()]
    out += ["## WSL2", "", *named(WSL), "## g++-12 and other compilers", "", *named(COMPILERS)]
    out += ["## The Turing fork on one card", "", *named(FORK)]
    out += ["What a user measured on one RTX 2080 Ti: [reference](measurements/reference-2080ti.md). A launch",
            "profile and a report for the fork: [fork-report.md](fork-report.md)."]  # fmt: skip
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
