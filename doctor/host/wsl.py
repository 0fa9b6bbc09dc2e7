"""Probe of the Windows Subsystem for Linux: which version, its GPU libraries, what Windows set.

A native host costs a few file reads; everything else is looked at under WSL only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from doctor.facts import WslFacts
from doctor.host import libraries, wsl_config
from doctor.host.access import Host
from doctor.host.examine import Options
from doctor.host.mounts import containing, read_mounts
from doctor.host.parts import Read, bounded, gather

LIB_DIR = "/usr/lib/wsl/lib"
#: First WSL2 kernel on which vLLM trusts pinned memory (vllm/platforms/cuda.py, is_pin_memory_available).
PIN_MEMORY_KERNEL = (4, 19, 121)
PIN_MEMORY_VARIABLE = "VLLM_WSL2_ENABLE_PIN_MEMORY"
_BINFMT = "/proc/sys/fs/binfmt_misc"
_CMD = "/mnt/c/Windows/System32/cmd.exe"


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """Returns ``{"wsl": WslFacts}``; on a native host little more than ``version=0``."""
    values, sources = gather((partial(_version, host),))
    version = values.get("version")
    if version:
        parts = [
            _devices, _lib_dir, _distro, _interop, _cwd, _pin_memory, _packages, _resolved,
            wsl_config.of_distribution, wsl_config.of_windows,
        ]  # fmt: skip
        more, whence = gather(partial(part, host) for part in parts)
        values, sources = {**more, **values}, {**whence, **sources}
        if "windows_build" not in values:
            build, whence = gather((partial(_windows_build, host, values),))
            values, sources = {**values, **build}, {**sources, **whence}
    return {"wsl": WslFacts(**values, sources=sources)}


def _version(host: Host) -> dict[str, Read]:
    """WSL1 kernels are called ``4.4.0-19041-Microsoft``, WSL2's ``5.15.167.4-microsoft-standard-WSL2``.

    Those of 2019 and 2020 end with ``-microsoft-standard``. Other names with "microsoft" may be cloud
    kernels and need a second sign; a kernel that somebody built without the name needs two.
    """
    path = "/proc/sys/kernel/osrelease"
    release = (host.read(path, 4096) or "").strip()
    text = host.read("/proc/version", 4096) or ""
    if not release:
        path, release = "/proc/version", _release_of(text)
    if not re.match(r"\d+\.\d+", release):
        return {}
    name = Read(release, path)
    signs = _signs(host)
    old = re.search(r"-(\d{4,6})-Microsoft\b", release)
    if old or (release.endswith("-Microsoft") and "WSL2" not in release):
        facts = {"version": Read(1, path), "kernel": name, "signs": Read((release, *signs), path)}
        return {**facts, "windows_build": Read(int(old[1]), path)} if old else facts
    two = {"version": Read(2, path), "kernel": name, "signs": Read((release, *signs), path)}
    if re.search(r"microsoft.*WSL2|\d-microsoft-standard$", release, re.I):
        return two
    if "microsoft" in release.lower() and signs:
        return two
    if _is_distribution(signs):  # a kernel of one's own
        return {**two, "version": Read(2, signs[0])}
    if "microsoft" in release.lower():
        return {"kernel": name, "signs": Read((release,), path)}  # perhaps a cloud kernel: not known
    return {"version": Read(0, path), "kernel": name}


def _release_of(text: str) -> str:
    match = re.match(r"Linux version (\S{1,120})", text)
    return match[1] if match else ""


def _signs(host: Host) -> tuple[str, ...]:
    """Signs of WSL besides the kernel's name. Variables are weakest: ssh and ``docker -e`` carry them along."""
    signs = []
    if host.glob(f"{_BINFMT}/WSLInterop*"):
        signs.append(f"{_BINFMT}/WSLInterop")
    if host.is_dir("/run/WSL"):
        signs.append("/run/WSL")
    if host.exists("/dev/dxg"):
        signs.append("/dev/dxg")
    if host.exists("/usr/lib/wsl/lib/libdxcore.so"):
        signs.append("/usr/lib/wsl/lib/libdxcore.so")
    signs += [name for name in ("WSL_DISTRO_NAME", "WSL_INTEROP") if host.env.get(name)]
    return tuple(signs)


