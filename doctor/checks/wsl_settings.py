"""Checks of the area wsl: settings of vLLM, memory and the model's place under WSL2."""

from __future__ import annotations

import re

from doctor import catalogue
from doctor.checks.registry import check, found
from doctor.checks.words import on_windows_drive, size
from doctor.checks.wsl_common import facts, under_wsl2
from doctor.facts import WslFacts
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot


@check("wsl2-uva-unavailable", needs=("wsl",))
@under_wsl2("wsl2-uva-unavailable")
def uva_unavailable(s: Snapshot) -> Finding | Skipped | None:
    """vLLM's V2 model runner may stop for lack of pinned memory under WSL2.

    Signals (a hint; the RuntimeError in the log proves it): vLLM 0.24 or later and neither
    VLLM_WSL2_ENABLE_PIN_MEMORY=1 nor VLLM_USE_V2_MODEL_RUNNER=0, or a kernel before 4.19.121.
    Source: vllm/platforms/cuda.py is_pin_memory_available, vllm/v1/worker/gpu/buffer_utils.py (0.32).
    """
    from packaging.version import InvalidVersion, Version

    cause = "wsl2-uva-unavailable"
    text = (s.python.vllm if s.python else None) or (s.serving.vllm if s.serving else None)
    if s.python and s.python.vllm == "" and not text:
        return None
    try:
        version = Version(text or "")
    except InvalidVersion:
        return Skipped(cause, "the version of vLLM is not known")
    if version < Version("0.24.dev0"):
        return None
    wsl = facts(s)
    env = {**(s.python.env if s.python else {}), **(s.serving.env if s.serving else {})}
    if env.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        return None
    pinned = wsl.pin_memory_enabled or env.get("VLLM_WSL2_ENABLE_PIN_MEMORY") == "1"
    if pinned and wsl.pin_memory_kernel_ok is not False:
        return None
    evidence = [s.evidence("wsl.kernel"), Evidence("vllm", str(version), "installed package"),
                s.evidence("wsl.pin_memory_enabled")]  # fmt: skip
    if wsl.pin_memory_kernel_ok is False:
        summary = f"vLLM {version} leaves pinned memory off on kernel {wsl.kernel}; its V2 model runner needs it."
    else:
        summary = f"vLLM {version} leaves pinned memory off under WSL2; its V2 model runner needs it."
    return found(cause, Confidence.HINT, summary, evidence, fixes=_pin_memory_fixes(wsl))


def _pin_memory_fixes(wsl: WslFacts) -> tuple[Remedy, ...]:
    fixes = catalogue.cause("wsl2-uva-unavailable").remedies
    if wsl.pin_memory_kernel_ok is None:
        return fixes
    return tuple(f for f in fixes if ("kernel" in f.summary) is (not wsl.pin_memory_kernel_ok))


@check("wsl2-pin-memory-off", needs=("wsl",))
@under_wsl2("wsl2-pin-memory-off")
def pin_memory_off(s: Snapshot) -> Finding | Skipped | None:
    """Pinned host memory stays off under WSL2: a little slower, no fault.

    Signals (a hint): VLLM_WSL2_ENABLE_PIN_MEMORY not set, or a kernel before 4.19.121.
    """
    cause = "wsl2-pin-memory-off"
    wsl = facts(s)
    if wsl.pin_memory_enabled is None and wsl.pin_memory_kernel_ok is None:
        return Skipped(cause, "the environment of vLLM is not known")
    if wsl.pin_memory_enabled and wsl.pin_memory_kernel_ok is not False:
        return None
    evidence = [s.evidence("wsl.pin_memory_enabled"), s.evidence("wsl.pin_memory_kernel_ok")]
    summary = "Pinned memory stays off under WSL2 unless it is asked for; copies to the GPU are a little slower."
    return found(cause, Confidence.HINT, summary, evidence, severity=Severity.NOTE)


@check("wsl2-expandable-segments", needs=("wsl",))
@under_wsl2("wsl2-expandable-segments")
def expandable_segments(s: Snapshot) -> Finding | Skipped | None:
    """The torch allocator is told to use expandable segments under WSL2.

    Signals: the setting alone is a hint; with a refused make_resident call of dxgkrnl in the kernel log it is
    likely. A refused call at the time of the failure would prove it.
    """
    cause = "wsl2-expandable-segments"
    known = [facts.env for facts in (s.python, s.serving) if facts is not None]
    if not known:
        return Skipped(cause, "the environment of vLLM is not known")
    for env in known:
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            if re.search(r"expandable_segments\s*:\s*true", env.get(name, ""), re.I):
                return _expandable(s, name, env[name])
    return None


def _expandable(s: Snapshot, name: str, value: str) -> Finding:
    evidence = [Evidence(name, value, "environment")]
    kept = ",".join(p for p in value.split(",") if not p.strip().lower().startswith("expandable_segments"))
    fix = Remedy(f"Set {name}={kept}" if kept else f"Unset {name}", automatic=True, risk=Risk.SAFE)
    refused = [e for e in (s.driver.kernel_events if s.driver else None) or () if e.kind == "dxg-make-resident"]
    if refused:
        evidence.append(Evidence("driver.kernel_events", refused[-1].text, refused[-1].source or "kernel log"))
        summary = f"{name} switches on expandable segments, and the GPU driver of WSL2 has refused memory."
        return found("wsl2-expandable-segments", Confidence.LIKELY, summary, evidence, fixes=(fix,))
    summary = f"{name} switches on expandable segments, which WSL2's GPU driver can refuse."
    return found("wsl2-expandable-segments", Confidence.HINT, summary, evidence, fixes=(fix,))


