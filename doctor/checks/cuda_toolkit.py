"""Checks of nvcc and the CUDA toolkit (area: compiler). They matter only where something compiles CUDA code."""

from __future__ import annotations

import re

from doctor import catalogue
from doctor.checks.gpu_common import capability, label
from doctor.checks.native import JitUser, compiler, complete_pair, jit_users, nvcc_in_use, toolchain, trial
from doctor.checks.packages import family, install
from doctor.checks.registry import check, found
from doctor.facts import Nvcc
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot

_UNSUPPORTED = re.compile(r"unsupported GNU version")
_MATH = re.compile(r"exception specification is incompatible with that of previous function")
_NO_HEADER = re.compile(r"\b(cuda_runtime|cuda|curand\w*|cublas\w*|nvrtc)\.h: No such file")
_NOT_READ = "the environment that runs vLLM could not be read"


def _numbers(release: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", release or ""))


def _name(nvcc: Nvcc) -> str:
    return f"nvcc {nvcc.release} ({nvcc.path})" if nvcc.release else nvcc.path


def _severity(users: tuple[JitUser, ...] | None) -> Severity | None:
    """``degrades`` when the environment was read and nothing in it compiles CUDA code here."""
    return Severity.DEGRADES if users == () else None


def _because(users: tuple[JitUser, ...] | None) -> str:
    return f": {users[0].why}" if users else "; nothing in the examined environment compiles CUDA code now"


def _rows(users: tuple[JitUser, ...] | None) -> list[Evidence]:
    return [Evidence("compiles at run time", u.name, u.why) for u in users or ()]


def _use_toolkit(nvcc: Nvcc) -> Remedy:
    return Remedy(
        f"Start the server with CUDA_HOME={nvcc.root} PATH={nvcc.root}/bin:$PATH",
        risk=Risk.SAFE,
        verify=(f"{nvcc.root}/bin/nvcc --version",),
    )


def _older_host(s: Snapshot, limit: int) -> tuple[Remedy, ...]:
    pair = complete_pair(s, limit)
    if pair is not None:
        text = f"Start the server with CC={pair[0]} CXX={pair[1]} CUDAHOSTCXX={pair[1]} NVCC_CCBIN={pair[1]}"
        return (Remedy(text, risk=Risk.SAFE),)
    commands = install(s, "gcc-major", "g++-major", major=limit)
    text = f"Install gcc-{limit} and g++-{limit}, then set CC, CXX, CUDAHOSTCXX and NVCC_CCBIN to them"
    return (Remedy(text, bool(commands), commands, Risk.SAFE if commands else Risk.MANUAL),)


@check("gcc-too-new-for-nvcc", needs=("toolchain",))
def gcc_too_new_for_nvcc(s: Snapshot) -> Finding | Skipped | None:
    """Finds a host gcc that is newer than the nvcc in use accepts.

    Signals: `nvcc -E` stops with "unsupported GNU version"; or the major of nvcc's host compiler is
    above the limit in its crt/host_config.h. Source: that header, in each toolkit release.
    """
    cause, t = "gcc-too-new-for-nvcc", toolchain(s)
    nvcc = nvcc_in_use(s)
    if nvcc is None:
        return None if t.nvcc == "" else Skipped(cause, "nvcc is not known")
    tried = trial(s, "nvcc-preprocess")
    refused = tried is not None and tried.ok is False and bool(_UNSUPPORTED.search(tried.output))
    host = compiler(s, t.nvcc_host)
    if tried is not None and tried.ok:
        return None
    if not refused:
        if nvcc.gcc_max is None:
            return Skipped(cause, f"the newest gcc that {nvcc.path} accepts is not known")
        if host is None or host.family != "gcc" or host.major is None:
            return None if t.nvcc_host == "" else Skipped(cause, f"the version of {t.nvcc_host} is not known")
        if host.major <= nvcc.gcc_max:
            return None
    users = jit_users(s)
    limit = nvcc.gcc_max
    described = f"{host.path} is gcc {host.version or host.major}" if host else t.nvcc_host or "its host compiler"
    if limit:
        summary = f"{described}, {_name(nvcc)} accepts gcc up to {limit}"
    else:
        summary = f"{_name(nvcc)} refuses {described}"
    where = f"{nvcc.root}/include/crt/host_config.h" if nvcc.root else nvcc.path
    rows = [Evidence("nvcc.gcc_max", str(limit or "not known"), where), *_rows(users)]
    if refused and tried is not None:
        line = next(x for x in tried.output.splitlines() if _UNSUPPORTED.search(x))
        rows.insert(0, Evidence("trial compile nvcc-preprocess", line[:200], " ".join(tried.argv[:2])))
    fixes = (*(_older_host(s, limit) if limit else ()), *catalogue.cause(cause).remedies[1:])
    return found(cause, Confidence.PROVEN, summary + _because(users), rows, severity=_severity(users), fixes=fixes)


@check("glibc-cuda-math-header-conflict", needs=("toolchain",))
def glibc_cuda_math_header_conflict(s: Snapshot) -> Finding | Skipped | None:
    """Finds a glibc whose math declarations clash with the CUDA headers in use.

    Signals: glibc 2.41 or newer (cospi, sinpi) and a crt/math_functions.h that declares them without
    noexcept: CUDA 11.8 to 12.9. glibc 2.42 adds rsqrt: CUDA 13.0 and 13.1. Measured on glibc 2.41
    with the headers of 12.6, 12.8, 12.9 (rejected with gcc 12, 13 and 14).
    """
    cause = "glibc-cuda-math-header-conflict"
    nvcc = nvcc_in_use(s)
    if nvcc is None:
        return None if toolchain(s).nvcc == "" else Skipped(cause, "nvcc is not known")
    deep = trial(s, "nvcc")
    if deep is not None and deep.ok:
        return None
    users = jit_users(s)
    rows = [*_rows(users)]
    rejected = deep is not None and deep.ok is False and bool(_MATH.search(deep.output))
    if rejected and deep is not None:
        line = next(x for x in deep.output.splitlines() if _MATH.search(x))
        rows.insert(0, Evidence("trial compile nvcc", line[:200], " ".join(deep.argv[:2])))
    glibc = s.system.glibc if s.system else None
    if not rejected:
        if nvcc.glibc_max is None or not glibc:
            what = "glibc" if not glibc else f"the math header of {nvcc.path}"
            return Skipped(cause, f"{what} is not known")
        if nvcc.glibc_max == "" or _numbers(glibc) <= _numbers(nvcc.glibc_max):
            return None
    confidence = Confidence.PROVEN if rejected or nvcc.glibc_max == "2.40" else Confidence.LIKELY
    rows.append(
        Evidence("nvcc.glibc_max", nvcc.glibc_max or "not known", f"{nvcc.root}/include/crt/math_functions.h")
    )
    if glibc:
        rows.append(s.evidence("system.glibc"))
    summary = f"the math headers of {_name(nvcc)} clash with glibc {glibc or 'of this host'}{_because(users)}"
    return found(cause, confidence, summary, rows, severity=_severity(users))


@check("nvcc-missing", needs=("toolchain", "python"))
def nvcc_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds that a library of the environment compiles CUDA code and no nvcc is where it looks.

    Signals: CUDA_HOME and CUDA_PATH unset or without bin/nvcc, none on PATH, no /usr/local/cuda; and a
    JIT user without prebuilt kernels. Source: torch.utils.cpp_extension, flashinfer.jit.cpp_ext.
    """
    cause, t = "nvcc-missing", toolchain(s)
    users = jit_users(s)
    if users is None:
        return Skipped(cause, _NOT_READ)
    if not users or t.nvcc is None:
        return None if not users else Skipped(cause, "nvcc is not known")
    if t.nvcc:
        return None
    others = [n for n in t.nvccs or () if n.root]
    sampler = users[0].name.startswith("FlashInfer")
    rows = [s.evidence("toolchain.nvcc", f"none in CUDA_HOME {t.cuda_home or '(none)'}"), *_rows(users)]
    rows += [
        Evidence("another nvcc", f"{n.path} {n.release or ''}".strip(), ", ".join(n.found_by)) for n in others
    ]
    summary = (
        f"no nvcc where {users[0].name} looks ({t.cuda_home or 'CUDA_HOME unset, none on PATH'}): {users[0].why}"
    )
    fixes = [_use_toolkit(n) for n in others[:1]]
    if sampler:
        fixes.append(Remedy("Start the server with VLLM_USE_FLASHINFER_SAMPLER=0", risk=Risk.SAFE))
    cuda = s.python.torch_cuda if s.python else None
    fixes.append(_install_toolkit(s, cuda))
    confidence = Confidence.LIKELY if users[0].certain else Confidence.HINT
    return found(cause, confidence, summary, rows, fixes=fixes)


def _install_toolkit(s: Snapshot, cuda: str | None) -> Remedy:
    """NVIDIA's package of the release torch was built for; its repository must be set up first."""
    text = f"Install the CUDA toolkit {cuda} (torch was built for it)" if cuda else "Install the CUDA toolkit"
    commands: tuple[tuple[str, ...], ...] = ()
    if cuda and family(s) == "apt":
        name = f"cuda-toolkit-{cuda.replace('.', '-')}"
        commands = (("sudo", "apt-get", "install", "-y", name),)
        text += ": NVIDIA's apt repository must be configured"
    return Remedy(f"{text}, then set CUDA_HOME to it", commands=commands, verify=("nvcc --version",))


@check("nvcc-too-old-for-jit", needs=("toolchain", "python"))
def nvcc_too_old_for_jit(s: Snapshot) -> Finding | Skipped | None:
    """Finds an nvcc that cannot compile for this card although a library must.

    Signals: a JIT user, and the nvcc in use is older than the first release that knows the card's
    compute capability. A release below torch's alone is no fault and no finding.
    """
    cause = "nvcc-too-old-for-jit"
    users = jit_users(s)
    if users is None:
        return Skipped(cause, _NOT_READ)
    nvcc = nvcc_in_use(s)
    if not users or nvcc is None:
        return None
    if nvcc.release is None:
        return Skipped(cause, f"{nvcc.path} does not tell its release")
    first = catalogue.table("nvcc_targets")
    for gpu in s.gpus or ():
        cap = capability(gpu)
        name = f"{cap[0]}.{cap[1]}" if cap else ""
        if name in first and _numbers(nvcc.release) < _numbers(first[name]):
            rows = [Evidence("nvcc", nvcc.release, nvcc.path), Evidence("compute capability", name, label(gpu))]
            summary = (
                f"nvcc {nvcc.release} ({nvcc.path}) cannot compile for {label(gpu)}, "
                f"which needs CUDA {first[name]} or newer{_because(users)}"
            )
            newer = (
                [n for n in s.toolchain.nvccs or () if _numbers(n.release) >= _numbers(first[name])]
                if s.toolchain
                else []
            )
            cuda = s.python.torch_cuda if s.python else None
            fixes = [*(_use_toolkit(n) for n in newer[:1] if n.root), _install_toolkit(s, cuda)]
            return found(cause, Confidence.PROVEN, summary, [*rows, *_rows(users)], fixes=fixes)
    return None


@check("torch-nvcc-cuda-mismatch", needs=("toolchain", "python"))
def torch_nvcc_cuda_mismatch(s: Snapshot) -> Finding | Skipped | None:
    """Finds an nvcc of another CUDA major than torch's where an extension is compiled against torch.

    Signals: torch's extension builder refuses different majors (torch.utils.cpp_extension). The Turing
    fork asks for equal minors too. Where nothing compiles against torch, a difference is no fault.
    """
    cause = "torch-nvcc-cuda-mismatch"
    users = jit_users(s)
    if users is None:
        return Skipped(cause, _NOT_READ)
    nvcc, p = nvcc_in_use(s), s.python
    if not users or nvcc is None or p is None or not p.torch_cuda:
        return None
    if nvcc.release is None:
        return Skipped(cause, f"{nvcc.path} does not tell its release")
    ours, theirs = _numbers(nvcc.release), _numbers(p.torch_cuda)
    builder = any(u.torch_extension for u in users)
    major = ours[:1] != theirs[:1]
    if not major and (not builder or ours[:2] == theirs[:2]):
        return None
    confidence = Confidence.PROVEN if major and builder else Confidence.LIKELY if builder else Confidence.HINT
    rows = [Evidence("nvcc", nvcc.release, nvcc.path), s.evidence("python.torch_cuda"), *_rows(users)]
    summary = (
        f"torch is built for CUDA {p.torch_cuda}, the nvcc in use is {nvcc.release} ({nvcc.path}){_because(users)}"
    )
    same = [n for n in toolchain(s).nvccs or () if n.root and _numbers(n.release)[:2] == theirs[:2]]
    fixes = [*(_use_toolkit(n) for n in same[:1]), _install_toolkit(s, p.torch_cuda)]
    fixes += catalogue.cause(cause).remedies[:1]
    severity = None if major and builder else Severity.DEGRADES
    return found(cause, confidence, summary, rows, severity=severity, fixes=fixes)


@check("cuda-toolkit-incomplete", needs=("toolchain", "python"))
def cuda_toolkit_incomplete(s: Snapshot) -> Finding | Skipped | None:
    """Finds a toolkit without the headers or libraries that run-time kernels include.

    Signals: `nvcc -E` does not find cuda_runtime.h; or a JIT user, and no curand_kernel.h (FlashInfer's
    sampling.cuh includes it) or no libcudart_static.a (the Turing fork's build asks for it).
    """
    cause = "cuda-toolkit-incomplete"
    nvcc, users = nvcc_in_use(s), jit_users(s)
    if nvcc is None:
        return None if toolchain(s).nvcc == "" else Skipped(cause, "nvcc is not known")
    tried = trial(s, "nvcc-preprocess")
    missing_header = _NO_HEADER.search(tried.output) if tried is not None and tried.ok is False else None
    cuda = s.python.torch_cuda if s.python else None
    fixes = (_install_toolkit(s, cuda or nvcc.release), *catalogue.cause(cause).remedies[1:])
    if missing_header and tried is not None:
        rows = [
            Evidence("trial compile nvcc-preprocess", missing_header[0], " ".join(tried.argv[:2])),
            *_rows(users),
        ]
        summary = f"{_name(nvcc)} does not find {missing_header[1]}.h{_because(users)}"
        return found(cause, Confidence.PROVEN, summary, rows, severity=_severity(users), fixes=fixes)
    if users is None:
        return Skipped(cause, _NOT_READ)
    fork = any(u.torch_extension for u in users)
    lacks = [
        name
        for name, present, wanted in (
            ("include/curand_kernel.h", nvcc.has_curand, any(u.name.startswith("FlashInfer") for u in users)),
            ("libcudart_static.a", nvcc.has_cudart_static, fork),
        )
        if wanted and present is False
    ]
    if not lacks:
        return None
    rows = [Evidence("missing", name, nvcc.root or nvcc.path) for name in lacks] + _rows(users)
    where = f"the CUDA toolkit of {_name(nvcc)}" + (f" in {nvcc.root}" if nvcc.root else "")
    summary = f"{where} has no {' and no '.join(lacks)}{_because(users)}"
    return found(cause, Confidence.LIKELY, summary, rows, fixes=fixes)


@check("triton-ptxas-too-old-for-gpu", needs=("toolchain", "gpus"))
def triton_ptxas_too_old_for_gpu(s: Snapshot) -> Finding | Skipped | None:
    """Finds a card that none of Triton's assemblers knows.

    Signals: the target list of every ptxas that Triton brings (or was given by TRITON_PTXAS_PATH)
    lacks the card's sm number. Source: triton/knobs.py, `ptxas --help`.
    """
    cause, tools = "triton-ptxas-too-old-for-gpu", toolchain(s).triton_ptxas
    if tools is None:
        return Skipped(cause, _NOT_READ)
    if not tools:
        return None  # no Triton in the environment
    if any(tool.targets is None for tool in tools):
        return Skipped(cause, "a ptxas of Triton did not list its targets")
    for gpu in s.gpus or ():
        cap = capability(gpu)
        name = f"sm_{cap[0]}{cap[1]}" if cap else None
        if name and not any(name in (tool.targets or ()) for tool in tools):
            rows = [Evidence("ptxas", f"{x.release or 'release not known'}: no {name}", x.path) for x in tools]
            releases = ", ".join(x.release or x.path for x in tools)
            summary = f"no ptxas of Triton ({releases}) knows {name}, which {label(gpu)} is"
            return found(cause, Confidence.PROVEN, summary, rows, fixes=_newer_ptxas(s))
    return None


def _newer_ptxas(s: Snapshot) -> tuple[Remedy, ...]:
    newest = max((n for n in toolchain(s).nvccs or () if n.root), key=lambda n: _numbers(n.release), default=None)
    upgrade = catalogue.cause("triton-ptxas-too-old-for-gpu").remedies[1:]
    if newest is None:
        return upgrade
    path = f"{newest.root}/bin/ptxas"
    text = (
        f"If the ptxas of {_name(newest)} knows the card, start the server with "
        f"TRITON_PTXAS_PATH={path} TRITON_PTXAS_BLACKWELL_PATH={path}"
    )
    return (Remedy(text, risk=Risk.SAFE, verify=(f"{path} --help lists the card's sm number",)), *upgrade)


@check("ninja-missing", needs=("toolchain", "python"))
def ninja_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds that a library builds with ninja and no ninja is on PATH.

    Signals: a JIT user, and no ninja on PATH. One in the environment's bin folder serves only a
    server whose PATH holds that folder. Source: torch.utils.cpp_extension, flashinfer.jit.core.
    """
    cause, t = "ninja-missing", toolchain(s)
    users = jit_users(s)
    if users is None:
        return Skipped(cause, _NOT_READ)
    if not users or t.ninja_on_path or t.ninja is None:
        return None if not users or t.ninja_on_path else Skipped(cause, "PATH was not searched for ninja")
    rows = [s.evidence("toolchain.ninja", t.ninja or "missing"), *_rows(users)]
    if t.ninja:
        folder = t.ninja.rpartition("/")[0]
        summary = f"ninja lies in {folder}, which is not on PATH: a server started by its full path misses it"
        fix = Remedy(f"Activate the environment, or start the server with PATH={folder}:$PATH", risk=Risk.SAFE)
        return found(cause, Confidence.HINT, summary, rows, severity=Severity.NOTE, fixes=(fix,))
    python = s.python.executable if s.python else None
    pip = ((python, "-m", "pip", "install", "ninja"),) if python else ()
    system = install(s, "ninja")
    fixes = [Remedy("Install ninja into the environment", bool(pip), pip, Risk.SAFE, ("ninja --version",))]
    if system:
        fixes.append(Remedy("Or install the distribution's ninja", True, system, Risk.SAFE, ("ninja --version",)))
    summary = f"there is no ninja on PATH{_because(users)}"
    confidence = Confidence.LIKELY if users[0].certain else Confidence.HINT
    return found(cause, confidence, summary, rows, fixes=fixes)


@check("build-jobs-exhaust-memory", needs=("toolchain", "system"))
def build_jobs_exhaust_memory(s: Snapshot) -> Finding | Skipped | None:
    """Warns of more parallel nvcc jobs than the RAM carries.

    Signals: MAX_JOBS above (RAM in GB - 3) / 3, the rule of the Turing fork's 0.2.x build, while
    something here compiles CUDA code. Seen together, it proves nothing: a hint.
    """
    cause, system = "build-jobs-exhaust-memory", s.system
    wanted = toolchain(s).env.get("MAX_JOBS", "")
    if not wanted.isdigit() or len(wanted) > 6:
        return None
    users = jit_users(s)
    if not users:
        return Skipped(cause, _NOT_READ) if users is None else None
    if system is None or system.ram_total_bytes is None:
        return Skipped(cause, "the RAM of this host is not known")
    gigabytes = system.ram_total_bytes / 1e9
    fits = max(1, min(8, int((gigabytes - 3) / 3), system.cpu_count or 8))
    if int(wanted) <= fits:
        return None
    rows = [Evidence("MAX_JOBS", wanted, "environment"), s.evidence("system.ram_total_bytes")]
    summary = f"MAX_JOBS={wanted} on {gigabytes:.0f} GB of RAM: one nvcc job takes several GB, {fits} fit"
    fix = Remedy(f"Set MAX_JOBS={fits} for the build", risk=Risk.SAFE)
    return found(cause, Confidence.HINT, summary, rows, severity=Severity.DEGRADES, fixes=(fix,))
