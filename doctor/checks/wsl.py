"""Checks of the area wsl: the WSL machine itself. Each passes on a host that is not WSL.

What vLLM is told to do there is judged in :mod:`doctor.checks.wsl_settings`.
"""

from __future__ import annotations

import re

from doctor import catalogue
from doctor.checks.registry import check, found
from doctor.checks.wsl_common import facts, under_wsl2
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Skipped
from doctor.snapshot import Snapshot

#: First Windows build that hands an NVIDIA GPU to WSL2 for everybody: Windows 10 21H2.
WINDOWS_BUILD = 19_044
#: Older WSL kernels (the inbox one of 2021 is 5.10) are paired with drivers made for later ones.
KERNEL = (5, 15)
WSL_LIB = "/usr/lib/wsl/lib"


def _kernel(text: str | None) -> tuple[int, ...] | None:
    match = re.match(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,4}))?", text or "")
    return tuple(int(g) for g in match.groups() if g is not None) if match else None


@check("wsl1-no-gpu", needs=("wsl",))
def wsl1_no_gpu(s: Snapshot) -> Finding | Skipped | None:
    """The distribution runs as WSL 1, which has no GPU.

    Signals: the kernel calls itself ``...-Microsoft`` without WSL2 and there is no /dev/dxg (proven).
    Source: /proc/sys/kernel/osrelease.
    """
    wsl = facts(s)
    if wsl.version is None:
        return Skipped("wsl1-no-gpu", "it is not known whether this is WSL")
    if wsl.version != 1 or wsl.dxg:
        return None
    sure = Confidence.PROVEN if wsl.dxg is False else Confidence.LIKELY
    name = wsl.distro or "<distribution>"
    fix = Remedy(
        f"In Windows: wsl --set-version {name} 2, then wsl --update and a restart of Windows",
        commands=(("wsl.exe", "--set-version", name, "2"), ("wsl.exe", "--update")) if wsl.distro else (),
        verify=("ls -l /dev/dxg",),
    )
    summary = f"This is WSL 1 (kernel {wsl.kernel}); it has no GPU, whatever is installed."
    return found("wsl1-no-gpu", sure, summary, [s.evidence("wsl.kernel"), s.evidence("wsl.dxg")], fixes=(fix,))


@check("wsl2-kernel-outdated", needs=("wsl",))
@under_wsl2("wsl2-kernel-outdated")
def wsl2_kernel_outdated(s: Snapshot) -> Finding | Skipped | None:
    """The WSL kernel is older than 5.15.

    Signals: the release alone (proven as a fact of the version; that it caused a crash is not).
    """
    cause = "wsl2-kernel-outdated"
    version = _kernel(facts(s).kernel)
    if version is None:
        return Skipped(cause, "the release of the WSL kernel is not known")
    if version >= KERNEL:
        return None
    fix = Remedy(
        "In Windows: wsl --update, then wsl --shutdown",
        commands=(("wsl.exe", "--update"), ("wsl.exe", "--shutdown")),
        verify=("uname -r",),
    )
    summary = f"The WSL kernel is {facts(s).kernel}; current Windows drivers are made for 5.15 and later."
    return found(cause, Confidence.PROVEN, summary, [s.evidence("wsl.kernel")], fixes=(fix,))


