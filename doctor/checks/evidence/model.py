"""Evidence of the areas model and serving: paths, hybrid models, speculative decoding, flags, ports."""

from __future__ import annotations

import re

from doctor import catalogue
from doctor.checks.evidence.common import (
    HINT,
    LIKELY,
    PROVEN,
    events,
    file_of,
    first,
    has,
    near,
    number,
    rule,
    say,
    together,
)
from doctor.checks.registry import Result
from doctor.finding import Remedy, Risk
from doctor.snapshot import Event, Snapshot


@rule("model-path-invalid")
def path_invalid(s: Snapshot) -> Result:
    """A local path was taken for a hub name or has no config (proven for paths, likely for names).

    vLLM ends with the same words when the hub refuses or cannot be reached: then it is not the path.
    """
    cause = "model-path-invalid"
    if has(s, "network.hub-denied", "network.resolution", "network.hub-unreachable", "python.model-type"):
        return None
    seen = sorted(events(s, "model.invalid-path"), key=lambda e: not _is_path(e.values.get("path", "")))
    for event in seen:
        path = event.values.get("path", "")
        if _is_path(path):
            return say(cause, PROVEN, f"{path} is not a model folder as the server sees it", event)
        return say(cause, LIKELY, f"{path or 'what was given'} is neither a model folder nor a hub name", event)
    lost = first(s, "network.repo-not-found")
    if lost:
        name = lost.values.get("model")
        sure = PROVEN if name and _is_path(name) else LIKELY
        return say(cause, sure, f"{name or 'what was given'} is neither a model folder nor a hub name", lost)
    return None


def _is_path(text: str) -> bool:
    return bool(re.match(r"[/~.]|[A-Za-z]:[\\/]", text)) or text.count("/") > 1


@rule("mamba-align-block-exceeds-batched-tokens")
def align_block(s: Snapshot) -> Result:
    """vLLM's assertion with both figures (proven); the figures alone with prefix caching on (likely)."""
    cause = "mamba-align-block-exceeds-batched-tokens"
    event = first(s, "model.mamba-align-block")
    if event:
        block, tokens = event.values.get("block"), event.values.get("tokens")
        text = (
            f"the aligned block is {block} tokens, one step may schedule {tokens}"
            if block
            else "the aligned block is too large"
        )
        fixes = list(catalogue.cause(cause).remedies)
        if block:
            fixes[0] = Remedy(
                f"Start with --max-num-batched-tokens {block.replace(',', '')} or more", True,
                (("vllm", "serve", "MODEL", "--max-num-batched-tokens", block.replace(",", "")),), Risk.SAFE,
            )  # fmt: skip
        return say(cause, PROVEN, text, event, fixes=fixes)
    serving = s.serving
    if (
        serving
        and serving.block_size
        and serving.max_num_batched_tokens
        and serving.prefix_caching
        and serving.hybrid
        and serving.block_size > serving.max_num_batched_tokens
    ):
        waits = first(s, "model.waiting")
        text = (
            f"the attention block is {serving.block_size} tokens, one step may schedule "
            f"{serving.max_num_batched_tokens}"
        )
        rows = [s.evidence("serving.block_size"), s.evidence("serving.max_num_batched_tokens")]
        return say(cause, together(s, *rows, waits), text, *rows, waits)
    return None


@rule("mamba-cache-mode-all-unsupported")
def cache_mode_all(s: Snapshot) -> Result:
    """vLLM refused the mode "all" (proven); the flag with such a model is likely to fail."""
    event = first(s, "model.mamba-all")
    if event:
        return say(
            "mamba-cache-mode-all-unsupported", PROVEN, 'this model does not support the cache mode "all"', event
        )
    serving = s.serving
    if serving and serving.mamba_cache_mode == "all" and _qwen_hybrid(s):
        text = 'mamba_cache_mode is "all", which models of this kind do not support'
        return say("mamba-cache-mode-all-unsupported", LIKELY, text, s.evidence("serving.mamba_cache_mode"))
    return None


def _qwen_hybrid(s: Snapshot) -> bool:
    serving = s.serving
    if serving is None:
        return False
    return bool(re.search(r"qwen-?3[._]?[5-9]|qwen-?3-?next", f"{serving.architecture} {serving.model}", re.I))


def mtp_tokens(s: Snapshot) -> int:
    """Draft tokens of multi-token prediction; 0 without it (or with another speculative method)."""
    serving = s.serving
    if serving is None or not serving.speculative_tokens:
        return 0
    method = (serving.speculative_method or "mtp").lower()
    return serving.speculative_tokens if "mtp" in method or "nextn" in method else 0


