"""Evidence of the area gpu: which code a build has for which card."""

from __future__ import annotations

import re

from doctor.catalogue import table
from doctor.catalogue.gpus import lookup
from doctor.checks.evidence.common import HINT, LIKELY, PROVEN, events, file_of, first, near, rule, say, together
from doctor.checks.evidence.remedies import same_release
from doctor.checks.gpu import serves
from doctor.checks.registry import Result
from doctor.facts import GpuFacts
from doctor.finding import Evidence
from doctor.snapshot import Event, Snapshot

Capability = tuple[int, int]
#: The first CUDA release whose compiler knows the cards of compute capability 10.0 and 12.0.
_BLACKWELL = (12, 8)


def _parse(text: str | None) -> Capability | None:
    """ "7.5", "75" and "120" as numbers."""
    found = re.fullmatch(r"(\d{1,2})\.(\d)|(\d{1,2})(\d)", text or "")
    if not found:
        return None
    major, minor = (found[1], found[2]) if found[1] else (found[3], found[4])
    return int(major), int(minor)


def _refused(s: Snapshot) -> list[tuple[Event, str, Capability, list[Capability]]]:
    """torch's warnings about a card: (event, name, its capability, the capabilities of the build)."""
    answers = []
    for event in events(s, "gpu.not-compatible", "gpu.found-capability"):
        capability = _parse(event.values.get("capability"))
        if capability is not None:
            answers.append((event, event.values.get("name", "this card").strip(), capability, _built(s, event)))
    return answers


def _built(s: Snapshot, event: Event) -> list[Capability]:
    """What the build has code for, from the lines that follow the warning."""
    found: list[Capability] = []
    for other in s.events:
        if file_of(other) != file_of(event) or not 0 <= (other.line or 0) - (event.line or 0) <= 30:
            continue
        if other.signal == "gpu.supported-list":
            found += [c for a in re.findall(r"(?:sm|compute)_(\d{2,3})", other.values["list"]) if (c := _parse(a))]
        elif (other.signal == "gpu.cc-list" and (c := _parse(other.values["cc"]))) or (
            other.signal == "gpu.minimum-capability" and (c := _parse(other.values.get("min")))
        ):
            found.append(c)
    if not found and s.python and s.python.torch_arches:
        found = [c for a in s.python.torch_arches if (c := _parse(a.split("_")[-1].rstrip("af")))]
    return found


