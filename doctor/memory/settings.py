"""From the memory model to one launch profile for one card, every value with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from doctor.catalogue.loader import table
from doctor.memory.layout import KvOptions, UnsupportedOption, default_prefix_caching, lay_out
from doctor.memory.model import Model
from doctor.memory.overhead import Compile
from doctor.memory.predict import Card, Prediction, Start, predict
from doctor.memory.refusals import block_refusal, kv_format_warnings, needs_bfloat16, sequences_refusal
from doctor.memory.roofline import break_even, measured_acceptance
from doctor.memory.start_check import GIB, default_utilization, highest_utilization, recommended_utilization
from doctor.memory.versions import Switches

PURPOSES = ("chat", "long-context", "throughput")
_CONTEXTS = {
    "chat": (32768, 16384, 8192, 4096, 2048),
    "throughput": (8192, 4096, 2048),
}
#: Tokens of context under which drafts are not worth what they cost: a chat with a document does not fit any more.
_LEAST_WITH_DRAFTS = 8192
_SEQUENCES = {"chat": 4, "long-context": 1, "throughput": 64}
_BATCHED = {"chat": 2048, "long-context": 2048, "throughput": 8192}


@dataclass(frozen=True)
class Wish:
    """What the user fixed on the command line; None leaves the choice to the doctor."""

    utilization: float | None = None
    max_model_len: int | None = None
    draft_tokens: int | None = None
    prefix_caching: bool | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str | None = None
    tp: int = 1
    vision: bool = False
    eager: bool = False


@dataclass(frozen=True)
class Profile:
    """A launch profile. ``first`` is its first start (cold compile cache), ``later`` every other one.

    ``reasons`` has one sentence for every setting; ``warnings`` are what the user should know.
    """

    options: KvOptions
    start: Start
    first: Prediction
    later: Prediction
    reasons: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    dtype: str = ""  # --dtype, "" for the model's own


def free_bytes(card: Card) -> int:
    """Free memory as the start check will see it; without a measurement all but a CUDA context."""
    context: int = table("decoding")["context_bytes"]
    return card.free_bytes if card.free_bytes is not None else card.total_bytes - context


def default_start(card: Card, wish: Wish, version: Switches) -> float:
    """The fraction asked for: the user's, else the recommended one."""
    del version
    return wish.utilization if wish.utilization is not None else recommended(card)


def recommended(card: Card) -> float:
    """The highest fraction that leaves half a GiB free at the start; at most vLLM's default where nobody measured.

    A desktop on the same card takes a GiB and more: on a 22 GB card under WSL2 0.95 was refused.
    """
    best = recommended_utilization(card.total_bytes, free_bytes(card))
    return best if card.free_bytes is not None else min(best, default_utilization(None))


def highest(card: Card) -> float:
    """The highest fraction that passes the start check."""
    return highest_utilization(card.total_bytes, free_bytes(card))


def plain_options(model: Model, wish: Wish, version: Switches, card: Card) -> KvOptions:
    """vLLM's own defaults with what the user fixed: the answer to "does it fit as I start it?"."""
    batching = table("vllm_memory")["default_batching"]
    large = card.total_bytes >= batching["large_card_gib"] * GIB and "A100" not in card.name.upper()
    defaults = batching["large" if large else "small"]
    return KvOptions(
        max_model_len=wish.max_model_len or model.shape.max_positions,
        draft_tokens=wish.draft_tokens or 0,
        prefix_caching=wish.prefix_caching,
        kv_cache_dtype=wish.kv_cache_dtype or "auto",
        max_num_seqs=wish.max_num_seqs or defaults["max_num_seqs"],
        max_num_batched_tokens=wish.max_num_batched_tokens or defaults["max_num_batched_tokens"],
        tp=wish.tp,
    )


def both_starts(model: Model, card: Card, start: Start, options: KvOptions,
                version: Switches) -> tuple[Prediction, Prediction]:  # fmt: skip
    """First and later start; the same when nothing is compiled."""
    if start.compiled is Compile.EAGER:
        one = predict(model.shape, model.weights, card, start, options, version)
        return one, one
    cold, warm = (
        predict(model.shape, model.weights, card, replace(start, compiled=c), options, version)
        for c in (Compile.COLD, Compile.WARM)
    )
    return cold, warm