@check("wsl2-windows-without-gpu-support", needs=("wsl",))
@under_wsl2("wsl2-windows-without-gpu-support")
def windows_without_gpu_support(s: Snapshot) -> Finding | Skipped | None:
    """Windows does not hand the GPU to WSL2.

    Signals: a Windows build below 19044 with libnvidia-ml missing, or NVML saying that the operating system
    blocks the GPU (proven); in a distribution, no /dev/dxg or none of the driver's libraries (likely: Windows,
    its NVIDIA driver or WSL is too old, or gpuSupport is off). In a container the same is the container's matter.
    """
    cause = "wsl2-windows-without-gpu-support"
    wsl = facts(s)
    evidence = [s.evidence("wsl.dxg"), s.evidence("wsl.libnvidia_ml_in_lib_dir")]
    if s.driver and "blocked by the operating system" in (s.driver.nvml_error or ""):
        evidence.append(s.evidence("driver.nvml_error"))
        return found(cause, Confidence.PROVEN, "NVML says that the operating system blocks the GPU.", evidence)
    if (
        wsl.windows_build is not None
        and wsl.windows_build < WINDOWS_BUILD
        and wsl.libnvidia_ml_in_lib_dir is False
    ):
        evidence.append(s.evidence("wsl.windows_build"))
        summary = (
            f"Windows is build {wsl.windows_build}; GPU access of WSL2 needs {WINDOWS_BUILD} (21H2) or later."
        )
        return found(cause, Confidence.PROVEN, summary, evidence)
    if wsl.dxg is None and wsl.libnvidia_ml_in_lib_dir is None:
        return Skipped(cause, "the GPU device and libraries of WSL were not looked at")
    missing = wsl.dxg is False or (wsl.libcuda_in_lib_dir is False and wsl.libnvidia_ml_in_lib_dir is False)
    if not missing or s.in_container:
        return None
    what = "/dev/dxg is missing" if wsl.dxg is False else f"{WSL_LIB} has no NVIDIA libraries"
    summary = f"{what}: Windows hands no NVIDIA GPU to WSL2."
    if (wsl.wslconfig or {}).get("gpusupport", "").lower() == "false":
        evidence.append(s.evidence("wsl.wslconfig", "gpuSupport=false"))
        summary = f"{what}, and gpuSupport=false is set in .wslconfig."
    elif wsl.windows_build is not None:
        evidence.append(s.evidence("wsl.windows_build"))
    return found(cause, Confidence.LIKELY, summary, evidence)


@check("wsl2-linux-driver-installed", needs=("wsl",))
@under_wsl2("wsl2-linux-driver-installed")
def linux_driver_installed(s: Snapshot) -> Finding | Skipped | None:
    """A Linux NVIDIA driver is installed inside the distribution and hides the one of Windows.

    Signals: an installed driver package (proven); libcuda or libnvidia-ml resolving outside /usr/lib/wsl in a
    distribution (proven; in a container other places are normal, and CUDA's stubs and compat folder are another
    cause).
    """
    cause = "wsl2-linux-driver-installed"
    wsl = facts(s)
    packages = wsl.linux_driver_packages
    strays = [
        (field, path)
        for field in ("libcuda_resolved", "libnvidia_ml_resolved")
        if (path := getattr(wsl, field)) and _stray(path) and s.in_container is False
    ]
    evidence = [s.evidence(f"wsl.{field}") for field, _ in strays]
    if packages:
        first = ", ".join(packages[:3]) + (f" and {len(packages) - 3} more" if len(packages) > 3 else "")
        summary = f"Driver packages inside the distribution: {first}."
        evidence.insert(0, s.evidence("wsl.linux_driver_packages"))
        return found(cause, Confidence.PROVEN, summary, evidence, fixes=_removal(s, packages))
    if strays:
        summary = f"The loader takes {strays[0][1]} instead of the library in {WSL_LIB}."
        return found(cause, Confidence.PROVEN, summary, evidence)
    if packages is None and not wsl.libcuda_resolved and not wsl.libnvidia_ml_resolved:
        return Skipped(cause, "neither the packages nor the loader's choice are known")
    return None


def _stray(path: str) -> bool:
    return not path.startswith("/usr/lib/wsl/") and not re.search(r"/stubs/|/compat/", path)


def _removal(s: Snapshot, packages: tuple[str, ...]) -> tuple[Remedy, ...]:
    shutdown = Remedy(
        "Then in Windows: wsl --shutdown",
        commands=(("wsl.exe", "--shutdown"),),
        verify=(f"{WSL_LIB}/nvidia-smi",),
    )
    if s.system and {s.system.os_id, *s.system.os_like} & {"debian", "ubuntu"}:
        return (
            Remedy(
                "Look at what their removal would take along",
                automatic=True,
                commands=(("apt-get", "--simulate", "purge", *packages),),
                risk=Risk.SAFE,
            ),
            Remedy(
                "Purge them; cuda-toolkit packages may stay", commands=(("sudo", "apt-get", "purge", *packages),)
            ),
            shutdown,
        )
    return (*catalogue.cause("wsl2-linux-driver-installed").remedies[:1], shutdown)


