"""Compilers that Triton, FlashInfer and torch extensions call at run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Compiler:
    """One C or C++ driver program. ``cc1plus`` is an absolute path when its C++ front end resolves."""

    path: str  # absolute, as found
    name: str  # "gcc-12", "g++", "cc", "clang"
    family: str | None = None  # "gcc" or "clang"
    version: str | None = None  # "12.2.0"
    major: int | None = None
    cplusplus: bool | None = None  # a C++ driver (g++, c++, clang++)
    cc1plus: str | None = None
    cc1plus_ok: bool | None = None  # None: not known (clang, or the query failed)
    target: str | None = None  # resolved path when a link


@dataclass(frozen=True)
class Nvcc:
    """One nvcc and the toolkit around it."""

    path: str
    release: str | None = None  # "13.0"
    build: str | None = None  # "13.0.88"
    found_by: tuple[str, ...] = ()  # "PATH", "CUDA_HOME", "/usr/local"
    gcc_max: int | None = None  # highest gcc major its headers accept
    gcc_min: int | None = None
    has_curand: bool | None = None  # include/curand_kernel.h
    has_cudart_static: bool | None = None
    root: str | None = None  # toolkit folder, links and wrapper scripts followed
    glibc_max: str | None = None  # newest glibc its math header copes with ("" = no known limit)


@dataclass(frozen=True)
class CompileTrial:
    """One real compile: what it stands for, whether it passed, and the first telling line of its output."""

    name: str  # "c-python" (Triton's launcher), "cxx", "link-cuda", "nvcc-preprocess", "nvcc"
    argv: tuple[str, ...] = ()
    ok: bool | None = None  # None: not run, see error
    returncode: int | None = None
    output: str = ""  # the lines that matter, at most 2,000 characters
    seconds: float | None = None
    error: str | None = None  # why it was not run


@dataclass(frozen=True)
class Ptxas:
    """One assembler that Triton brings (or was told to use): the targets it knows."""

    path: str
    release: str | None = None  # "12.9"
    targets: tuple[str, ...] | None = None  # ("sm_75", "sm_80", ...), None: it did not tell


@dataclass(frozen=True)
class ToolchainFacts:
    """Compilers, nvcc, headers and build tools, as the process that runs vLLM would find them."""

    compilers: tuple[Compiler, ...] | None = None
    default_cc: str | None = None  # what Triton takes: CC, else gcc, else clang on PATH ("" = none)
    default_cxx: str | None = None  # CXX, else c++/g++ ("" = none)
    env: Mapping[str, str] = field(default_factory=dict)  # CC CXX CUDAHOSTCXX NVCC_CCBIN CUDA_HOME ... when set
    nvccs: tuple[Nvcc, ...] | None = None
    nvcc: str | None = None  # the one that torch and FlashInfer run, CUDA_HOME/bin/nvcc ("" = none there)
    cuda_home: str | None = None  # as torch's extension builder resolves it ("" = none)
    python_h: str | None = None  # absolute path of Python.h of the interpreter that runs vLLM ("" = missing)
    python_include: str | None = None  # folder it is expected in
    nvcc_host: str | None = None  # host compiler nvcc calls: CC (torch passes it), NVCC_CCBIN, else gcc on PATH
    nvcc_host_by: str | None = None  # "CC", "NVCC_CCBIN", "PATH"
    cc1plus_on_path: str | None = None  # a cc1plus that execvp would find ("" = none)
    triton_ptxas: tuple[Ptxas, ...] | None = None
    ninja: str | None = None  # path ("" = missing)
    ninja_on_path: bool | None = None  # torch and FlashInfer look on PATH only
    git: str | None = None
    trials: tuple[CompileTrial, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
