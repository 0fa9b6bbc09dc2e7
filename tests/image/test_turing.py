"""The image of the Turing fork: its Dockerfile against the pins, what fetches the fork, what proves the build."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctor.host import LocalHost
from doctor.image import builder, pins, plan, prove_fork, steps
from doctor.image.build import BuildOptions
from doctor.image.builder import Settings
from doctor.image.engine import Engine
from doctor.image.plan import Wish
from doctor.image.print import printed
from tests.image.test_build import MACHINE

DOCKER = pins.docker_folder()
TEXT = (DOCKER / "turing.Dockerfile").read_text(encoding="utf-8")
SCRIPT = DOCKER / "install-turing"
TARGET = pins.load().target("turing-fork")


def defaults() -> dict[str, set[str]]:
    """Every default of every build argument."""
    found: dict[str, set[str]] = {}
    for name, value in re.findall(r"^ARG (\w+)=(.*)$", TEXT, re.MULTILINE):
        found.setdefault(name, set()).add(value)
    return found


# ---------------------------------------------------------------- the Dockerfile


def test_the_file_names_exactly_the_pins() -> None:
    known = defaults()
    assert TARGET.image is not None
    assert known["BASE"] == {pins.load().image(TARGET.image).pinned}
    values = {n: known[n] for n in ("APT_LOCK", "VLLM", "TORCH", "CUDA", "PYTHON")}
    assert values == {
        "APT_LOCK": {TARGET.apt_lock}, "VLLM": {TARGET.vllm}, "TORCH": {TARGET.torch}, "CUDA": {TARGET.cuda},
        "PYTHON": {TARGET.python},
    }  # fmt: skip
    assert f"UV_TORCH_BACKEND=cu{TARGET.cuda.replace('.', '')}" in TEXT


def test_the_plans_arguments_are_declared_and_change_nothing() -> None:
    """A build by hand without arguments and one by the doctor are the same build."""
    made = plan.make(MACHINE, pins.load(), Wish(target="turing-fork", ignore_hardware=True), "abc")
    command = builder.command(made, Engine("docker", "docker", "", "built in"), ".", TEXT, Settings())
    words = [w for before, w in zip(command.argv, command.argv[1:], strict=False) if before == "--build-arg"]
    given = dict(w.split("=", 1) for w in words)
    assert set(given) == {"BASE", "PYTHON", "APT_LOCK", "VLLM", "TORCH", "CUDA", "REVISION", "PLAN_ID"}
    known = defaults()
    assert {n: {v} for n, v in given.items() if n in known} == {n: known[n] for n in given if n in known}
    assert command.argv[command.argv.index("--target") + 1] == "runtime"
    assert steps.total(TEXT, "runtime") == steps.total(TEXT, "proof") + 6  # type: ignore[operator]


def test_print_shows_this_file_and_says_that_nobody_ran_it() -> None:
    host = LocalHost(env={"PATH": "/nonexistent"})
    text, document = printed(BuildOptions(target="turing-fork", ignore_hardware=True), MACHINE, host)
    assert text.startswith(f"# docker/turing.Dockerfile\n{TEXT}")
    assert "# note: target turing-fork is unverified: nobody has recorded a run of its image on a card" in text
    assert "# note: this target has no lock: two builds of it may differ" in text
    assert document["command"][-3:] == ["--tag", "vllm-doctor:turing-fork-0.21.0-cu128", "."]


def test_a_build_by_hand_needs_no_argument() -> None:
    """An argument without a default is not set in its stage, and `set -u` ends a step that reads it plainly."""
    without = set(re.findall(r"^ARG (\w+)$", TEXT, re.MULTILINE))
    assert without == {"REVISION", "PLAN_ID"}
    proof = TEXT.split("AS proof")[1].split("AS runtime")[0]
    for name in without:
        assert f"${{{name}:-}}" in proof
        assert f"${name}" not in proof


def test_whatever_is_fetched_is_named_by_hash_or_commit() -> None:
    known = defaults()
    for name in ("FORK_COMMIT", "FLASHQLA_COMMIT"):
        (commit,) = known[name]
        assert re.fullmatch(r"[0-9a-f]{40}", commit)
    (digest,) = known["UV_SHA256"]
    assert re.fullmatch(r"[0-9a-f]{64}", digest)
    assert "latest" not in TEXT
    assert "curl" not in TEXT + SCRIPT.read_text(encoding="utf-8")


def test_single_card_defaults_and_caches_outside_the_tree() -> None:
    environment = dict(re.findall(r"([A-Z_]+)=([^\s\\\"]+)", TEXT.split("AS runtime")[1]))
    assert (environment["GPU_DEVICES"], environment["TP_SIZE"]) == ("0", "1")
    for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert environment[name].startswith("/cache/")
    assert TEXT.startswith("# UNVERIFIED")


# ---------------------------------------------------------------- install-turing


@pytest.mark.parametrize(
    ("threads", "gib", "count"), [(32, 64, 8), (32, 16, 4), (4, 64, 4), (2, 16, 2), (16, 7, 1), (16, 2, 1)]
)
def test_compilers_at_once(threads: int, gib: int, count: int) -> None:
    done = subprocess.run(
        ["sh", str(SCRIPT), "jobs", str(threads), str(gib * 2**20)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{count}\n"


FORK_FILES = (
    "PROJECT_RELEASE.env", "VERSION", "requirements/build/cuda.txt", "requirements/cuda.txt",
    "tools/patch_flashqla_sm75_imports.py", "tools/flashqla_sm75_patches/sm_legacy.py",
)  # fmt: skip


class Upstreams:
    """Real repositories in a folder; git finds them where the script asks for github.com."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.env = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "FORK_ROOT": str(self.root),
            "GIT_CONFIG_GLOBAL": str(folder / "config"), "GIT_CONFIG_NOSYSTEM": "1",
        }  # fmt: skip
        (folder / "config").write_text(
            f'[url "file://{folder}/"]\n insteadOf = https://github.com/\n'
            '[user]\n name = t\n email = t@example.org\n[protocol "file"]\n allow = always\n'
        )
        self.commits = {
            "fork": self._make("fork.git", FORK_FILES),
            "flashqla": self._make("flashqla.git", ("flash_qla/__init__.py",)),
        }
        self._make("nvidia/cutlass.git", ("include/cutlass/cutlass.h",), "v4.4.2")
        self._make("triton-lang/triton.git", ("python/triton_kernels/a.py",), "v3.6.0")

    def git(self, where: Path, *words: str) -> str:
        done = subprocess.run(["git", "-C", str(where), *words], env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _make(self, name: str, files: tuple[str, ...], tag: str | None = None) -> str:
        place = self.folder / name
        place.mkdir(parents=True)
        self.git(place, "init", "-q")
        for file in files:
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(f"{name}\n")
        self.git(place, "add", "-A")
        self.git(place, "commit", "-q", "-m", "one")
        if tag:
            self.git(place, "tag", tag)
        return self.git(place, "rev-parse", "HEAD")

    def sources(self, **changes: str) -> subprocess.CompletedProcess[str]:
        values = {
            "FORK_REPOSITORY": "https://github.com/fork.git", "FORK_COMMIT": self.commits["fork"],
            "FLASHQLA_REPOSITORY": "https://github.com/flashqla.git", "FLASHQLA_COMMIT": self.commits["flashqla"],
        }  # fmt: skip
        return subprocess.run(
            ["sh", str(SCRIPT), "sources"], env={**self.env, **values, **changes}, capture_output=True, text=True
        )


@pytest.fixture
def upstreams(tmp_path: Path) -> Upstreams:
    return Upstreams(tmp_path)


def test_sources_are_the_commits_and_are_written_down(upstreams: Upstreams) -> None:
    done = upstreams.sources()
    assert (done.returncode, done.stderr) == (0, "")
    assert (upstreams.root / "requirements/cuda.txt").read_text() == "fork.git\n"
    assert (upstreams.root / ".deps/FlashQLA-SM70-SM75/flash_qla/__init__.py").is_file()
    assert (upstreams.root / ".deps/cutlass-src/include/cutlass/cutlass.h").is_file()
    assert (upstreams.root / ".deps/triton-src/python/triton_kernels/a.py").is_file()
    assert not list(upstreams.root.rglob(".git"))
    lines = (upstreams.root / ".vllm-doctor/sources.txt").read_text().splitlines()
    assert [line.split()[0].rpartition("/")[2] for line in lines] == [
        "fork.git", "flashqla.git", "cutlass.git", "triton.git",
    ]  # fmt: skip
    assert lines[0].split()[1:] == [upstreams.commits["fork"]] * 2
    assert re.fullmatch(r"\S+ refs/tags/v4\.4\.2 [0-9a-f]{40}", lines[2])


def test_a_commit_that_is_not_there_ends_it(upstreams: Upstreams) -> None:
    done = upstreams.sources(FORK_COMMIT="0" * 40)
    assert done.returncode == 1
    assert f"install-turing: https://github.com/fork.git has no {'0' * 40}, or it cannot" in done.stderr


def test_a_branch_in_place_of_a_commit_ends_it(upstreams: Upstreams) -> None:
    done = upstreams.sources(FORK_COMMIT="HEAD")
    assert done.returncode == 1
    assert f"gave {upstreams.commits['fork']}, asked was HEAD" in done.stderr


def test_another_line_of_the_fork_ends_it(upstreams: Upstreams) -> None:
    place = upstreams.folder / "fork.git"
    upstreams.git(place, "rm", "-q", "-r", "tools")
    upstreams.git(place, "commit", "-q", "-m", "two")
    done = upstreams.sources(FORK_COMMIT=upstreams.git(place, "rev-parse", "HEAD"))
    assert done.returncode == 1
    assert "has no tools/patch_flashqla_sm75_imports.py: not the line 0.1.x" in done.stderr


def test_no_step_is_named() -> None:
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "install-turing: sources, packages or compile\n")


