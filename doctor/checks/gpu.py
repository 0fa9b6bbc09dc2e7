"""Checks of the area: gpu. What the card is, and how it fares."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from doctor.catalogue.gpus import version_tuple
from doctor.checks.gpu_common import capability, label, position, visible
from doctor.checks.registry import check, found
from doctor.facts import GpuFacts
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot

#: Slow-downs that are not normal operation (an idle card and a power cap under load are).
_ABNORMAL = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")

#: Xid numbers by what they mean for the person, after NVIDIA's list (docs.nvidia.com/deploy/xid-errors).
_XID_LOST = {79: "the card fell off the bus"}
_XID_CARD = {
    48: "double-bit memory error", 62: "micro-controller halt", 63: "memory row remapped",
    64: "memory row could not be remapped", 74: "NVLink error", 92: "many single-bit memory errors",
    94: "contained memory error", 95: "uncontained memory error", 119: "no answer of the card's firmware (GSP)",
    120: "error of the card's firmware (GSP)",
}  # fmt: skip
_XID_PROGRAM = {13: "a program's kernel failed", 31: "a program's memory fault", 43: "a program's channel stopped",
                45: "a program was ended"}  # fmt: skip


def _known(s: Snapshot) -> list[tuple[GpuFacts, tuple[int, int]]]:
    """Visible cards whose compute capability is known."""
    pairs = ((g, capability(g)) for g in visible(s))
    return [(g, c) for g, c in pairs if c is not None]


def _capability_row(s: Snapshot, gpu: GpuFacts, value: tuple[int, int]) -> Evidence:
    path = f"gpus[{position(s, gpu)}].compute_capability"
    if gpu.compute_capability:
        return s.evidence(path)
    return Evidence(path, f"{value[0]}.{value[1]} (by the name {gpu.name})", gpu.sources.get("name", s.origin))


def serves(arches: Iterable[str], value: tuple[int, int]) -> bool:
    """Whether code for one of ``arches`` ("sm_86", "sm_90a", "compute_120") runs on this capability.

    Machine code runs within its major from its minor on (sm_80 on 8.6); "a" variants run on their own
    card only; PTX ("compute_") is translated for every later card.
    """
    for arch in arches:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch.strip())
        if not match:
            continue
        have = (int(match[2]), int(match[3]))
        exact = match[4] == "a"
        if have == value or (not exact and match[1] == "sm" and have[0] == value[0] and have[1] <= value[1]):
            return True
        if match[1] == "compute" and not match[4] and have <= value:
            return True
    return False


def _highest(arches: Iterable[str]) -> tuple[int, int]:
    found_arches = (re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[af]?", a.strip()) for a in arches)
    return max(((int(m[1]), int(m[2])) for m in found_arches if m), default=(0, 0))


@check("gpu-compute-capability-unsupported", needs=("gpus",))
def gpu_compute_capability_unsupported(s: Snapshot) -> Finding | Skipped | None:
    """Finds a card below compute capability 7.0 (Pascal and older), for which vLLM has no code."""
    cause = "gpu-compute-capability-unsupported"
    known = _known(s)
    if not known:
        return Skipped(cause, "no compute capability is known")
    old = [(g, c) for g, c in known if c < (7, 0)]
    if not old or len(old) < len(known):
        return None  # another card can be used
    rows = [_capability_row(s, g, c) for g, c in old]
    g, c = old[0]
    summary = f"{label(g)} has compute capability {c[0]}.{c[1]}; vLLM starts at 7.0, CUDA 13 builds at 7.5"
    return found(cause, Confidence.PROVEN, summary, rows)


@check("gpu-dropped-by-cuda13", needs=("gpus", "python"))
def gpu_dropped_by_cuda13(s: Snapshot) -> Finding | Skipped | None:
    """Finds a Volta card (7.0, 7.2) with a CUDA 13 build, which has code from 7.5 on only."""
    cause = "gpu-dropped-by-cuda13"
    build = version_tuple(s.python.torch_cuda) if s.python else None
    known = _known(s)
    if not known:
        return Skipped(cause, "no compute capability is known")
    if build is None:
        return Skipped(cause, "the CUDA release of torch is not known, or it is a CPU build")
    volta = [(g, c) for g, c in known if (7, 0) <= c < (7, 5)]
    if not volta or build[0] < 13:
        return None
    g, c = volta[0]
    rows = [*(_capability_row(s, *pair) for pair in volta), s.evidence("python.torch_cuda")]
    torch = f"torch {s.python.torch}" if s.python and s.python.torch else "torch"
    summary = (
        f"{label(g)} has compute capability {c[0]}.{c[1]}; {torch} is a CUDA {build[0]} build without code for it"
    )
    fixes = [
        Remedy("Install a CUDA 12 build (cu126, cu128) of torch and a vLLM of that line", True, risk=Risk.CAUTION),
        Remedy("Or use a card of capability 7.5 or newer"),
    ]
    return found(cause, Confidence.PROVEN, summary, rows, fixes=fixes)


@check("gpu-too-new-for-torch-build", needs=("gpus", "python"))
def gpu_too_new_for_torch_build(s: Snapshot) -> Finding | Skipped | None:
    """Finds a card newer than every architecture that the installed torch has code for.

    Proven by torch's architecture list. Without the list, a build before CUDA 12.8 on Blackwell
    (10.0 and above) is likely: that release brought those architectures.
    """
    cause = "gpu-too-new-for-torch-build"
    known = _known(s)
    if not known:
        return Skipped(cause, "no compute capability is known")
    assert s.python is not None  # noqa: S101  needs=("python",)
    arches, build = s.python.torch_arches, version_tuple(s.python.torch_cuda)
    if s.python.torch_cuda == "":
        return Skipped(cause, "torch is a CPU build")
    if arches:
        bad = [(g, c) for g, c in known if not serves(arches, c) and c > _highest(arches)]
        if not bad:
            return None
        g, c = bad[0]
        rows = [_capability_row(s, g, c), s.evidence("python.torch_arches"), s.evidence("python.torch")]
        summary = f"{label(g)} is sm_{c[0]}{c[1]}; torch {s.python.torch} has code for {', '.join(arches)}"
        return found(cause, Confidence.PROVEN, summary, rows, fixes=_newer_build(c))
    if build is None:
        return Skipped(cause, "torch's CUDA release and architecture list are not known")
    bad = [(g, c) for g, c in known if c >= (10, 0)]
    if not bad or build >= (12, 8):
        return None
    g, c = bad[0]
    rows = [_capability_row(s, g, c), s.evidence("python.torch_cuda"), s.evidence("python.torch")]
    summary = f"{label(g)} is sm_{c[0]}{c[1]}, known from CUDA 12.8 on; torch is built for {s.python.torch_cuda}"
    return found(cause, Confidence.LIKELY, summary, rows, fixes=_newer_build(c))


def _newer_build(c: tuple[int, int]) -> list[Remedy]:
    text = f"Install a vLLM whose torch is built with CUDA 12.8 or newer and lists sm_{c[0]}{c[1]}"
    return [Remedy(text, True, risk=Risk.CAUTION, verify=("torch.cuda.get_arch_list() names the architecture",))]


@check("bfloat16-unsupported-gpu", needs=("gpus",))
def bfloat16_unsupported_gpu(s: Snapshot) -> Finding | Skipped | None:
    """Notes a card without bfloat16 (Turing, Volta): bf16 checkpoints need --dtype half.

    Only a note on a live host, because the checkpoint is not known. Likely when bfloat16 was asked for.
    """
    cause = "bfloat16-unsupported-gpu"
    known = _known(s)
    if not known:
        return Skipped(cause, "no compute capability is known")
    old = [(g, c) for g, c in known if (7, 0) <= c < (8, 0)]
    if not old:
        return None
    g, c = old[0]
    rows = [_capability_row(s, g, c)]
    dtype = (s.serving.dtype if s.serving else None) or ""
    if "bfloat16" in dtype:
        rows.append(s.evidence("serving.dtype"))
        summary = f"{label(g)}, compute capability {c[0]}.{c[1]}, has no bfloat16, which was asked for"
        return found(cause, Confidence.LIKELY, summary, rows)
    if s.origin != "host" or "half" in dtype or "float16" in dtype:
        return None
    summary = f"{label(g)}, compute capability {c[0]}.{c[1]}, has no bfloat16: give bf16 checkpoints --dtype half"
    note = found(cause, Confidence.HINT, summary, rows, severity=Severity.NOTE)
    return replace(note, title="This GPU has no bfloat16")  # nobody has asked for it yet


@check("mig-enabled", needs=("gpus",))
def mig_enabled(s: Snapshot) -> Finding | Skipped | None:
    """Notes a card in MIG mode, whose whole memory no single process can use."""
    divided = [g for g in visible(s) or s.gpus or () if g.mig]
    if not divided:
        return None
    summary = f"{label(divided[0])} is in MIG mode: CUDA sees its instances, not the whole card"
    return found("mig-enabled", Confidence.PROVEN, summary, [s.evidence(f"gpus[{position(s, divided[0])}].mig")])


@check("gpu-thermal-or-power-throttled", needs=("gpus",))
def gpu_thermal_or_power_throttled(s: Snapshot) -> Finding | Skipped | None:
    """Finds a card that is slowed down by heat or by its power supply at this moment."""
    cause = "gpu-thermal-or-power-throttled"
    gpus = [g for g in visible(s) if g.throttle_reasons is not None]
    if not gpus:
        return Skipped(cause, "the driver does not tell why clocks are lowered")
    for gpu in gpus:
        active = [r for r in gpu.throttle_reasons or () if r in _ABNORMAL]
        if not active:
            continue
        at = f"gpus[{position(s, gpu)}]"
        rows = [s.evidence(f"{at}.throttle_reasons")]
        names = ("temperature_c", "sm_clock_mhz", "sm_clock_max_mhz", "power_limit_w")
        rows += [s.evidence(f"{at}.{n}") for n in names if getattr(gpu, n) is not None]
        heat = f" at {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
        clock = ""
        if gpu.sm_clock_mhz is not None and gpu.sm_clock_max_mhz:
            clock = f", {gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz} MHz"
        summary = f"{label(gpu)} is slowed down now: {', '.join(active)}{heat}{clock}"
        return found(cause, Confidence.LIKELY, summary, rows)
    return None


@check("gpu-power-limit-lowered", needs=("gpus",))
def gpu_power_limit_lowered(s: Snapshot) -> Finding | Skipped | None:
    """Notes a power limit at least 10 % below the card's default."""
    cause = "gpu-power-limit-lowered"
    known = [g for g in visible(s) if g.power_limit_w is not None and g.power_default_w]
    if not known:
        return Skipped(cause, "the driver does not tell the power limits")
    for gpu in known:
        limit, default = gpu.power_limit_w or 0.0, gpu.power_default_w or 0.0
        if limit > 0.9 * default:
            continue
        at = f"gpus[{position(s, gpu)}]"
        rows = [s.evidence(f"{at}.power_limit_w"), s.evidence(f"{at}.power_default_w")]
        summary = f"{label(gpu)} is limited to {limit:.0f} W, its default is {default:.0f} W"
        command = ("sudo", "nvidia-smi", "-i", str(gpu.index), "-pl", f"{default:.0f}")
        fix = Remedy("Set the default again if the lower limit was not meant", commands=(command,))
        return found(cause, Confidence.PROVEN, summary, rows, fixes=[fix])
    return None


