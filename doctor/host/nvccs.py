"""All nvcc on a host and the toolkits around them, and CUDA_HOME as torch and FlashInfer resolve it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from doctor import catalogue
from doctor.facts import Nvcc
from doctor.host.access import Host

_TIMEOUT = 2.0
_DEBIAN = "/usr/lib/nvidia-cuda-toolkit"


def cuda_home(host: Host) -> tuple[str, str]:
    """(folder, how): CUDA_HOME, CUDA_PATH, two folders up from nvcc on PATH, /usr/local/cuda; "" = none.

    The rule of torch.utils.cpp_extension._find_cuda_home and flashinfer.jit.cpp_ext.get_cuda_path.
    """
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if host.env.get(name):
            return host.env[name], name
    nvcc = host.which("nvcc")
    if nvcc:
        return os.path.dirname(os.path.dirname(nvcc)), f"{nvcc} on PATH"
    if host.exists("/usr/local/cuda"):
        return "/usr/local/cuda", "/usr/local/cuda"
    return "", "no CUDA_HOME, no nvcc on PATH, no /usr/local/cuda"


def find(host: Host, used: str, prefix: str | None, sites: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Path of each nvcc -> how it was found. Paths that are the same file are one; the used one leads."""
    ways: list[tuple[str, str]] = [(used, "CUDA_HOME")] if used else []
    on_path = host.which("nvcc")
    if on_path:
        ways.append((on_path, "PATH"))
    if host.env.get("CUDA_PATH"):
        ways.append((f"{host.env['CUDA_PATH']}/bin/nvcc", "CUDA_PATH"))
    for pattern, by in (("/usr/local/cuda*/bin/nvcc", "/usr/local"), ("/opt/cuda*/bin/nvcc", "/opt")):
        ways.extend((path, by) for path in host.glob(pattern))
    ways.append((f"{_DEBIAN}/bin/nvcc", "distribution package"))
    if host.env.get("CONDA_PREFIX"):
        ways.append((f"{host.env['CONDA_PREFIX']}/bin/nvcc", "conda"))
    if prefix:
        ways.append((f"{prefix}/bin/nvcc", "environment"))
    for site in sites:
        ways.extend((path, "nvidia wheel") for path in host.glob(f"{site}/nvidia/*/bin/nvcc"))
    found: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    for path, by in ways:
        if not host.access(path, os.X_OK) or host.is_dir(path):
            continue
        first = seen.setdefault(host.realpath(path), path)
        labels = found.setdefault(first, [])
        if by not in labels:
            labels.append(by)
    return {path: tuple(labels) for path, labels in found.items()}


def ask(host: Host, path: str, found_by: tuple[str, ...]) -> Nvcc:
    """Release, and what the toolkit's own headers say. A hanging or broken nvcc keeps release None."""
    answer = host.run([path, "--version"], timeout=_TIMEOUT, limit=8192)
    text = answer.stdout if answer.ok else ""
    release = re.search(r"\brelease (\d{1,2}\.\d{1,2}), V(\d+\.\d+\.\d+)", text)
    root = toolkit_root(host, path)
    includes = _includes(host, root)
    gcc_max = _gcc_max(host, includes)
    known = catalogue.table("cuda_gcc").get(release[1], {}) if release else {}
    return Nvcc(
        path=path,
        release=release[1] if release else None,
        build=release[2] if release else None,
        found_by=found_by,
        gcc_max=gcc_max if gcc_max is not None else known.get("gcc_max"),
        gcc_min=known.get("gcc_min"),
        has_curand=any(host.exists(f"{i}/curand_kernel.h") for i in includes) if root else None,
        has_cudart_static=any(host.exists(f"{d}/libcudart_static.a") for d in _libraries(host, root))
        if root
        else None,
        root=root,
        glibc_max=_glibc_max(host, includes),
    )


def toolkit_root(host: Host, path: str) -> str | None:
    """The folder above bin/ of the real program: links followed, and one-line wrapper scripts too."""
    real = host.realpath(path)
    head = host.read_bytes(real, 4096) or b""
    if head.startswith(b"#!"):
        match = re.search(rb"^\s*exec\s+[\"']?(/[^\s\"']+/nvcc)\b", head, re.M)
        real = host.realpath(match[1].decode("utf-8", "replace")) if match else real
    folder, name = os.path.split(real)
    return os.path.dirname(folder) if name == "nvcc" and os.path.basename(folder) == "bin" else None


def _includes(host: Host, root: str | None) -> tuple[str, ...]:
    if not root:
        return ()
    if root == _DEBIAN:  # the distribution package keeps its headers in the system's folders
        return ("/usr/include", f"{root}/include")
    return (f"{root}/include", *host.glob(f"{root}/targets/*/include"))


def _libraries(host: Host, root: str) -> tuple[str, ...]:
    system = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu") if root == _DEBIAN else ()
    return (f"{root}/lib64", f"{root}/lib", *host.glob(f"{root}/targets/*/lib"), *system)


def _gcc_max(host: Host, includes: Iterable[str]) -> int | None:
    """N of "#if __GNUC__ > N" beside the error text of crt/host_config.h."""
    for include in includes:
        text = host.read(f"{include}/crt/host_config.h", 256 << 10)
        match = re.search(r"unsupported GNU version! gcc versions later than (\d+)", text or "")
        if match:
            return int(match[1])
    return None


def _glibc_max(host: Host, includes: Iterable[str]) -> str | None:
    """Newest glibc whose math declarations agree with crt/math_functions.h; "" when it has no known limit.

    glibc 2.41 declares cospi and sinpi, and 2.42 rsqrt, with noexcept; the header must do the same.
    """
    for include in includes:
        text = host.read(f"{include}/crt/math_functions.h", 1 << 20)
        if text is None or "cospi" not in text:
            continue
        if re.search(r"\bdouble\s+cospi\(double x\)\s*;", text):
            return "2.40"
        return "2.41" if re.search(r"\bdouble\s+rsqrt\(double x\)\s*;", text) else ""
    return None