def prefix_caching(s: Snapshot) -> bool | None:
    """Whether prefix caching is on: as said, or by the default for hybrid models (off to 0.25, on from 0.26)."""
    serving = s.serving
    if serving is None:
        return None
    if serving.prefix_caching is not None:
        return serving.prefix_caching
    from packaging.version import InvalidVersion, Version

    try:
        return Version(serving.vllm or "") >= Version("0.26.0.dev0") if serving.hybrid else True
    except InvalidVersion:
        return None


@rule("mtp-prefix-cache-corrupts-output", start=False)
def mtp_prefix_cache(s: Snapshot) -> Result:
    """MTP and prefix caching are both on with a hybrid model: judged by flags, so never more than a hint."""
    tokens = mtp_tokens(s)
    if not (tokens and s.serving and s.serving.hybrid and prefix_caching(s)):
        return None
    text = (
        f"MTP ({tokens} draft tokens) and prefix caching are both on for a hybrid model; a log "
        "cannot show whether answers suffer"
    )
    rows = [s.evidence("serving.speculative_tokens")]
    if s.serving.prefix_caching is not None:
        rows.append(s.evidence("serving.prefix_caching"))
    return say("mtp-prefix-cache-corrupts-output", HINT, text, *rows)


@rule("mtp-gdn-kernel-launch-failure", start=False)
def gdn_launch(s: Snapshot) -> Result:
    """A launch failure or illegal access with the gated-delta kernel on the stack and MTP on (proven)."""
    cause = "mtp-gdn-kernel-launch-failure"
    for event in events(s, "gpu.launch-failure"):
        frame = near(s, event, {"gpu.frame-fused-recurrent"}, before=60, after=30)
        on = bool(s.serving and s.serving.speculative_tokens)
        if frame and on:
            text = (
                f"CUDA failed ({event.values['what']}) in {frame.values['function']} with speculative decoding on"
            )
            tokens = s.evidence("serving.speculative_tokens")
            return say(cause, together(s, event, frame, tokens), text, event, frame, tokens)
        if frame:
            sure = HINT if frame.values["function"].endswith("_attn") else LIKELY  # errors surface there late
            return say(
                cause, sure, f"CUDA failed ({event.values['what']}) in {frame.values['function']}", event, frame
            )
        if on and s.serving and s.serving.hybrid:
            return say(cause, HINT, f"CUDA failed ({event.values['what']}) with speculative decoding on", event)
    return None


@rule("mtp-drops-logit-bias-min-p", start=False)
def spec_params(s: Snapshot) -> Result:
    """vLLM's warning that min_p and logit_bias have no effect with speculative decoding (proven)."""
    event = first(s, "model.spec-params")
    return (
        say(
            "mtp-drops-logit-bias-min-p",
            PROVEN,
            "min_p and logit_bias have no effect while speculative decoding is on",
            event,
        )
        if event
        else None
    )


#: Mean acceptance length below which two drafts cost more than they bring on a 9B model.
_BREAK_EVEN = 1.56


@rule("mtp-slower-than-baseline", start=False)
def mtp_slow(s: Snapshot) -> Result:
    """The mean acceptance length is below the break-even of small models (a hint: only two runs prove it)."""
    lengths = [v for e in events(s, "vllm.spec-metrics") if (v := number(e.values.get("length"))) is not None]
    last = next(iter(reversed(events(s, "vllm.spec-metrics"))), None)
    if not lengths or last is None or sum(lengths) / len(lengths) >= _BREAK_EVEN:
        return None
    mean = sum(lengths) / len(lengths)
    text = f"{mean:.2f} tokens are accepted a step on average; two drafts pay from about {_BREAK_EVEN} on"
    return say("mtp-slower-than-baseline", HINT, text, last)


@rule("jit-fast-mode-mtp-garbles", start=False)
def full_graphs(s: Snapshot) -> Result:
    """Full CUDA graphs of recurrent layers are forced and drafts are on: judged by flags, so never proven."""
    serving = s.serving
    event = next((e for e in events(s, "model.full-graph-env")), None)
    env = serving.env.get("VLLM_ALLOW_MAMBA_SPEC_FULL_CUDAGRAPH") if serving else None
    forced = event or (env or "").lower() in ("1", "true", "yes")
    if not (forced and serving and serving.speculative_tokens):
        return None
    mode = serving.cudagraph_mode or ""
    if mode and "FULL" not in mode:
        return None
    text = (
        f"full CUDA graphs of recurrent layers are allowed while {serving.speculative_tokens} draft tokens are on"
    )
    rows = [s.evidence("serving.speculative_tokens")] + ([s.evidence("serving.cudagraph_mode")] if mode else [])
    return say("jit-fast-mode-mtp-garbles", LIKELY, text, event, *rows)


