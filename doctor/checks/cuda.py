"""Checks of the area driver that concern the compute side: what a first CUDA call meets."""

from __future__ import annotations

from doctor.catalogue.gpus import branch_driver, minimum_driver, version_tuple
from doctor.checks.driver import VERIFY, facts_of, install_driver, rows_of
from doctor.checks.registry import check, found
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Skipped
from doctor.snapshot import Snapshot

#: Codes that have a cause of their own.
_OWN = {802, 803, 804}


def _errors(s: Snapshot) -> tuple[str, int | None, int] | None:
    """Text, code and place of the first CUDA error that --deep met."""
    for at, gpu in enumerate(s.gpus or ()):
        if gpu.cuda_error is not None:
            return gpu.cuda_error, gpu.cuda_error_code, at
    return None


@check("driver-too-old-for-cuda-build", needs=("driver", "python"))
def driver_too_old_for_cuda_build(s: Snapshot) -> Finding | Skipped | None:
    """Finds a driver below the minimum of the CUDA release that torch was built for.

    Within a CUDA major the family's first driver is enough (CUDA Compatibility, "Minor Version
    Compatibility"), so 12.8 builds run on driver 535. Under WSL2 the Windows driver counts.
    """
    cause, d = "driver-too-old-for-cuda-build", facts_of(s)
    build = s.python.torch_cuda if s.python else None
    if build is None:
        return Skipped(cause, "the CUDA release of torch is not known")
    if build == "":
        return None  # a CPU build asks for no driver
    windows = bool(s.is_wsl)
    minimum, have = minimum_driver(build, windows=windows), version_tuple(d.version)
    need, major = version_tuple(minimum), version_tuple(build)
    if need is None or major is None:
        return Skipped(cause, f"no minimum driver is on record for CUDA {build}")
    offers = version_tuple(d.cuda)
    if have is None and offers is None:
        return Skipped(cause, "the driver's version is not known")
    too_old = have < need if have is not None else bool(offers and offers[0] < major[0])
    if not too_old:
        return None
    assert s.python is not None  # noqa: S101  needs=("python",)
    compat = "/compat" in (d.libcuda or "")
    driver = f"driver {d.version}" if d.version else "this driver"
    level = f" (CUDA {d.cuda})" if d.cuda else ""
    kind = "Windows driver" if windows else "driver"
    summary = (
        f"torch {s.python.torch or ''} is built for CUDA {build} and needs {kind} {minimum} or newer; ".replace(
            "  ", " "
        )
        + (f"{driver}{level} is installed")
    )
    rows = [*rows_of(s, "version", "cuda"), s.evidence("python.torch_cuda"), s.evidence("python.torch")]
    rows.append(
        Evidence("minimum driver", f"{minimum} for CUDA {major[0]}.x", "NVIDIA CUDA Toolkit Release Notes")
    )
    return found(
        cause,
        Confidence.LIKELY if compat else Confidence.PROVEN,
        summary,
        rows,
        fixes=_newer_driver(s, build, d.cuda, minimum or ""),
    )


def _newer_driver(s: Snapshot, build: str, offers: str | None, minimum: str) -> list[Remedy]:
    branch = branch_driver(build) or minimum
    if s.is_wsl:
        text = (
            f"Update the NVIDIA driver in Windows to {branch} or newer, then run `wsl --shutdown` there "
            "(nothing is installed inside WSL)"
        )
        first = Remedy(text, verify=VERIFY)
    elif s.in_container:
        first = Remedy(f"Update the driver of the host to {branch} or newer and restart it", verify=VERIFY)
    else:
        first = Remedy(
            f"Install driver {branch} or newer and restart", commands=install_driver(s).commands, verify=VERIFY
        )
    have = f"CUDA {offers.split('.')[0]}" if offers else "a CUDA release the driver serves"
    second = Remedy(
        f"Or install torch and vLLM builds for {have} instead of CUDA {build}", True, risk=Risk.CAUTION
    )
    return [first, second]


@check("cuda-forward-compat-unsupported", needs=("driver",))
def cuda_forward_compat_unsupported(s: Snapshot) -> Finding | Skipped | None:
    """Finds a compat libcuda in front of the driver's own on a consumer card (error 804).

    Proven by the error itself; likely when the loader resolves libcuda.so.1 into a compat folder,
    newer than the kernel module, and the card is a GeForce.
    Source: CUDA Compatibility, "Forward Compatibility": data-centre cards and selected RTX cards only.
    """
    cause = "cuda-forward-compat-unsupported"
    error = _errors(s)
    if error and error[1] == 804:
        rows = [s.evidence(f"gpus[{error[2]}].cuda_error")]
        rows += [s.evidence("driver.libcuda")] if s.driver and s.driver.libcuda else []
        return found(cause, Confidence.PROVEN, f"CUDA's first call fails: {error[0]}", rows, fixes=_remedies(s))
    d = s.driver
    if d is None or d.libcuda is None:
        return Skipped(cause, "the path of libcuda.so.1 is not known")
    if "/compat" not in d.libcuda:
        return None
    consumer = [g for g in s.gpus or () if "GeForce" in (g.name or "")]
    if not consumer:
        return None if s.gpus else Skipped(cause, "the cards are not known")
    module, library = version_tuple(d.module_version), version_tuple(d.libcuda_version)
    newer = bool(module and library and library > module)
    rows = [s.evidence("driver.libcuda"), s.evidence("driver.module_version"), s.evidence("gpus[0].name")]
    rows += [Evidence("LD_LIBRARY_PATH", d.env[n], "environment") for n in d.env if n == "LD_LIBRARY_PATH"]
    name = consumer[0].name
    summary = f"libcuda.so.1 resolves to the compatibility library {d.libcuda}, and {name} is a consumer card"
    return found(cause, Confidence.LIKELY if newer else Confidence.HINT, summary, rows, fixes=_remedies(s))


