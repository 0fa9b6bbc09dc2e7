"""Checks of the area: compiler. Host compilers and Python headers; nvcc has a module of its own."""

from __future__ import annotations

import os
import re

from doctor import catalogue
from doctor.checks.native import (
    compiler,
    complete_pair,
    native_severity,
    not_tried,
    nvcc_in_use,
    shown,
    toolchain,
    trial,
    vllm_installed,
)
from doctor.checks.packages import family, install
from doctor.checks.registry import check, found
from doctor.facts import Compiler, CompileTrial
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot

#: Variables that name a host compiler to something that builds CUDA or C++ code.
PINS = ("CC", "CXX", "CUDAHOSTCXX", "NVCC_CCBIN", "CMAKE_CUDA_HOST_COMPILER")
_NO_CC1PLUS = re.compile(r"cannot execute .?cc1plus|cc1plus: (?:execvp|No such file)|cc1plus.*not found")
_NO_LIBC = re.compile(
    r"cannot find S?crt[1in]\.o|cannot find -l(?:c|gcc|m)\b|\b(?:stdlib|stdio|features|limits)\.h: No"
)
_NO_PYTHON_H = re.compile(r"\b(?:Python|pyconfig)\.h: No such file")


def c_drivers(s: Snapshot, major: int | None = None) -> tuple[Compiler, ...]:
    """gcc drivers for C (gcc, gcc-12, cc), of one major or all."""
    known = toolchain(s).compilers or ()
    return tuple(c for c in known if c.family == "gcc" and not c.cplusplus and (major is None or c.major == major))


def _front_end_row(c: Compiler) -> Evidence:
    value = c.cc1plus or "cc1plus (the bare word: there is none)"
    return Evidence(f"{c.name} -print-prog-name=cc1plus", value, c.path)


def trial_row(t: CompileTrial) -> Evidence:
    """Evidence of a failed trial: its first telling line."""
    line = next((x for x in t.output.splitlines() if re.search(r"error|cannot|fatal", x)), t.output or "")
    return Evidence(f"trial compile {t.name}", (t.error or line.strip())[:300], " ".join(t.argv[:2]))


def pinned_by(s: Snapshot, c: Compiler) -> tuple[str, ...]:
    """What makes builds use this compiler: variables, and the Turing fork's launcher (0.1.x takes gcc-12)."""
    t = toolchain(s)
    names = {c.path, c.target, c.name, os.path.basename(c.path)}
    users = [f"{v}={t.env[v]}" for v in PINS if v in t.env and t.env[v] in names]
    fork = s.python.turing_fork if s.python else None
    if fork and fork.startswith("0.1.") and c.path == "/usr/bin/gcc-12" and not t.env.get("CC"):
        users.append(f"the launcher of the Turing fork {fork}, which takes /usr/bin/gcc-12 when CC is empty")
    return tuple(users)


def _complete_pair(s: Snapshot) -> Compiler | None:
    """The default C++ compiler when C++ works with it and nvcc's host compiler is complete too."""
    t = toolchain(s)
    default, host = compiler(s, t.default_cxx), compiler(s, t.nvcc_host)
    tried = trial(s, "cxx")
    works = tried.ok if tried is not None and tried.ok is not None else (default and default.cc1plus_ok)
    host_complete = host is None or host.cc1plus_ok is not False or nvcc_in_use(s) is None
    return default if default and works and host_complete else None


def _use_complete(s: Snapshot) -> tuple[Remedy, ...]:
    """Points everything at the newest complete gcc pair on this host that nvcc accepts."""
    nvcc = nvcc_in_use(s)
    pair = complete_pair(s, nvcc.gcc_max if nvcc else None)
    if pair is None:
        return ()
    cc, cxx = pair
    text = f"Or start the server with CC={cc} CXX={cxx} CUDAHOSTCXX={cxx} NVCC_CCBIN={cxx}"
    return (Remedy(text, risk=Risk.SAFE),)


def _install_cxx(s: Snapshot, c: Compiler) -> Remedy:
    major = c.major or 12
    default = c.name in ("gcc", "cc")
    tool = "g++" if default and family(s) != "apt" else "g++-major"
    commands = install(s, tool, major=major)
    return Remedy(
        f"Install g++-{major}, the C++ half of {c.name}",
        automatic=bool(commands),
        commands=commands,
        risk=Risk.SAFE if commands else Risk.MANUAL,
        verify=(f"`{c.path} -print-prog-name=cc1plus` prints an absolute path",),
    )


