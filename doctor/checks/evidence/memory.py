"""Evidence of the area memory: what vLLM and torch said about GPU memory, with their figures."""

from __future__ import annotations

from itertools import pairwise

from doctor import catalogue
from doctor.checks.evidence.common import (
    HINT,
    LIKELY,
    PROVEN,
    events,
    file_of,
    first,
    gib,
    has,
    last_before,
    near,
    number,
    rule,
    say,
    together,
    wsl_sign,
)
from doctor.checks.evidence.wsl import roomy
from doctor.checks.registry import Result
from doctor.finding import Remedy, Risk
from doctor.memory.start_check import GIB, highest_utilization, recommended_utilization
from doctor.snapshot import Event, Snapshot


@rule("util-above-free-memory")
def util_above_free(s: Snapshot) -> Result:
    """vLLM's start check refused and named free, total, fraction and wanted (proven)."""
    cause = "util-above-free-memory"
    event = first(s, "memory.util-above-free")
    if event is None:
        return None
    free, total, wanted = (number(event.values.get(n)) for n in ("free", "total", "wanted"))
    util = number(event.values.get("util"))
    if free is None or total is None or wanted is None or util is None:
        return say(cause, PROVEN, "gpu_memory_utilization asks for more than is free at start", event)
    highest = highest_utilization(int(total * GIB), int(free * GIB))
    advised = recommended_utilization(int(total * GIB), int(free * GIB))
    text = f"{util:g} x {total:g} = {wanted:g} GiB asked, {free:g} free: {highest:g} starts"
    fixes = [
        Remedy(
            f"Start with --gpu-memory-utilization {advised:g} ({highest:g} is the highest that passes the check)",
            automatic=True, commands=(("vllm", "serve", "MODEL", "--gpu-memory-utilization", f"{advised:g}"),),
            risk=Risk.SAFE, verify=("the server gets past its start check",),
        ),
        *(r for r in catalogue.cause(cause).remedies if not r.automatic),
    ]  # fmt: skip
    if advised < 0.5:
        fixes = [Remedy("Find what holds the memory: nvidia-smi", True, (("nvidia-smi",),), Risk.SAFE), *fixes]
    return say(cause, PROVEN, text, event, fixes=fixes)


#: GiB by which a process may hold more than torch has allocated in it: CUDA's context, what torch keeps reserved.
_OWN_EXTRA = 1.5


def held_by_others(s: Snapshot) -> list[tuple[Event, float]]:
    """What torch's words say that other processes hold: (event, GiB), 1 GiB and more.

    In a container torch does not know its own process among them (another number space): a process that holds
    what torch has allocated is torch's own.
    """
    allocated = {
        e.line: figure
        for e in events(s, "memory.oom")
        if (figure := gib(e, "allocated")) is not None and "this process has" not in e.text
    }
    found = [
        (e, amount) for e in events(s, "memory.held-by") if (amount := gib(e, "held")) is not None and amount >= 1
    ]
    return [(e, a) for e, a in found if not (e.line in allocated and 0 <= a - allocated[e.line] <= _OWN_EXTRA)]


@rule("gpu-memory-held-by-other-process")
def held(s: Snapshot) -> Result:
    """torch's own words or nvidia-smi name another process with much memory (likely); else a hint at most."""
    cause = "gpu-memory-held-by-other-process"
    failed = first(
        s, "memory.util-above-free", "memory.no-blocks", "memory.oom", "memory.oom-old", "memory.profile-race"
    )
    for event, amount in held_by_others(s):
        text = f"process {event.values['pid']} holds {amount:.1f} GiB of the card"
        return say(cause, LIKELY, text, event, failed)
    big = [e for e in events(s, "smi.process") if int(e.values.get("mib", 0)) >= 1024]
    if failed and big:
        text = (
            f"{big[0].values['name']} (pid {big[0].values['pid']}) holds "
            f"{int(big[0].values['mib']) / 1024:.1f} GiB of the card"
        )
        return say(cause, LIKELY, text, big[0], failed)
    refused = first(s, "memory.util-above-free")
    if refused:
        free, total = number(refused.values.get("free")), number(refused.values.get("total"))
        if free is not None and total and free < 0.75 * total:
            text = (
                f"only {free:g} of {total:g} GiB were free at start, so something else holds "
                f"{total - free:.1f} GiB"
            )
            return say(cause, LIKELY if free < 0.5 * total else HINT, text, refused)
    waiting = first(s, "vllm.broadcast-wait")
    if waiting and failed:
        return say(cause, HINT, "workers wait while memory is short", waiting, failed)
    return None


