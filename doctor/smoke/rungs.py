"""The changes of the ladder, and which of them are tried for which cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from doctor.memory.fit import Fit
from doctor.memory.predict import Card
from doctor.memory.start_check import highest_utilization, recommended_utilization
from doctor.serve.command import Settings, without_option, without_switch
from doctor.smoke.probes import FAIL

if TYPE_CHECKING:
    from doctor.smoke.result import SmokeResult

#: Tokens; below this no prompt of the probes holds two blocks.
SHORTEST_CONTEXT = 2048
#: What a lower fraction is lowered by, and how low it goes: a twentieth of the largest card holds a small model.
UTILIZATION_STEP = 0.05
LOWEST_UTILIZATION = 0.05

#: vLLM says so when the KV cache cannot hold one request (0.19 to 0.32).
_ESTIMATE = re.compile(r"the estimated maximum model length is (\d+)")


@dataclass(frozen=True)
class Known:
    """What says how far a change has to go: the card as it is now, the prediction, vLLM's own estimate."""

    card: Card | None = None
    fit: Fit | None = None
    longest: int | None = None  # tokens


Change = Callable[[Settings, Known], Settings | None]


@dataclass(frozen=True)
class Rung:
    """One change. ``apply`` gives None when it would change nothing; ``gives_up`` is what it costs, in words.

    ``levels``: how often it can be applied on top of itself.
    """

    name: str
    title: str
    gives_up: str
    apply: Change
    levels: int = 1


def _lower(settings: Settings, known: Known) -> Settings | None:
    """Less of the card: what is free now says how much, when it is known."""
    wanted = settings.utilization - UTILIZATION_STEP
    if known.card is not None and known.card.free_bytes is not None:
        total, free = known.card.total_bytes, known.card.free_bytes
        wanted = min(wanted, recommended_utilization(total, free) or highest_utilization(total, free))
    wanted = round(wanted, 2)
    if wanted < LOWEST_UTILIZATION:
        return None
    return replace(settings, utilization=wanted, extra=without_option(settings.extra, "--gpu-memory-utilization"))


