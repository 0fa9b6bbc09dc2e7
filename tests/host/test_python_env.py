"""The Python environment probe on fake hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.facts import PythonFacts
from doctor.host import dists, interpreter, python_env
from doctor.host.access import RunResult
from doctor.host.examine import Options
from tests import toolchains as tc
from tests.fakes import FakeHost


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor's own environment is /opt/doctor in every test, whatever runs the tests."""
    monkeypatch.setattr(interpreter, "OWN_PREFIX", "/opt/doctor")
    monkeypatch.setattr(interpreter.sys, "executable", "/opt/doctor/bin/python")


def probe(host: FakeHost, python: str | None = None) -> PythonFacts:
    facts = python_env.probe(host, Options(python=python))["python"]
    assert isinstance(facts, PythonFacts)
    return facts


def host_with(root: Path, **env: str) -> FakeHost:
    return FakeHost(root, env={"PATH": "/usr/bin:/bin", **env})


# --- which interpreter -------------------------------------------------------------------------


def test_an_explicit_interpreter_wins(tmp_path: Path) -> None:
    host = host_with(tmp_path, VIRTUAL_ENV="/opt/venv")
    tc.add_python(host)
    tc.add_python(host, "/srv/env")
    facts = probe(host, "/srv/env/bin/python")
    assert (facts.executable, facts.chosen_by) == ("/srv/env/bin/python", "--python")


def test_a_folder_may_be_named_instead_of_an_interpreter(tmp_path: Path) -> None:
    host = host_with(tmp_path)
    tc.add_python(host, "/srv/env")
    assert probe(host, "/srv/env").executable == "/srv/env/bin/python"


def test_a_source_tree_with_a_venv_may_be_named(tmp_path: Path) -> None:
    host = host_with(tmp_path)
    tc.add_python(host, "/srv/fork/.venv")
    assert probe(host, "/srv/fork").executable == "/srv/fork/.venv/bin/python"


def test_an_explicit_path_that_is_wrong_is_an_error_and_nothing_else_is_taken(tmp_path: Path) -> None:
    host = host_with(tmp_path, VIRTUAL_ENV="/opt/venv")
    tc.add_python(host)
    facts = probe(host, "/nowhere")
    assert facts.executable is None
    assert facts.vllm is None
    assert facts.error == "/nowhere is not a program or a folder"


def test_the_activated_environment_comes_before_conda_and_path(tmp_path: Path) -> None:
    host = host_with(tmp_path, VIRTUAL_ENV="/opt/venv", CONDA_PREFIX="/opt/conda")
    tc.add_python(host)
    tc.add_python(host, "/opt/conda")
    assert probe(host).chosen_by == "VIRTUAL_ENV"


def test_conda_is_recognised(tmp_path: Path) -> None:
    host = host_with(tmp_path, CONDA_PREFIX="/opt/conda")
    tc.add_python(host, "/opt/conda", base="/opt/conda")
    host.write("/opt/conda/conda-meta/history", "")
    facts = probe(host)
    assert (facts.chosen_by, facts.is_conda, facts.is_venv) == ("conda", True, False)


@pytest.mark.parametrize(
    "script",
    [
        "#!/srv/tool/bin/python\nimport sys\n",
        "#!/bin/sh\n'''exec' /srv/tool/bin/python \"$0\" \"$@\"\n' '''\nimport sys\n",
    ],
)
def test_the_vllm_script_tells_its_interpreter(tmp_path: Path, script: str) -> None:
    host = host_with(tmp_path)
    tc.add_python(host, "/srv/tool")
    host.write("/usr/bin/vllm", script, 0o755)
    facts = probe(host)
    assert (facts.executable, facts.chosen_by) == ("/srv/tool/bin/python", "vllm on PATH")


def test_an_activated_environment_without_vllm_gives_way_to_the_one_that_has_it(tmp_path: Path) -> None:
    host = host_with(tmp_path, CONDA_PREFIX="/opt/conda")
    tc.add_python(host, "/opt/conda")
    site = tc.add_python(host, "/srv/tool")
    tc.add_vllm(host, site)
    host.write("/usr/bin/vllm", "#!/srv/tool/bin/python\n", 0o755)
    facts = probe(host)
    assert (facts.chosen_by, facts.vllm) == ("vllm on PATH", "0.26.0")
    assert facts.looked_at[0] == "conda: /opt/conda/bin/python"


def test_the_doctors_own_environment_is_not_mistaken_for_vllms(tmp_path: Path) -> None:
    host = host_with(tmp_path, VIRTUAL_ENV="/opt/doctor", PATH="/opt/doctor/bin:/usr/bin")
    tc.add_python(host, "/opt/doctor")
    host.program("/usr/bin/python3", tc.python_answer("/usr", sites=()))
    facts = probe(host)
    assert (facts.chosen_by, facts.is_doctors_own) == ("PATH", False)