@rule("kv-cache-too-small-for-context")
def kv_too_small(s: Snapshot) -> Result:
    """vLLM refused max_model_len and named both figures (proven)."""
    cause = "kv-cache-too-small-for-context"
    event = first(s, "memory.kv-too-small")
    if event is None:
        return None
    length, capacity = event.values.get("length"), event.values.get("capacity")
    needed, available = event.values.get("needed"), event.values.get("available")
    fits = event.values.get("estimate") or capacity
    if capacity and length:
        text = f"one request of {length} tokens is asked for, the cache holds {capacity}"
    elif needed and available and length:
        text = f"one request of {length} tokens needs {needed} GiB of KV cache, {available} GiB are left"
        text += f": {fits} tokens fit" if fits else ""
    else:
        text = "the cache cannot hold one request of max_model_len"
    fixes = list(catalogue.cause(cause).remedies)
    tokens = number(fits)
    if tokens:
        rounded = max(int(tokens) // 256 * 256, 1)
        fixes[0] = Remedy(
            f"Start with --max-model-len {rounded} or less", True,
            (("vllm", "serve", "MODEL", "--max-model-len", str(rounded)),), Risk.SAFE, ("the server starts",),
        )  # fmt: skip
    return say(cause, PROVEN, text, event, fixes=fixes)


@rule("no-memory-for-cache-blocks")
def no_blocks(s: Snapshot) -> Result:
    """vLLM said that nothing is left for cache blocks (proven)."""
    event = first(s, "memory.no-blocks")
    if event is None:
        return None
    parts = []
    serving = s.serving
    if serving and serving.gpu_memory_utilization is not None:
        parts.append(f"the fraction is {serving.gpu_memory_utilization:g}")
    if serving and serving.weights_gib is not None:
        parts.append(f"the weights take {serving.weights_gib:g} GiB")
    text = "weights and activations take the whole allowance, nothing is left for the KV cache"
    return say("no-memory-for-cache-blocks", PROVEN, text + (f" ({', '.join(parts)})" if parts else ""), event)


def oom_events(s: Snapshot) -> tuple[Event, ...]:
    """Out-of-memory errors of torch, CUDA and cuBLAS; those with figures first."""
    return tuple(sorted(events(s, "memory.oom", "memory.oom-old"), key=lambda e: "free" not in e.values))


def _loading(s: Snapshot, event: Event) -> Event | None:
    """What shows that the error came while the model was being loaded."""
    frame = near(s, event, {"memory.load-frame"}, before=60, after=30)
    if frame:
        return frame
    begun = last_before(s, event, "vllm.loading")
    ended = last_before(s, event, "vllm.loaded", "vllm.kv-ready", "vllm.started")
    if begun and (ended is None or (ended.line or 0) < (begun.line or 0)):
        return begun
    shown = near(s, event, {"vllm.loading"}, before=0, after=8)  # the bar is often written after the error
    return shown if shown and 0 <= int(shown.values.get("percent", 100)) < 100 and ended is None else None


@rule("weights-exceed-vram")
def weights(s: Snapshot) -> Result:
    """Memory ran out while the model was loaded, with almost nothing free (proven); without figures likely.

    Not when the card had room, which is the allocator under WSL2, and not when another process held the memory.
    """
    cause = "weights-exceed-vram"
    if has(s, "memory.sampler-warmup", "memory.no-blocks", "memory.kv-too-small", "memory.util-above-free"):
        return None
    for event in oom_events(s):
        if roomy(event) or near(s, event, {"memory.sampler-frame"}, before=40, after=20):
            continue
        while_loading = _loading(s, event)
        if while_loading is None:
            continue
        free, total = gib(event, "free"), gib(event, "total")
        others = held_by_others(s)
        text = "memory ran out while the weights were loaded"
        if free is not None and total is not None:
            text += f": {free:.2f} of {total:.1f} GiB free"
        almost = free is not None and free < 0.5
        expandable = any(e.values["value"].lower() in ("true", "1") for e in events(s, "wsl.expandable"))
        clear = almost and not others and not (wsl_sign(s) and expandable)
        framed = while_loading.signal == "memory.load-frame"  # that loading never ended is not shown by a text
        sure = together(s, event, while_loading) if clear and framed else LIKELY
        return say(cause, sure, text, event, while_loading)
    return None


@rule("cuda-out-of-memory", start=False)
def plain_oom(s: Snapshot) -> Result:
    """Memory ran out outside of loading and of the sampler's warm-up: likely the fraction leaves too little."""
    if has(s, "memory.sampler-warmup", "memory.no-blocks", "memory.kv-too-small", "memory.util-above-free"):
        return None
    for event in oom_events(s):
        if roomy(event) or _loading(s, event) or near(s, event, {"memory.sampler-frame"}, before=40, after=20):
            continue
        served = last_before(s, event, "vllm.started")
        free, total = gib(event, "free"), gib(event, "total")
        text = "CUDA memory ran out " + ("while the server worked" if served else "during the start")
        if free is not None and total is not None:
            text += f": {free:.2f} of {total:.1f} GiB free"
        return say("cuda-out-of-memory", LIKELY if free is not None else HINT, text, event)
    return None


@rule("sampler-warmup-oom")
def sampler(s: Snapshot) -> Result:
    """vLLM said that the sampler's warm-up ran out of memory (proven); the error with its frame is likely."""
    event = first(s, "memory.sampler-warmup")
    if event:
        text = (
            "memory ran out while the sampler was warmed up with "
            f"{event.values.get('requests', 'its')} dummy requests"
        )
        return say("sampler-warmup-oom", PROVEN, text, event)
    for oom in oom_events(s):
        frame = near(s, oom, {"memory.sampler-frame"}, before=40, after=20)
        if frame and last_before(s, oom, "vllm.kv-ready", "vllm.loaded") and not roomy(oom):
            return say(
                "sampler-warmup-oom",
                LIKELY,
                "memory ran out in the sampler after the cache was allocated",
                oom,
                frame,
            )
    return None


@rule("memory-profiling-race")
def race(s: Snapshot) -> Result:
    """vLLM's assertion that free memory grew while it measured (proven)."""
    event = first(s, "memory.profile-race")
    if event is None:
        return None
    before, after = number(event.values.get("before")), number(event.values.get("after"))
    text = "free memory changed while vLLM measured its own use"
    if before is not None and after is not None:
        unit = 1.0 if "before_unit" in event.values else 2.0**-30
        text = (
            f"free memory went from {before * unit:.2f} to {after * unit:.2f} GiB while vLLM measured its own use"
        )
    return say("memory-profiling-race", PROVEN, text, event)


@rule("mamba-cache-blocks-below-max-seqs")
def mamba_blocks(s: Snapshot) -> Result:
    """vLLM refused max_num_seqs above the number of state blocks, with both figures (proven)."""
    event = first(s, "memory.mamba-blocks")
    if event is None:
        return None
    blocks = event.values["blocks"]
    text = f"max_num_seqs is {event.values['seqs']}, the pool has {blocks} state blocks"
    fix = Remedy(
        f"Start with --max-num-seqs {min(int(blocks.replace(',', '')), 256)} or less", True,
        (("vllm", "serve", "MODEL", "--max-num-seqs", str(min(int(blocks.replace(",", "")), 256))),), Risk.SAFE,
    )  # fmt: skip
    return say("mamba-cache-blocks-below-max-seqs", PROVEN, text, event, fixes=(fix,))


@rule("mtp-shrinks-kv-pool", start=False)
def mtp_shrinks(s: Snapshot) -> Result:
    """Speculative decoding, and the cache too small for one request (a hint)."""
    serving = s.serving
    if not serving or not serving.speculative_tokens:
        return None
    refused = first(s, "memory.kv-too-small")
    if refused:
        text = f"{serving.speculative_tokens} draft tokens make the pool smaller; without them more context fits"
        return say("mtp-shrinks-kv-pool", HINT, text, refused, s.evidence("serving.speculative_tokens"))
    return None


@rule("hybrid-kv-pool-accounting", start=False)
def hybrid_accounting(s: Snapshot) -> Result:
    """A hybrid model printed different token figures for about the same pool (proven)."""
    if not (s.serving and s.serving.hybrid):
        return None
    pools: list[tuple[float, Event]] = []
    for size in events(s, "memory.kv-size"):
        pool = last_before(s, size, "memory.available-kv")
        if pool and file_of(pool) == file_of(size):
            pools.append((float(pool.values["value"]), size))
    for (one, a), (two, b) in pairwise(pools):
        if abs(one - two) < 0.02 and a.values["value"] != b.values["value"]:
            text = f"the same pool of {one:g} GiB printed {a.values['value']} and {b.values['value']} tokens"
            return say("hybrid-kv-pool-accounting", PROVEN, text, a, b)
    return None
