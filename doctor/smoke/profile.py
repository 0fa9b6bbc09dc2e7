"""The settings that are tried: what the user fixed, else what ``fit`` advises for this card, else plain defaults.

Also what is known against them before the start. A prediction is said and never believed more than a start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from doctor.checks.gpu_common import hours, room, visible
from doctor.errors import DoctorError
from doctor.facts import GpuProcess, ServingFacts
from doctor.finding import Confidence, Finding
from doctor.host import Host
from doctor.host.examine import Options
from doctor.memory.cards import card_of
from doctor.memory.fit import Fit, evaluate
from doctor.memory.model import open_model
from doctor.memory.predict import Card
from doctor.memory.settings import Wish
from doctor.memory.start_check import GIB
from doctor.memory.versions import switches
from doctor.serve.command import Settings, option, switch
from doctor.serve.environment import VllmEnvironment
from doctor.smoke.model import ModelInfo
from doctor.smoke.options import (
    CPU_MAX_MODEL_LEN,
    DEFAULT_MAX_MODEL_LEN,
    DEFAULT_MTP,
    DEFAULT_UTILIZATION,
    SmokeOptions,
)
from doctor.snapshot import Snapshot

#: What a served chat needs; the settings are those of ``fit --for chat``.
PURPOSE = "chat"
_GIVEN = "as given"


@dataclass(frozen=True)
class Chosen:
    """``reasons`` says where each value comes from. ``findings`` stop the start, ``notes`` do not.

    ``asked_drafts``: draft tokens that were asked for, or that the model is made for, whatever was chosen.
    """

    settings: Settings
    reasons: Mapping[str, str]
    asked_drafts: int = 0
    fit: Fit | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = field(default=())


def look(host: Host) -> Snapshot:
    """Driver and cards as they are now. A driver that does not answer is one that tells nothing."""
    from doctor.host import driver, gpu

    facts: dict[str, object] = {}
    for probe in (driver.probe, gpu.probe):
        try:
            facts |= probe(host, Options())
        except (OSError, RuntimeError, TimeoutError):
            continue
    return Snapshot(**facts)  # type: ignore[arg-type]


def card_in(snapshot: Snapshot) -> Card | None:
    """The first card that a server would see; None when there is none or it does not tell its memory."""
    cards = visible(snapshot)
    return card_of(cards[0]) if cards else None


def choose(options: SmokeOptions, host: Host, environment: VllmEnvironment, model: ModelInfo) -> Chosen:
    """The settings for this device. Raises DoctorError for arguments that contradict each other."""
    wanted, reasons = _defaults(options, environment, model)
    notes: list[str] = []
    if environment.cpu:
        if options.utilization is not None:
            notes.append("--util means nothing on a CPU and was left out")
        return Chosen(wanted, reasons, wanted.mtp, notes=tuple(notes))
    asked = wanted.mtp
    snapshot = look(host)
    card = card_in(snapshot)
    fit, why = _fit(options, host, environment, model, card)
    if fit is None:
        notes.append(f"settings are plain defaults, not chosen for this card: {why}")
    else:
        wanted, reasons = _from_fit(fit, wanted, reasons, options)
        notes += _against(fit)
    notes += leftovers(snapshot)
    return Chosen(wanted, reasons, asked, fit, tuple(start_check(snapshot, wanted.utilization)), tuple(notes))


def _defaults(
    options: SmokeOptions, environment: VllmEnvironment, model: ModelInfo
) -> tuple[Settings, dict[str, str]]:
    device = "a CPU" if environment.cpu else "a GPU"
    reasons = {"max_model_len": f"default for {device}", "mtp": "default", "prefix_caching": "default: on"}
    mtp = DEFAULT_MTP if options.mtp is None else options.mtp
    if options.mtp is None and model.has_mtp is False and not model.declares_mtp:
        mtp, reasons["mtp"] = 0, "off: this model has no MTP head"
    wanted = Settings(
        model=model.path or options.model,
        model_is_local=True,
        mtp=mtp,
        max_model_len=options.max_model_len or (CPU_MAX_MODEL_LEN if environment.cpu else DEFAULT_MAX_MODEL_LEN),
        utilization=DEFAULT_UTILIZATION if options.utilization is None else options.utilization,
        extra=options.serve_args,
    )
    if not environment.cpu:
        reasons["gpu_memory_utilization"] = "default, the lower one of vLLM's versions"
    # the user's own speculative config replaces --mtp
    if wanted.draft_tokens != wanted.mtp:
        wanted = replace(wanted, mtp=0)
    fixed = {
        "mtp": options.mtp is not None or option(options.serve_args, "--speculative-config") is not None,
        "max_model_len": options.max_model_len is not None or option(options.serve_args, "--max-model-len"),
        "gpu_memory_utilization": options.utilization is not None
        or option(options.serve_args, "--gpu-memory-utilization"),
        "prefix_caching": not wanted.prefix_caching or switch(options.serve_args, "--enable-prefix-caching"),
        "max_num_seqs": option(options.serve_args, "--max-num-seqs"),
        "max_num_batched_tokens": option(options.serve_args, "--max-num-batched-tokens"),
    }
    return wanted, reasons | {name: _GIVEN for name, given in fixed.items() if given}


def _wish(options: SmokeOptions, wanted: Settings) -> Wish:
    """What the user fixed, by our options or vLLM's."""
    extra = options.serve_args
    try:
        number = {
            name: int(value)
            for name in ("max-model-len", "max-num-seqs", "max-num-batched-tokens", "tensor-parallel-size")
            if (value := option(extra, f"--{name}")) is not None
        }
        given = option(extra, "--gpu-memory-utilization")
        utilization = options.utilization if given is None else float(given)
    except ValueError as error:
        raise DoctorError(f"a number is wanted in the arguments after --: {error}") from None
    drafts = wanted.draft_tokens if option(extra, "--speculative-config") is not None else options.mtp
    if drafts is None and not wanted.mtp:
        drafts = 0
    return Wish(
        utilization=utilization,
        max_model_len=number.get("max-model-len", options.max_model_len),
        draft_tokens=drafts,
        prefix_caching=None if wanted.prefix_caching else False,
        max_num_seqs=number.get("max-num-seqs"),
        max_num_batched_tokens=number.get("max-num-batched-tokens"),
        kv_cache_dtype=option(extra, "--kv-cache-dtype"),
        tp=number.get("tensor-parallel-size", 1),
        eager=wanted.enforce_eager,
    )


