"""Puts the parts together: one model on one card, judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from doctor.memory import calibration
from doctor.memory.compatibility import Support, quantisation_support
from doctor.memory.kv import KvPool, size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.model import Model
from doctor.memory.overhead import Compile
from doctor.memory.predict import Card, Prediction, Start
from doctor.memory.refusals import block_refusal, kv_format_warnings, sequences_refusal
from doctor.memory.roofline import Ceiling, break_even, ceiling
from doctor.memory.settings import Profile, Wish, both_starts, choose, highest, plain_options, recommended
from doctor.memory.start_check import starts
from doctor.memory.versions import Switches


@dataclass(frozen=True)
class Draft:
    """What MTP costs and brings for this model, at ``tokens`` drafts."""

    tokens: int
    kv_tokens_without: int
    kv_tokens_with: int
    weights_bytes: int
    break_even: float
    speedup: float | None


@dataclass(frozen=True)
class Fit:
    """The answer for one model on one card.

    ``fits``: None when it lies within the uncertainty of the prediction. ``pool`` is the one to report:
    exact for a given pool, else that of a start with a warm compile cache. ``first`` and ``later`` are None
    without a card.
    """

    model: Model
    card: Card | None
    version: Switches
    options: KvOptions
    start: Start | None
    support: Support
    fits: bool | None
    why: str
    pool: KvPool
    first: Prediction | None = None
    later: Prediction | None = None
    ceiling_short: Ceiling | None = None
    ceiling_full: Ceiling | None = None
    draft: Draft | None = None
    profile: Profile | None = None
    max_utilization: float | None = None
    recommended_utilization: float | None = None
    warnings: tuple[str, ...] = ()  # about the start that was judged, not about the settings


def evaluate(
    model: Model,
    card: Card | None,
    wish: Wish,
    version: Switches,
    *,
    available_bytes: int | None = None,
    purpose: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Fit:
    """Judges one model on one card, or (``available_bytes``) the KV pool alone."""
    support = quantisation_support(model.shape.quantisation, card.capability if card else None, version)
    if card is None:
        if available_bytes is None:
            raise ValueError("a card or a pool is needed")
        options = _pool_options(model, wish)
        pool = size_pool(model.shape, available_bytes, options, version)
        why = pool.refusal or block_refusal(pool.layout, options)
        why = why or sequences_refusal(pool, options, version, eager=wish.eager)
        return Fit(model, None, version, options, None, support, not why, why, pool,
                   draft=_draft(model, available_bytes, available_bytes, options, version))  # fmt: skip
    profile = choose(model, card, purpose or "chat", wish, version)
    if purpose:
        options, start = profile.options, profile.start
        first, later = profile.first, profile.later
    else:
        options = plain_options(model, wish, version, card)
        compiled = Compile.EAGER if wish.eager else Compile.WARM
        start = Start(wish.utilization or version.default_utilization, compiled, wish.vision)
        first, later = both_starts(model, card, start, options, version)
    first = _calibrated(first, model, card, start, options, version, Compile.COLD, env)
    later = _calibrated(later, model, card, start, options, version, Compile.WARM, env)
    if purpose:
        profile = replace(profile, first=first, later=later)
    pool = later.likely if available_bytes is None else size_pool(model.shape, available_bytes, options, version)
    fits, why = _verdict(card, start, first, later, support, pool if available_bytes is not None else None)
    if fits is not False:
        pools = (first.low, later.high) if available_bytes is None else (pool, pool)
        refused, least = _refused(pools, options, version, wish.eager)
        fits, why = (fits, why) if not refused else (False if least else None, refused)
    short, full = _ceilings(model, card, options, pool, wish.eager)
    return Fit(
        model, card, version, options, start, support, fits, why, pool, first, later, short, full,
        _draft_on_card(model, card, start, options, version),
        profile, highest(card), recommended(card),
        () if purpose else tuple(kv_format_warnings(model.shape, card, options)),
    )  # fmt: skip


def _pool_options(model: Model, wish: Wish) -> KvOptions:
    return KvOptions(
        max_model_len=wish.max_model_len or model.shape.max_positions,
        draft_tokens=wish.draft_tokens or 0,
        prefix_caching=wish.prefix_caching,
        kv_cache_dtype=wish.kv_cache_dtype or "auto",
        max_num_seqs=wish.max_num_seqs or 1,
        max_num_batched_tokens=wish.max_num_batched_tokens or 2048,
        tp=wish.tp,
    )


def _calibrated(
    prediction: Prediction,
    model: Model,
    card: Card,
    start: Start,
    options: KvOptions,
    version: Switches,
    compiled: Compile,
    env: Mapping[str, str] | None,
) -> Prediction:
    """With what earlier starts on this card measured: exact for the same batch, moved for a similar one."""
    if env is None:
        return prediction
    known = calibration.load(env, card, version.version)
    if not known:
        return prediction
    state = Compile.EAGER if start.compiled is Compile.EAGER else compiled
    key = calibration.batch_key(model.shape, options, state, start.vision)
    if key in known:
        return calibration.applied(prediction, known[key], model.shape, options, version)
    near = calibration.nearest(known, key)
    return prediction if near is None else calibration.shifted(prediction, near, model.shape, options, version)


def _verdict(card: Card, start: Start, first: Prediction, later: Prediction, support: Support,
             given: KvPool | None) -> tuple[bool | None, str]:  # fmt: skip
    if support.ok is False:
        return False, support.why
    if given is not None:
        return given.fits, given.refusal
    if card.free_bytes is not None and not starts(card.total_bytes, card.free_bytes, start.utilization):
        return False, (
            f"the start check fails: {start.utilization:g} of {card.total_bytes / 2**30:.2f} GiB is more than the "
            f"{card.free_bytes / 2**30:.2f} GiB that are free; at most {highest(card):.2f} passes"
        )
    if first.low.fits:
        return True, ""
    if later.high.fits and not first.likely.fits and later.likely.fits:
        return None, (
            "it fits once the compile cache is warm; the first start has less memory and may refuse, but vLLM "
            "keeps what it compiled before that check: start it once more"
        )
    if later.high.fits:
        return None, "it is within the uncertainty of the prediction"
    if later.available.high <= 0:
        return False, f"the weights alone exceed the memory asked for by {-later.available.high / 2**30:.2f} GiB"
    return False, later.high.refusal + _shorter(first.low.highest_context)


def _shorter(longest: int) -> str:
    return f"; --max-model-len {longest // 1024 * 1024} would fit" if longest >= 1024 else ""


def _refused(pools: tuple[KvPool, KvPool], options: KvOptions, version: Switches, eager: bool) -> tuple[str, bool]:
    """What vLLM refuses beside memory, and whether it does so with the larger of two possible pools as well."""
    if block := block_refusal(pools[1].layout, options):
        return block, True
    certain = sequences_refusal(pools[1], options, version, eager=eager)
    return certain or sequences_refusal(pools[0], options, version, eager=eager), bool(certain)


def _ceilings(model: Model, card: Card, options: KvOptions, pool: KvPool, eager: bool) -> tuple[Ceiling, Ceiling]:
    kept = pool.layout.kept_token_bytes

    def at(context: int) -> Ceiling:
        drafts, tp = options.draft_tokens, options.tp
        return ceiling(model.weights, kept, context, card.bandwidth, draft_tokens=drafts, eager=eager, tp=tp)

    return at(0), at(options.max_model_len)


def _draft(model: Model, without: int, with_drafts: int, options: KvOptions, version: Switches) -> Draft | None:
    if not model.shape.has_mtp:
        return None
    from doctor.memory.roofline import measured_acceptance

    tokens = options.draft_tokens or 2
    plain = size_pool(model.shape, without, replace(options, draft_tokens=0), version)
    drafted = size_pool(model.shape, with_drafts, replace(options, draft_tokens=tokens), version)
    needed = break_even(model.weights, tokens)
    gain = measured_acceptance(tokens)
    return Draft(tokens, plain.capacity_tokens, drafted.capacity_tokens, model.weights.draft, needed,
                 gain / needed if gain else None)  # fmt: skip


def _draft_on_card(model: Model, card: Card, start: Start, options: KvOptions, version: Switches) -> Draft | None:
    if not model.shape.has_mtp:
        return None
    tokens = options.draft_tokens or 2
    pools = [max(0, both_starts(model, card, start, replace(options, draft_tokens=k), version)[1].available.likely)
             for k in (0, tokens)]  # fmt: skip
    return _draft(model, pools[0], pools[1], replace(options, draft_tokens=tokens), version)
