"""What several checks of compilers and environments ask: who compiles at run time, and whether it matters here."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.checks.gpu_common import capability
from doctor.facts import Compiler, CompileTrial, Nvcc, PythonFacts, ToolchainFacts
from doctor.finding import Severity
from doctor.snapshot import Snapshot

#: Why a program cannot be started that is not one. Other errors (too many open files, no memory) are this user's.
_NO_PROGRAM = {
    "No such file or directory", "Permission denied", "Exec format error", "Not a directory", "Is a directory",
    "Too many levels of symbolic links", "File name too long",
}  # fmt: skip


@dataclass(frozen=True)
class JitUser:
    """A library that compiles CUDA code on this machine. ``torch_extension``: through torch's builder."""

    name: str
    why: str
    torch_extension: bool = False
    certain: bool = True  # False: depends on the model or on what is asked of the server


def toolchain(s: Snapshot) -> ToolchainFacts:
    """The toolchain facts of a check that needs them."""
    assert s.toolchain is not None  # noqa: S101  such a check has needs=("toolchain",)
    return s.toolchain


def trial(s: Snapshot, name: str) -> CompileTrial | None:
    """One trial compile, or None when it was not made."""
    return next((t for t in s.toolchain.trials if t.name == name), None) if s.toolchain else None


def compiler(s: Snapshot, path: str | None) -> Compiler | None:
    """The compiler at a path, or the one a link at that path leads to."""
    known = (s.toolchain.compilers if s.toolchain else None) or ()
    return next((c for c in known if path and path in (c.path, c.target)), None)


def shown(c: Compiler) -> str:
    """Path and version: "/usr/bin/gcc-12 (12.2.0)"."""
    return f"{c.path} ({c.version})" if c.version else c.path


def complete_pair(s: Snapshot, limit: int | None = None) -> tuple[str, str] | None:
    """Paths of gcc and g++ of the newest complete major on this host, at most ``limit``; None if there is none."""
    known = (s.toolchain.compilers if s.toolchain else None) or ()
    complete = [c for c in known if c.family == "gcc" and c.cc1plus_ok and c.major]
    for major in sorted(
        {c.major for c in complete if c.major and (limit is None or c.major <= limit)}, reverse=True
    ):
        names = {c.name: c.path for c in complete if c.major == major}
        cc = next((names[n] for n in (f"gcc-{major}", "gcc", "cc") if n in names), None)
        cxx = next((names[n] for n in (f"g++-{major}", "g++", "c++") if n in names), None)
        if cc and cxx:
            return cc, cxx
    return None


def nvcc_in_use(s: Snapshot) -> Nvcc | None:
    """The nvcc that torch and FlashInfer run."""
    t = s.toolchain
    return next((n for n in t.nvccs or () if n.path == t.nvcc), None) if t and t.nvcc else None


def not_tried(t: CompileTrial) -> str | None:
    """Why a trial says nothing of its compiler (no scratch folder, a hang, this user's limits), else None."""
    if t.error is None or t.error in _NO_PROGRAM:
        return None
    return t.error


def vllm_installed(s: Snapshot) -> bool | None:
    """True or False when the environment was read, None when not known."""
    return bool(s.python.vllm) if s.python and s.python.vllm is not None else None


def native_severity(s: Snapshot) -> Severity | None:
    """``degrades`` where vLLM is not installed and Docker answers: it may well run in a container only.

    None keeps the catalogue's severity.
    """
    in_docker = s.container is not None and s.container.daemon_reachable is True
    return Severity.DEGRADES if vllm_installed(s) is False and in_docker else None


def jit_users(s: Snapshot) -> tuple[JitUser, ...] | None:
    """Libraries of the environment that call nvcc at run time on these cards; None when not known.

    Sources: vLLM's flashinfer_sampler_supported() (default on since 0.22, cards from 8.0 in 0.32),
    FlashInfer's jit/env.py (flashinfer-jit-cache holds the compiled kernels), the Turing fork.
    """
    p = s.python
    if p is None or p.packages is None:
        return None
    users = []
    if p.turing_fork:
        why = f"the Turing fork {p.turing_fork} compiles its linear-attention kernel with nvcc"
        users.append(JitUser("FlashQLA", why, torch_extension=True))
    sampler = _flashinfer_sampler(s, p)
    if sampler is not None:
        users.append(sampler)
    return tuple(users)


def _flashinfer_sampler(s: Snapshot, p: PythonFacts) -> JitUser | None:
    packages = p.packages or {}
    if not p.flashinfer or not p.vllm or "flashinfer-jit-cache" in packages:
        return None
    wanted = p.env.get("VLLM_USE_FLASHINFER_SAMPLER")
    if wanted == "0":
        return None
    if wanted == "1":
        return JitUser(f"FlashInfer {p.flashinfer}", "VLLM_USE_FLASHINFER_SAMPLER=1 asks for its sampler")
    capabilities = [c for g in s.gpus or () if (c := capability(g)) is not None]
    if not capabilities or not at_least(p.vllm, 0, 22):
        return None
    if max(capabilities) >= (8, 0):
        return JitUser(
            f"FlashInfer {p.flashinfer}",
            f"vLLM {p.vllm} samples with FlashInfer by default, and its kernel is compiled at the first start",
        )
    if max(capabilities) >= (7, 5) and not at_least(p.vllm, 0, 32):
        why = f"vLLM {p.vllm} may choose FlashInfer on this card"
        return JitUser(f"FlashInfer {p.flashinfer}", why, certain=False)
    return None


def at_least(version: str, *parts: int) -> bool:
    """True when a version's release is at least these numbers; False for what is no version."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release >= parts
    except InvalidVersion:
        return False