def _remedies(s: Snapshot) -> list[Remedy]:
    where = "the host's driver" if s.in_container else "the driver"
    path = s.driver.env.get("LD_LIBRARY_PATH", "") if s.driver else ""
    kept = ":".join(p for p in path.split(":") if p and "/compat" not in p)
    fixes = [Remedy(f"Update {where} to the CUDA level that the image or environment was built for")]
    if path and kept != path:
        fixes.append(Remedy(f"Or keep the compat folder off the loader path: export LD_LIBRARY_PATH={kept}"))
    return [*fixes, Remedy("Or use an image of a CUDA release that the driver serves by itself")]


@check("fabric-manager-not-running", needs=("driver",))
def fabric_manager_not_running(s: Snapshot) -> Finding | Skipped | None:
    """Finds an NVSwitch machine whose fabric manager does not run (error 802).

    Signals: an NVSwitch on the PCI bus and the state of the service; error 802 of a first CUDA call.
    """
    cause = "fabric-manager-not-running"
    d, error = s.driver, _errors(s)
    not_ready = error is not None and error[1] == 802
    if not not_ready:
        if d is None or d.nvswitch is None:
            return Skipped(cause, "the PCI bus is not known")
        if not d.nvswitch or d.fabric_manager == "active":
            return None
        if d.fabric_manager is None:
            return Skipped(cause, "an NVSwitch is there, the state of its service cannot be read")
    switch = bool(d and d.nvswitch)
    state = d.fabric_manager if d and d.fabric_manager else "not known"
    rows = [s.evidence("driver.nvswitch"), s.evidence("driver.fabric_manager")] if d else []
    if not_ready and error:
        rows.append(s.evidence(f"gpus[{error[2]}].cuda_error"))
    branch = (d.version or "").split(".")[0] if d else ""
    package = (f"nvidia-fabricmanager-{branch}",) if branch and s.system and s.system.os_id == "ubuntu" else ()
    commands: tuple[tuple[str, ...], ...] = (("sudo", "systemctl", "enable", "--now", "nvidia-fabricmanager"),)
    if package:
        commands = (("sudo", "apt-get", "install", *package), *commands)
    version = f" {d.version}" if d and d.version else ""
    fix = Remedy(f"Install the fabric manager of exactly driver{version}, and start it", commands=commands)
    summary = f"The fabric manager is {state}" + (f"; CUDA's first call fails: {error[0]}" if error else "")
    sure = switch and not_ready
    return found(cause, Confidence.PROVEN if sure else Confidence.LIKELY, summary, rows, fixes=[fix])


@check("nvidia-uvm-device-missing", needs=("driver",))
def nvidia_uvm_device_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds a container with a card's node but without /dev/nvidia-uvm, which CUDA needs.

    On a native host CUDA makes the node itself at its first call, so nothing is said there.
    """
    cause, d = "nvidia-uvm-device-missing", s.driver
    if d is None or d.device_nodes is None or s.in_container is None:
        return Skipped(cause, "device nodes, or whether this is a container, are not known")
    cards = [n for n in d.device_nodes if n.removeprefix("/dev/nvidia").isdigit()]
    if not s.in_container or not cards or "/dev/nvidia-uvm" in d.device_nodes:
        return None
    failed = _errors(s) is not None
    rows = [s.evidence("driver.device_nodes")]
    summary = f"This container has {cards[0]} but no /dev/nvidia-uvm: NVML works, CUDA cannot"
    return found(cause, Confidence.PROVEN if failed else Confidence.LIKELY, summary, rows)


@check("cuda-init-failed", needs=("gpus",))
def cuda_init_failed(s: Snapshot) -> Finding | Skipped | None:
    """Finds that a first CUDA call fails on a card that NVML lists (measured with --deep).

    Errors with a cause of their own (802, 803, 804) are left to it.
    """
    cause = "cuda-init-failed"
    error = _errors(s)
    if error is None:
        if not s.deep:
            return Skipped(cause, "CUDA itself is only asked with --deep")
        return None
    if error[1] in _OWN:
        return None
    rows = [s.evidence(f"gpus[{error[2]}].cuda_error")]
    if s.driver and s.driver.device_nodes is not None:
        rows.append(s.evidence("driver.device_nodes"))
    sure = error[1] is not None
    return found(
        cause, Confidence.PROVEN if sure else Confidence.LIKELY, f"CUDA's first call fails: {error[0]}", rows
    )