@check("wsl2-libcuda-not-on-loader-path", needs=("wsl",))
@under_wsl2("wsl2-libcuda-not-on-loader-path")
def libcuda_not_on_loader_path(s: Snapshot) -> Finding | Skipped | None:
    """The loader does not find libcuda although WSL provides it.

    Signals: libcuda.so.1 lies in /usr/lib/wsl/lib and the loader resolves it to nothing (proven); the plain name
    libcuda.so resolves to nothing while LD_LIBRARY_PATH is set without that folder (a hint: only what opens the
    plain name is concerned, such as NCCL).
    """
    cause = "wsl2-libcuda-not-on-loader-path"
    wsl = facts(s)
    path = _library_path(s)
    without = bool(path) and WSL_LIB not in [p.rstrip("/") for p in (path or "").split(":")]
    fix = Remedy(
        f"Tell the loader of {WSL_LIB}",
        automatic=True,
        commands=(
            ("sudo", "sh", "-c", f"echo {WSL_LIB} > /etc/ld.so.conf.d/ld.wsl.conf"),
            ("sudo", "ldconfig"),
        ),
        risk=Risk.CAUTION,
        verify=("ldconfig -p | grep libcuda",),
    )
    evidence = [s.evidence("wsl.libcuda_resolved")]
    if wsl.libcuda_in_lib_dir and wsl.libcuda_resolved == "":
        summary = f"libcuda.so.1 lies in {WSL_LIB}, and the loader does not find it."
        return found(cause, Confidence.PROVEN, summary, evidence, fixes=(fix,))
    if without and not wsl.libcuda_so_resolved:
        summary = (
            f"LD_LIBRARY_PATH is set without {WSL_LIB}; what opens libcuda.so by its plain name may not find it."
        )
        evidence.append(Evidence("LD_LIBRARY_PATH", path or "", "environment"))
        fixes = (Remedy(f"Add {WSL_LIB} to LD_LIBRARY_PATH where vLLM is started"), fix)
        return found(cause, Confidence.HINT, summary, evidence, fixes=fixes)
    if wsl.libcuda_resolved is None and path is None:
        return Skipped(cause, "it is not known what the loader finds")
    return None


def _library_path(s: Snapshot) -> str | None:
    if s.wsl and s.wsl.library_path is not None:
        return s.wsl.library_path
    return s.python.env.get("LD_LIBRARY_PATH") if s.python else None


@check("wsl2-libcuda-link-name-missing", needs=("wsl", "toolchain"))
@under_wsl2("wsl2-libcuda-link-name-missing")
def libcuda_link_name_missing(s: Snapshot) -> Finding | Skipped | None:
    """The linker does not find -lcuda under WSL2.

    Signals: a trial link that fails with "cannot find -lcuda". That proves it for tools that link by this name;
    Triton 3 links libcuda.so.1 in the folders that ldconfig lists, so with those in order it is only a hint for
    vLLM (triton/backends/nvidia/driver.py, libcuda_dirs).
    """
    cause = "wsl2-libcuda-link-name-missing"
    assert s.toolchain is not None  # noqa: S101  needs=
    trial = next((t for t in s.toolchain.trials if t.name == "link-cuda"), None)
    if trial is None or trial.ok is None:
        return Skipped(cause, "no trial link was made" + (f": {trial.error}" if trial and trial.error else ""))
    if trial.ok or not re.search(r"cannot find -lcuda\b|unable to find library -lcuda\b", trial.output):
        return None
    wsl = facts(s)
    resolved = wsl.libcuda_resolved or ""
    by_soname = bool(resolved) and not resolved.startswith(_paths(s))
    sure = Confidence.HINT if by_soname else Confidence.PROVEN
    summary = "The linker cannot find -lcuda" + (
        "; Triton links libcuda.so.1, which the loader finds, so only tools that use the plain name fail."
        if by_soname
        else ", and the loader's list does not help Triton to libcuda.so.1 either."
    )
    evidence = [Evidence("toolchain.trials", trial.output.strip().splitlines()[0][:200], " ".join(trial.argv)),
                s.evidence("wsl.libcuda_resolved")]  # fmt: skip
    fixes = (
        Remedy(f"Set TRITON_LIBCUDA_PATH={WSL_LIB} and LIBRARY_PATH={WSL_LIB} where vLLM is started", True,
               risk=Risk.SAFE, verify=(f"LIBRARY_PATH={WSL_LIB} links -lcuda",)),
    )  # fmt: skip
    return found(cause, sure, summary, evidence, fixes=fixes)


def _paths(s: Snapshot) -> tuple[str, ...]:
    """Folders of LD_LIBRARY_PATH: libcuda found there is not in ldconfig's list."""
    return tuple(p for p in (_library_path(s) or "").split(":") if p) or ("\0",)
