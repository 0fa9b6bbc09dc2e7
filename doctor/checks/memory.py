"""Checks of the area: memory. They judge a host as it is now; figures in a pasted text are of another moment."""

from __future__ import annotations

from collections.abc import Iterable

from doctor.checks.gpu_common import Room, hours, label, position, room, visible
from doctor.checks.registry import check, found
from doctor.facts import GpuProcess
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Skipped
from doctor.memory.start_check import (
    GIB,
    RESERVE_BYTES,
    default_utilization,
    highest_utilization,
    recommended_utilization,
    requested_bytes,
    starts,
)
from doctor.snapshot import Snapshot

_NOT_LIVE = "memory figures in a text belong to another moment"


def _rooms(s: Snapshot) -> tuple[Room, ...] | None:
    """Of every visible card; None when one of them does not tell its memory."""
    rooms = tuple(room(g) for g in visible(s))
    known = tuple(r for r in rooms if r is not None)
    return known if known and len(known) == len(rooms) else None


def _asked(s: Snapshot) -> tuple[float, str]:
    """The fraction that will be asked for, and in which words to name it."""
    if s.serving and s.serving.gpu_memory_utilization is not None:
        value = s.serving.gpu_memory_utilization
        return value, f"the --gpu-memory-utilization {value:g} asked for"
    version = (s.python.vllm if s.python else None) or (s.serving.vllm if s.serving else None)
    value = default_utilization(version)
    of = f"vLLM {version}" if version else "vLLM 0.20 and newer"
    return value, f"the default {value:g} of {of}"


def _evidence(s: Snapshot, r: Room) -> tuple[Evidence, ...]:
    at = f"gpus[{position(s, r.gpu)}]"
    how = r.gpu.cuda_source or "NVML total; CUDA may see less of it"
    rows = [
        s.evidence(f"{at}.{r.total_field}", f"{r.total / GIB:.2f} GiB ({r.total} bytes; {how})"),
        s.evidence(f"{at}.{r.free_field}", f"{r.free / GIB:.2f} GiB ({r.free} bytes)"),
    ]
    if r.gpu.cuda_context_bytes is not None:
        rows.append(s.evidence(f"{at}.cuda_context_bytes", f"{r.gpu.cuda_context_bytes / GIB:.2f} GiB"))
    if r.gpu.processes is not None:
        rows.append(s.evidence(f"{at}.processes", _processes(r.gpu.processes) or "none"))
    if r.gpu.display_active:
        rows.append(s.evidence(f"{at}.display_active", "yes, a display runs on this card"))
    return tuple(rows)


def _context_note(r: Room) -> str:
    if r.with_context:
        return "measured inside a CUDA context, as vLLM measures"
    return (
        f"vLLM's own CUDA context is not yet in this figure (up to {r.context[1] / GIB:.2f} GiB were seen; "
        "check --deep measures it here)"
    )


def _process(p: GpuProcess) -> str:
    parts = [p.name or "unnamed", p.user, f"running for {hours(p.age_s)}" if p.age_s is not None else None]
    held = f"{p.used_bytes / GIB:.2f} GiB" if p.used_bytes is not None else "an amount the driver does not tell"
    return f"PID {p.pid} ({', '.join(x for x in parts if x)}) holds {held}"


def _processes(processes: Iterable[GpuProcess]) -> str:
    shown = list(processes)
    text = "; ".join(_process(p) for p in shown[:4])
    return f"{text}; and {len(shown) - 4} more" if len(shown) > 4 else text


def _holders(s: Snapshot, r: Room) -> str:
    """Who has the memory that is not free, as far as it is known."""
    gone = r.total - r.free
    if r.gpu.processes:
        return _processes(r.gpu.processes)
    reasons = []
    if r.gpu.cuda_context_bytes:
        reasons.append(f"{r.gpu.cuda_context_bytes / GIB:.2f} GiB are the CUDA context of the measuring process")
    if s.is_wsl:
        reasons.append(
            "Windows (desktop, browser, games) holds the rest; under WSL2 no process list says how much"
        )
    elif r.gpu.display_active:
        reasons.append("a display runs on this card")
    elif s.in_container:
        reasons.append("processes outside this container are not visible from here")
    elif r.gpu.processes is None:
        reasons.append("the driver does not tell which processes hold it")
    else:
        reasons.append("no process is listed; the driver keeps a little for itself")
    return f"{gone / GIB:.2f} GiB are taken: {'; '.join(reasons)}"


