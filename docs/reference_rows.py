"""The rows of docs/measurements/reference-2080ti.md: a reported figure, what the model says, how to measure it."""

from __future__ import annotations

import json
from typing import Any

from docs.pages import ROOT, difference, gib, share
from doctor.memory.compatibility import quantisation_support
from doctor.memory.kv import KvPool, size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.overhead import Compile, overhead
from doctor.memory.predict import Card, Prediction, Start, predict
from doctor.memory.roofline import break_even, ceiling, measured_acceptance
from doctor.memory.start_check import (
    GIB,
    highest_utilization,
    recommended_utilization,
    requested_bytes,
    starts,
)
from doctor.memory.versions import switches
from tests.memory.recipes import recipes

REPORTED = ROOT / "docs/measurements/reference-2080ti.json"
R: dict[str, Any] = json.loads(REPORTED.read_text(encoding="utf-8"))
VERSION = switches(R["vllm"])
BANDWIDTH = R["bandwidth_gbs"] * 1e9
TOTAL = R["total_mib"] << 20
FREE = int(R["free_gib"] * GIB)
CARD = Card("RTX 2080 Ti 22 GB", TOTAL, FREE, (7, 5), BANDWIDTH)
NINE, LARGE = recipes()["9b-awq"].model, recipes()["27b-int4"].model
BATCH = R["best"]["max_num_batched_tokens"]

Row = tuple[str, str, str, str, str]


def nine(gib: float, length: int, *, mtp: int = 0, caching: bool = False) -> KvPool:
    """The 9B's pool of so many GiB."""
    return size_pool(NINE.shape, int(gib * GIB), KvOptions(length, mtp, caching), VERSION)


def large(gib: float, length: int) -> KvPool:
    """The 27B's pool of so many GiB, without MTP and prefix caching."""
    return size_pool(LARGE.shape, int(gib * GIB), KvOptions(length, 0, False), VERSION)


def started(utilization: float, length: int, *, mtp: int, caching: bool, compiled: Compile, batch: int = BATCH,
            sequences: int = 1) -> Prediction:  # fmt: skip
    """One start of the 9B on the card, as the fork of that report would do it."""
    options = KvOptions(length, mtp, caching, max_num_seqs=sequences, max_num_batched_tokens=batch)
    return predict(NINE.shape, NINE.weights, CARD, Start(utilization, compiled), options, VERSION)


def span(p: Prediction) -> str:
    """A predicted pool as a range."""
    a = p.available
    return f"{a.low / GIB:.2f} to {a.high / GIB:.2f} GiB"


def agrees(same: bool) -> str:
    """The difference of a record that is no figure."""
    return "equal" if same else "different"


def start_rows() -> list[Row]:
    """The check that vLLM makes before it loads anything."""
    check = R["start_check"]
    asked = requested_bytes(TOTAL, check["refused"])
    passed = ", ".join(f"{u} asks for {gib(requested_bytes(TOTAL, u))}" for u in check["passed"])
    right = all(starts(TOTAL, FREE, u) for u in check["passed"])
    highest, advised = highest_utilization(TOTAL, FREE), recommended_utilization(TOTAL, FREE)
    command = "`vllm-doctor check`, or on any machine `vllm-doctor fit MODEL CARD --util {}`"
    return [
        (
            f"fraction {check['refused']} is refused", f"{check['asked_gib']} GiB asked, {R['free_gib']} free",
            f"{gib(asked)} asked: {'passes' if starts(TOTAL, FREE, check['refused']) else 'refused'}, "
            f"{(asked - FREE) / 2**20:.0f} MiB short",
            difference(check["asked_gib"], round(asked / GIB, 2)), command.format(check["refused"]),
        ),
        (
            f"{' and '.join(map(str, check['passed']))} pass", "they start",
            f"{passed}: {'both pass' if right else 'refused'}; highest {highest:.2f}, recommended {advised:.2f}",
            agrees(right), command.format(check["passed"][0]),
        ),
    ]  # fmt: skip


