"""Evidence of the area wsl: what fails under WSL2 only."""

from __future__ import annotations

from doctor import catalogue
from doctor.checks.evidence.common import (
    HINT,
    LIKELY,
    PROVEN,
    container_sign,
    events,
    file_of,
    first,
    gib,
    near,
    ranks,
    rule,
    say,
    together,
    wsl_sign,
)
from doctor.checks.evidence.remedies import pinned_memory
from doctor.checks.registry import Result
from doctor.snapshot import Event, Snapshot


@rule("wsl2-uva-unavailable")
def uva(s: Snapshot) -> Result:
    """The V2 model runner stopped because unified addressing is not available; under WSL that proves it."""
    event = first(s, "wsl.uva")
    if event is None:
        return None
    sign = wsl_sign(s)
    text = "the V2 model runner needs pinned host memory, which vLLM leaves off under WSL2"
    if sign is None:
        text = "the V2 model runner needs pinned host memory, which is off here; under WSL2 vLLM leaves it off"
    fixes = pinned_memory("wsl2-uva-unavailable")
    return say("wsl2-uva-unavailable", together(s, event, sign), text, event, sign, fixes=fixes)


@rule("wsl2-pin-memory-off", start=False)
def pin_memory(s: Snapshot) -> Result:
    """vLLM's own warning (proven). It is harmless by itself and explains no crash."""
    event = first(s, "wsl.pin-memory-off")
    if event is None:
        return None
    text = "vLLM works with pageable memory under WSL2; copies are a little slower, nothing fails by it"
    return say("wsl2-pin-memory-off", PROVEN, text, event)


@rule("wsl2-nvml-fork-unsupported")
def nvml_fork(s: Snapshot) -> Result:
    """nvmlInit answered Not Supported inside a process of the engine, under WSL (proven with both signs)."""
    sign = wsl_sign(s)
    for event in events(s, "driver.nvml-not-supported"):
        frame = near(s, event, {"driver.nvml-frame"}, before=25, after=2)
        text = "NVML was initialised again in a forked process, which WSL2 answers with Not Supported"
        if sign and frame:
            return say("wsl2-nvml-fork-unsupported", together(s, event, frame, sign), text, event, frame, sign)
        if sign or frame:
            return say("wsl2-nvml-fork-unsupported", LIKELY if sign else HINT, text, event, frame, sign)
    return None


def roomy(event: Event) -> bool:
    """An out-of-memory error on a card that has room: at least 1 GiB free, and four times what was asked for."""
    free, wanted = gib(event, "free"), gib(event, "wanted")
    return free is not None and wanted is not None and free >= 1 and free >= 4 * wanted


@rule("wsl2-expandable-segments")
def expandable_segments(s: Snapshot) -> Result:
    """The allocator's setting, WSL, and an allocation that failed with room on the card (proven together).

    A refused make_resident call of dxgkrnl makes it likely without sight of the setting. "Device not ready"
    under WSL alone is a hint, and so is the setting without a failure.
    """
    cause = "wsl2-expandable-segments"
    sign = wsl_sign(s)
    refused = first(s, "wsl.dxg-make-resident")
    setting = next((e for e in events(s, "wsl.expandable") if e.values["value"].lower() in ("true", "1")), None)
    not_ready = first(s, "wsl.device-not-ready")
    oom = next((e for e in events(s, "memory.oom", "memory.oom-old") if roomy(e)), None)
    failure = not_ready or oom
    if sign is None and refused is None:
        return None
    fixes = catalogue.cause(cause).remedies
    if failure and setting:
        text = "expandable_segments is on under WSL2 and the first large allocation failed" + _room(oom)
        return say(
            cause,
            together(s, failure, setting, sign or refused),
            text,
            failure,
            setting,
            sign,
            refused,
            fixes=fixes,
        )
    if refused and failure:
        text = (
            f"WSL2's GPU driver refused to make memory resident ({refused.values['code']}) and CUDA "
            f"failed{_room(oom)}"
        )
        return say(cause, LIKELY, text, failure, refused, sign)
    if not_ready:
        return say(
            cause,
            HINT,
            "CUDA says device not ready under WSL2; the allocator's setting is not shown",
            not_ready,
            sign,
        )
    if oom:
        return say(cause, HINT, f"memory was refused under WSL2 on a card with room{_room(oom)}", oom, sign)
    if refused:
        return say(cause, HINT, "WSL2's GPU driver refused to make memory resident", refused)
    if setting:
        return say(
            cause, HINT, "expandable_segments is on under WSL2, where its memory can be refused", setting, sign
        )
    return None


