"""Output of everyday commands in a paste: uname, dpkg, apt, pip, env, df, os-release, ldconfig."""

from __future__ import annotations

import re
from collections.abc import Iterable

from doctor.evidence.builder import FactBuilder
from doctor.evidence.facts_env import add_kernel, add_package, add_variable
from doctor.evidence.strip import Line
from doctor.snapshot import Event

_KERNEL = re.compile(
    r"^(?:Linux \S{1,80} "
    r")?(\d{1,2}\.\d{1,3}\.\d{1,3}(?:\.\d{1,3})?[-.][\w.+-]{0,80})(?:\s+#\d.*)?$|^Linux version "
    r"(\S{3,100})"
)
_DPKG = re.compile(r"^[ihru][ic]\s+([a-z0-9][a-z0-9.+-]{1,80})(?::[a-z0-9]+)?\s+(\S{1,80})")
_APT_LIST = re.compile(r"^([a-z0-9][a-z0-9.+-]{1,80})/\S{1,80},?\S{0,60} (\S{1,80}) \w+ \[installed")
_APT_STEP = re.compile(r"^(?:Setting up|Unpacking) ([a-z0-9][a-z0-9.+-]{1,80})(?::[a-z0-9]+)? \((\S{1,80})\)")
_RPM = re.compile(
    r"^((?:nvidia|cuda|kmod-nvidia|xorg-x11-drv-nvidia|akmod-nvidia)[a-z0-9.+-]{0,60}?)-(\d[\w.:]{1,40})-\S{1,40}$"
)
_PIP_LINE = re.compile(
    r"^([A-Za-z][A-Za-z0-9_.-]{1,60})(?:==|\s{1,80})(\d+(?:\.\d+){1,4}[\w.+-]{0,40})(?:\s+\S{0,200})?$"
)
_INSTALLED = re.compile(r"^Successfully installed (.{3,4000})")
_UV = re.compile(r"^\s*\+ ([a-z0-9][a-z0-9._-]{1,60})==(\S{1,60})$")
_DF = re.compile(
    r"^(\S{1,80})\s+([\d.]{1,8}[KMGTP]?i?)\s+([\d.]{1,8}[KMGTP]?i?)\s+([\d.]{1,8}[KMGTP]?i?)\s+(\d{1,3})%\s+(/\S{0,200})$"
)
_RELEASE = re.compile(r"^(PRETTY_NAME|ID|VERSION_ID)=\"?([^\"]{1,80})\"?$")
_WINDOWS = re.compile(
    r"(?:10\.0\.|^10 {1,10}0 {1,10})(\d{5})\b|Microsoft Windows \[Version 10\.0\.(\d{5})|OS "
    r"Build (\d{5})|Windows[^\n]{0,40}\bBuild:? (\d{5})",
    re.I,
)
#: ``wsl --list --verbose``; the state is in the language of Windows, the star marks the default.
_WSL_LIST = re.compile(
    r"^(?:\*\s{1,4}(\S{2,40})\s{1,60}\S[^\d\n]{0,40}|(\S{2,40})\s{1,60}(?:Running|Stopped))\s{1,40}([12])$"
)
_LIBCUDA = re.compile(r"(libcuda\.so(?:\.1)?|libnvidia-ml\.so(?:\.1)?) (?:\([^)]{1,60}\) )?=> (/\S{1,200})")
_DRIVER_PACKAGE = re.compile(
    r"^(?:nvidia-driver-\d+|nvidia-driver|nvidia-open|nvidia-headless-|libnvidia-compute-\d+|libnvidia-gl-|cuda-drivers|"
    r"nvidia-kernel-|nvidia-dkms-|xserver-xorg-video-nvidia|libcuda1$|libnvidia-ml1$)"
)
_GLIBC = re.compile(r"ldd \([^)]{1,60}\) (\d\.\d{1,3})")
_GCC_LINE = re.compile(r"^(?:gcc|g\+\+|cc|c\+\+)(?:-\d+)? \([^)]{1,100}\) (\d+)\.(\d+)\.(\d+)")
_NVCC = re.compile(r"Cuda compilation tools, release (\d{1,2}\.\d)")


