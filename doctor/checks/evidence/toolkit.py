"""Evidence of the area compiler: nvcc, ptxas, ninja, the CUDA toolkit, caches of compiled code."""

from __future__ import annotations

import re
from itertools import pairwise

from doctor.checks.evidence.common import HINT, LIKELY, PROVEN, events, first, has, near, rule, say, together
from doctor.checks.registry import Result
from doctor.snapshot import Event, Snapshot


@rule("nvcc-missing")
def nvcc_missing(s: Snapshot) -> Result:
    """Something that compiles kernels looked for nvcc and did not find it (proven).

    ``nvcc: command not found`` of a person's own shell is a hint only: the process may see another PATH. So is an
    nvcc that works there beside one that was not found. CMake without a CUDA compiler counts only when no other
    compiler error explains it.
    """
    shell: Event | None = None
    for event in events(s, "compiler.nvcc-missing"):
        if "shell" not in event.values:
            path = event.values.get("path")
            text = (
                f"{path} was called and is not there" if path else "kernels must be compiled and no nvcc was found"
            )
            works = None if path or "exist" in event.text else first(s, "shell.nvcc")
            return say("nvcc-missing", LIKELY if works else PROVEN, text, event, works)
        shell = shell or event
    warned = first(s, "compiler.cuda-home-warning")
    if warned:
        return say("nvcc-missing", LIKELY, "torch found no CUDA toolkit to compile extensions with", warned)
    cmake = first(s, "compiler.cmake-no-cuda")
    others = ("gnu-version", "clang-version", "cc1plus", "gxx-not-found", "no-c", "math-header",
              "nvcc-unknown-option", "cuda-header")  # fmt: skip
    if cmake and not has(s, *(f"compiler.{o}" for o in others)):
        return say("nvcc-missing", LIKELY, "CMake found no CUDA compiler", cmake)
    if shell:
        text = "the shell finds no nvcc; whether vLLM needs it here is not shown"
        return say("nvcc-missing", HINT, text, shell)
    return None


@rule("nvcc-too-old-for-jit")
def nvcc_too_old(s: Snapshot) -> Result:
    """nvcc refused an option or an architecture as unknown, or a library asked for a newer one (proven)."""
    for event in events(s, "compiler.nvcc-unknown-option"):
        option = event.values["option"].strip("'\"")
        arch = re.match(r"compute_(\d{2,3})", option)
        if arch and int(arch[1]) < 80:
            continue  # dropped by a newer nvcc, not unknown to an older one
        return say("nvcc-too-old-for-jit", PROVEN, f"this nvcc does not know {option}", event)
    seen = first(s, "compiler.nvcc-minimum")
    if seen:
        text = f"the library that compiles needs nvcc {seen.values.get('minimum', 'of a newer release')} or newer"
        stopped = re.search(r"NVCC version should be|Error|Assert|fatal", seen.text)
        return say("nvcc-too-old-for-jit", PROVEN if stopped else HINT, text, seen)
    vague = first(s, "gpu.flashinfer-sm75")
    if vague:
        capable = any(
            (g.compute_capability or "0") >= "7.5" or g.compute_capability in _TWO_DIGITS for g in s.gpus or ()
        )
        text = (
            "FlashInfer found no architecture to compile for, which it also says when nvcc is too old for the card"
        )
        return say("nvcc-too-old-for-jit", LIKELY if capable else HINT, text, vague)
    refused, nvcc = first(s, "gpu.backend-unsupported"), first(s, "shell.nvcc")
    if refused and nvcc and "12" in refused.values.get("archs", "") and float(nvcc.values["release"]) < 12.9:
        text = f"nvcc is of CUDA {nvcc.values['release']}; FlashInfer compiles for this card from 12.9 on"
        return say("nvcc-too-old-for-jit", LIKELY, text, refused, nvcc)
    return None


#: Capabilities that sort before "7.5" as text.
_TWO_DIGITS = ("10.0", "10.3", "11.0", "12.0", "12.1")


@rule("torch-nvcc-cuda-mismatch")
def torch_nvcc_mismatch(s: Snapshot) -> Result:
    """torch's extension builder refused the toolkit as one of another major release (proven)."""
    event = first(s, "compiler.torch-cuda-mismatch")
    if event:
        text = f"nvcc is of CUDA {event.values['nvcc']}, torch of CUDA {event.values['torch']}"
        return say("torch-nvcc-cuda-mismatch", PROVEN, text, event)
    seen = first(s, "shell.nvcc")
    torch = s.python.torch_cuda if s.python else None
    if seen and torch and seen.values["release"].split(".")[0] != torch.split(".")[0]:
        failed = first(s, "compiler.ninja-build-failed")
        text = f"nvcc is of CUDA {seen.values['release']}, torch of CUDA {torch}"
        return say(
            "torch-nvcc-cuda-mismatch",
            LIKELY if failed else HINT,
            text,
            seen,
            s.evidence("python.torch_cuda"),
            failed,
        )
    return None


#: Headers that also come with other things than a toolkit, so that their absence alone says less.
_WEAK_HEADERS = ("cuda.h", "cuda_runtime.h", "cudnn", "nvml.h")