# ---------------------------------------------------------------- the proof

SEEN = {"torch": "2.11.0+cu128", "cuda": "12.8", "arches": ["sm_75", "sm_80"], "fork": "0.1.17", "headers": True}
NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.8, V12.8.93\n"
CHECK = {"verdict": "degraded", "findings": [{"id": "note", "confidence": "hint", "severity": "info"}]}
Change = Callable[[dict[str, Any]], object]


def good() -> dict[str, Any]:
    """Answers by what is called: (exit, standard output, standard error)."""
    return {
        "python": (0, json.dumps(SEEN), ""),
        "cc1plus": (0, "/usr/libexec/gcc/x86_64-linux-gnu/12/cc1plus\n", ""),
        "nvcc --version": (0, NVCC, ""),
        "nvcc -ccbin": (0, "", ""),
        "g++-12 --version": (0, "g++-12 (Ubuntu 12.4.0) 12.4.0\n", ""),
        "check": (0, json.dumps(CHECK), ""),
        "arch list": "7.5",
        "programs": {"nvcc": "nvcc", "ninja": "ninja"},
    }


def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change | None = None) -> tuple[int, Path]:
    answers = good()
    if change is not None:
        change(answers)
    environment = tmp_path / "env"

    def run(argv: list[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
        if argv[0] == f"{environment}/bin/python" and argv[1] == "-c":
            key = "python"
        elif argv == ["gcc-12", "-print-prog-name=cc1plus"]:
            key = "cc1plus"
        elif argv[1:] == ["check", "--inside-image", "--json", "--python", str(environment)]:
            key = "check"
        elif argv[0] == "nvcc" and argv[1] == "-ccbin":
            assert argv[2:5] == ["g++-12", "-arch=sm_75", "-c"]
            assert "__global__" in Path(argv[5]).read_text()
            key = "nvcc -ccbin"
        else:
            key = " ".join(argv)
        code, out, err = answers[key]
        return subprocess.CompletedProcess(argv, code, out, err)

    monkeypatch.setattr(prove_fork, "run", run)
    monkeypatch.setattr("shutil.which", lambda name: answers["programs"].get(name))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", answers["arch list"])
    monkeypatch.setenv("CC", "gcc-12")
    monkeypatch.setenv("CXX", "g++-12")
    (tmp_path / "image.json").write_text('{"vllm": "0.21.0", "torch": "2.11.0", "cuda": "12.8"}')
    return prove_fork.main([str(tmp_path), str(environment)]), tmp_path / "proof.json"


def test_a_good_build_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, file = proven(tmp_path, monkeypatch)
    assert code == 0
    proof = json.loads(file.read_text())
    assert (proof["fork"], proof["nvcc"], proof["check"]["verdict"]) == ("0.1.17", "12.8", "degraded")


def put(key: str, value: object) -> Change:
    return lambda answers: answers.__setitem__(key, value)


def seen(**changes: object) -> Change:
    return put("python", (0, json.dumps({**SEEN, **changes}), ""))


BLOCKED = {"verdict": "blocked", "findings": [
    {"id": "cause", "confidence": "proven", "severity": "blocker", "title": "It is broken"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (seen(cuda="13.0", torch="2.11.0+cu130"), "cuda is 13.0, the image was planned with 12.8"),
        (seen(cuda=None), "cuda is None"),
        (seen(arches=["sm_80", "sm_90"]), "no code for 7.5, only sm_80, sm_90"),
        (seen(headers=False), "no Python.h"),
        (put("python", (1, "", "Traceback\nImportError: libcudart.so.12\n")), "imported: ImportError: libcudart"),
        (put("python", (0, "no JSON", "")), "imports: Expecting value"),
        (put("arch list", "8.0;8.6"), "TORCH_CUDA_ARCH_LIST is '8.0;8.6', without 7.5"),
        (put("cc1plus", (0, "cc1plus\n", "")), "gcc-12 has no cc1plus: g++ of the same version is missing"),
        (put("nvcc --version", (0, NVCC.replace("12.8,", "13.1,"), "")), "nvcc is of CUDA 13.1, torch of 12.8"),
        (put("nvcc -ccbin", (1, "", "nvcc fatal: no\n")), "compile a kernel with g++-12: nvcc fatal: no"),
        (put("programs", {"ninja": "ninja"}), "nvcc is not on PATH"),
        (put("programs", {"nvcc": "nvcc"}), "ninja is not on PATH"),
        (put("check", (2, json.dumps(BLOCKED), "")), "check: It is broken [cause]"),
    ],
)
def test_what_would_not_work_is_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: Change, said: str
) -> None:
    code, file = proven(tmp_path, monkeypatch, change)
    assert (code, file.exists()) == (1, False)
    out = capsys.readouterr().out
    assert said in out
    assert out.count("FAILED") == 1