def choice_rows() -> list[Row]:
    """Which models may be tried at all."""
    warm, cold = (
        overhead(NINE.shape, NINE.weights, KvOptions(8192, max_num_batched_tokens=BATCH), VERSION, compiled=c,
                 vision=False, capability=CARD.capability).total.high
        for c in (Compile.WARM, Compile.COLD)
    )  # fmt: skip
    room = requested_bytes(TOTAL, 0.94) - nine(7, 8192).needed_bytes
    said = R["largest_weights_gb"]
    support = quantisation_support(NINE.shape.quantisation, CARD.capability, VERSION)
    resident = NINE.weights.resident(vision=False, draft=False)
    return [
        (
            "first gate: weights", f"at most about {said} GB",
            f"at 0.94 one request of 8,192 tokens leaves {(room - warm) / 1e9:.1f} GB for weights, on a first "
            f"start {(room - cold) / 1e9:.1f} GB; the 9B keeps {resident / 1e9:.2f} GB (text only)",
            f"{difference(said * 1e9, room - cold)}, on the safe side", "`vllm-doctor fit MODEL ... CARD`: "
            "column `size`",
        ),
        (
            "second gate: quantisation", "verified in the fork",
            f"{support.title}: {'yes, ' if support.ok else 'no, '}{support.why}", agrees(support.ok is True),
            "the same: column `format`",
        ),
        (
            "third gate: architecture", "known to the fork",
            f"{NINE.shape.architecture}: known, family {NINE.shape.family}", "equal", "the same: column `arch`",
        ),
    ]  # fmt: skip


def speed_rows() -> list[Row]:
    """Decoding against what the memory bandwidth allows."""
    plain = ceiling(NINE.weights, 0, 0, BANDWIDTH)
    drafted = ceiling(NINE.weights, 0, 0, BANDWIDTH, draft_tokens=2, acceptance=R["mtp"]["mean_length"])
    full = ceiling(NINE.weights, nine(9, 262144).layout.kept_token_bytes, 262144, BANDWIDTH, eager=True)
    large_one = ceiling(LARGE.weights, 0, 0, BANDWIDTH)
    top, top_drafted, top_full = (c.tokens_per_s or 0.0 for c in (plain, drafted, full))
    top_large = large_one.tokens_per_s or 0.0
    said, part = R["ceiling_tokens_per_s"], R["eager_share"]
    eager, best, m27, long = said * part, R["best"]["tokens_per_s"], R["m27"], R["long"]
    w = NINE.weights
    speed = "`vllm-doctor smoke --model MODEL --full`: decode speed with and without MTP"
    return [
        (
            "decode ceiling, no MTP", f"{R['bandwidth_gbs']} / {R['ceiling_gb']} = {said} tokens/s",
            f"{plain.step_bytes / 1e9:.2f} GB are read a token: {top:.1f} tokens/s", difference(said, top),
            "`vllm-doctor fit MODEL CARD --mtp 0 --max-model-len 8K`: row `decoding`",
        ),
        (
            "eager decoding", f"{share(part)} of that, {eager:.0f} tokens/s", f"{eager / top:.2f} of {top:.1f}",
            "0.60 is what the model takes for eager servers", "`vllm-doctor smoke --model MODEL --mtp 0 -- "
            "--enforce-eager`",
        ),
        (
            "best setting (8K, 0.80, graphs, prefix caching, MTP 2)", f"{best} tokens/s",
            f"ceiling {top_drafted:.1f} at {R['mtp']['mean_length']} tokens a step and "
            f"{drafted.step_bytes / 1e9:.2f} GB ({w.decode_read / 1e9:.2f} + 2 x "
            f"{w.draft_read / 1e9:.2f})", f"{best / top_drafted:.2f} of it", speed,
        ),
        (
            "what MTP 2 brings", f"{best / eager:.2f} times the eager speed",
            f"{R['mtp']['mean_length'] / break_even(w, 2):.2f} times at equal efficiency; pays above "
            f"{break_even(w, 2):.2f} tokens a step", "the rest is CUDA graphs", speed,
        ),
        (
            "27B, eager, 4K", f"{m27['tokens_per_s']} tokens/s, {share(m27['share'])} of "
            f"{m27['ceiling_tokens_per_s']}",
            f"{large_one.step_bytes / 1e9:.2f} GB a token (all projections 4 bit): {top_large:.1f} tokens/s, so "
            f"{m27['tokens_per_s'] / top_large:.2f} of "
            f"it", f"ceiling {difference(m27['ceiling_tokens_per_s'], top_large)}",
            "`vllm-doctor fit MODEL27 CARD --mtp 0 --max-model-len 4K`; `vllm-doctor smoke --model MODEL27`",
        ),
        (
            "speed at 262,144 tokens", f"{long['tokens_per_s']} tokens/s, {share(long['slower'])} slower",
            f"short prompt: {long['tokens_per_s'] / top:.2f} of the ceiling; a filled context reads "
            f"{full.kv_bytes / 1e9:.1f} GB of cache a token: ceiling {top_full:.1f}, about "
            f"{full.likely_tokens_per_s or 0:.0f} to be expected eager",
            "measured with a short prompt", "to be measured with a prompt of full length against "
            "`vllm-doctor smoke --model MODEL --mtp 0 --max-model-len 262144 --util 0.9`",
        ),
    ]  # fmt: skip