def test_a_doctor_that_runs_beside_torch_is_in_the_environment_that_serves(tmp_path: Path) -> None:
    host = host_with(tmp_path, PATH="/opt/doctor/bin:/usr/bin")
    site = tc.add_python(host, "/opt/doctor")
    host.program("/opt/doctor/bin/python3", tc.python_answer("/opt/doctor", sites=(site,)))
    tc.add_python(host, "/usr")
    host.program("/usr/bin/python3", tc.python_answer("/usr"))
    tc.add_torch(host, site)
    facts = probe(host)
    assert (facts.executable, facts.chosen_by, facts.is_doctors_own) == ("/opt/doctor/bin/python", "PATH", False)


def test_when_only_the_doctors_own_python_exists_it_is_said(tmp_path: Path) -> None:
    host = host_with(tmp_path)
    tc.add_python(host, "/opt/doctor")
    facts = probe(host)
    assert (facts.chosen_by, facts.is_doctors_own) == ("this interpreter", True)


def test_vllm_installed_beside_the_doctor_is_found(tmp_path: Path) -> None:
    host = host_with(tmp_path)
    tc.add_vllm(host, tc.add_python(host, "/opt/doctor"))
    host.program("/usr/bin/python3", tc.python_answer("/usr"))
    facts = probe(host)
    assert (facts.chosen_by, facts.vllm) == ("this interpreter", "0.26.0")


def test_no_python_at_all(tmp_path: Path) -> None:
    facts = probe(host_with(tmp_path))
    assert facts.executable is None
    assert facts.error == "no Python interpreter found on this host"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (tc.hangs, "no answer within 3 s"),
        (tc.failed("ModuleNotFoundError: No module named 'encodings'", 1), "No module named 'encodings'"),
        ("garbage \x00\xff\nnot json\n", "exit status 0"),
        ("[1, 2]\n", "exit status 0"),
    ],
)
def test_an_interpreter_that_does_not_answer_costs_only_the_packages(
    tmp_path: Path, reply: object, why: str
) -> None:
    host = host_with(tmp_path, VIRTUAL_ENV="/opt/venv")
    host.program("/opt/venv/bin/python", reply)  # type: ignore[arg-type]
    facts = probe(host)
    assert facts.executable == "/opt/venv/bin/python"
    assert facts.packages is None
    assert facts.vllm is None
    assert why in (facts.error or "")


def test_pythonpath_and_user_folder_count_as_a_normal_start_would_use_them(tmp_path: Path) -> None:
    user = "/home/u/.local/lib/python3.12/site-packages"
    host = host_with(tmp_path, VIRTUAL_ENV="/opt/venv", PYTHONPATH="/srv/lib:relative")
    tc.add_python(host)
    host.write("/srv/lib/README.txt", "")
    tc.add_dist(host, user, "torch", "2.0.0")
    assert "torch" not in (probe(host).packages or {})  # a venv does not see the user's folder
    assert "/srv/lib" in (probe(host).site_packages or ())
    shared = host_with(tmp_path, VIRTUAL_ENV="/opt/venv")
    tc.add_python(shared)
    shared.write("/opt/venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\n")
    assert (probe(shared).packages or {})["torch"] == "2.0.0"


# --- what the environment holds ----------------------------------------------------------------


def full(root: Path, **env: str) -> tuple[FakeHost, str]:
    host = host_with(root, VIRTUAL_ENV="/opt/venv", **env)
    return host, tc.add_python(host)