def choose(model: Model, card: Card, purpose: str, wish: Wish, version: Switches) -> Profile:
    """The profile for one purpose. What the user fixed stays as it is."""
    reasons: dict[str, str] = {}
    utilization = default_start(card, wish, version)
    reasons["gpu_memory_utilization"] = _why_utilization(card, wish)
    start = Start(utilization, Compile.EAGER if wish.eager else Compile.WARM, wish.vision)
    options = _base_options(model, purpose, wish, version, reasons)
    options = _with_drafts(model, card, purpose, wish, start, options, version, reasons)
    options = _whole_block(model, wish, options, version, reasons)  # drafts make the block larger
    options = _with_context(model, card, purpose, wish, start, options, version, reasons)
    options = _with_sequences(model, card, purpose, wish, start, options, version, reasons)
    if model.shape.vision is not None:
        reasons["language_model_only"] = (
            "off, as asked" if wish.vision else
            f"frees the image encoder ({model.weights.vision / GIB:.2f} GiB) and its profiling; not for images"
        )  # fmt: skip
    first, later = both_starts(model, card, start, options, version)
    reasons["host"] = "127.0.0.1: this machine only; whoever reaches the port can use the model"
    dtype = ""
    if needs_bfloat16(model.shape, card, options):
        dtype = "bfloat16"
        reasons["dtype"] = "bfloat16: on this card an fp8 cache with float16 is refused (FlashAttention 3)"
    if model.shape.dtype.endswith("bfloat16") and card.capability is not None and card.capability < (8, 0):
        dtype = "half"
        reasons["dtype"] = "half: this card has no bfloat16 (compute capability 8.0), and vLLM refuses to guess"
    warnings = tuple(_warnings(model, card, options, first, later, version, wish.eager, dtype))
    return Profile(options, start, first, later, reasons, warnings, dtype)


def _base_options(model: Model, purpose: str, wish: Wish, version: Switches, reasons: dict[str, str]) -> KvOptions:
    caching = wish.prefix_caching
    if caching is not None:
        reasons["prefix_caching"] = "as given"
    elif model.shape.states and purpose == "throughput":
        caching = False
        reasons["prefix_caching"] = (
            "off: independent requests share no prefix, and every sequence keeps a state less"
        )
    else:
        caching = True
        reasons["prefix_caching"] = "on: a repeated beginning of at least one block is not computed again"
    reasons["kv_cache_dtype"] = "as given" if wish.kv_cache_dtype else "auto: the model's own 16 bits, no loss"
    batched = wish.max_num_batched_tokens or _BATCHED[purpose]
    reasons["max_num_batched_tokens"] = "as given" if wish.max_num_batched_tokens else (
        "larger batches fill the card when many requests wait" if purpose == "throughput"
        else "small batches keep the profiled activations, and so the KV pool, on the card"
    )  # fmt: skip
    options = KvOptions(
        max_model_len=wish.max_model_len or 8192,
        prefix_caching=caching,
        kv_cache_dtype=wish.kv_cache_dtype or "auto",
        max_num_seqs=wish.max_num_seqs or _SEQUENCES[purpose],
        max_num_batched_tokens=batched,
        tp=wish.tp,
    )
    return _whole_block(model, wish, options, version, reasons)


def _why_utilization(card: Card, wish: Wish) -> str:
    if wish.utilization is not None:
        return "as given"
    if card.free_bytes is None and recommended(card) == default_utilization(None):
        return (
            "vLLM's own default: how much is free was not measured, a desktop may use the card; "
            f"{highest(card):.2f} is the highest that can pass the start check"
        )
    return (
        f"{highest(card):.2f} is the highest that passes the start check; half a GiB is left for what vLLM "
        "allocates after it"
    )