def kv_rows() -> list[Row]:
    """Cache sizes."""
    pool, m27, long = R["pool"], R["m27"], R["long"]
    at_8k, at_262k = nine(pool["gib"], 8192), nine(pool["gib"], 262144)
    layout, drafted = at_8k.layout, nine(pool["gib"], 8192, mtp=2).layout
    head = NINE.shape.attention[0]
    product = 1
    for factor in R["kv_factors"]:
        product *= factor
    logged = at_262k.layout.blocks_per_request * layout.bytes_per_block / 262144
    accounting = pool["gib"] * GIB - at_8k.capacity_tokens * layout.kept_token_bytes
    states = len([g for g in layout.groups if g.kind == "state"]) * layout.bytes_per_block
    warm = started(0.8, 8192, mtp=0, caching=False, compiled=Compile.WARM)
    grown = pool["gib"] + (long["utilization"] - 0.8) * TOTAL / GIB
    long_pool, long_align = nine(grown, 262144), nine(grown, 262144, caching=True)
    no_drafts = started(0.9, 262144, mtp=0, caching=False, compiled=Compile.COLD)
    drafts = started(0.9, 262144, mtp=2, caching=True, compiled=Compile.WARM)
    before, asked = TOTAL - FREE, requested_bytes(TOTAL, 0.9)
    used = (before + asked) / 2**20
    four, eight = large(m27["pool_gib"], 4096), large(m27["pool_gib"], 8192)
    per_token = m27["pool_gib"] * GIB / four.capacity_tokens / 1024
    need = eight.layout.blocks_per_request * eight.layout.bytes_per_block
    exact = "`vllm-doctor fit {} --vllm 0.21.0 --available-kv {} --max-model-len {} --mtp 0 --no-prefix-caching`"
    return [
        (
            "KV cache a token", f"{R['kv_kb_per_token']} KB = {' x '.join(map(str, R['kv_factors']))} B",
            f"{len(NINE.shape.attention)} layers x 2 x {head.kv_heads} heads x {head.head_dim} x 2 B = "
            f"{layout.kept_token_bytes:,} B (their product: {product:,}); with MTP "
            f"{len(NINE.shape.attention) + 1} layers, {drafted.kept_token_bytes:,} B; what is logged at "
            f"262,144: {logged / 1024:.2f} KiB",
            difference(R["kv_kb_per_token"], logged / 1024), exact.format("MODEL", pool["gib"], 262144),
        ),
        (
            "KV cache at 8K, 0.80", f"{pool['gib']} GiB, {pool['tokens']:,} tokens",
            f"{pool['gib']} GiB make {at_8k.num_blocks} blocks, {at_8k.capacity_tokens:,} tokens with prefix "
            f"caching off ({nine(pool['gib'], 8192, caching=True).capacity_tokens:,} with it); the pool itself "
            f"was predicted as {span(warm)} (later "
            f"starts)", f"tokens {difference(pool['tokens'], at_8k.capacity_tokens)}; pool "
            f"{difference(pool['gib'] * GIB, warm.available.likely)} from the likely "
            f"value", exact.format("MODEL", pool["gib"], 8192),
        ),
        (
            "GDN overhead at 8K", f"about {R['gdn_gb']} GB",
            f"{gib(pool['gib'] * GIB)} less {at_8k.capacity_tokens:,} x {layout.kept_token_bytes:,} B = "
            f"{accounting / GIB:.3f} GiB, accounting of the log line; one real request keeps {states / 1e6:.0f} "
            f"MB of states", "no such pool", exact.format("MODEL", pool["gib"], 8192),
        ),
        (
            "262K at 0.90 starts", "starts",
            f"pool {grown:.2f} GiB ({pool['gib']} and 0.1 of the card) = {long_pool.num_blocks} blocks; needs "
            f"{long_pool.layout.blocks_per_request}, with prefix caching "
            f"{long_align.layout.blocks_per_request}: "
            f"{'starts' if long_pool.fits and long_align.fits else 'refused'}; from the shape alone "
            f"{span(no_drafts)} on a first start, so `fit` says {'fits' if no_drafts.low.fits else 'close'}",
            agrees(long_pool.fits and long_align.fits),
            "`vllm-doctor fit MODEL CARD --util 0.9 --max-model-len 262144 --mtp 0`",
        ),
        (
            "262K with MTP 2", "no room",
            f"needs {drafts.likely.layout.blocks_per_request} blocks = {gib(drafts.likely.needed_bytes)}, there "
            f"are {span(drafts)} on later starts: {'starts' if drafts.high.fits else 'refused'}; the longest is "
            f"{drafts.likely.highest_context:,}", agrees(not drafts.high.fits),
            "`vllm-doctor fit MODEL CARD --util 0.9 --max-model-len 262144 --mtp 2 --prefix-caching`",
        ),
        (
            "memory used at 262K", f"{long['used_mib']:,} of {R['total_mib']:,} MiB",
            f"{before / 2**20:.0f} used before + {asked / 2**20:,.0f} asked for = {used:,.0f} MiB; "
            f"{long['used_mib'] - used:.0f} MiB come after profiling", difference(long["used_mib"], used),
            "`vllm-doctor smoke --model MODEL`: memory before and after",
        ),
        (
            "27B cache a token", f"{m27['kv_kb_per_token']} KB",
            f"{m27['pool_gib']} GiB / {four.capacity_tokens:,} tokens = {per_token:.1f} KiB, at 4K only; at 8K "
            f"the same pool is {eight.capacity_tokens:,} tokens, "
            f"{m27['pool_gib'] * GIB / eight.capacity_tokens / 1024:.1f} KiB; the floor is "
            f"{four.layout.kept_token_bytes / 1024:.0f} KiB",
            difference(m27["kv_kb_per_token"], per_token), exact.format("MODEL27", m27["pool_gib"], 4096),
        ),
        (
            "27B, one request of 8K", f"about {m27['need_8k_gb']} of {m27['pool_gib']} GB",
            f"{eight.layout.blocks_per_request} blocks = {gib(need)} ({need / 1e9:.2f} GB), "
            f"{eight.max_concurrency:.2f} requests", difference(m27["need_8k_gb"], need / 1e9),
            exact.format("MODEL27", m27["pool_gib"], 8192),
        ),
    ]  # fmt: skip