def read(lines: Iterable[Line], name: str, facts: FactBuilder) -> list[Event]:
    """Facts of all lines that look like such output."""
    events: list[Event] = []
    packages: list[str] = []
    pid1 = table = distro = False
    before = ""
    for line in lines:
        text = line.text.strip()
        source = f"{name}:{line.number}"
        if not text:
            continue
        asked, before = "torch.cuda.is_available()" in before, text
        if asked and text in ("True", "False"):
            events.append(Event("report.cuda-available", source, text, line.number, {"value": text}))
            continue
        table = table or re.match(r"NAME\s{1,60}STATE\s{1,60}VERSION$", text) is not None
        listed_wsl = _WSL_LIST.match(text)
        if listed_wsl and (table or listed_wsl[2]):
            if not distro:  # the default comes first; others need not be of the same version
                facts.put("wsl", "version", int(listed_wsl[3]), source)
                facts.put("wsl", "distro", listed_wsl[1] or listed_wsl[2], source)
            distro = True
            continue
        if line.process and re.match(r"\w+ pid=1$", line.process) and not pid1:
            pid1 = True
            events.append(Event("container.pid1", source, f"({line.process}) {text[:80]}", line.number))
        if line.level is not None or line.process is not None or text.startswith("INFO:"):
            continue  # a log message, not a command's output
        if kernel := _KERNEL.match(text):
            add_kernel(kernel[1] or kernel[2], source, facts)
        elif package := (_DPKG.match(text) or _APT_LIST.match(text) or _APT_STEP.match(text) or _RPM.match(text)):
            events.append(
                Event("shell.package", source, text, line.number, {"name": package[1], "version": package[2]})
            )
            if text[:2] not in ("rc", "un") and _DRIVER_PACKAGE.match(package[1]):
                packages.append(package[1])
                facts.put("wsl", "linux_driver_packages", tuple(packages), source, replace=True)
        elif room := _DF.match(text):
            values = {
                "device": room[1],
                "size": room[2],
                "used": room[3],
                "free": room[4],
                "percent": room[5],
                "mount": room[6],
            }
            events.append(Event("shell.df", source, text, line.number, values))
            if room[6] == "/dev/shm":  # noqa: S108  a name in a table
                facts.put("system", "shm_total_bytes", _bytes(room[2]), source)
                facts.put("system", "shm_free_bytes", _bytes(room[4]), source)
        elif release := _RELEASE.match(text):
            names = {"PRETTY_NAME": "os_name", "ID": "os_id", "VERSION_ID": "os_version"}
            facts.put("system", names[release[1]], release[2], source)
        elif windows := _WINDOWS.search(text):
            build = next(g for g in windows.groups() if g)
            facts.put("wsl", "windows_build", int(build), source)
            events.append(Event("shell.windows", source, text, line.number, {"build": build}))
        elif library := _LIBCUDA.search(text):
            field = "libcuda_resolved" if library[1].startswith("libcuda") else "libnvidia_ml_resolved"
            facts.put("wsl", field, library[2], source)
            facts.put("driver", "libcuda" if field == "libcuda_resolved" else "libnvidia_ml", library[2], source)
        elif installed := _INSTALLED.match(text):
            for item in installed[1].split():
                pip_name, _, version = item.rpartition("-")
                if pip_name and version[:1].isdigit():
                    add_package(pip_name, version, source, facts)
        elif listed := (_UV.match(text) or _PIP_LINE.match(text)):
            if _known_package(listed[1]):
                add_package(listed[1], listed[2], source, facts)
        elif glibc := _GLIBC.search(text):
            facts.put("system", "glibc", glibc[1], source)
        elif nvcc := _NVCC.search(text):
            events.append(Event("shell.nvcc", source, text, line.number, {"release": nvcc[1]}))
        elif gcc := _GCC_LINE.match(text):
            events.append(
                Event("shell.gcc", source, text, line.number, {"major": gcc[1], "version": ".".join(gcc.groups())})
            )
        else:
            for part in re.split(r"\s+(?=[A-Z][A-Z0-9_]{3,60}=)|(?<=\s)-e\s+", text)[:40]:
                add_variable(
                    part.removeprefix("-e ").removeprefix("- ").removeprefix("Environment="), source, facts
                )
    return events


def _known_package(name: str) -> bool:
    return bool(
        re.match(
            r"(?i)(?:vllm|torch|triton|transformers|flashinfer|nvidia-|nccl|xformers|flash[-_]attn|deep[-_]?gemm|pynvml|"
            r"huggingface|tokenizers|numpy|ray$|cupy|sgl)",
            name,
        )
    )


def _bytes(text: str) -> int | None:
    found = re.match(r"([\d.]+)([KMGTP]?)", text)
    if not found:
        return None
    try:
        return int(float(found[1]) * 1024 ** " KMGTP".index(found[2] or " "))
    except ValueError:
        return None
