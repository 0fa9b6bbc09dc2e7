"""Checks of host compilers and Python headers, from what the probes read on fake hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from doctor import catalogue
from doctor.checks import packages
from doctor.checks.registry import judge
from doctor.facts import ContainerFacts, SystemFacts
from doctor.finding import Confidence, Severity
from doctor.snapshot import Snapshot
from tests import toolchains as tc
from tests.checks.machines import SITE, UBUNTU, finding, judged, snapshot, with_fork
from tests.fakes import FakeHost

GCC12_ALONE = {"/usr/bin/gcc-12": tc.gcc("12.2.0", cplusplus=False)}


# --- gcc-12 without g++-12 ---------------------------------------------------------------------


def test_gcc_12_alone_blocks(tmp_path: Path) -> None:
    f = finding(snapshot(tc.machine(tmp_path, compilers=GCC12_ALONE)), "gxx12-missing")
    assert (f.severity, f.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
    assert f.summary == "/usr/bin/gcc-12 (12.2.0) has no cc1plus: it compiles C, but no C++ and no CUDA"
    assert f.evidence[0].source == "/usr/bin/gcc-12"
    assert f.fixes[0].commands == (("sudo", "apt-get", "install", "-y", "g++-12"),)
    assert f.fixes[0].automatic


def test_beside_a_complete_pair_that_is_used_it_only_degrades(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={**tc.pair(), **GCC12_ALONE})
    f = finding(snapshot(host), "gxx12-missing")
    assert (f.severity, f.confidence) == (Severity.DEGRADES, Confidence.PROVEN)
    assert "nothing here pins it and /usr/bin/c++ (13.3.0) is complete" in f.summary
    assert "CC=/usr/bin/gcc CXX=/usr/bin/g++" in f.fixes[1].summary


@pytest.mark.parametrize("variable", ["CC", "CUDAHOSTCXX", "NVCC_CCBIN"])
def test_a_variable_that_pins_it_makes_it_block(tmp_path: Path, variable: str) -> None:
    compilers = {**tc.pair(), **GCC12_ALONE}
    f = finding(snapshot(tc.machine(tmp_path, compilers=compilers, env={variable: "gcc-12"})), "gxx12-missing")
    assert f.severity is Severity.BLOCKER
    assert f"pinned by {variable}=gcc-12" in f.summary


@pytest.mark.parametrize(("release", "severity"), [("0.1.17", Severity.BLOCKER), ("0.2.2", Severity.DEGRADES)])
def test_the_turing_fork_pins_it_in_its_first_line_only(tmp_path: Path, release: str, severity: Severity) -> None:
    host = tc.machine(tmp_path, compilers={**tc.pair(), **GCC12_ALONE})
    with_fork(host, release)
    assert finding(snapshot(host), "gxx12-missing").severity is severity


def test_a_cc1plus_on_path_takes_the_proof_away(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers=GCC12_ALONE)
    host.program("/usr/bin/cc1plus")
    assert finding(snapshot(host), "gxx12-missing").confidence is Confidence.LIKELY


def test_the_trial_of_nvcc_is_evidence(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={**tc.pair(), **GCC12_ALONE}, env={"CC": "gcc-12"})
    tc.add_toolkit(host, preprocess=tc.failed(tc.NVCC_NO_CC1PLUS))
    rows = finding(snapshot(host), "gxx12-missing").evidence
    assert any(r.fact == "trial compile nvcc-preprocess" and "cc1plus" in r.value for r in rows)


def test_a_complete_gcc_12_is_no_finding(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers=tc.pair("12.2.0"))
    assert judged(snapshot(host), "gxx12-missing") is None


def test_a_gcc_12_that_does_not_answer_is_not_judged(tmp_path: Path) -> None:
    def silent(argv: tuple[str, ...]) -> object:
        return tc.gcc("12.2.0")(argv) if argv[1:] == ("--version",) else tc.hangs(argv)

    host = tc.machine(tmp_path, compilers={"/usr/bin/gcc-12": silent})  # type: ignore[dict-item]
    assert judged(snapshot(host), "gxx12-missing") == "/usr/bin/gcc-12 does not say where its cc1plus is"


def test_where_the_distribution_has_no_versioned_package_no_command_is_made_up(tmp_path: Path) -> None:
    fedora = replace(UBUNTU, os_id="fedora")
    f = finding(snapshot(tc.machine(tmp_path, compilers=GCC12_ALONE), system=fedora), "gxx12-missing")
    assert f.fixes[0].commands == ()
    assert not f.fixes[0].automatic


# --- C and C++ compilers -----------------------------------------------------------------------


def test_no_compiler_at_all(tmp_path: Path) -> None:
    s = snapshot(tc.machine(tmp_path, compilers={}))
    f = finding(s, "c-compiler-missing")
    assert f.confidence is Confidence.PROVEN
    assert f.fixes[0].commands == (("sudo", "apt-get", "install", "-y", "build-essential"),)
    both = judge(s, only=["c-compiler-missing", "cxx-compiler-missing"])
    assert [x.id for x in both.findings] == ["c-compiler-missing"]  # the C++ one is folded below it
    assert [x.id for x in both.findings[0].symptoms] == ["cxx-compiler-missing"]


def test_where_vllm_may_run_in_docker_only_it_does_not_block(tmp_path: Path) -> None:
    s = replace(snapshot(tc.machine(tmp_path, compilers={})), container=ContainerFacts(daemon_reachable=True))
    assert finding(s, "c-compiler-missing").severity is Severity.DEGRADES


def test_a_compiler_without_the_c_library(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={"/usr/bin/gcc": tc.gcc("12.2.0", fails=tc.NO_CRT)})
    f = finding(snapshot(host), "c-compiler-missing")
    assert f.confidence is Confidence.PROVEN
    assert "cannot find crti.o" in f.summary


def test_cc_that_names_nothing(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, env={"CC": "/opt/gone/gcc"})
    host._programs["/opt/gone/gcc"] = lambda argv: tc.RunResult(argv, error="No such file or directory")
    f = finding(snapshot(host), "c-compiler-missing")
    assert "/opt/gone/gcc (from CC), which cannot be run: No such file or directory" in f.summary
    assert f.fixes[0].summary.startswith("Unset CC")


@pytest.mark.parametrize("cause", ["c-compiler-missing", "cxx-compiler-missing", "python-headers-missing"])
def test_a_complete_machine_passes(tmp_path: Path, cause: str) -> None:
    assert judged(snapshot(tc.machine(tmp_path)), cause) is None


def test_a_hanging_compiler_is_not_judged(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers={f"/usr/bin/{n}": tc.hangs for n in ("gcc", "c++")})
    s = snapshot(host)
    assert "with /usr/bin/gcc could not be made: no end within " in str(judged(s, "c-compiler-missing"))
    assert "could not be tried" in str(judged(s, "cxx-compiler-missing"))


def test_gcc_14_without_its_cpp_half(tmp_path: Path) -> None:
    compilers = {"/usr/bin/gcc": tc.gcc("14.2.0", cplusplus=False), "/usr/bin/g++-12": tc.gcc("12.2.0")}
    s = snapshot(tc.machine(tmp_path, compilers=compilers))
    f = finding(s, "cxx-compiler-missing")
    assert f.confidence is Confidence.PROVEN
    assert "/usr/bin/gcc (14.2.0) has no cc1plus" in f.summary
    assert judged(s, "gxx12-missing") is None


def test_a_side_by_side_gcc_without_its_cpp_half_is_normal(tmp_path: Path) -> None:
    compilers = {**tc.pair("14.2.0"), "/usr/bin/gcc-13": tc.gcc("13.3.0", cplusplus=False)}
    assert judged(snapshot(tc.machine(tmp_path, compilers=compilers)), "cxx-compiler-missing") is None


# --- Python.h ----------------------------------------------------------------------------------


def headers(root: Path, *, base: str = "/usr", vllm: bool = True, compilers: bool = True) -> FakeHost:
    reply = {"/usr/bin/gcc": tc.gcc(python_h=False)} if compilers else {}
    host = tc.machine(root, compilers=reply, python=False)
    tc.add_python(host, base=base, headers=False)
    if vllm:
        tc.add_vllm(host, SITE)
    return host


def test_python_headers_of_the_distribution(tmp_path: Path) -> None:
    f = finding(snapshot(headers(tmp_path)), "python-headers-missing")
    assert (f.severity, f.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
    assert f.fixes[0].commands == (("sudo", "apt-get", "install", "-y", "python3.12-dev"),)
    assert len(f.evidence) == 2  # the missing file and the failed trial


def test_without_a_compiler_the_missing_file_proves_it(tmp_path: Path) -> None:
    f = finding(snapshot(headers(tmp_path, compilers=False)), "python-headers-missing")
    assert [r.fact for r in f.evidence] == ["toolchain.python_h"]


def test_a_python_of_its_own_gets_no_distribution_package(tmp_path: Path) -> None:
    f = finding(snapshot(headers(tmp_path, base="/opt/python")), "python-headers-missing")
    assert f.fixes[0].commands == ()
    assert "not the distribution's Python" in f.fixes[0].summary


def test_where_vllm_is_not_installed_headers_do_not_block(tmp_path: Path) -> None:
    assert finding(snapshot(headers(tmp_path, vllm=False)), "python-headers-missing").severity is Severity.DEGRADES


def test_headers_found_through_a_variable_are_no_finding(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, python=False)  # the compiler succeeds: C_INCLUDE_PATH, say
    tc.add_python(host, headers=False)
    assert judged(snapshot(host), "python-headers-missing") is None


def test_headers_of_an_unknown_interpreter_are_not_judged(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, python=False)
    host.program("/opt/venv/bin/python", tc.hangs)
    assert "no answer within 3 s" in str(judged(snapshot(host), "python-headers-missing"))


# --- data --------------------------------------------------------------------------------------


def test_the_catalogue_and_the_table_agree_on_nvcc_limits() -> None:
    table = catalogue.table("cuda_gcc")
    limits = (("12.3", 12), ("12.4", 13), ("12.8", 14), ("12.9", 14), ("13.0", 15), ("13.3", 15), ("13.4", 16))
    assert [(release, table[release]["gcc_max"]) for release, _ in limits] == list(limits)
    text = catalogue.cause("gcc-too-new-for-nvcc").cause
    assert (
        "12 for 12.0 to 12.3, 13 for 12.4 to 12.6, 14 for 12.8 and 12.9, 15 for 13.0 to 13.3, 16 from 13.4" in text
    )


@pytest.mark.parametrize(
    ("os_id", "like", "uid", "command"),
    [
        ("debian", (), 0, ("apt-get", "install", "-y", "g++-12")),
        ("linuxmint", ("ubuntu", "debian"), 1000, ("sudo", "apt-get", "install", "-y", "g++-12")),
        ("opensuse-leap", (), 1000, ("sudo", "zypper", "--non-interactive", "install", "gcc12-c++")),
        ("unknown", ("rhel", "fedora"), 1000, None),
        ("nixos", (), 1000, None),
        (None, (), None, None),
    ],
)
def test_package_commands(os_id: str | None, like: tuple[str, ...], uid: int | None, command: object) -> None:
    s = Snapshot(system=SystemFacts(os_id=os_id, os_like=like, uid=uid))
    assert packages.install(s, "g++-major", major=12) == ((command,) if command else ())
    assert packages.install(Snapshot(), "ninja") == ()


@pytest.mark.parametrize("cause", [c.id for c in catalogue.all_causes() if c.area in ("compiler", "python")])
def test_an_empty_snapshot_never_passes_for_judged(cause: str) -> None:
    checks = judge(Snapshot(origin="evidence"), only=[cause])
    assert checks.findings == ()
    assert checks.passed == ()


@pytest.mark.parametrize(
    "error", ["Too many open files", "Cannot allocate memory", "Resource temporarily unavailable"]
)
def test_limits_of_this_user_say_nothing_of_the_compiler(tmp_path: Path, error: str) -> None:
    host = tc.machine(tmp_path)
    for name in ("gcc", "c++"):
        host._programs[f"/usr/bin/{name}"] = lambda argv: tc.RunResult(argv, error=error)
    s = snapshot(host)
    assert error in str(judged(s, "c-compiler-missing"))
    assert error in str(judged(s, "cxx-compiler-missing"))
    assert not [f.id for f in judge(s).findings if f.area == "compiler" and f.severity is not Severity.NOTE]


def test_no_scratch_folder_says_nothing_of_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_a: object, **_k: object) -> str:
        raise OSError(28, "No space left on device")

    host = tc.machine(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", refused)
    why = "the trial compile with /usr/bin/gcc could not be made: no scratch folder: No space left on device"
    assert judged(snapshot(host), "c-compiler-missing") == why
