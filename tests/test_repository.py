"""Rules of this repository that no linter knows."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import doctor
from doctor.cli import COMMANDS
from doctor.facts import SystemFacts
from doctor.snapshot import Snapshot, dumps

REPOSITORY = Path(__file__).resolve().parents[1]
PRODUCT = sorted((REPOSITORY / "doctor").rglob("*.py"))
#: Never imported by the doctor: seconds of start-up and gigabytes, and broken exactly when it is needed.
NEVER = {"torch", "vllm", "transformers", "numpy"}
#: Only where they are used: each costs tens of milliseconds.
LATE = {"rich", "docker", "pynvml", "distro", "requests", "packaging", "asyncio", "unittest", "email", "http"}


def tracked() -> list[Path]:
    """Files under version control; in a tarball everything that .gitignore would not leave out."""
    git = shutil.which("git")
    listed = git and subprocess.run([git, "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, timeout=30)
    if listed and listed.returncode == 0:
        names = [os.fsdecode(n) for n in listed.stdout.split(b"\0") if n]
        return [p for n in names if (p := REPOSITORY / n).is_file()]
    ignored = re.compile(
        r"(^|/)(__pycache__|\.git|\.venv[^/]*|build|dist|\.[a-z]+_cache|\.hypothesis|[^/]*\.egg-info)(/|$)"
    )
    files = [p for p in REPOSITORY.rglob("*") if p.is_file()]
    return [p for p in files if not ignored.search(str(p.relative_to(REPOSITORY)))]


@pytest.fixture(scope="module")
def files() -> list[Path]:
    return tracked()


def nodes(files: list[Path]) -> Iterator[tuple[Path, ast.AST]]:
    for path in files:
        if path.suffix == ".py" and "fixtures" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
                yield path, node


def test_no_command_goes_through_a_shell(files: list[Path]) -> None:
    for path, node in nodes(files):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                shell = keyword.arg == "shell" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                )
                assert not shell, f"{path}:{node.lineno} uses shell="
            called = ast.unparse(node.func)
            assert called not in ("os.system", "os.popen"), f"{path}:{node.lineno} uses {called}"


def test_no_bare_except(files: list[Path]) -> None:
    bare = [f"{p}:{n.lineno}" for p, n in nodes(files) if isinstance(n, ast.ExceptHandler) and n.type is None]
    assert bare == []


def test_the_doctor_never_imports_what_it_examines() -> None:
    for path, node in nodes(PRODUCT):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        wrong = {n.partition(".")[0] for n in names} & NEVER
        assert not wrong, f"{path} imports {wrong}"


def test_files_stay_small_enough_to_read() -> None:
    long = {str(p.relative_to(REPOSITORY)): n for p in PRODUCT if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}


def test_the_docker_folder_is_no_package() -> None:
    """``docker/__init__.py`` would hide the Docker SDK from everybody who works in the checkout."""
    assert list((REPOSITORY / "docker").rglob("__init__.py")) == []


def test_every_dependency_says_what_for() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    lines = [line.strip() for line in block[1].splitlines() if line.strip()]
    assert lines
    for above, line in zip(["", *lines], lines, strict=False):
        if line.startswith("#"):
            continue
        reason = above if above.startswith("#") else line.partition("#")[2]
        assert len(reason) > 15, f"no reason given: {line}"


def imported_by(*arguments: str) -> set[str]:
    """Top-level names of all modules that a run of the doctor imports."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "doctor", *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (0, 1, 2), done.stderr
    names = {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")
    }
    assert "doctor.cli" in names
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("check", "--help")])
def test_start_is_light(arguments: tuple[str, ...]) -> None:
    assert imported_by(*arguments) & (LATE | NEVER) == set()


def test_a_json_answer_draws_nothing(tmp_path: Path) -> None:
    """From a saved snapshot, so that nothing here depends on the machine that runs the test."""
    (tmp_path / "saved.json").write_text(dumps(Snapshot(system=SystemFacts(os_id="debian"))), encoding="utf-8")
    imported = imported_by("check", "--json", "--from", str(tmp_path / "saved.json"))
    assert imported & {"rich", "docker", "pynvml", "requests", *NEVER} == set()


def test_the_version_is_in_one_place() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text
    assert not re.search(r'^version = "', text, re.MULTILINE)
    heading = re.search(r"^## \[(\d[^\]]*)\]", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert heading[1] == doctor.__version__


def test_license() -> None:
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


# ------------------------------------------------------------------ documents


DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md"]


def options_of(command: str) -> set[str]:
    parser = argparse.ArgumentParser(prog=command)
    importlib.import_module(f"doctor.commands.{command}").add_arguments(parser)
    return {name for action in parser._actions for name in action.option_strings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_documents_exist(document: str) -> None:
    """Every ``vllm-doctor COMMAND --option`` and ``./install.sh --option`` that a reader would copy."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?:    |\$ )(.*)$", text, re.MULTILINE)
    for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        code += block.splitlines()
    installer = (REPOSITORY / "install.sh").read_text(encoding="utf-8")
    for line in code:
        for called in re.finditer(r"vllm-doctor ([a-z]+)\b([^|;#&]*)", line):
            command, rest = called[1], called[2].split(" -- ")[0]
            assert command in COMMANDS, f"{document}: there is no command {command!r}: {line}"
            for option in re.findall(r"(?<!\S)\[?(--?[a-z][a-z-]*)", rest):
                assert option in options_of(command), f"{document}: {command} has no option {option}: {line}"
        for called in re.finditer(r"install\.sh([^|;#&]*)", line):
            for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", called[1].split(" -- ")[0]):
                assert re.search(rf"^ +(.*\| )?{option}\b.*\)", installer, re.MULTILINE), (
                    f"{document}: {option}: {line}"
                )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_in_documents_lead_somewhere(document: str) -> None:
    place = REPOSITORY / document
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", place.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (place.parent / target).exists(), f"{document}: {target}"


def test_readme_begins_with_the_two_commands() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^ *(\./\S+(?: --[a-z-]+)*)", text, re.MULTILINE)
    assert commands[:2] == ["./install.sh", "./install.sh --test"]
    assert os.access(REPOSITORY / "install.sh", os.X_OK)


def test_no_paths_of_a_developers_machine(files: list[Path]) -> None:
    """Nothing may depend on, or speak of, where it was once developed."""
    private = re.compile(
        "|".join([r"/work" + r"/(main|shared)\b", r"\.\./" + "shared", "/root" + "/w/", r"\.lib" + "rary/"])
    )
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            assert not private.search(line), f"{path}:{number}: {line.strip()[:120]}"


def test_shell_scripts_are_clean(files: list[Path]) -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("no shellcheck")
    scripts = [p for p in files if re.match(rb"#!(/usr)?/bin/(env )?(ba)?sh\b", p.read_bytes()[:40])]
    assert REPOSITORY / "install.sh" in scripts
    done = subprocess.run([shellcheck, *map(str, scripts)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