@rule("prefix-cache-block-larger-than-prompt", start=False)
def short_prefix(s: Snapshot) -> Result:
    """No prefix hits with a hybrid model and large blocks (a hint)."""
    serving = s.serving
    rates = events(s, "model.hit-rate")
    if not (serving and serving.hybrid and rates) or prefix_caching(s) is False:
        return None
    if any(float(e.values["rate"]) > 0 for e in rates):
        return None
    block = f" ({serving.block_size} tokens)" if serving.block_size else ""
    text = f"nothing hits the prefix cache; hybrid models share whole blocks only{block}"
    return say("prefix-cache-block-larger-than-prompt", HINT, text, rates[-1])


@rule("triton-jit-first-request", start=False)
def jit(s: Snapshot) -> Result:
    """The JIT monitor named kernels compiled during inference (a hint: also when loaded from the disk cache)."""
    event = first(s, "serving.jit")
    return (
        say("triton-jit-first-request", HINT, "kernels were compiled while requests waited", event)
        if event
        else None
    )


@rule("tensor-parallel-exceeds-gpus")
def too_many_ranks(s: Snapshot) -> Result:
    """vLLM or ray counted more ranks than GPUs (proven); an ordinal that does not exist is likely the same."""
    cause = "tensor-parallel-exceeds-gpus"
    event = first(s, "serving.world-size-gpus")
    if event is None:
        return None
    world, gpus = event.values.get("world"), event.values.get("gpus")
    if world and gpus:
        fix = Remedy(
            f"Start with --tensor-parallel-size {gpus}", int(gpus) > 0,
            (("vllm", "serve", "MODEL", "--tensor-parallel-size", gpus),) if int(gpus) else (), Risk.SAFE,
        )  # fmt: skip
        return say(
            cause,
            PROVEN,
            f"{world} ranks are asked for and {gpus} GPUs are visible",
            event,
            fixes=(fix,) if int(gpus) else None,
        )
    if "bare" in event.values:
        return say(cause, PROVEN, "more ranks are asked for than GPUs are visible", event)
    return say(cause, LIKELY, "a rank asked for a GPU that is not visible", event)


@rule("single-card-launcher-defaults-tp2")
def launcher(s: Snapshot) -> Result:
    """The fork's launcher resolved two devices while one GPU exists (proven with the list of cards)."""
    cause = "single-card-launcher-defaults-tp2"
    event = next(
        (
            e
            for e in events(s, "serving.launcher-devices")
            if "," in e.values.get("devices", "") or int(e.values.get("tp", 1)) > 1
        ),
        None,
    )
    if event is None:
        return None
    if s.gpus and len(s.gpus) == 1:
        return say(
            cause,
            PROVEN,
            f"the launcher resolved {event.text.strip()[:60]} and there is one GPU",
            event,
            s.evidence("gpus[0].name"),
        )
    refused = next(
        (e for e in events(s, "serving.world-size-gpus") if e.values.get("gpus") == "1" or "rank" in e.values),
        None,
    )
    if refused:
        return say(
            cause,
            LIKELY,
            f"the launcher resolved {event.text.strip()[:60]} and one GPU is visible",
            event,
            refused,
        )
    return None


@rule("eager-mode-enabled", start=False)
def eager(s: Snapshot) -> Result:
    """enforce_eager in the configuration or the flags (proven)."""
    event = first(s, "serving.eager")
    if event is None:
        if s.serving and s.serving.enforce_eager:
            return say(
                "eager-mode-enabled",
                PROVEN,
                "enforce_eager is on, so CUDA graphs are off",
                s.evidence("serving.enforce_eager"),
            )
        return None
    return say("eager-mode-enabled", PROVEN, "enforce_eager is on, so CUDA graphs are off", event)


@rule("port-in-use")
def port(s: Snapshot) -> Result:
    """Binding the port failed (proven); torch's own rendezvous port is likely the same trouble."""
    event = first(s, "serving.port")
    if event is None:
        return None
    rendezvous = near(s, event, {"serving.rendezvous"}, before=6, after=6)
    which = event.values.get("port")
    if rendezvous:
        return say("port-in-use", LIKELY, "the port of torch's rendezvous is taken", event, rendezvous)
    return say(
        "port-in-use", PROVEN, f"port {which} is taken" if which else "the port to listen on is taken", event
    )


def last_line(s: Snapshot, event: Event) -> int | None:
    """Number of lines of the text that an event is from."""
    end = next((e for e in s.events if e.signal == "text" and e.source == file_of(event)), None)
    return int(end.values["lines"]) if end else None