@check("wsl2-multi-gpu-p2p-unreliable", needs=("wsl",))
@under_wsl2("wsl2-multi-gpu-p2p-unreliable")
def multi_gpu_p2p(s: Snapshot) -> Finding | Skipped | None:
    """Two or more GPUs under WSL2: peer-to-peer is not dependable.

    Signals (a hint): the number of cards, when the run uses more than one and NCCL_P2P_DISABLE is not set.
    """
    cause = "wsl2-multi-gpu-p2p-unreliable"
    if s.gpus is None:
        return Skipped(cause, "the GPUs are not known")
    gpus = s.gpus
    ranks = (s.serving.tensor_parallel or 1) * (s.serving.pipeline_parallel or 1) if s.serving else None
    if len(gpus) < 2 or (ranks == 1 and s.serving and s.serving.tensor_parallel is not None):
        return None
    env = {**(s.python.env if s.python else {}), **(s.serving.env if s.serving else {})}
    visible = env.get("CUDA_VISIBLE_DEVICES", "").strip()
    if env.get("NCCL_P2P_DISABLE") == "1" or (visible and "," not in visible):
        return None
    summary = f"{len(gpus)} GPUs under WSL2: transfers from card to card may fail or hang. One card alone works."
    evidence = [Evidence("gpus", str(len(gpus)), gpus[0].sources.get("*", "driver")), s.evidence("wsl.kernel")]
    return found(cause, Confidence.HINT, summary, evidence, severity=Severity.NOTE if ranks is None else None)


@check("wsl2-model-on-windows-drive", needs=("wsl", "storage"))
def model_on_windows_drive(s: Snapshot) -> Finding | Skipped | None:
    """The model or the model cache lies on a Windows drive.

    Signals (a hint without the time a shard takes): file system 9p or drvfs, or a path below /mnt/<letter>.
    """
    cause = "wsl2-model-on-windows-drive"
    if s.is_wsl is None:
        return Skipped(cause, "it is not known whether this is WSL")
    if not s.is_wsl:
        return None
    assert s.storage is not None  # noqa: S101  needs=
    places = {m.role: m for m in s.storage.mounts or ()}
    if s.storage.mounts is None and s.storage.model_path is None:
        return Skipped(cause, "it is not known where the model lies")
    place = places.get("model") if s.storage.model_path and not s.storage.model_is_hub_name else None
    place = place or places.get("model cache")
    path = (place.real_path or place.path) if place else s.storage.model_path
    if not on_windows_drive(path, place.fstype if place else None):
        return None
    what = "model" if place and place.role == "model" else "model cache"
    weights = s.storage.model_weights_bytes
    room = f" ({size(weights)})" if weights else ""
    summary = f"The {what} {path} lies on a Windows drive; loading from there is slow."
    kind = place.fstype if place and place.fstype else "below /mnt"
    fixes = (
        Remedy(f"Copy the model{room} into the distribution, for example below ~/models, and serve that folder"),
        Remedy("Keep HF_HOME in the distribution", automatic=True, risk=Risk.SAFE),
    )
    return found(
        cause,
        Confidence.HINT,
        summary,
        [Evidence("storage.mounts", f"{path}: {kind}", "mount table")],
        fixes=fixes,
    )


@check("wsl2-memory-limit-small", needs=("wsl", "system"))
@under_wsl2("wsl2-memory-limit-small")
def memory_limit_small(s: Snapshot) -> Finding | Skipped | None:
    """The WSL2 machine has less memory than the checkpoint is big.

    Signals (a hint; a kill while loading would prove it): RAM plus swap below the size of the weights.
    Half of the Windows RAM is WSL's own default, so a small figure alone is no finding.
    """
    cause = "wsl2-memory-limit-small"
    weights = s.storage.model_weights_bytes if s.storage else None
    assert s.system is not None  # noqa: S101  needs=
    ram, swap = s.system.ram_total_bytes, s.system.swap_total_bytes
    if weights is None or ram is None or swap is None:
        return Skipped(cause, "the size of the weights or of the memory is not known (give --model)")
    if ram + swap >= weights:
        return None
    set_to = (facts(s).wslconfig or {}).get("memory")
    why = f"memory={set_to} in .wslconfig" if set_to else "WSL takes half of the Windows RAM by default"
    summary = (
        f"The weights have {size(weights)}, this WSL2 machine {size(ram)} of RAM and {size(swap)} of swap ({why})."
    )
    evidence = [
        s.evidence("storage.model_weights_bytes", size(weights)),
        s.evidence("system.ram_total_bytes", size(ram)),
        s.evidence("system.swap_total_bytes", size(swap)),
    ]
    return found(cause, Confidence.HINT, summary, evidence)