@check("pcie-link-degraded", needs=("gpus",))
def pcie_link_degraded(s: Snapshot) -> Finding | Skipped | None:
    """Hints at a card that runs with fewer PCIe lanes than it has. The generation says nothing when idle."""
    cause = "pcie-link-degraded"
    known = [g for g in visible(s) if g.pcie_width and g.pcie_width_max]
    if not known or s.is_wsl:
        return Skipped(
            cause, "the link width is not known" if not s.is_wsl else "under WSL2 the bus belongs to Windows"
        )
    for gpu in known:
        if (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0):
            at = f"gpus[{position(s, gpu)}]"
            rows = [
                s.evidence(f"{at}.pcie_width"),
                s.evidence(f"{at}.pcie_width_max"),
                s.evidence(f"{at}.pcie_gen"),
            ]
            summary = f"{label(gpu)} is connected with x{gpu.pcie_width} of x{gpu.pcie_width_max} PCIe lanes"
            # one card loads its model more slowly through fewer lanes and answers as fast
            summary += "; that slows only the loading of the model"
            return found(cause, Confidence.HINT, summary, rows, severity=Severity.NOTE)
    return None


@check("xid-errors-in-kernel-log", needs=("driver",))
def xid_errors_in_kernel_log(s: Snapshot) -> Finding | Skipped | None:
    """Finds Xid errors of the driver in the kernel log since the last boot.

    A lost card (79) while NVML fails is the cause of it all. Faults of the card's memory, firmware or
    links degrade; faults that a program makes are a note, since a crashed program leaves them.
    """
    cause = "xid-errors-in-kernel-log"
    assert s.driver is not None  # noqa: S101  needs=("driver",)
    events = s.driver.kernel_events
    if events is None:
        return Skipped(cause, "the kernel log cannot be read by this user")
    xids = [e for e in events if e.kind == "xid"]
    if not xids:
        return None
    codes = sorted({e.code for e in xids if e.code is not None})
    meanings = {**_XID_LOST, **_XID_CARD, **_XID_PROGRAM}
    said = ", ".join(f"{c} ({meanings[c]})" if c in meanings else str(c) for c in codes)
    rows = [Evidence(f"Xid {e.code}", e.text, e.source) for e in xids[-5:]]
    summary = f"The driver logged Xid {said}"
    if any(c in _XID_LOST for c in codes):
        broken = s.driver.nvml_status not in ("ok", None) or not s.gpus
        severity = Severity.BLOCKER if broken else Severity.DEGRADES
        confidence = Confidence.PROVEN if broken else Confidence.LIKELY
        return found(cause, confidence, summary, rows, severity=severity)
    if any(c in _XID_CARD for c in codes):
        return found(cause, Confidence.LIKELY, summary, rows)
    return found(cause, Confidence.HINT, summary, rows, severity=Severity.NOTE)
