"""Compilers, nvcc, headers and build tools, and trial compiles with them. All questions run side by side."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from doctor.facts import Compiler, CompileTrial, Ptxas, ToolchainFacts
from doctor.host import compile_trials, compilers, nvccs
from doctor.host.access import Host
from doctor.host.examine import Options
from doctor.host.interpreter import ASKED, Interpreter, interpreter
from doctor.host.python_env import environment

ENV_PREFIXES = ("TRITON_", "FLASHINFER_", "NVCC_")
ENV_NAMES = (
    "CC", "CXX", "CUDAHOSTCXX", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "MAX_JOBS",
    "NVCC_THREADS", "CFLAGS", "CXXFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
    "TORCH_EXTENSIONS_DIR", "CMAKE_CUDA_HOST_COMPILER", "GCC_EXEC_PREFIX", "COMPILER_PATH", "TMPDIR",
)  # fmt: skip
_WORKERS = 16  # most of them wait for a program


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """Everything in one pool: the whole costs about as long as its slowest compile."""
    run = _Run(host, options)
    with compile_trials.scratch(host) as trial, ThreadPoolExecutor(_WORKERS, "toolchain") as pool:
        return {"toolchain": run.facts(pool, trial)}


class _Run:
    def __init__(self, host: Host, options: Options) -> None:
        self.host = host
        self.options = options
        self.sources: dict[str, str] = {"env": "environment"}

    def facts(self, pool: ThreadPoolExecutor, trial: Any) -> ToolchainFacts:
        host, env = self.host, self.host.env
        python = pool.submit(interpreter, host, self.options)
        cc, cc_by = self._default(("CC",), ("gcc", "clang"))
        cxx, cxx_by = self._default(("CXX",), ("c++", "g++", "clang++"))
        nvcc_host, nvcc_host_by = self._nvcc_host()
        home, home_by = nvccs.cuda_home(host)
        nvcc = self._nvcc(home)
        trials: list[Future[CompileTrial]] = []
        if cxx:
            trials.append(pool.submit(trial, compile_trials.cxx(cxx)))
        if nvcc:
            ccbin = env.get("CC") or None
            trials.append(pool.submit(trial, compile_trials.nvcc_preprocess(nvcc, ccbin)))
            if self.options.deep:
                trials.append(pool.submit(trial, compile_trials.nvcc_compile(nvcc, ccbin)))
        paths = compilers.find(host)
        named = [p for n in ("CC", "CXX", "CUDAHOSTCXX", "NVCC_CCBIN") if (p := self._named(n))]
        asked = [
            (pool.submit(compilers.ask, host, first), same)
            for first, same in compilers.jobs(host, tuple(dict.fromkeys((*paths, *named))))
        ]
        who = python.result()
        if cc and who.include:
            trials.insert(0, pool.submit(trial, compile_trials.c_python(cc, who.include)))
        link = pool.submit(self._link, trial, cc, who)
        ptxas = [pool.submit(self._ptxas, path) for path in self._ptxas_paths(who)]
        found_nvccs = [
            pool.submit(nvccs.ask, host, path, by)
            for path, by in nvccs.find(host, nvcc, who.prefix, who.sites).items()
        ]
        linked = link.result()
        python_h = self._python_h(who)
        ninja, ninja_on_path = self._ninja(who)
        self.sources |= {
            "compilers": "PATH, /usr/bin; --version, -print-prog-name=cc1plus",
            "default_cc": cc_by,
            "default_cxx": cxx_by,
            "nvccs": "nvcc --version, crt/host_config.h",
            "nvcc_host": nvcc_host_by or "PATH",
            "cuda_home": home_by,
            "nvcc": f"CUDA_HOME={home}" if home else home_by,
            "trials": "compiled in a scratch folder",
            "cc1plus_on_path": "PATH",
            "git": "PATH",
        }
        return ToolchainFacts(
            compilers=tuple(c for job, same in asked for c in _each(job.result(), same, host)),
            default_cc=cc,
            default_cxx=cxx,
            env=environment(env, ENV_PREFIXES, ENV_NAMES),
            nvccs=tuple(job.result() for job in found_nvccs),
            nvcc=nvcc,
            cuda_home=home,
            python_h=python_h,
            python_include=who.include,
            nvcc_host=nvcc_host,
            nvcc_host_by=nvcc_host_by,
            cc1plus_on_path=host.which("cc1plus") or "",
            triton_ptxas=tuple(job.result() for job in ptxas) if who.sites else None,
            ninja=ninja,
            ninja_on_path=ninja_on_path,
            git=host.which("git") or "",
            trials=(*(job.result() for job in trials), *linked),
            sources=self.sources,
        )

    def _named(self, variable: str) -> str | None:
        value = self.host.env.get(variable)
        return compilers.named(self.host, value) if value else None

    def _default(self, variables: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, str]:
        """(program, source): the variable's word as it stands when set, else the first name on PATH."""
        for variable in variables:
            value = self.host.env.get(variable)
            if value:
                return self._named(variable) or value, variable
        for name in names:
            found = self.host.which(name)
            if found:
                return found, f"{name} on PATH"
        return "", f"no {', '.join(names)} on PATH"

    def _nvcc_host(self) -> tuple[str, str | None]:
        for variable in ("CC", "NVCC_CCBIN"):  # torch's -ccbin $CC outranks nvcc's own variable
            value = self.host.env.get(variable)
            if value:
                return self._named(variable) or value, variable
        return self.host.which("gcc") or "", "PATH"

    def _nvcc(self, home: str) -> str:
        """The nvcc that torch and FlashInfer run."""
        path = f"{home}/bin/nvcc"
        return path if home and self.host.access(path, os.X_OK) and not self.host.is_dir(path) else ""

    def _python_h(self, who: Interpreter) -> str | None:
        if who.include is None:
            return None
        path = f"{who.include}/Python.h"
        self.sources["python_h"] = path
        self.sources["python_include"] = f"{who.executable} {ASKED}"
        return path if self.host.exists(path) else ""

    def _ninja(self, who: Interpreter) -> tuple[str, bool]:
        on_path = self.host.which("ninja")
        beside = f"{who.prefix}/bin/ninja" if who.prefix else ""
        self.sources["ninja"] = f"PATH, {beside}" if beside else "PATH"
        if on_path:
            return on_path, True
        return (beside if beside and self.host.access(beside, os.X_OK) else ""), False

    def _link(self, trial: Any, cc: str, who: Interpreter) -> tuple[CompileTrial, ...]:
        """Links as the installed Triton does; nothing where there is no driver library to link with."""
        result = self.host.run(["/sbin/ldconfig", "-p"], timeout=3.0)
        folders = (
            re.findall(r"libcuda\.so\.1 .*=> (/\S+)/libcuda\.so\.1$", result.stdout, re.M) if result.ok else []
        )
        if not folders:
            listed = self.host.env.get("LD_LIBRARY_PATH", "").split(os.pathsep)
            folders = [d for d in listed if d and self.host.exists(f"{d}/libcuda.so.1")]
        if not folders or not cc:
            return ()
        flag = "-l:libcuda.so.1"
        for site in who.sites:
            text = self.host.read(f"{site}/triton/backends/nvidia/driver.py", 65536) or ""
            if re.search(r"^\s*libraries\s*=\s*\[['\"]cuda['\"]", text, re.M):
                flag = "-lcuda"  # older Triton needs the unversioned name
        return (trial(compile_trials.link_cuda(cc, flag, folders)),)

    def _ptxas_paths(self, who: Interpreter) -> tuple[str, ...]:
        env = self.host.env
        told = [env[n] for n in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH") if env.get(n)]
        own = [path for site in who.sites for path in self.host.glob(f"{site}/triton/backends/nvidia/bin/ptxas*")]
        self.sources["triton_ptxas"] = "triton/backends/nvidia/bin, TRITON_PTXAS_PATH"
        return tuple(p for p in dict.fromkeys((*told, *own)) if self.host.access(p, os.X_OK))

    def _ptxas(self, path: str) -> Ptxas:
        version = self.host.run([path, "--version"], timeout=3.0, limit=8192)
        release = re.search(r"\brelease (\d+\.\d+)", version.stdout) if version.ok else None
        usage = self.host.run([path, "--help"], timeout=3.0, limit=65536)
        # the list of --gpu-name; other options quote targets too, but none it does not know
        targets = tuple(dict.fromkeys(re.findall(r"'(sm_\d+[af]?)'", usage.stdout))) if usage.ok else ()
        return Ptxas(path, release[1] if release else None, targets or None)


def _each(answer: Compiler, same: tuple[str, ...], host: Host) -> tuple[Compiler, ...]:
    """The same program under each of its names."""
    return tuple(
        replace(
            answer,
            path=path,
            name=os.path.basename(path),
            cplusplus="++" in os.path.basename(path),
            target=real if (real := host.realpath(path)) != path else None,
        )
        for path in same
    )