def _whole_block(
    model: Model, wish: Wish, options: KvOptions, version: Switches, reasons: dict[str, str]
) -> KvOptions:
    """Keeps what vLLM insists on: with prefix caching a batch holds one whole block."""
    layout = lay_out(model.shape, options, version)
    if not block_refusal(layout, options):
        return options
    if wish.max_num_batched_tokens is None:
        reasons["max_num_batched_tokens"] = f"at least one block ({layout.block_size} tokens), or vLLM refuses"
        return replace(options, max_num_batched_tokens=16 * -(-layout.block_size // 16))
    if wish.prefix_caching is None:
        reasons["prefix_caching"] = (
            f"off: a block of {layout.block_size} tokens would exceed the {wish.max_num_batched_tokens} of a "
            "batch, and vLLM refuses that"
        )
        return replace(options, prefix_caching=False)
    return options


def _with_drafts(model: Model, card: Card, purpose: str, wish: Wish, start: Start, options: KvOptions,
                 version: Switches, reasons: dict[str, str]) -> KvOptions:  # fmt: skip
    if wish.draft_tokens is not None:
        reasons["mtp"] = "as given"
        return replace(options, draft_tokens=wish.draft_tokens)
    if not model.shape.has_mtp or not model.weights.draft:
        reasons["mtp"] = "off: the checkpoint has no MTP head"
        return options
    if purpose == "throughput":
        reasons["mtp"] = "off: with many sequences the card is busy without drafts, and drafts cost KV cache"
        return options
    drafted = replace(options, draft_tokens=2)
    lost = "" if purpose == "long-context" else _lost_context(model, card, wish, start, options, drafted, version)
    if lost:
        reasons["mtp"] = lost
        return options
    gain = measured_acceptance(2) or 1.0
    needed = break_even(model.weights, 2)
    if purpose == "long-context":
        length = wish.max_model_len or model.shape.max_positions
        try:
            first, _ = both_starts(model, card, start, replace(drafted, max_model_len=length), version)
        except UnsupportedOption:
            return options
        if not first.likely.fits:
            reasons["mtp"] = f"off: with drafts a context of {length:,} tokens no longer fits"
            return options
    if needed >= gain:
        reasons["mtp"] = f"off: it pays above {needed:.2f} accepted tokens a step, {gain:.2f} were measured"
        return options
    reasons["mtp"] = (
        f"2 drafts: up to {gain / needed:.2f} times faster at the {gain:.2f} tokens a step that were measured on "
        f"Qwen3.5-9B; pays above {needed:.2f}"
    )
    return drafted


def _lost_context(model: Model, card: Card, wish: Wish, start: Start, plain: KvOptions, drafted: KvOptions,
                  version: Switches) -> str:  # fmt: skip
    """Why drafts are too dear for a chat on this card; "" where they are not."""
    if wish.max_model_len is not None:
        fits = [
            both_starts(model, card, start, _whole_block(model, wish, o, version, {}), version)[0].low.fits
            for o in (plain, drafted)
        ]
        return (
            f"off: with drafts a context of {wish.max_model_len:,} tokens no longer fits"
            if fits[0] > fits[1]
            else ""
        )
    without, with_drafts = (
        _longest_of(model, card, "chat", start, _whole_block(model, wish, o, version, {}), version)[0]
        for o in (plain, drafted)
    )
    if with_drafts >= min(_LEAST_WITH_DRAFTS, without):
        return ""
    return f"off: drafts would leave {with_drafts:,} tokens of context, without them it is {without:,}"


def _longest_of(model: Model, card: Card, purpose: str, start: Start, options: KvOptions,
                version: Switches) -> tuple[int, float | None]:  # fmt: skip
    """The longest of the purpose's context lengths that a first start holds often enough, and how often.

    None for how often: the card is too small for any of them, and the length is the least.
    """
    limit = model.shape.max_positions
    for length in (*(c for c in _CONTEXTS[purpose] if c <= limit), min(1024, limit)):
        first, _ = both_starts(model, card, start, replace(options, max_model_len=length), version)
        if first.low.fits and first.low.max_concurrency >= (4 if purpose == "throughput" else 1.5):
            return length, first.low.max_concurrency
    return length, None


def _with_context(model: Model, card: Card, purpose: str, wish: Wish, start: Start, options: KvOptions,
                  version: Switches, reasons: dict[str, str]) -> KvOptions:  # fmt: skip
    if wish.max_model_len is not None:
        reasons["max_model_len"] = "as given"
        return replace(options, max_model_len=wish.max_model_len)
    limit = model.shape.max_positions
    if purpose == "long-context":
        first, _ = both_starts(model, card, start, replace(options, max_model_len=limit), version)
        length = min(limit, first.low.highest_context)
        if length < limit and wish.kv_cache_dtype is None and (card.capability or (0, 0)) >= (8, 9):
            halved = _whole_block(model, wish, replace(options, kv_cache_dtype="fp8"), version, reasons)
            first, _ = both_starts(model, card, start, replace(halved, max_model_len=limit), version)
            options, length = halved, min(limit, first.low.highest_context)
            reasons["kv_cache_dtype"] = (
                "fp8: half the bytes for each token, or the context is shorter; check quality"
            )
        length = length if length == limit else max(1024, length // 1024 * 1024)
        reasons["max_model_len"] = (
            "the model's own limit, and it fits" if length == limit
            else f"the longest that fits on the first start too; the model could do {limit:,}"
        )  # fmt: skip
        return replace(options, max_model_len=length)
    length, times = _longest_of(model, card, purpose, start, options, version)
    reasons["max_model_len"] = (
        "the smallest useful context; the card is too small for more" if times is None
        else f"holds {times:.1f} full requests on the first start"
    )  # fmt: skip
    return replace(options, max_model_len=length)


def _with_sequences(model: Model, card: Card, purpose: str, wish: Wish, start: Start, options: KvOptions,
                    version: Switches, reasons: dict[str, str]) -> KvOptions:  # fmt: skip
    if wish.max_num_seqs is not None:
        reasons["max_num_seqs"] = "as given"
        return options
    first, _ = both_starts(model, card, start, options, version)
    pool = first.low
    # short requests are the rule: a pool for one full request still serves several
    states = len([g for g in pool.layout.groups if g.kind == "state"]) * max(1, pool.layout.state_slots)
    most = max(1, pool.num_blocks // (states + 1)) if pool.layout.state_mode else _SEQUENCES[purpose]
    count = max(1, min(_SEQUENCES[purpose], most))
    reasons["max_num_seqs"] = {
        "chat": "a few conversations at a time; every further sequence costs graphs, logits and states",
        "long-context": "one long request at a time has the whole pool",
        "throughput": "as many as the pool and the states hold",
    }[purpose]
    return replace(options, max_num_seqs=count)


def _warnings(model: Model, card: Card, options: KvOptions, first: Prediction, later: Prediction,
              version: Switches, eager: bool, dtype: str) -> list[str]:  # fmt: skip
    refused = block_refusal(later.likely.layout, options)
    refused = refused or sequences_refusal(later.likely, options, version, eager=eager)
    out = [refused] if refused else []
    if not dtype:  # else the settings already have the remedy
        out += kv_format_warnings(model.shape, card, options)
    if first.available.likely < later.available.likely - GIB // 4:
        out.append(
            f"the first start has about {(later.available.likely - first.available.likely) / GIB:.1f} GiB less KV "
            "cache than later ones (empty torch.compile cache): start twice before judging"
        )
    if options.draft_tokens:
        out.append("with MTP, min_p and logit_bias have no effect on the drafts: do not rely on them")
        if options.prefix_caching:
            out.append(
                f"with MTP a prompt under {later.likely.smallest_prefix_hit or 0:,} tokens never hits the cache"
            )
    if card.free_bytes is None:
        out.append("free memory was not measured: give --free GiB, or run this on the machine itself")
    return out


def effective_caching(model: Model, options: KvOptions, version: Switches) -> bool:
    """Whether prefix caching will be on."""
    if options.prefix_caching is not None:
        return options.prefix_caching
    return default_prefix_caching(model.shape, version)
