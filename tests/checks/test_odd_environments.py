"""Compiler and Python checks on facts of every shape: they judge or abstain, they never crash."""

from __future__ import annotations

import random
from typing import Any

import pytest

from doctor.checks.registry import judge, registered
from doctor.facts import (
    Compiler,
    CompileTrial,
    ContainerFacts,
    DriverFacts,
    GpuFacts,
    Nvcc,
    Ptxas,
    PythonFacts,
    SystemFacts,
    ToolchainFacts,
)
from doctor.finding import Finding
from doctor.snapshot import Snapshot, dumps, loads
from tests import toolchains as tc

MINE = ("doctor.checks.compiler", "doctor.checks.cuda_toolkit", "doctor.checks.python_env")
VERSIONS = ("", "0.26.0", "0.32.0+cpu", "0.21.0", "2.11.0+cu130", "2.13.0", "5.6.0", "3.12.3", "main", "13.0",
            "12.8", "\ufffd", "9" * 400)  # fmt: skip
PATHS = ("", "/usr/bin/gcc", "/usr/bin/gcc-12", "/usr/bin/g++", "gcc-12", "/usr/local/cuda/bin/nvcc", "/opt/venv")
OUTPUTS = ("", tc.NO_CC1PLUS.format(name="gcc"), tc.NO_CRT, tc.NO_PYTHON_H.format(file="a.c"), tc.NVCC_MATH,
           tc.NVCC_UNSUPPORTED.format(limit=14), "cuda_runtime.h: No such file", "\ufffd\0",
           "x" * 2000)  # fmt: skip
REQUIRES = ("torch==2.11.0", "transformers<5,>=4.56", "nvidia-nccl-cu13==2.28.9", "=== ;", 'x; python_version<"a"')