@check("gxx12-missing", needs=("toolchain",))
def gxx12_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds gcc-12 whose C++ front end (cc1plus, package g++-12) is missing.

    Signals: a gcc of major 12, and `-print-prog-name=cc1plus` that answers the bare word. gcc then
    compiles C and fails on C++ and CUDA. Weaker when a complete default pair exists and nothing pins
    gcc-12. Source: gcc's manual (-print-prog-name); the Turing fork's launcher, 0.1.x.
    """
    cause, t = "gxx12-missing", toolchain(s)
    if t.compilers is None:
        return Skipped(cause, "the compilers of this host are not known")
    drivers = c_drivers(s, 12)
    incomplete = [c for c in drivers if c.cc1plus_ok is False]
    broken = next((c for c in incomplete if pinned_by(s, c)), incomplete[-1] if incomplete else None)
    if broken is None:
        if drivers and all(c.cc1plus_ok is None for c in drivers):
            return Skipped(cause, f"{drivers[0].path} does not say where its cc1plus is")
        return None
    pins = pinned_by(s, broken)
    default = _complete_pair(s)
    rows = [_front_end_row(broken)]
    rows += [trial_row(x) for x in t.trials if x.ok is False and _NO_CC1PLUS.search(x.output)]
    rows += [Evidence("pinned by", pin, "environment") for pin in pins]
    confidence = Confidence.PROVEN
    if t.cc1plus_on_path:  # gcc would run that one, of whatever version
        confidence = Confidence.LIKELY
        rows.append(s.evidence("toolchain.cc1plus_on_path"))
    what = f"{shown(broken)} has no cc1plus: it compiles C, but no C++ and no CUDA"
    severity = None
    if pins:
        why = f"; it is pinned by {pins[0]}"
    elif default is not None:
        severity = Severity.DEGRADES
        why = f"; nothing here pins it and {shown(default)} is complete, so only builds that ask for gcc-12 fail"
    else:
        why = ""
        severity = native_severity(s)
    fixes = (_install_cxx(s, broken), *_use_complete(s), *catalogue.cause(cause).remedies[2:])
    return found(cause, confidence, what + why, rows, severity=severity, fixes=fixes)


@check("cxx-compiler-missing", needs=("toolchain",))
def cxx_compiler_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds a C compiler in use without the C++ compiler that belongs to it.

    Signals: no c++, g++ or clang++ on PATH; or the gcc in use (default, CC, nvcc's host compiler), of
    another major than 12, whose cc1plus does not resolve. A side-by-side gcc that nobody uses is normal.
    """
    cause, t = "cxx-compiler-missing", toolchain(s)
    if t.compilers is None or t.default_cxx is None:
        return Skipped(cause, "the compilers of this host are not known")
    tried = trial(s, "cxx")
    used = [compiler(s, path) for path in (t.default_cxx, t.nvcc_host, t.default_cc)]
    broken = next((c for c in used if c and c.cc1plus_ok is False and c.major != 12), None)
    rows = [trial_row(tried)] if tried and (tried.ok is False or tried.error) else []
    if broken is not None:
        summary = f"{shown(broken)} has no cc1plus: it compiles no C++ and no CUDA"
        fixes = (_install_cxx(s, broken), *_use_complete(s))
        rows = [_front_end_row(broken), *rows]
    elif t.default_cxx == "":
        rows = [s.evidence("toolchain.default_cxx", "none")]
        summary = "there is no c++, g++ or clang++ on PATH, so no C++ or CUDA extension can be compiled"
        fixes = (_install(s, "Install a C++ compiler", "build-tools"),)
    elif tried is not None and tried.error and not not_tried(tried):
        summary = f"{t.default_cxx} cannot be run: {tried.error}"
        fixes = (_install(s, "Install a C++ compiler, or unset CXX", "build-tools"),)
    elif tried is not None and tried.ok is False:
        summary = f"{t.default_cxx} does not compile a C++ program: {trial_row(tried).value}"
        fixes = (_install(s, "Install the C++ compiler and the C library's development files", "build-tools"),)
        return found(cause, Confidence.LIKELY, summary, rows, severity=native_severity(s), fixes=fixes)
    elif tried is None or tried.ok is None:
        why = tried.error if tried else "no C++ program was compiled"
        return Skipped(cause, f"{t.default_cxx} could not be tried: {why}")
    else:
        return None
    return found(cause, Confidence.PROVEN, summary, rows, severity=native_severity(s), fixes=fixes)


def _install(s: Snapshot, text: str, *tools: str) -> Remedy:
    commands = install(s, *tools)
    return Remedy(
        text,
        automatic=bool(commands),
        commands=commands,
        risk=Risk.SAFE if commands else Risk.MANUAL,
        verify=("vllm-doctor check compiles the trials again",),
    )