@rule("cuda-toolkit-incomplete")
def toolkit_incomplete(s: Snapshot) -> Result:
    """A compiler stopped at a header of a CUDA library, or the linker at one of its libraries (proven)."""
    header = first(s, "compiler.cuda-header")
    if header:
        name = header.values["header"]
        weak = name.startswith(_WEAK_HEADERS)
        text = f"the CUDA toolkit that compiles has no {name}"
        return say("cuda-toolkit-incomplete", LIKELY if weak else PROVEN, text, header)
    said = first(s, "compiler.toolkit-incomplete")
    if said:
        sure = PROVEN if "incomplete" in said.text.lower() else LIKELY
        return say("cuda-toolkit-incomplete", sure, "the build found only a part of the CUDA toolkit", said)
    library = first(s, "compiler.cudart-static")
    if library:
        name = library.values["library"]
        text = f"the linker does not find lib{name} of the CUDA toolkit"
        return say("cuda-toolkit-incomplete", PROVEN if name == "cudart_static" else LIKELY, text, library)
    return None


@rule("triton-ptxas-too-old-for-gpu")
def ptxas_too_old(s: Snapshot) -> Result:
    """ptxas does not know the card's architecture (proven), or the PTX version it was given (likely)."""
    event = first(s, "compiler.ptxas-gpu-name")
    if event:
        where = first(s, "compiler.triton-ptxas-path")
        text = f"{'the ptxas inside Triton' if where else 'ptxas'} does not know {event.values['arch']}"
        return say("triton-ptxas-too-old-for-gpu", PROVEN, text, event, where)
    version = first(s, "compiler.ptxas-version")
    if version:
        return say("triton-ptxas-too-old-for-gpu", LIKELY, "ptxas is older than the code it was given", version)
    return None


@rule("ninja-missing")
def ninja_missing(s: Snapshot) -> Result:
    """An extension build looked for ninja and did not find it (proven)."""
    event = first(s, "compiler.ninja")
    return (
        say("ninja-missing", PROVEN, "an extension must be built and ninja was not found", event)
        if event
        else None
    )


_COMPILERS = re.compile(r"^(?:cc1plus|cc1|cicc|ptxas|nvcc|cudafe\+\+|lto1|ld|fatbinary|ninja|cmake|rustc)$")


def is_compiler(name: str) -> bool:
    """Whether a process name of the kernel log belongs to a build."""
    return bool(_COMPILERS.match(name))


@rule("build-jobs-exhaust-memory")
def build_jobs(s: Snapshot) -> Result:
    """A compiler was killed (likely), and the kernel ran out of memory (then proven)."""
    killed = first(s, "compiler.cc1plus-killed")
    record = next((e for e in events(s, "host.oom-kill") if is_compiler(e.values.get("process", ""))), None)
    if record:
        text = f"the kernel ran out of memory and killed {record.values['process']}, a job of the build"
        return say("build-jobs-exhaust-memory", PROVEN, text, record, killed)
    if killed:
        other = first(s, "host.oom-kill", "host.oomkilled-state")
        text = f"{killed.values.get('program', 'a compiler')} was killed while building"
        return say("build-jobs-exhaust-memory", together(s, killed, other), text, killed, other)
    return None


@rule("compile-cache-stale")
def compile_cache_stale(s: Snapshot) -> Result:
    """A cache of compiled code named a file that is gone (likely), or gave something that is no JSON (a hint)."""
    for event in events(s, "compiler.cache-stale"):
        if "Permission denied" in event.text:
            continue
        text = f"a cache of compiled code refers to {event.values['path']}, which cannot be read"
        return say("compile-cache-stale", LIKELY, text, event)
    corrupt = first(s, "compiler.cache-corrupt")
    if corrupt:
        return say(
            "compile-cache-stale", LIKELY, "vLLM suspects what an earlier compilation left in its cache", corrupt
        )
    seen = first(s, "compiler.autotune-decode")
    if seen:
        return say(
            "compile-cache-stale", HINT, "autotuning read something from a cache that it cannot decode", seen
        )
    return None


@rule("cold-compile-inflates-memory-peak", start=False)
def cold_compile(s: Snapshot) -> Result:
    """Two starts, the colder with the smaller pool (likely); a refusal after a cold compile (a hint)."""
    pools = events(s, "memory.kv-size")
    for one, two in pairwise(pools):
        a, b = _tokens(one), _tokens(two)
        cold = near(s, one, {"vllm.compile"}, before=120, after=0)
        warm = near(s, two, {"vllm.compile"}, before=120, after=0)
        if a and b and a < 0.97 * b and cold and warm and "cached" not in cold.values and "cached" in warm.values:
            text = f"the cold start had a pool of {a:,} tokens, the warm one {b:,}"
            return say("cold-compile-inflates-memory-peak", LIKELY, text, one, two, cold, warm)
    refused = first(s, "memory.kv-too-small")
    if refused:
        cold = near(s, refused, {"vllm.compile"}, before=400, after=0)
        seconds = float(cold.values.get("seconds", 0)) if cold else 0.0
        if cold and "cached" not in cold.values and seconds >= 10:
            text = (
                f"the cache check failed right after a cold compile ({seconds:g} s); a second start measures less"
            )
            return say("cold-compile-inflates-memory-peak", HINT, text, cold, refused)
    return None


def _tokens(event: Event) -> int | None:
    text = event.values.get("value", "").replace(",", "")
    return int(text) if text.isdigit() else None