def _shorter(settings: Settings, known: Known) -> Settings | None:
    """What vLLM named, else what surely fits by the prediction, else half."""
    predicted = known.fit.first.low.highest_context if known.fit and known.fit.first else None
    length = next((n for n in (known.longest, predicted) if n and n < settings.max_model_len), None)
    length = (length or settings.max_model_len // 2) // 1024 * 1024
    if length < SHORTEST_CONTEXT:
        return None
    return replace(settings, max_model_len=length, extra=without_option(settings.extra, "--max-model-len"))


def _fewer(settings: Settings, _: Known) -> Settings | None:
    """One request at a time, in batches that hold one block of a hybrid model."""
    changed = replace(
        settings,
        max_num_seqs=1,
        max_num_batched_tokens=min(settings.max_num_batched_tokens or SHORTEST_CONTEXT, SHORTEST_CONTEXT),
        extra=without_option(without_option(settings.extra, "--max-num-seqs"), "--max-num-batched-tokens"),
    )
    return None if changed == settings else changed


def _no_caching(settings: Settings, _: Known) -> Settings | None:
    extra = without_switch(settings.extra, "--enable-prefix-caching")
    return replace(settings, caching=False, extra=extra) if settings.prefix_caching else None


def _no_mtp(settings: Settings, _: Known) -> Settings | None:
    if not settings.draft_tokens:
        return None
    return replace(settings, mtp=0, extra=without_option(settings.extra, "--speculative-config"))


def _eager(settings: Settings, _: Known) -> Settings | None:
    extra = without_switch(settings.extra, "--enforce-eager")
    return None if settings.enforce_eager else replace(settings, eager=True, extra=extra)


RUNGS: dict[str, Rung] = {
    r.name: r
    for r in (
        Rung("utilization", "a lower memory fraction", "KV cache: less of the card is asked for", _lower, 3),
        Rung("context", "a shorter context", "context: longer requests are refused", _shorter, 3),
        Rung(
            "sequences", "one sequence at a time, small batches",
            "requests at the same time: further ones wait", _fewer,
        ),
        Rung(
            "prefix", "prefix caching off",
            "prefix caching: a repeated beginning is computed again", _no_caching,
        ),
        Rung("mtp", "MTP off", "speculative decoding: every token takes a step of its own", _no_mtp),
        Rung("eager", "eager mode", "CUDA graphs and torch.compile: decoding is slower", _eager),
    )
}  # fmt: skip

#: Cause -> rungs in the order they are tried. A cause that is not here goes by its area, see AREAS.
CAUSES: dict[str, tuple[str, ...]] = {
    "util-above-free-memory": ("utilization",),
    "gpu-memory-held-by-other-process": ("utilization",),
    "memory-profiling-race": ("utilization",),
    "cuda-out-of-memory": ("utilization", "sequences", "context", "eager"),
    "sampler-warmup-oom": ("sequences", "utilization"),
    "kv-cache-too-small-for-context": ("context", "sequences", "mtp"),
    "no-memory-for-cache-blocks": ("sequences", "mtp", "eager"),
    "weights-exceed-vram": ("mtp",),
    "mamba-cache-blocks-below-max-seqs": ("sequences", "mtp"),
    "mamba-align-block-exceeds-batched-tokens": ("prefix", "mtp"),
    "mamba-cache-mode-all-unsupported": ("prefix",),
    "mtp-prefix-cache-corrupts-output": ("prefix", "mtp"),
    "prefix-cache-corrupts-output": ("prefix",),
    "prefix-cache-not-hitting": ("prefix",),
    "prefix-cache-miscounts": ("prefix",),
    "mtp-corrupts-output": ("mtp",),
    "mtp-not-drafting": ("mtp",),
    "mtp-weights-missing": ("mtp",),
    "mtp-slower-than-baseline": ("mtp",),
    "mtp-gdn-kernel-launch-failure": ("mtp",),
    "jit-fast-mode-mtp-garbles": ("eager", "mtp"),
    "output-not-repeatable": ("prefix", "mtp", "eager"),
    "server-died-while-loading": ("eager", "mtp", "prefix", "sequences", "context"),
    "server-never-healthy": ("eager", "mtp", "sequences"),
    "server-died-on-request": ("prefix", "mtp", "eager", "sequences"),
    "server-gives-no-answer": ("prefix", "mtp", "eager"),
    "triton-shared-memory-exceeded": ("mtp", "prefix", "eager"),
    # nothing that a server is started with changes these
    "serve-arguments-refused": (),
    "port-in-use": (),
}
#: A compiler that fails is asked for less without graphs and torch.compile.
AREAS: dict[str, tuple[str, ...]] = {"compiler": ("eager", "mtp"), "model": ("mtp", "prefix")}


def causes(result: SmokeResult) -> frozenset[str]:
    """What failed: ids of findings that block or belong to a failed probe, else names of failed probes."""
    failed = {r.finding.id for r in result.results if r.status == FAIL and r.finding}
    found = frozenset(f.id for f in result.judgement.findings if f.blocks or f.id in failed)
    return found or frozenset(r.name for r in result.results if r.status == FAIL)


def known(result: SmokeResult, card: Card | None) -> Known:
    """What the last server's log and the card say about how far to go."""
    text = ""
    if result.log is not None and result.log.exists():
        text = result.log.read_bytes().decode("utf-8", "replace")
    estimates = _ESTIMATE.findall(text)
    return Known(card, result.fit, int(estimates[-1]) if estimates else None)


def plan(result: SmokeResult) -> tuple[Rung, ...]:
    """The rungs for what failed, most promising first."""
    wanted = causes(result)
    names: list[str] = []
    for finding in result.judgement.findings:
        if finding.id in wanted:
            names += CAUSES.get(finding.id, AREAS.get(finding.area, ()))
    return tuple(RUNGS[n] for n in dict.fromkeys(names))