def test_a_consistent_environment(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_vllm(host, site, requires=("torch==2.11.0", "transformers>=5.5.3", 'xformers; extra == "x"'))
    tc.add_torch(host, site, "2.11.0+cu130", "nvidia-nccl-cu13==2.28.9")
    tc.add_dist(host, site, "transformers", "5.6.0")
    tc.add_dist(host, site, "nvidia-nccl-cu13", "2.28.9")
    tc.add_dist(host, site, "nvidia-cuda-runtime", "13.0.96")
    tc.add_dist(host, site, "flashinfer-python", "0.6.14")
    facts = probe(host)
    assert (facts.vllm, facts.vllm_cuda, facts.vllm_extension_ok) == ("0.26.0", "13", True)
    assert (facts.torch, facts.torch_cuda) == ("2.11.0+cu130", "13.0")
    assert facts.torch_arches == ("sm_75", "sm_80", "sm_120")
    assert (facts.transformers, facts.flashinfer, facts.triton) == ("5.6.0", "0.6.14", "")
    assert facts.cuda_runtimes == ("13",)
    assert facts.conflicts == ()
    assert facts.vllm_requires_python == "<3.15,>=3.10"
    assert facts.sources["torch_arches"] == f"{site}/torch/lib/libtorch_python.so"


def test_conflicts_are_judged_for_that_interpreter(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_vllm(
        host,
        site,
        requires=(
            "torch==2.11.0",
            'numba==0.65.0; python_version < "3.12"',
            'setuptools<81; python_version >= "3.12"',
            "six",
            "not a requirement ===",
        ),
    )
    tc.add_torch(host, site, "2.13.0+cu130")
    tc.add_dist(host, site, "setuptools", "82.0.1")
    assert probe(host).conflicts == (
        "vllm 0.26.0 requires torch==2.11.0, 2.13.0 is installed",
        "vllm 0.26.0 requires setuptools<81, 82.0.1 is installed",
        "vllm 0.26.0 requires six, which is not installed",
    )


def test_runtime_wheels_of_two_majors(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_dist(host, site, "nvidia-cuda-runtime-cu12", "12.8.90")
    tc.add_dist(host, site, "nvidia-cuda-runtime", "13.0.96")
    assert probe(host).cuda_runtimes == ("12", "13")


@pytest.mark.parametrize(
    ("version", "cudart", "cuda"),
    [("0.26.0", "13", "13"), ("0.26.0+cu128", "13", "12.8"), ("0.32.0+cpu", None, ""), ("0.26.0", None, "")],
)
def test_the_cuda_release_of_vllm(tmp_path: Path, version: str, cudart: str | None, cuda: str) -> None:
    host, site = full(tmp_path)
    tc.add_vllm(host, site, version, cudart=cudart)
    assert probe(host).vllm_cuda == cuda


def test_an_extension_that_is_no_elf_file_leaves_the_release_unknown(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_vllm(host, site)
    host.write(f"{site}/vllm/_C.abi3.so", b"\x7fELF\x02\x01" + b"\xff" * 300)
    facts = probe(host)
    assert facts.vllm_extension_ok is True
    assert facts.vllm_cuda is None


def test_a_cpu_torch(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_torch(host, site, "2.13.0+cpu")
    facts = probe(host)
    assert (facts.torch, facts.torch_cuda, facts.torch_arches) == ("2.13.0+cpu", "", ())


def test_a_broken_version_file_falls_back_to_the_metadata_and_the_table(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_dist(host, site, "torch", "2.9.1+cu128")
    host.write(f"{site}/torch/version.py", b"\xff\x00cuda = = '\n")
    facts = probe(host)
    assert (facts.torch, facts.torch_cuda) == ("2.9.1+cu128", "12.8")
    assert facts.torch_arches is not None
    assert "sm_70" in facts.torch_arches
    assert facts.sources["torch_arches"].startswith("table")


def test_leftovers_of_an_interrupted_pip_and_odd_names_are_no_packages(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    for name in ("~orch-2.9.0.dist-info", "-.dist-info", "nodash.dist-info", "x.egg-link"):
        host.write(f"{site}/{name}/METADATA", "")
    host.write(f"{site}/zope.interface-7.0-py3.12.egg-info", "Name: zope.interface\nVersion: 7.0\n")
    host.write(f"{site}/dev_tool.egg-info/PKG-INFO", "Name: dev-tool\nVersion: 1.2\n")
    assert probe(host).packages == {"zope-interface": "7.0", "dev-tool": "1.2"}


def test_two_metadata_folders_of_one_package_are_reported(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_dist(host, site, "torch", "2.9.0")
    tc.add_dist(host, site, "torch", "2.11.0")
    assert probe(host).duplicates == ("torch",)


def test_a_huge_metadata_file_is_not_read_whole(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    folder = tc.add_vllm(host, site, requires=("torch==2.11.0",))
    path = tmp_path / folder.lstrip("/") / "METADATA"
    head = path.read_bytes().split(b"\n\n")[0]
    with path.open("wb") as file:
        file.write(head + b"\n\n")
        file.truncate(100 << 20)  # sparse
    assert probe(host).vllm_requires == ("torch==2.11.0",)


def test_metadata_with_binary_junk(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    folder = tc.add_vllm(host, site)
    host.write(f"{folder}/METADATA", bytes(range(256)) * 8 + b"\nRequires-Dist: torch==2.11.0\n\xff\xfe: \x00\n")
    tc.add_torch(host, site)
    facts = probe(host)
    assert facts.vllm == "0.26.0"
    assert facts.vllm_requires == ("torch==2.11.0",)


def test_an_unreadable_site_folder_leaves_the_rest(tmp_path: Path) -> None:
    host, _ = full(tmp_path)
    host.listdir = lambda path: ()  # type: ignore[method-assign]
    facts = probe(host)
    assert facts.packages == {}
    assert facts.version == "3.12.3"


def test_secrets_in_the_environment_are_masked(tmp_path: Path) -> None:
    host, _ = full(
        tmp_path, VLLM_API_KEY="sk-1", VLLM_USE_V1="1", TRITON_CACHE_DIR="/c", NCCL_DEBUG="INFO", HOME="/h"
    )
    env = probe(host).env
    assert env["VLLM_API_KEY"] == "***"
    assert (env["VLLM_USE_V1"], env["TRITON_CACHE_DIR"], env["NCCL_DEBUG"]) == ("1", "/c", "INFO")
    assert "HOME" not in env


# --- fork and name clash -----------------------------------------------------------------------

PROJECT_RELEASE = """\
PROJECT_NAME="vLLM-2080Ti-Definitive"
RUNTIME_IDENTITY="vllm-sm75-tp2-cu128"
BASE_VLLM_VERSION="0.21.0"
FORK_RELEASE="$(cat VERSION)"
"""


def test_the_turing_fork_is_found_through_the_editable_install(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    folder = tc.add_dist(host, site, "vllm", "0.21.0")
    host.write(f"{folder}/direct_url.json", '{"url": "file:///srv/fork", "dir_info": {"editable": true}}')
    host.write("/srv/fork/PROJECT_RELEASE.env", PROJECT_RELEASE)
    host.write("/srv/fork/VERSION", "0.1.17\n")
    host.write("/srv/fork/vllm/_C.abi3.so", tc.elf(needed=("libcudart.so.12",)))
    facts = probe(host)
    assert (facts.turing_fork, facts.turing_fork_root, facts.vllm_root) == ("0.1.17", "/srv/fork", "/srv/fork")
    assert facts.vllm_cuda == "12"


def test_another_projects_release_file_is_no_fork(tmp_path: Path) -> None:
    host, _ = full(tmp_path, PWD="/srv/other")
    host.write("/srv/other/PROJECT_RELEASE.env", 'PROJECT_NAME="something"\nFORK_RELEASE="9"\n')
    assert probe(host).turing_fork == ""


@pytest.mark.parametrize(
    ("text", "clash"),
    [
        ("#!/x/python\nfrom doctor.cli import main\n", ""),
        ("#!/x/python\nimport sys\nfrom vllm_doctor.cli import app\n", "package vllm_doctor"),
    ],
)
def test_the_command_on_path(tmp_path: Path, text: str, clash: str) -> None:
    host, _ = full(tmp_path)
    host.write("/usr/bin/vllm-doctor", text, 0o755)
    described = probe(host).doctor_clash
    assert described == "" if clash == "" else clash in (described or "")


def test_a_script_whose_module_is_imported_after_re_is_ours(tmp_path: Path) -> None:
    host, _ = full(tmp_path)
    text = "#!/x/python\n# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom doctor.cli import main\n"
    host.write("/usr/bin/vllm-doctor", text, 0o755)
    assert probe(host).doctor_clash == ""


def test_the_other_distribution_beside_vllm(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_dist(host, site, "vllm-doctor", "0.6.0")
    assert "vllm-doctor 0.6.0" in (probe(host).doctor_clash or "")


def test_the_old_package_doctor_clashes_only_beside_ours(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    tc.add_dist(host, site, "doctor", "3.13.7")
    assert probe(host).doctor_clash == ""
    beside, site = full(tmp_path / "beside")
    tc.add_dist(beside, site, "doctor", "3.13.7")
    tc.add_dist(beside, site, "vllm-env-doctor", "0.1.0")
    assert "doctor 3.13.7" in (probe(beside).doctor_clash or "")


def test_header_lines_end_at_the_blank_line(tmp_path: Path) -> None:
    host, site = full(tmp_path)
    folder = tc.add_dist(host, site, "vllm", "0.26.0", "torch==2.11.0")
    meta = dists.metadata(host, dists.Dist("vllm", "0.26.0", folder, site))
    assert meta.requires == ("torch==2.11.0",)


def test_the_interpreter_is_asked_once_for_two_probes(tmp_path: Path) -> None:
    host, _ = full(tmp_path)
    probe(host)
    probe(host)
    assert [c[0] for c in host.calls] == ["/opt/venv/bin/python"]


def test_a_run_that_could_not_start(tmp_path: Path) -> None:
    host = host_with(tmp_path, VIRTUAL_ENV="/opt/venv")
    host.program("/opt/venv/bin/python", lambda argv: RunResult(argv, error="Exec format error"))
    assert probe(host).error == "/opt/venv/bin/python cannot be asked: Exec format error"
