"""The toolchain probe on fake hosts: what is found, what is tried, and what a broken tool costs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from doctor.facts import CompileTrial, ToolchainFacts
from doctor.host import compile_trials, toolchain
from doctor.host.access import LocalHost, RunResult
from doctor.host.examine import Options
from tests import toolchains as tc
from tests.fakes import FakeHost


def probe(host: FakeHost, *, deep: bool = False) -> ToolchainFacts:
    facts = toolchain.probe(host, Options(deep=deep))["toolchain"]
    assert isinstance(facts, ToolchainFacts)
    return facts


def trials(facts: ToolchainFacts) -> dict[str, CompileTrial]:
    return {t.name: t for t in facts.trials}


def test_a_complete_machine(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host)
    host.program("/opt/venv/bin/ninja")
    host.program("/usr/bin/git")
    facts = probe(host)
    assert (facts.default_cc, facts.default_cxx) == ("/usr/bin/gcc", "/usr/bin/c++")
    assert (facts.nvcc_host, facts.nvcc_host_by) == ("/usr/bin/gcc", "PATH")
    gcc = next(c for c in facts.compilers or () if c.name == "gcc")
    assert (gcc.family, gcc.version, gcc.major, gcc.cplusplus) == ("gcc", "13.3.0", 13, False)
    assert (gcc.cc1plus, gcc.cc1plus_ok) == ("/usr/lib/gcc/x86_64-linux-gnu/13/cc1plus", True)
    (nvcc,) = facts.nvccs or ()
    assert (nvcc.release, nvcc.build, nvcc.found_by) == ("13.0", "13.0.88", ("CUDA_HOME", "PATH", "/usr/local"))
    assert (nvcc.gcc_max, nvcc.has_curand, nvcc.has_cudart_static, nvcc.glibc_max) == (15, True, True, "2.41")
    assert (facts.cuda_home, facts.nvcc) == ("/usr/local/cuda", "/usr/local/cuda/bin/nvcc")
    assert facts.python_h == "/usr/include/python3.12/Python.h"
    assert (facts.ninja, facts.ninja_on_path, facts.git) == ("/opt/venv/bin/ninja", True, "/usr/bin/git")
    assert {n: t.ok for n, t in trials(facts).items()} == {"c-python": True, "cxx": True, "nvcc-preprocess": True}


def test_the_launcher_is_compiled_as_triton_does(tmp_path: Path) -> None:
    facts = probe(tc.machine(tmp_path))
    argv = trials(facts)["c-python"].argv
    folder = argv[1].rpartition("/")[0]
    assert argv == (
        *("/usr/bin/gcc", f"{folder}/launcher.c", "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o"),
        *(f"{folder}/launcher.so", f"-I{folder}", "-I/usr/include/python3.12"),
    )


def test_gcc_12_without_its_cpp_half(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={"/usr/bin/gcc-12": tc.gcc("12.2.0", cplusplus=False)})
    facts = probe(host)
    (gcc,) = facts.compilers or ()
    assert (gcc.path, gcc.major, gcc.cc1plus, gcc.cc1plus_ok) == ("/usr/bin/gcc-12", 12, None, False)
    assert (facts.default_cc, facts.default_cxx) == ("", "")  # Debian's gcc-12 alone gives no gcc and no c++
    assert facts.trials == ()


def test_the_failing_trial_keeps_its_telling_lines(tmp_path: Path) -> None:
    broken = tc.gcc("12.2.0", cplusplus=False)
    host = tc.machine(tmp_path, compilers={"/usr/bin/gcc": broken, "/usr/bin/c++": broken})
    tried = trials(probe(host))["cxx"]
    assert (tried.ok, tried.returncode) == (False, 1)
    assert (
        tried.output.splitlines()[0]
        == "c++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory"
    )


def test_cc_and_nvcc_ccbin_are_honoured_as_the_libraries_do(tmp_path: Path) -> None:
    compilers = {**tc.pair(), "/usr/bin/gcc-12": tc.gcc("12.2.0", cplusplus=False)}
    host = tc.machine(tmp_path, compilers=compilers, env={"CC": "gcc-12", "NVCC_CCBIN": "g++"})
    tc.add_toolkit(host, preprocess=tc.failed(tc.NVCC_NO_CC1PLUS))
    facts = probe(host)
    assert (facts.default_cc, facts.nvcc_host, facts.nvcc_host_by) == ("/usr/bin/gcc-12", "/usr/bin/gcc-12", "CC")
    tried = trials(facts)["nvcc-preprocess"]
    assert tried.argv[1:3] == ("-ccbin", "gcc-12")
    assert "Failed to preprocess host compiler properties" in tried.output
    assert facts.env["NVCC_CCBIN"] == "g++"


def test_cc_that_names_nothing_is_kept_as_it_stands(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, env={"CC": "gcc-99"})
    host._programs["gcc-99"] = lambda argv: RunResult(argv, error="No such file or directory")
    facts = probe(host)
    assert facts.default_cc == "gcc-99"
    assert trials(facts)["c-python"].error == "No such file or directory"


def test_clang_answers_for_itself(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={"/usr/bin/clang": tc.clang, "/usr/bin/clang++": tc.clang})
    facts = probe(host)
    assert (facts.default_cc, facts.default_cxx) == ("/usr/bin/clang", "/usr/bin/clang++")
    clang = (facts.compilers or ())[0]
    assert (clang.family, clang.version, clang.cc1plus_ok) == ("clang", "14.0.6", None)


def test_links_to_one_program_are_asked_once(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={"/usr/bin/x86_64-linux-gnu-gcc-12": tc.gcc("12.2.0")})
    for name in ("gcc", "gcc-12", "cc"):
        host.link(f"/usr/bin/{name}", "/usr/bin/x86_64-linux-gnu-gcc-12")
    host._programs |= {f"/usr/bin/{n}": tc.gcc("12.2.0") for n in ("gcc", "gcc-12", "cc")}
    facts = probe(host)
    assert [c.name for c in facts.compilers or ()] == ["cc", "gcc", "gcc-12"]
    assert len([c for c in host.calls if c[1:] == ("-print-prog-name=cc1plus",)]) == 1
    assert {c.target for c in facts.compilers or ()} == {"/usr/bin/x86_64-linux-gnu-gcc-12"}


@pytest.mark.parametrize("text", ["", "\x00\xff\xfe garbage", "12", "gcc version\n" * 5000, "(((((( 9.9.9"])
def test_garbage_from_a_compiler(tmp_path: Path, text: str) -> None:
    host = tc.machine(tmp_path, compilers={"/usr/bin/gcc": text, "/usr/bin/g++": text})
    facts = probe(host)
    assert all(c.version is None and c.cc1plus_ok is None for c in facts.compilers or ())


def test_a_hanging_compiler_and_nvcc_are_recorded(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={"/usr/bin/gcc": tc.hangs, "/usr/bin/g++": tc.hangs})
    tc.add_toolkit(host)
    host._programs["/usr/local/cuda/bin/nvcc"] = tc.hangs
    facts = probe(host)
    (nvcc,) = facts.nvccs or ()
    assert nvcc.release is None
    assert nvcc.gcc_max == 15  # its header can still be read
    assert facts.trials
    # one that had to wait for an answer first gets what is left of the common budget
    assert all((t.error or "").startswith("no end within ") for t in facts.trials)
    assert all(t.ok is None for t in facts.trials)


# --- nvcc and CUDA_HOME ------------------------------------------------------------------------


def test_cuda_home_follows_torch(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, env={"CUDA_HOME": "/opt/cuda-12.8", "CUDA_PATH": "/elsewhere"})
    tc.add_toolkit(host, "12.8", root="/opt/cuda-12.8", gcc_max=14)
    tc.add_toolkit(host, "13.0")
    facts = probe(host)
    assert (facts.cuda_home, facts.nvcc) == ("/opt/cuda-12.8", "/opt/cuda-12.8/bin/nvcc")
    assert [n.release for n in facts.nvccs or ()] == ["12.8", "13.0"]
    assert trials(facts)["nvcc-preprocess"].argv[0] == "/opt/cuda-12.8/bin/nvcc"


def test_cuda_home_that_is_wrong_means_no_nvcc_although_one_exists(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, env={"CUDA_HOME": ":/usr/local/cuda"})
    tc.add_toolkit(host)
    facts = probe(host)
    assert facts.nvcc == ""
    assert [n.path for n in facts.nvccs or ()] == ["/usr/local/cuda/bin/nvcc"]
    assert "nvcc-preprocess" not in trials(facts)


def test_a_wrapper_script_leads_to_its_toolkit(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, env={"PATH": "/usr/local/bin:/usr/bin"})
    tc.add_toolkit(host, root="/usr/local/cuda-13.0")
    host.program("/usr/local/bin/nvcc", tc.nvcc("13.0"))
    host.write("/usr/local/bin/nvcc", '#!/bin/sh\nexec /usr/local/cuda-13.0/bin/nvcc "$@"\n', 0o755)
    facts = probe(host)
    assert facts.cuda_home == "/usr/local"  # torch's rule: two folders up, links and wrappers not followed
    assert (facts.nvccs or ())[0].root == "/usr/local/cuda-13.0"
    assert (facts.nvccs or ())[0].gcc_max == 15


def test_without_its_header_the_table_tells_the_limit(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    host.program("/usr/local/cuda/bin/nvcc", tc.nvcc("12.4"))
    (nvcc,) = probe(host).nvccs or ()
    assert (nvcc.release, nvcc.gcc_max, nvcc.has_curand, nvcc.glibc_max) == ("12.4", 13, False, None)


@pytest.mark.parametrize(("release", "limit"), [("12.8", "2.40"), ("13.0", "2.41"), ("13.2", "")])
def test_the_math_header_tells_the_newest_glibc(tmp_path: Path, release: str, limit: str) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, "13.0", math=release)
    assert (probe(host).nvccs or ())[0].glibc_max == limit


def test_deep_compiles_a_whole_kernel(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    tc.add_toolkit(host, "12.8", compile_=tc.failed(tc.NVCC_MATH, 2))
    tried = trials(probe(host, deep=True))["nvcc"]
    assert (tried.ok, tried.returncode) == (False, 2)
    assert "exception specification is incompatible" in tried.output


# --- Python.h, libcuda, ptxas, ninja -----------------------------------------------------------


def test_python_h_missing(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={"/usr/bin/gcc": tc.gcc(python_h=False)}, python=False)
    tc.add_python(host, headers=False)
    facts = probe(host)
    assert (facts.python_h, facts.python_include) == ("", "/usr/include/python3.12")
    assert "Python.h: No such file or directory" in trials(facts)["c-python"].output


def test_without_an_interpreter_nothing_is_said_about_headers(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, python=False)
    host.program("/opt/venv/bin/python", tc.hangs)
    facts = probe(host)
    assert facts.python_h is None
    assert facts.triton_ptxas is None
    assert "c-python" not in trials(facts)


@pytest.mark.parametrize(
    ("line", "flag"), [("libraries = ['libcuda.so.1']", "-l:libcuda.so.1"), ("libraries = ['cuda']", "-lcuda")]
)
def test_the_driver_library_is_linked_as_the_installed_triton_does(tmp_path: Path, line: str, flag: str) -> None:
    host = tc.machine(tmp_path)
    host._programs["/sbin/ldconfig -p"] = tc.LDCONFIG_CUDA
    host.write("/opt/venv/lib/python3.12/site-packages/triton/backends/nvidia/driver.py", f"import os\n{line}\n")
    argv = trials(probe(host))["link-cuda"].argv
    assert argv[-2:] == (flag, "-L/lib/x86_64-linux-gnu")


def test_ptxas_targets(tmp_path: Path) -> None:
    host = tc.machine(tmp_path)
    folder = "/opt/venv/lib/python3.12/site-packages/triton/backends/nvidia/bin"
    usage = "--gpu-name <gpu name> (-arch)\n Allowed values: 'compute_75','sm_75','sm_120','sm_120a'.\n"

    def ptxas(argv: tuple[str, ...]) -> str:
        return "Cuda compilation tools, release 12.9, V12.9.86\n" if argv[1] == "--version" else usage

    host.program(f"{folder}/ptxas", ptxas)
    host.program(f"{folder}/ptxas-blackwell", tc.hangs)
    first, second = probe(host).triton_ptxas or ()
    assert (first.release, first.targets) == ("12.9", ("sm_75", "sm_120", "sm_120a"))
    assert (second.release, second.targets) == (None, None)


def test_ninja_only_in_the_environment(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, env={"PATH": "/usr/bin"})
    host.program("/opt/venv/bin/ninja")
    facts = probe(host)
    assert (facts.ninja, facts.ninja_on_path) == ("/opt/venv/bin/ninja", False)


# --- the scratch folder ------------------------------------------------------------------------


def test_the_scratch_folder_is_below_tmpdir_and_removed(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    host = tc.machine(tmp_path / "root", env={"TMPDIR": str(place)})
    facts = probe(host)
    assert trials(facts)["cxx"].argv[1].startswith(str(place))
    assert list(place.iterdir()) == []


def test_no_room_for_a_scratch_folder_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    facts = probe(tc.machine(tmp_path))
    assert {t.error for t in facts.trials} == {"no scratch folder: No space left on device"}
    assert facts.default_cc == "/usr/bin/gcc"


def test_a_real_program_runs_in_the_folder_and_its_leftovers_go(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\n: > "$TMPDIR/left"\nmkdir -p "$TMPDIR/deep/er"\nexit 3\n')
    script.chmod(0o755)
    host = LocalHost(env={"PATH": "/usr/bin:/bin", "TMPDIR": str(place)})
    with compile_trials.scratch(host) as run:
        result = run(compile_trials.cxx(str(script)))
    assert (result.ok, result.returncode) == (False, 3)
    assert list(place.iterdir()) == []


def test_telling_lines_are_few_and_short() -> None:
    noise = "note: something\n" * 1000
    text = compile_trials.telling(noise + "x.c:1: error: boom " + "y" * 9000 + "\n" + noise)
    assert text.startswith("x.c:1: error: boom")
    assert len(text) <= 400
    assert compile_trials.telling("a\nb\nc\nd\ne\nf\n") == "b\nc\nd\ne\nf"
    assert len(compile_trials.telling("error: " + "\nerror: ".join(map(str, range(10_000))))) <= 2000