def _fit(options: SmokeOptions, host: Host, environment: VllmEnvironment, model: ModelInfo,
         card: Card | None) -> tuple[Fit | None, str]:  # fmt: skip
    """The judgement of ``fit``, or why there is none."""
    if card is None:
        return None, "no card tells its memory here"
    wanted, _ = _defaults(options, environment, model)
    try:
        wish = _wish(options, wanted)
        opened = open_model(model.path, host.env, lambda _: None)
        version = switches(environment.vllm)
        return evaluate(opened, card, wish, version, purpose=PURPOSE, env=host.env), ""
    except DoctorError as error:
        return None, str(error)


def _from_fit(fit: Fit, wanted: Settings, reasons: Mapping[str, str],
              options: SmokeOptions) -> tuple[Settings, dict[str, str]]:  # fmt: skip
    profile = fit.profile
    assert profile is not None  # noqa: S101  a card was given
    o = profile.options
    extra = options.serve_args
    mine = {flag for flag in ("--max-num-seqs", "--max-num-batched-tokens", "--dtype") if option(extra, flag)}
    own = option(extra, "--speculative-config") is not None
    # 0 where nothing is free: the start check then says who holds the card
    utilization = profile.start.utilization or wanted.utilization
    settings = replace(
        wanted,
        mtp=0 if own else o.draft_tokens,
        max_model_len=o.max_model_len,
        utilization=utilization,
        caching=o.prefix_caching is not False,
        max_num_seqs=None if "--max-num-seqs" in mine else o.max_num_seqs,
        max_num_batched_tokens=None if "--max-num-batched-tokens" in mine else o.max_num_batched_tokens,
        text_only=fit.model.shape.vision is not None and not profile.start.vision,
        dtype="" if "--dtype" in mine else profile.dtype,
    )
    said = {name: f"fit: {why}" for name, why in profile.reasons.items() if name != "host"}
    return settings, {**said, **{name: why for name, why in reasons.items() if why == _GIVEN}}


def _against(fit: Fit) -> list[str]:
    """What is predicted to go wrong; the start that follows decides."""
    if fit.support.ok is False:
        return [f"before the start: {fit.support.title} {fit.support.why}"]
    if fit.fits is False:
        return [f"before the start: predicted not to fit: {fit.why}"]
    if fit.fits is None:
        return [f"before the start: not certain to fit: {fit.why}"]
    return []


def start_check(snapshot: Snapshot, utilization: float) -> list[Finding]:
    """The comparison vLLM would make first: what is asked for against what is free now. Only what is sure."""
    from doctor.checks.memory import gpu_memory_held_by_other_process, util_above_free_memory

    asked = replace(snapshot, serving=ServingFacts(gpu_memory_utilization=utilization))
    if not snapshot.gpus or not all(room(g) for g in visible(snapshot)):
        return []
    found = [c(asked) for c in (gpu_memory_held_by_other_process, util_above_free_memory)]
    return [f for f in found if isinstance(f, Finding) and f.confidence is Confidence.PROVEN and f.blocks]


def leftovers(snapshot: Snapshot) -> list[str]:
    """Servers of earlier runs that still hold memory of a card. They are named, never ended."""
    held = [p for g in visible(snapshot) for p in g.processes or () if "vllm" in (p.name or "").lower()]
    if not held:
        return []
    return [f"memory is held by an earlier vLLM: {'; '.join(map(_process, held))}; it is left alone"]


def _process(process: GpuProcess) -> str:
    about = [process.name or "unnamed", process.user]
    if process.age_s is not None:
        about.append(f"{hours(process.age_s)} old")
    used = f" with {process.used_bytes / GIB:.2f} GiB" if process.used_bytes is not None else ""
    return f"pid {process.pid} ({', '.join(a for a in about if a)}){used}"