@check("c-compiler-missing", needs=("toolchain",))
def c_compiler_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds that Triton has no working C compiler.

    Signals: CC unset and neither gcc nor clang on PATH (Triton's rule, triton/runtime/build.py); CC
    names a program that is not there; the compiler lacks its C library's development files.
    """
    cause, t = "c-compiler-missing", toolchain(s)
    if t.default_cc is None:
        return Skipped(cause, "the compilers of this host are not known")
    fix = _install(s, "Install gcc, g++ and the C library's development files", "build-tools")
    tried = trial(s, "c-python")
    severity = native_severity(s)
    if t.default_cc == "":
        rows = [s.evidence("toolchain.default_cc", "none")]
        summary = "there is no gcc and no clang on PATH and CC is not set: Triton cannot compile its launcher"
        fixes = (fix, *catalogue.cause(cause).remedies[1:])
        return found(cause, Confidence.PROVEN, summary, rows, severity=severity, fixes=fixes)
    if tried is None:
        return Skipped(cause, f"{t.default_cc} was not tried: the interpreter that runs vLLM is not known")
    rows = [s.evidence("toolchain.default_cc"), trial_row(tried)]
    if why := not_tried(tried):
        return Skipped(cause, f"the trial compile with {t.default_cc} could not be made: {why}")
    if tried.error:
        summary = (
            f"Triton would call {t.default_cc} (from {t.sources.get('default_cc', 'CC')}), which cannot be run"
        )
        unset = Remedy("Unset CC, or set it to a compiler that exists", verify=fix.verify)
        fixes = (unset, fix) if t.env.get("CC") else (fix,)
        return found(cause, Confidence.PROVEN, f"{summary}: {tried.error}", rows, severity=severity, fixes=fixes)
    if tried.ok or _NO_PYTHON_H.search(tried.output):
        return None
    if _NO_LIBC.search(tried.output):
        summary = f"{t.default_cc} lacks the C library's development files: {rows[1].value}"
        return found(cause, Confidence.PROVEN, summary, rows, severity=severity, fixes=(fix,))
    summary = f"{t.default_cc} does not compile Triton's launcher: {rows[1].value}"
    return found(cause, Confidence.LIKELY, summary, rows, severity=severity, fixes=(fix,))


@check("python-headers-missing", needs=("toolchain",))
def python_headers_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds that Python.h of the interpreter that runs vLLM is missing.

    Signals: Triton's launcher fails on Python.h with Triton's own flags; without a compiler, the
    include folder that sysconfig names has no Python.h. Source: triton/runtime/build.py.
    """
    cause, t = "python-headers-missing", toolchain(s)
    if t.python_h is None:
        why = s.python.error if s.python and s.python.error else "the interpreter that runs vLLM is not known"
        return Skipped(cause, why)
    if s.python and s.python.is_doctors_own and not s.python.vllm:
        return Skipped(
            cause, "the only Python found is the doctor's own; name the one that runs vLLM with --python"
        )
    tried = trial(s, "c-python")
    failed = tried is not None and tried.ok is False and bool(_NO_PYTHON_H.search(tried.output))
    if not failed and (t.python_h != "" or (tried is not None and tried.ok)):
        return None
    version = s.python.version if s.python else None
    executable = s.python.executable if s.python else None
    folder = t.python_include or "its include folder"
    rows = [Evidence("toolchain.python_h", "missing", f"{folder}/Python.h")]
    if tried is not None and failed:
        rows.append(trial_row(tried))
    name = f"{executable or 'the interpreter'} ({version})" if version else (executable or "the interpreter")
    summary = f"{name} has no Python.h in {folder}, which Triton's launcher includes"
    severity = None
    if vllm_installed(s) is False:
        severity = Severity.DEGRADES
        summary += "; vLLM is not installed there yet"
    return found(cause, Confidence.PROVEN, summary, rows, severity=severity, fixes=_python_headers(s, version))


def _python_headers(s: Snapshot, version: str | None) -> tuple[Remedy, ...]:
    base = s.python.base_prefix if s.python else None
    include = s.toolchain.python_include if s.toolchain else None
    verify = (f"{include}/Python.h exists",) if include else ()
    rebuild = catalogue.cause("python-headers-missing").remedies[1]
    if base not in (None, "/usr"):
        text = f"{base} is not the distribution's Python: install a build of it that ships headers"
        return (Remedy(text, verify=verify), rebuild)
    minor = ".".join((version or "").split(".")[:2])
    commands = install(s, "python-headers", python=version)
    text = f"Install the headers of Python {minor or 'in use'}" + (f" (python{minor}-dev)" if minor else "")
    risk = Risk.SAFE if commands else Risk.MANUAL
    return (Remedy(text, bool(commands), commands, risk, verify), rebuild)