def _room(event: Event | None) -> str:
    if event is None:
        return ""
    return f" although {event.values['free']} {event.values.get('free_unit', 'GiB')} were free"


@rule("wsl2-libcuda-not-on-loader-path", start=False)
def libcuda_loader_path(s: Snapshot) -> Result:
    """NCCL or the loader could not open libcuda.so under WSL (proven)."""
    sign = wsl_sign(s)
    if sign is None:
        return None
    event = first(s, "network.nccl-libcuda")
    if event:
        text = "libcuda.so is not found by its plain name; under WSL2 it lies in /usr/lib/wsl/lib"
        return say("wsl2-libcuda-not-on-loader-path", together(s, event, sign), text, event, sign)
    soname = first(s, "driver.libcuda-missing")
    if soname and container_sign(s) is None:
        text = "libcuda.so.1 is not found; under WSL2 it lies in /usr/lib/wsl/lib"
        return say("wsl2-libcuda-not-on-loader-path", LIKELY, text, soname, sign)
    return None


@rule("wsl2-container-toolkit-too-old")
def toolkit_old(s: Snapshot) -> Result:
    """CUDA answered 500 at its start: in a container under WSL2 with a driver from 555 on that is likely this."""
    event = first(s, "wsl.symbol-not-found")
    if event is None:
        return None
    sign, inside = wsl_sign(s) or first(s, "container.docker-desktop", "shell.windows"), container_sign(s)
    driver = s.driver.version if s.driver else None
    if driver and int(driver.split(".")[0]) < 555:
        return None
    text = "CUDA does not start (error 500), as when the toolkit does not mount what this Windows driver needs"
    return say("wsl2-container-toolkit-too-old", LIKELY if sign or inside else HINT, text, event, sign, inside)


@rule("wsl2-multi-gpu-p2p-unreliable")
def multi_gpu(s: Snapshot) -> Result:
    """Several ranks under WSL: the log ends at the P2P probe, they wait (likely), or NCCL failed (a hint).

    That nothing followed is never proven by a text: it may be cut.
    """
    cause, sign = "wsl2-multi-gpu-p2p-unreliable", wsl_sign(s)
    if sign is None or ranks(s) < 2:
        return None
    probe = next(iter(reversed(events(s, "vllm.p2p-probe"))), None)
    if probe and _is_last(s, probe):
        text = f"{ranks(s)} ranks under WSL2, and the log ends at the test of transfers between cards"
        return say(cause, LIKELY, text, probe, sign)
    waited = first(s, "network.nccl-timeout", "vllm.broadcast-wait")
    if waited:
        text = f"{ranks(s)} ranks under WSL2 wait for each other"
        return say(cause, LIKELY, text, waited, sign)
    failed = first(s, "network.nccl-error", "network.p2p-test")
    if failed and first(s, "container.shm-nccl") is None:
        return say(cause, HINT, f"NCCL failed with {ranks(s)} ranks under WSL2", failed, sign)
    return None


def _is_last(s: Snapshot, event: Event) -> bool:
    """Whether nothing but a line or two follows in its text."""
    end = next((e for e in s.events if e.signal == "text" and e.source == file_of(event)), None)
    return end is not None and int(end.values["lines"]) - (event.line or 0) <= 3