class Draw:
    """Random facts from words that mean something."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def maybe(self, *values: Any) -> Any:
        return None if self.random.random() < 0.3 else self.random.choice(values)

    def some(self, *values: Any) -> tuple[Any, ...]:
        return tuple(v for v in values if self.random.random() < 0.5)

    def compiler(self, name: str) -> Compiler:
        family, major = self.maybe("gcc", "clang"), self.maybe(9, 12, 13, 15)
        path = f"/usr/bin/{name}"
        return Compiler(
            path, name, family, self.maybe("12.2.0"), major, "++" in name, None, self.maybe(True, False)
        )

    def trial(self, name: str) -> CompileTrial:
        error = (
            self.maybe("no end within 4 s", "No such file or directory") if self.random.random() < 0.3 else None
        )
        return CompileTrial(
            name,
            self.some(*PATHS),
            None if error else self.maybe(True, False),
            1,
            self.random.choice(OUTPUTS),
            error=error,
        )

    def toolchain(self) -> ToolchainFacts:
        nvcc = Nvcc(
            *(self.random.choice(PATHS), self.maybe("13.0", "12.8", "", "x")),
            gcc_max=self.maybe(13, 15),
            has_curand=self.maybe(True, False),
            has_cudart_static=self.maybe(True, False),
            root=self.maybe("/usr/local/cuda"),
            glibc_max=self.maybe("", "2.40", "2.41"),
        )
        return ToolchainFacts(
            compilers=self.maybe(
                tuple(self.compiler(n) for n in self.some("gcc", "gcc-12", "g++", "c++", "clang"))
            ),
            default_cc=self.maybe(*PATHS),
            default_cxx=self.maybe(*PATHS),
            env={k: self.random.choice((*PATHS, "16")) for k in self.some("CC", "CXX", "NVCC_CCBIN", "MAX_JOBS")},
            nvccs=self.maybe((), (nvcc,)),
            nvcc=self.maybe(*PATHS),
            nvcc_host=self.maybe(*PATHS),
            cuda_home=self.maybe("", "/usr/local/cuda"),
            python_h=self.maybe("", "/usr/include/python3.12/Python.h"),
            triton_ptxas=self.maybe((), (Ptxas("/p", self.maybe("12.9"), self.maybe((), ("sm_75",))),)),
            ninja=self.maybe("", "/opt/venv/bin/ninja"),
            ninja_on_path=self.maybe(True, False),
            trials=tuple(self.trial(n) for n in self.some("c-python", "cxx", "nvcc-preprocess", "nvcc")),
        )

    def python(self) -> PythonFacts:
        names = self.some("pynvml", "flashinfer-cubin", "nvidia-nccl-cu13", "flashinfer-jit-cache")
        version = self.random.choice
        return PythonFacts(
            executable=self.maybe("/opt/venv/bin/python"),
            is_doctors_own=self.maybe(True, False),
            version=self.maybe(*VERSIONS),
            base_prefix=self.maybe("/usr", "/opt"),
            packages=self.maybe({n: version(VERSIONS) for n in names}),
            vllm=self.maybe(*VERSIONS),
            vllm_requires=self.maybe(self.some(*REQUIRES)),
            vllm_requires_python=self.maybe(">=3.11", "nonsense"),
            vllm_root=self.maybe("", "/srv"),
            vllm_cuda=self.maybe("", "12", "13.0"),
            torch=self.maybe(*VERSIONS),
            torch_cuda=self.maybe("", "12.8", "13.0"),
            torch_requires=self.maybe(self.some(*REQUIRES)),
            transformers=self.maybe(*VERSIONS),
            flashinfer=self.maybe(*VERSIONS),
            cuda_runtimes=self.maybe((), ("12", "13")),
            conflicts=self.maybe((), ("vllm 0.26.0 requires six, which is not installed",)),
            doctor_clash=self.maybe("", "another"),
            turing_fork=self.maybe("", "0.1.17", "0.2.2", "unknown"),
            env=dict.fromkeys(self.some("VLLM_USE_FLASHINFER_SAMPLER", "FLASHINFER_DISABLE_VERSION_CHECK"), "1"),
        )

    def snapshot(self) -> Snapshot:
        card = GpuFacts(0, compute_capability=self.maybe("7.5", "8.6", "12.0", "x"))
        os_id = self.maybe("ubuntu", "fedora", "opensuse-leap", "arch", "x")
        return Snapshot(
            origin=self.random.choice(("host", "evidence")),
            taken_at="2026-11-30T10:00:00Z",
            toolchain=self.maybe(self.toolchain()),
            python=self.maybe(self.python()),
            system=self.maybe(
                SystemFacts(os_id=os_id, glibc=self.maybe("2.39", "2.41", "x"), ram_total_bytes=1 << 34)
            ),
            gpus=self.maybe((), (card,)),
            driver=self.maybe(DriverFacts(pci_nvidia=self.maybe((), ("0000:01:00.0 10de:2204",)))),
            container=self.maybe(ContainerFacts(daemon_reachable=self.maybe(True, False))),
        )


@pytest.mark.parametrize("seed", range(4))
def test_no_check_crashes_and_every_finding_can_be_shown(seed: int) -> None:
    draw = Draw(seed)
    mine = [c for c in registered() if c.function.__module__ in MINE]
    assert len(mine) == 25
    fired: set[str] = set()
    for _ in range(150):
        snapshot = draw.snapshot()
        judgement = judge(snapshot, mine)
        crashed = [s.why for s in judgement.skipped if "the check itself failed" in s.why]
        assert crashed == []
        everything = [*judgement.findings, *(x for f in judgement.findings for x in f.symptoms)]
        assert all(isinstance(f, Finding) and f.summary and f.evidence for f in everything)
        assert all("None" not in f.summary for f in everything), [f.summary for f in everything]
        assert judge(loads(dumps(snapshot)), mine).findings == judgement.findings  # a saved file judges alike
        fired |= {f.id for f in everything}
    assert len(fired) > 15
