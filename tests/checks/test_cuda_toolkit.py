"""Checks of nvcc and the CUDA toolkit, from what the probes read on fake hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from doctor.finding import Confidence, Finding, Severity
from tests import toolchains as tc
from tests.checks.machines import (
    AMPERE,
    BLACKWELL,
    SITE,
    TURING,
    UBUNTU,
    finding,
    judged,
    snapshot,
    with_flashinfer,
    with_fork,
)
from tests.fakes import FakeHost

# --- nvcc and its host compiler ----------------------------------------------------------------


def test_gcc_too_new_by_the_trial(tmp_path: Path) -> None:
    host = tc.machine(
        tmp_path,
        compilers={**tc.pair("15.2.0"), "/usr/bin/gcc-14": tc.gcc("14.2.0"), "/usr/bin/g++-14": tc.gcc("14.2.0")},
    )
    tc.add_toolkit(host, "12.8", gcc_max=14, preprocess=tc.failed(tc.NVCC_UNSUPPORTED.format(limit=14)))
    with_flashinfer(host)
    f = finding(snapshot(host, gpus=[AMPERE]), "gcc-too-new-for-nvcc")
    assert (f.severity, f.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
    assert "/usr/bin/gcc is gcc 15.2.0, nvcc 12.8 (/usr/local/cuda/bin/nvcc) accepts gcc up to 14" in f.summary
    assert "CUDAHOSTCXX=/usr/bin/g++-14" in f.fixes[0].summary


def test_gcc_too_new_degrades_where_nothing_compiles_cuda(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers=tc.pair("14.2.0"))
    tc.add_toolkit(
        host, "12.4", gcc_max=13, math="12.8", preprocess=tc.failed(tc.NVCC_UNSUPPORTED.format(limit=13))
    )
    f = finding(snapshot(host), "gcc-too-new-for-nvcc")
    assert f.severity is Severity.DEGRADES
    assert f.fixes[0].commands == (("sudo", "apt-get", "install", "-y", "gcc-13", "g++-13"),)


@pytest.mark.parametrize("preprocess", ["", tc.hangs])
def test_gcc_within_the_limit_passes(tmp_path: Path, preprocess: tc.Reply) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, preprocess=preprocess)
    assert judged(snapshot(host), "gcc-too-new-for-nvcc") is None


def test_an_nvcc_that_accepts_it_anyhow_passes(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers=tc.pair("15.2.0"))  # NVCC_PREPEND_FLAGS, say
    tc.add_toolkit(host, "12.8", gcc_max=14)
    assert judged(snapshot(host), "gcc-too-new-for-nvcc") is None


@pytest.mark.parametrize(
    ("math", "glibc", "confidence"),
    [("12.8", "2.41", Confidence.PROVEN), ("13.0", "2.42", Confidence.LIKELY)],
)
def test_the_math_headers_clash(tmp_path: Path, math: str, glibc: str, confidence: Confidence) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, math)
    with_fork(host)
    f = finding(snapshot(host, system=replace(UBUNTU, glibc=glibc)), "glibc-cuda-math-header-conflict")
    assert f.confidence is confidence
    assert f"clash with glibc {glibc}" in f.summary


@pytest.mark.parametrize(("math", "glibc"), [("12.8", "2.39"), ("13.0", "2.41"), ("13.2", "2.43")])
def test_the_math_headers_agree(tmp_path: Path, math: str, glibc: str) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, "13.0", math=math)
    s = snapshot(host, system=replace(UBUNTU, glibc=glibc))
    assert judged(s, "glibc-cuda-math-header-conflict") is None


def test_the_deep_trial_overrules_the_header(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, "12.8")
    s = snapshot(host, system=replace(UBUNTU, glibc="2.41"), deep=True)
    assert judged(s, "glibc-cuda-math-header-conflict") is None


def test_the_deep_trial_proves_the_clash(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, "12.8", compile_=tc.failed(tc.NVCC_MATH))
    s = snapshot(host, system=replace(UBUNTU, glibc=None), deep=True)
    f = finding(s, "glibc-cuda-math-header-conflict")
    assert f.evidence[0].fact == "trial compile nvcc"


# --- who needs nvcc ----------------------------------------------------------------------------


def test_nvcc_missing_for_the_sampler(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    with_flashinfer(host)
    f = finding(snapshot(host, gpus=[AMPERE]), "nvcc-missing")
    assert (f.severity, f.confidence) == (Severity.BLOCKER, Confidence.LIKELY)
    assert "FlashInfer 0.6.14" in f.summary
    assert f.fixes[0].summary == "Start the server with VLLM_USE_FLASHINFER_SAMPLER=0"
    assert f.fixes[1].commands == (("sudo", "apt-get", "install", "-y", "cuda-toolkit-13-0"),)


def test_nvcc_that_lies_elsewhere_is_named(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, root="/usr/local/cuda-13.0")
    with_flashinfer(host)
    f = finding(snapshot(host, gpus=[AMPERE]), "nvcc-missing")
    assert f.fixes[0].summary.startswith("Start the server with CUDA_HOME=/usr/local/cuda-13.0")


@pytest.mark.parametrize(
    "why_not", ["jit-cache", "switched off", "old vllm", "no card", "turing on new vllm", "no flashinfer", "nvcc"]
)
def test_nvcc_is_not_missed_where_nothing_needs_it(tmp_path: Path, why_not: str) -> None:
    env = {"VLLM_USE_FLASHINFER_SAMPLER": "0"} if why_not == "switched off" else {}
    host = tc.machine(tmp_path, env=env)
    if why_not == "no flashinfer":
        tc.add_vllm(host, SITE)
    else:
        vllm = {"old vllm": "0.20.2", "turing on new vllm": "0.32.0"}.get(why_not, "0.26.0")
        with_flashinfer(host, vllm=vllm)
    if why_not == "jit-cache":
        tc.add_dist(host, SITE, "flashinfer-jit-cache", "0.6.14+cu130")
    if why_not == "nvcc":
        tc.add_toolkit(host)
    gpus = {"no card": [], "turing on new vllm": [TURING]}.get(why_not, [AMPERE])
    assert judged(snapshot(host, gpus=gpus), "nvcc-missing") is None


def test_on_turing_an_older_vllm_only_may_need_it(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    with_flashinfer(host)
    assert finding(snapshot(host, gpus=[TURING]), "nvcc-missing").confidence is Confidence.HINT


def test_the_fork_needs_nvcc_on_any_card(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    with_fork(host)
    assert "the Turing fork 0.1.17" in finding(snapshot(host), "nvcc-missing").summary


def test_nvcc_too_old_for_the_card(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, "12.4", math="12.8", gcc_max=13)
    tc.add_toolkit(host, "13.0", root="/usr/local/cuda-13.0")
    with_flashinfer(host)
    s = snapshot(host, gpus=[BLACKWELL])
    f = finding(s, "nvcc-too-old-for-jit")
    assert f.confidence is Confidence.PROVEN
    assert "which needs CUDA 12.8 or newer" in f.summary
    assert "CUDA_HOME=/usr/local/cuda-13.0" in f.fixes[0].summary
    assert judged(snapshot(host, gpus=[AMPERE]), "nvcc-too-old-for-jit") is None


def test_torch_and_nvcc_of_other_majors(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, "12.8")
    with_fork(host, torch="2.11.0+cu130")
    f = finding(snapshot(host), "torch-nvcc-cuda-mismatch")
    assert (f.severity, f.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
    assert "torch is built for CUDA 13.0, the nvcc in use is 12.8" in f.summary


def test_other_minors_matter_to_the_fork_only(tmp_path: Path) -> None:
    host = tc.machine(tmp_path / "a")
    tc.add_toolkit(host, "13.0")
    with_fork(host, release="0.2.2", torch="2.13.0+cu132")
    f = finding(snapshot(host), "torch-nvcc-cuda-mismatch")
    assert (f.severity, f.confidence) == (Severity.DEGRADES, Confidence.LIKELY)
    other = tc.machine(tmp_path / "b")
    tc.add_toolkit(other, "13.0")
    with_flashinfer(other, torch="2.13.0+cu132")
    assert judged(snapshot(other, gpus=[AMPERE]), "torch-nvcc-cuda-mismatch") is None


def test_a_difference_that_nobody_compiles_with_is_no_finding(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, "12.8")
    tc.add_vllm(host, SITE)
    tc.add_torch(host, SITE, "2.11.0+cu130")
    assert judged(snapshot(host, gpus=[AMPERE]), "torch-nvcc-cuda-mismatch") is None


def test_a_toolkit_without_curand(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, curand=False)
    assert judged(snapshot(host, gpus=[AMPERE]), "cuda-toolkit-incomplete") is None  # nothing compiles here
    again = tc.machine(tmp_path)
    again._programs |= host._programs
    with_flashinfer(again)
    f = finding(snapshot(again, gpus=[AMPERE]), "cuda-toolkit-incomplete")
    assert f.confidence is Confidence.LIKELY
    assert "in /usr/local/cuda has no include/curand_kernel.h" in f.summary


def test_an_nvcc_without_its_own_headers(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    text = "<command-line>: fatal error: cuda_runtime.h: No such file or directory\ncompilation terminated.\n"
    tc.add_toolkit(host, preprocess=tc.failed(text))
    f = finding(snapshot(host), "cuda-toolkit-incomplete")
    assert (f.severity, f.confidence) == (Severity.DEGRADES, Confidence.PROVEN)
    assert "does not find cuda_runtime.h" in f.summary


def test_ninja_missing(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    with_fork(host)
    f = finding(snapshot(host), "ninja-missing")
    assert f.confidence is Confidence.LIKELY
    assert f.fixes[0].commands == (("/opt/venv/bin/python", "-m", "pip", "install", "ninja"),)
    assert f.fixes[1].commands == (("sudo", "apt-get", "install", "-y", "ninja-build"),)


def test_ninja_in_an_environment_that_is_not_on_path_is_a_note(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, env={"PATH": "/usr/bin"})
    with_fork(host)
    host.program("/opt/venv/bin/ninja")
    f = finding(snapshot(host), "ninja-missing")
    assert (f.severity, f.confidence) == (Severity.NOTE, Confidence.HINT)


def test_ninja_on_path_or_not_needed(tmp_path: Path) -> None:
    assert judged(snapshot(tc.machine(tmp_path / "a")), "ninja-missing") is None
    host = tc.machine(tmp_path / "b")
    with_fork(host)
    host.program("/usr/bin/ninja")
    assert judged(snapshot(host), "ninja-missing") is None


@pytest.mark.parametrize(
    ("jobs", "hint"), [("16", True), ("4", False), ("", False), ("many", False), ("9" * 99, False)]
)
def test_build_jobs(tmp_path: Path, jobs: str, hint: bool) -> None:
    host = tc.machine(tmp_path, env={"MAX_JOBS": jobs})
    with_fork(host)
    result = judged(snapshot(host), "build-jobs-exhaust-memory")
    assert isinstance(result, Finding) is hint
    if isinstance(result, Finding):
        assert result.confidence is Confidence.HINT
        assert "Set MAX_JOBS=4" in result.fixes[0].summary


def ptxas(root: Path, targets: str, env: dict[str, str] | None = None) -> FakeHost:
    host = tc.machine(root, env=env)

    def reply(argv: tuple[str, ...]) -> str:
        return "Cuda compilation tools, release 12.9, V12.9.86\n" if argv[1] == "--version" else targets

    host.program(f"{SITE}/triton/backends/nvidia/bin/ptxas", reply)
    return host


def test_no_ptxas_of_triton_knows_the_card(tmp_path: Path) -> None:
    host = ptxas(tmp_path, "'sm_75','sm_86','sm_90a'")
    tc.add_toolkit(host)
    f = finding(snapshot(host, gpus=[BLACKWELL]), "triton-ptxas-too-old-for-gpu")
    assert f.confidence is Confidence.PROVEN
    assert "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas" in f.fixes[0].summary
    assert judged(snapshot(host, gpus=[AMPERE]), "triton-ptxas-too-old-for-gpu") is None


def test_a_ptxas_that_does_not_answer_is_not_judged(tmp_path: Path) -> None:
    host = ptxas(tmp_path, "no list")
    why = judged(snapshot(host, gpus=[AMPERE]), "triton-ptxas-too-old-for-gpu")
    assert why == "a ptxas of Triton did not list its targets"