@rule("wsl2-model-on-windows-drive", start=False)
def windows_drive(s: Snapshot) -> Result:
    """The model lies below /mnt/<letter>, and shards take minutes (proven) or long (likely)."""
    event, sign = first(s, "wsl.drive-model"), wsl_sign(s)
    if event is None:
        return None
    rates = [float(e.values["rate"]) for e in events(s, "vllm.loading") if "rate" in e.values]
    slow = max(rates, default=0.0)
    path = event.values["path"]
    if sign and slow >= 60:
        text = f"{path} is a Windows drive, and a shard takes {slow:.0f} s"
        return say(
            "wsl2-model-on-windows-drive", together(s, event, sign), text, event, first(s, "vllm.loading"), sign
        )
    if slow >= 15:
        text = f"{path} is a Windows drive, and a shard takes {slow:.0f} s"
        return say("wsl2-model-on-windows-drive", LIKELY, text, event, sign)
    return say("wsl2-model-on-windows-drive", HINT, f"{path} is a Windows drive", event, sign) if sign else None


@rule("wsl1-no-gpu")
def wsl1(s: Snapshot) -> Result:
    """The container CLI recognised WSL and found no adapter: WSL 1, or Windows without GPU support (a hint)."""
    event = first(s, "wsl.adapter-missing")
    version = s.wsl.version if s.wsl else None
    if event and version != 2:
        sure = LIKELY if version == 1 else HINT
        return say("wsl1-no-gpu", sure, "WSL was recognised and no GPU adapter was found; WSL 1 has none", event)
    return None


@rule("wsl2-windows-without-gpu-support")
def windows_support(s: Snapshot) -> Result:
    """NVML says that Windows blocks the GPU, or libnvidia-ml is missing on a Windows before 21H2 (proven)."""
    cause = "wsl2-windows-without-gpu-support"
    blocked = first(s, "wsl.blocked-by-os")
    if blocked:
        return say(cause, PROVEN, "NVML says that the operating system blocks access to the GPU", blocked)
    adapters = first(s, "wsl.adapter-missing")
    missing = first(s, "container.load-library", "driver.nvml-library")
    build = s.wsl.windows_build if s.wsl else None
    if build and build < 19_044 and (missing or adapters):
        text = f"Windows is build {build}; GPU access of WSL2 needs 19044 (21H2) or later"
        build_row = s.evidence("wsl.windows_build")
        return say(cause, together(s, missing or adapters, build_row), text, missing or adapters, build_row)
    if adapters and (s.wsl is None or s.wsl.version != 1):
        return say(cause, LIKELY, "WSL was recognised and Windows shows it no GPU adapter", adapters)
    windows = first(s, "shell.windows", "container.docker-desktop")
    library = first(s, "container.load-library")
    if library and (windows or build or s.is_wsl):
        text = (
            "the container hook found no libnvidia-ml.so.1 on a Windows machine: Windows or its "
            "driver gives WSL2 no GPU"
        )
        return say(cause, LIKELY, text, library, windows)
    return None


@rule("wsl2-linux-driver-installed")
def linux_driver(s: Snapshot) -> Result:
    """NVML answers N/A, or the loader takes a library outside /usr/lib/wsl (a hint without the package list)."""
    sign = wsl_sign(s)
    if sign is None:
        return None
    odd = first(s, "driver.nvml-na", "driver.nvml-mismatch")
    stray = next(
        (f for f in ("libcuda_resolved", "libnvidia_ml_resolved") if _outside(getattr(s.wsl, f, None))), None
    )
    if stray and container_sign(s) is None:
        text = f"the loader takes {getattr(s.wsl, stray)} instead of the library in /usr/lib/wsl/lib"
        path = s.evidence(f"wsl.{stray}")
        return say("wsl2-linux-driver-installed", together(s, path, odd, sign), text, path, odd, sign)
    if odd:
        text = "NVML gives no sensible answer under WSL2, as when a Linux driver hides the one of Windows"
        return say("wsl2-linux-driver-installed", HINT, text, odd, sign)
    return None


def _outside(path: str | None) -> bool:
    return bool(path) and not str(path).startswith("/usr/lib/wsl/") and "/stubs/" not in str(path)