def _text(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


@rule("gpu-too-new-for-torch-build")
def too_new(s: Snapshot) -> Result:
    """torch's warning lists what the build supports, and all of it is below the card (proven)."""
    cause = "gpu-too-new-for-torch-build"
    for event, name, capability, built in _refused(s):
        if built and capability > max(built):
            text = (
                f"{name} is sm_{capability[0]}{capability[1]}; this torch has code up to "
                f"sm_{max(built)[0]}{max(built)[1]}"
            )
            follow = near(s, event, {"gpu.supported-list", "gpu.cc-list"}, before=0, after=12)
            image = first(s, "gpu.no-kernel-image")
            return say(cause, PROVEN, text, event, follow, image, fixes=same_release(s))
        if not built and capability >= (10, 0):
            text = f"{name} is sm_{capability[0]}{capability[1]}, which this torch says it does not support"
            return say(cause, LIKELY, text, event)
    seen = first(s, "gpu.no-kernel-image")
    if seen is None or _refused(s):
        return None
    if not s.gpus:
        text = "there is no code for this card in what was called; which card it is is not shown"
        return say(cause, HINT, text, seen)
    newer = next((g for g in s.gpus if (_capability(g) or (0, 0)) >= (10, 0)), None)
    arches = s.python.torch_arches if s.python else None
    if newer is None or arches:
        return None
    build, row = _torch_build(s)
    if build and build < _BLACKWELL:
        text = (
            f"torch of CUDA {build[0]}.{build[1]} has no code for {newer.name or 'this card'}; 12.8 is the first"
        )
        return say(cause, LIKELY, text, seen, row, fixes=same_release(s))
    if build is None:
        text = f"there is no code for {newer.name or 'this card'} in what was called; torch's build is not shown"
        return say(cause, HINT, text, seen)
    return None


@rule("gpu-dropped-by-cuda13")
def dropped(s: Snapshot) -> Result:
    """The build's list starts at 7.5 and the card is a Volta (proven)."""
    cause = "gpu-dropped-by-cuda13"
    for event, name, capability, built in _refused(s):
        if (7, 0) <= capability < (7, 5) and built and min(built) >= (7, 5):
            text = (
                f"{name} has compute capability {_text(capability)}; this build has code from "
                f"{_text(min(built))} on"
            )
            follow = near(s, event, {"gpu.supported-list", "gpu.cc-list"}, before=0, after=12)
            return say(cause, PROVEN, text, event, follow, first(s, "gpu.no-kernel-image"))
    option = next(
        (e for e in events(s, "compiler.nvcc-unknown-option") if re.match(r"compute_7[0-2]", e.values["option"])),
        None,
    )
    if option:
        return say(cause, LIKELY, "this nvcc (CUDA 13) no longer compiles for Volta", option)
    seen = first(s, "gpu.no-kernel-image")
    if seen and any(_capability(g) in ((7, 0), (7, 2)) for g in s.gpus or ()) and not _build(s):
        return say(cause, HINT, "there is no code for this Volta card; torch's CUDA release is not shown", seen)
    return None


@rule("gpu-compute-capability-unsupported")
def unsupported(s: Snapshot) -> Result:
    """torch names a card below compute capability 7.0 (proven)."""
    for event, name, capability, _ in _refused(s):
        if capability < (7, 0):
            text = f"{name} has compute capability {_text(capability)}; vLLM starts at 7.0"
            return say("gpu-compute-capability-unsupported", PROVEN, text, event)
    below = first(s, "gpu.below-minimum")
    if below:
        text = f"vLLM says that cards below compute capability {below.values['need']} are not supported"
        return say("gpu-compute-capability-unsupported", PROVEN, text, below)
    seen = first(s, "gpu.quant-capability")
    have = _parse(seen.values.get("have")) if seen else None
    if seen and have and have < (7, 0):
        text = f"this card has compute capability {_text(have)}; vLLM starts at 7.0"
        return say("gpu-compute-capability-unsupported", PROVEN, text, seen)
    return None


@rule("dtype-unsupported-by-quantization")
def quantization_dtype(s: Snapshot) -> Result:
    """vLLM refused the dtype for the quantisation method and named both (proven)."""
    event = first(s, "gpu.dtype-quantization")
    if event is None:
        return None
    text = f"the quantisation {event.values['method']} does not run in {event.values['dtype']}"
    return say("dtype-unsupported-by-quantization", PROVEN, text, event)


@rule("vllm-kernels-missing-for-arch")
def kernels_missing(s: Snapshot) -> Result:
    """No kernel image although torch's list contains the card (proven), or its CUDA release knows it (likely)."""
    cause = "vllm-kernels-missing-for-arch"
    event = first(s, "gpu.no-kernel-image")
    if event is None or _refused(s):
        return None
    known = [(g, c) for g in s.gpus or () if (c := _capability(g)) is not None]
    arches = s.python.torch_arches if s.python else None
    for gpu, capability in known:
        if arches and serves(arches, capability):
            text = f"torch has code for {gpu.name or 'this card'} ({_text(capability)}), what was called has none"
            return say(
                cause,
                together(s, event, s.evidence("python.torch_arches"), _place(s, gpu)),
                text,
                event,
                s.evidence("python.torch_arches"),
            )
        build, row = _torch_build(s)
        if capability >= (10, 0) and build and build >= _BLACKWELL:
            text = (
                f"torch of CUDA {build[0]}.{build[1]} knows {gpu.name or 'this card'}, a compiled "
                "part of vLLM does not"
            )
            return say(cause, LIKELY, text, event, row)
        if (7, 5) <= capability < (10, 0):
            text = (
                f"torch knows {gpu.name or 'this card'} ({_text(capability)}), a compiled part has no code for it"
            )
            return say(cause, LIKELY, text, event)
    return None


def _place(s: Snapshot, gpu: GpuFacts) -> Evidence:
    return s.evidence(f"gpus[{(s.gpus or ()).index(gpu)}].name")


def _capability(gpu: object) -> Capability | None:
    text = getattr(gpu, "compute_capability", None)
    if text is None and (model := lookup(getattr(gpu, "name", None))):
        text = model.capability
    return _parse(text)


def _build(s: Snapshot) -> tuple[int, int] | None:
    found = re.match(r"(\d+\.\d+)", (s.python.torch_cuda if s.python else None) or "")
    return _parse_release(found[1]) if found else None


def _torch_build(s: Snapshot) -> tuple[Capability | None, Evidence | None]:
    """The CUDA release of torch, and where it was read; of a version without a suffix, that of PyPI's wheel."""
    build = _build(s)
    if build:
        return build, s.evidence("python.torch_cuda")
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", (s.python.torch if s.python else None) or "")
    if found is None:
        return None, None
    version = (int(found[1]), int(found[2]))
    rows = [(tuple(map(int, row["torch"].split("."))), row["cuda"]) for row in table("torch_wheel_cuda")]
    cuda = max((row for row in rows if row[0] <= version), default=rows[0])[1]
    return _parse_release(cuda), s.evidence("python.torch")


def _parse_release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


@rule("bfloat16-unsupported-gpu")
def bfloat16(s: Snapshot) -> Result:
    """vLLM refused bfloat16 and named the card's capability (proven)."""
    event = first(s, "gpu.bf16")
    feature = next((e for e in events(s, "gpu.ptxas-feature") if "bf16" in e.values["feature"]), None)
    if event is None and feature:
        text = f"a kernel uses {feature.values['feature']}, which needs sm_{feature.values.get('need', '80')}"
        return say("bfloat16-unsupported-gpu", LIKELY, text, feature)
    if event is None:
        return None
    name, capability = event.values.get("name", "this card"), event.values.get("capability")
    text = (
        "the checkpoint asks for bfloat16; "
        f"{name}{f' (compute capability {capability})' if capability else ''} has none"
    )
    return say("bfloat16-unsupported-gpu", PROVEN, text, event)


@rule("quantization-unsupported-gpu")
def quantization(s: Snapshot) -> Result:
    """vLLM refused the quantisation for the card's capability and named both (proven)."""
    native = first(s, "gpu.fp8-unsupported")
    if native:
        text = "Triton has no FP8 type of this kind on this card (it needs compute capability 8.9)"
        return say("quantization-unsupported-gpu", PROVEN, text, native)
    event = first(s, "gpu.quant-capability")
    have = _parse(event.values.get("have")) if event else None
    need = _parse(event.values.get("need")) if event else None
    if event is None or have is None or need is None or have < (7, 0):
        return None
    text = f"{event.values['method']} needs compute capability {_text(need)}, this card has {_text(have)}"
    return say("quantization-unsupported-gpu", PROVEN, text, event)


@rule("attention-backend-unsupported-gpu")
def backend(s: Snapshot) -> Result:
    """A backend was chosen that has no code for this card, or vLLM refused the choice (likely)."""
    event = first(s, "gpu.backend-unsupported")
    feature = next((e for e in events(s, "gpu.ptxas-feature") if "bf16" not in e.values["feature"]), None)
    if event is None and feature:
        need, have = feature.values.get("need"), feature.values.get("have")
        text = f"a kernel uses {feature.values['feature']}, which " + (
            f"needs sm_{need}" if need else f"sm_{have} lacks"
        )
        return say("attention-backend-unsupported-gpu", LIKELY, text, feature)
    if event is None:
        return None
    text = "the attention or linear backend that was chosen does not work on this card"
    return say("attention-backend-unsupported-gpu", LIKELY, text, event)


@rule("triton-shared-memory-exceeded")
def shared_memory(s: Snapshot) -> Result:
    """Triton refused a kernel and named both sizes of on-chip memory (proven)."""
    event = first(s, "gpu.triton-shared")
    if event and int(event.values["required"]) > int(event.values["limit"]):
        need, limit = int(event.values["required"]) / 1024, int(event.values["limit"]) / 1024
        text = f"a Triton kernel needs {need:.0f} KiB of on-chip memory of each SM, this card has {limit:.0f} KiB"
        return say("triton-shared-memory-exceeded", PROVEN, text, event)
    other = first(s, "gpu.shared-other")
    if other:
        return say(
            "triton-shared-memory-exceeded", LIKELY, "a kernel needs more on-chip memory than this card has", other
        )
    return None


@rule("deepgemm-gpu-arch-unsupported")
def deepgemm(s: Snapshot) -> Result:
    """DeepGEMM stopped at an unknown recipe or layout (proven)."""
    event = first(s, "gpu.deepgemm-recipe")
    if event is None:
        return None
    sure = PROVEN if re.search(r"Unknown (?:recipe|SF)", event.text) else LIKELY
    frame = near(s, event, {"gpu.deepgemm-frame"}, before=40, after=4)
    text = "DeepGEMM was chosen for a card that its revision does not know"
    return say("deepgemm-gpu-arch-unsupported", sure, text, event, frame)


@rule("fp8-kv-cache-needs-bfloat16")
def fp8_kv(s: Snapshot) -> Result:
    """FlashAttention 3 refused a float16 output for fp8 queries and keys (proven)."""
    event = first(s, "gpu.fp8-kv-dtype")
    if event is None:
        return None
    dtype = s.serving.dtype if s.serving else None
    asked = f"--dtype {dtype}" if dtype and dtype != "auto" else "the checkpoint's dtype"
    text = f"the fp8 KV cache needs bfloat16 activations here, {asked} is float16"
    return say("fp8-kv-cache-needs-bfloat16", PROVEN, text, event)