@check("usable-vram-fraction", needs=("driver", "gpus"), essential=True)
def usable_vram_fraction(s: Snapshot) -> Finding | Skipped | None:
    """Tells the highest and the recommended --gpu-memory-utilization for the memory that is free now.

    Reasoning: vLLM refuses when ceil(total x fraction) is above the free bytes that CUDA reports after
    its own context (read in vLLM 0.19.1 to 0.33). Where free was read outside a context, the largest
    context seen is taken off first. vLLM allocates after profiling too, so the recommended fraction
    leaves half a GiB more. Always fires when memory is known; it is no fault.
    """
    if s.origin != "host":
        return Skipped("usable-vram-fraction", _NOT_LIVE)
    rooms = _rooms(s)
    if rooms is None:
        why = "no card is visible here" if not visible(s) else "the driver does not tell total and free memory"
        return Skipped("usable-vram-fraction", why)
    texts: list[str] = []
    evidence: list[Evidence] = []
    for r in rooms:
        highest, sure = highest_utilization(r.total, r.free), highest_utilization(r.total, r.left)
        recommended = recommended_utilization(r.total, r.left)
        unsure = (
            f" (or {sure:.2f}: vLLM's own CUDA context takes up to {r.context[1] / GIB:.2f} GiB of it, "
            "check --deep measures it)"
            if sure < highest
            else ""
        )
        prefix = f"{label(r.gpu)}: " if len(rooms) > 1 else ""
        texts.append(
            f"{prefix}{r.figures()} free: {highest:.2f} is the highest --gpu-memory-utilization that starts"
            f"{unsure}, "
            + (f"{recommended:.2f} is recommended" if recommended else "which leaves no room to serve")
        )
        evidence += _evidence(s, r)
        evidence.append(Evidence("context", _context_note(r), r.gpu.cuda_source or "NVML"))
        evidence.append(Evidence("highest fraction", f"{highest:.2f}", "ceil(total x fraction) <= free"))
        evidence.append(
            Evidence("recommended fraction", f"{recommended:.2f}", f"{RESERVE_BYTES / GIB:.1f} GiB less than free")
        )
    best = max(rooms, key=lambda r: r.left)
    value = recommended_utilization(best.total, best.left)
    use = Remedy(f"Start vLLM with --gpu-memory-utilization {value:.2f}", risk=Risk.SAFE)
    return found(
        "usable-vram-fraction", Confidence.PROVEN, "; ".join(texts), evidence, fixes=[use] if value else []
    )


@check("util-above-free-memory", needs=("gpus",))
def util_above_free_memory(s: Snapshot) -> Finding | Skipped | None:
    """Finds that the default (or asked for) fraction of vLLM is more than what is free now.

    Signals: CUDA's total and free of each visible card. Proven when even the free figure without
    vLLM's own context is too small; likely when it is that context which no longer fits.
    """
    cause = "util-above-free-memory"
    if s.origin != "host":
        return Skipped(cause, _NOT_LIVE)
    rooms = _rooms(s)
    if rooms is None:
        return Skipped(cause, "total or free memory is not known")
    fraction, words = _asked(s)
    short = [r for r in rooms if not starts(r.total, r.free, fraction)]
    tight = [r for r in rooms if r not in short and not starts(r.total, r.free - r.context[1], fraction)]
    enough = [r for r in rooms if r not in short and r not in tight]
    if enough and (short or tight):
        # vLLM takes one card unless it is told otherwise: another card has room
        r = (short or tight)[0]
        pick = ",".join(str(e.gpu.index) for e in enough)
        fix = Remedy(f"Start vLLM with CUDA_VISIBLE_DEVICES={pick}", risk=Risk.SAFE)
        return found(
            cause,
            Confidence.HINT,
            f"{label(r.gpu)} has {r.figures()} free, too little for {words}; others have room",
            _evidence(s, r),
            fixes=[fix],
        )
    if short:
        return _too_little(s, max(short, key=lambda r: r.free), fraction, words, Confidence.PROVEN)
    if tight:
        return _too_little(s, max(tight, key=lambda r: r.free), fraction, words, Confidence.HINT)
    return None


def _too_little(s: Snapshot, r: Room, fraction: float, words: str, confidence: Confidence) -> Finding:
    wanted = requested_bytes(r.total, fraction)
    highest = highest_utilization(r.total, r.free)
    does = "does" if highest == highest_utilization(r.total, r.left) else "may"
    advised = recommended_utilization(r.total, r.left)
    if confidence is Confidence.PROVEN:
        summary = (
            f"{label(r.gpu)}: {words} wants {wanted / GIB:.2f} GiB and does not start now, "
            f"{r.figures()} are free (short of {(wanted - r.free) / GIB:.2f} GiB); "
            + (f"{highest:.2f} {does}, {advised:.2f} is recommended" if highest else "no fraction does")
        )
    else:
        summary = (
            f"{label(r.gpu)}: {words} wants {wanted / GIB:.2f} GiB of {r.free / GIB:.2f} GiB free, of which "
            f"vLLM's own CUDA context takes a part; {advised:.2f} is safe"
        )
    fixes = []
    if advised:
        why = f"leaves {RESERVE_BYTES / GIB:.1f} GiB for what vLLM allocates after profiling"
        fixes.append(
            Remedy(
                f"Start vLLM with --gpu-memory-utilization {advised:.2f}: {why}", automatic=True, risk=Risk.SAFE
            )
        )
    fixes.append(Remedy(f"Free memory: {_holders(s, r)}"))
    if r.gpu.display_active or s.is_wsl:
        fixes.append(Remedy("Close programs that draw on this card, or drive the display from another GPU"))
    return found("util-above-free-memory", confidence, summary, _evidence(s, r), fixes=fixes)