def _is_distribution(signs: tuple[str, ...]) -> bool:
    """True when WSL's own services show. /dev/dxg and its libraries alone also exist in Hyper-V guests."""
    own = [s for s in signs if s.endswith("/WSLInterop") or s == "/run/WSL"]
    return bool(own) and len([s for s in signs if s.startswith("/")]) >= 2


def _devices(host: Host) -> dict[str, Read]:
    return {"dxg": Read(host.exists("/dev/dxg"), "/dev/dxg")}


def _lib_dir(host: Host) -> dict[str, Read]:
    if not host.is_dir(LIB_DIR):
        absent = Read(False, LIB_DIR)
        return {"lib_dir": absent, "libcuda_in_lib_dir": absent, "libnvidia_ml_in_lib_dir": absent}
    return {
        "lib_dir": Read(True, LIB_DIR),
        "libcuda_in_lib_dir": Read(host.exists(f"{LIB_DIR}/libcuda.so.1"), LIB_DIR),
        "libnvidia_ml_in_lib_dir": Read(host.exists(f"{LIB_DIR}/libnvidia-ml.so.1"), LIB_DIR),
    }


def _distro(host: Host) -> dict[str, Read]:
    # Docker Desktop's containers see the WSL2 kernel but belong to no distribution
    return {"distro": Read(host.env.get("WSL_DISTRO_NAME", "")[:60], "WSL_DISTRO_NAME")}


def _interop(host: Host) -> dict[str, Read]:
    for path in host.glob(f"{_BINFMT}/WSLInterop*"):
        state = (host.read(path, 256) or "").splitlines()
        if state:
            return {"interop": Read(state[0] == "enabled", path)}
    if host.is_dir(_BINFMT):
        return {"interop": Read(False, _BINFMT)}
    return {}


def _cwd(host: Host) -> dict[str, Read]:
    folder = host.readlink("/proc/self/cwd")
    mounts = read_mounts(host)
    if not folder or not mounts:
        return {}
    mount = containing(mounts, folder)
    return {"cwd_on_windows_drive": Read(bool(mount and mount.windows_drive), "/proc/self/mountinfo")}


def _pin_memory(host: Host) -> dict[str, Read]:
    value = host.env.get(PIN_MEMORY_VARIABLE, "").strip()
    # vLLM reads it with int(); anything that is no number would end vLLM with a ValueError
    facts = {"pin_memory_enabled": Read(value.isdigit() and int(value[:9]) != 0, PIN_MEMORY_VARIABLE)}
    path = "/proc/sys/kernel/osrelease"
    parts = (host.read(path, 4096) or "").split("-")[0].split(".")[:3]
    if len(parts) >= 2 and all(p.strip().isdigit() and len(p) < 9 for p in parts):
        facts["pin_memory_kernel_ok"] = Read(tuple(int(p) for p in parts) >= PIN_MEMORY_KERNEL, path)
    return facts


def _packages(host: Host) -> dict[str, Read]:
    return libraries.linux_driver_packages(host)


def _resolved(host: Host) -> dict[str, Read]:
    search = host.env.get("LD_LIBRARY_PATH", "")
    facts = {"library_path": Read(search, "LD_LIBRARY_PATH")}
    loader = libraries.Loader(host)
    for field, name in (
        ("libcuda_resolved", "libcuda.so.1"),
        ("libcuda_so_resolved", "libcuda.so"),
        ("libnvidia_ml_resolved", "libnvidia-ml.so.1"),
    ):
        found = loader.resolve(name)
        if found is not None:
            facts[field] = found
    return facts


def _windows_build(host: Host, known: Mapping[str, Any]) -> dict[str, Read]:
    """Asks Windows, but only when the answer matters: GPU libraries are missing and programs can be started.

    The version of files on the drive would be cheaper and wrong: an enablement package (19041 to 19045)
    leaves them as they are.
    """
    if known.get("version") != 2 or known.get("libnvidia_ml_in_lib_dir") or known.get("interop") is False:
        return {}
    if not bounded(lambda: host.exists(_CMD), 0.5, False):
        return {}
    answer = host.run([_CMD, "/d", "/c", "ver"], timeout=2.0, cwd="/mnt/c")
    # the word before it is localised, the number is not
    match = re.search(r"\b10\.0\.(\d{5})\b", answer.stdout)
    return {"windows_build": Read(int(match[1]), "cmd.exe /c ver")} if match else {}