def cache_rows() -> list[Row]:
    """Prefix caching and drafts."""
    p, m = R["prefix"], R["mtp"]
    step = nine(7, 8192, caching=True).prefix_hit_step or 0
    with_mtp = nine(7, 8192, mtp=2, caching=True)
    step_mtp = with_mtp.prefix_hit_step or 0
    hit_mtp = (p["document_tokens"] // step_mtp - 1) * step_mtp
    hit = p["document_tokens"] // step * step
    positions = m["positions"]
    length = measured_acceptance(2) or 0.0
    smoke = "`vllm-doctor smoke --model MODEL --mtp {}`: probe `{}`"
    return [
        (
            "cached tokens of a 6.9K document", f"{p['cached_tokens']:,} = {p['cached_tokens'] // step} x {step}",
            f"steps of {step} without MTP: {hit:,}; with MTP 2 steps of {step_mtp} and one block less: "
            f"{hit_mtp:,}. So MTP was off", difference(p["cached_tokens"], hit), smoke.format(0, "prefix_cache"),
        ),
        (
            "time, cold and hot", f"{p['cold_s']} s and {p['hot_s']} s, 4.6 times",
            f"{p['cold_s'] / p['hot_s']:.2f} times; {p['cached_tokens'] / (p['cold_s'] - p['hot_s']):,.0f} "
            f"tokens/s of prefill saved; prefill speed is not "
            f"predicted", "arithmetic", smoke.format(0, "prefix_cache"),
        ),
        (
            "shortest prompt that hits", "prompts under one block never do",
            f"from {step + 1} tokens on, with MTP 2 from {with_mtp.smallest_prefix_hit:,}", "equal without MTP",
            "`vllm-doctor fit MODEL CARD --prefix-caching --mtp 2`: row `prefix caching`",
        ),
        (
            "engine hit rate", f"{p['hit_rate'] * 100:.1f} %", "depends on the requests; not "
            "predicted", "not comparable",
            "`vllm-doctor smoke --url URL`: counters of `/metrics`",
        ),
        (
            "draft acceptance", f"{m['acceptance'] * 100:.1f} % ({positions[0]} / {positions[1]})",
            f"({positions[0]} + {positions[1]}) / 2 = {sum(positions) / 2 * 100:.1f} %",
            difference(m["acceptance"], sum(positions) / 2), smoke.format(2, "speculative"),
        ),
        (
            "mean accepted length", f"{m['mean_length']} of 3", f"1 + {positions[0]} + {positions[1]} = "
            f"{length:.3f}",
            difference(m["mean_length"], round(length, 2)), smoke.format(2, "speculative"),
        ),
        (
            "limits of MTP", "min_p and logit_bias have no effect", "known cause: "
            "[mtp-drops-logit-bias-min-p](../troubleshooting.md#mtp-drops-logit-bias-min-p)", "equal",
            smoke.format(2, "speculative"),
        ),
    ]  # fmt: skip