@check("gpu-memory-held-by-other-process", needs=("gpus",))
def gpu_memory_held_by_other_process(s: Snapshot) -> Finding | Skipped | None:
    """Finds the processes that hold the memory which vLLM's start check misses.

    Proven when the listed processes hold at least the missing amount. Without a process list, less
    than half of the card free is only a hint.
    """
    cause = "gpu-memory-held-by-other-process"
    if s.origin != "host":
        return Skipped(cause, _NOT_LIVE)
    rooms = _rooms(s)
    if rooms is None:
        return Skipped(cause, "total or free memory is not known")
    fraction, words = _asked(s)
    if any(starts(r.total, r.free, fraction) for r in rooms):
        return None
    r = max(rooms, key=lambda r: r.free)
    missing = requested_bytes(r.total, fraction) - r.free
    held = [p for p in r.gpu.processes or () if p.used_bytes]
    highest = highest_utilization(r.total, r.free)
    then = f"{words} does not start" + (f", {highest:.2f} does" if highest else "")
    if held and sum(p.used_bytes or 0 for p in held) >= missing:
        return found(
            cause, Confidence.PROVEN, f"{label(r.gpu)}: {_processes(held)}; {then}", _evidence(s, r),
            fixes=_end(held, missing),
        )  # fmt: skip
    if r.free * 2 < r.total:
        return found(
            cause, Confidence.HINT, f"{label(r.gpu)}: only {r.figures()} are free; {_holders(s, r)}; {then}",
            _evidence(s, r), fixes=[Remedy("Show who uses the card", commands=(("nvidia-smi",),), risk=Risk.SAFE)],
        )  # fmt: skip
    return None


def _end(held: list[GpuProcess], missing: int) -> list[Remedy]:
    """The fewest processes whose end would be enough, shown before anything is ended."""
    chosen: list[GpuProcess] = []
    for process in held:
        chosen.append(process)
        if sum(p.used_bytes or 0 for p in chosen) >= missing:
            break
    pids = [str(p.pid) for p in chosen]
    show = ("ps", "-o", "pid,user,etime,comm", "-p", ",".join(pids))
    return [
        Remedy("Look at what holds the memory", commands=(show,), risk=Risk.SAFE),
        Remedy(
            "End it if it is not needed: a server with Ctrl+C or its own stop command, else",
            commands=(("kill", *pids),),
            verify=("vllm-doctor check --only usable-vram-fraction",),
        ),
    ]


@check("weights-exceed-vram", needs=("gpus", "storage"))
def weights_exceed_vram(s: Snapshot) -> Finding | Skipped | None:
    """Finds that the weight files of --model are larger than the memory of all visible cards together.

    Proven above the total: no setting changes that (CPU offload apart). Above what is free now on a
    single card it is likely only: parts such as the vision tower may be left out.
    """
    cause = "weights-exceed-vram"
    weights = s.storage.model_weights_bytes if s.storage else None
    if weights is None:
        return Skipped(cause, "no model given (check --model), or its weights are not here")
    rooms = _rooms(s)
    if rooms is None:
        return Skipped(cause, "total or free memory is not known")
    total, free = sum(r.total for r in rooms), sum(r.free for r in rooms)
    cards = label(rooms[0].gpu) if len(rooms) == 1 else f"{len(rooms)} cards together"
    evidence = [s.evidence("storage.model_weights_bytes", f"{weights / GIB:.2f} GiB")]
    evidence += [e for r in rooms for e in _evidence(s, r)[:2]]
    if weights >= total:
        summary = f"The weights are {weights / GIB:.2f} GiB, {cards} have {total / GIB:.2f} GiB"
        return found(cause, Confidence.PROVEN, summary, evidence)
    if s.origin == "host" and weights >= free:
        summary = f"The weights are {weights / GIB:.2f} GiB, of {cards} only {free / GIB:.2f} GiB are free now"
        return found(cause, Confidence.LIKELY, summary, evidence)
    return None
