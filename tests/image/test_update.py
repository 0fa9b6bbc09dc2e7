"""--update-pins: a fresh resolution against the locks, as a patch; nothing is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doctor.errors import DoctorError
from doctor.host import LocalHost, RunResult
from doctor.image import pins, update, verify
from tests.image.test_pins import context

OLD = "aiohttp==3.14.5 \\\n    --hash=sha256:{}\ngone==1.0 \\\n    --hash=sha256:{}\n".format("a" * 64, "b" * 64)
NEW = "aiohttp==3.15.0 \\\n    --hash=sha256:{}\nnew==2.0 \\\n    --hash=sha256:{}\n".format("c" * 64, "d" * 64)


class Relock(LocalHost):
    """Plays docker/relock: writes what it is given into $OUT. Any other program is a mistake."""

    def __init__(self, root: Path, answer: Mapping[str, str], **ending: Any) -> None:
        super().__init__(env={"PATH": "/usr/bin:/bin"})
        self._expected = ("bash", str(root / "docker/relock"), "python")
        self._answer = answer
        self._ending = {"returncode": 0, **ending}

    def run(self, argv: Sequence[str], **options: Any) -> RunResult:
        assert tuple(argv) == self._expected
        time.sleep(self._ending.pop("seconds", 0))
        for name, text in self._answer.items():
            (Path(options["env"]["OUT"]) / name).write_text(text)
        return RunResult(tuple(argv), **self._ending)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = context(tmp_path)
    (folder / "docker/relock").write_text("#!/bin/sh\n")
    (folder / "docker/locks/python-3.11.txt").write_text(OLD)
    return folder


def ask(root: Path, host: LocalHost, *results: verify.PinResult) -> str:
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    text = update.diff(pins.load(root), host, results, lambda _: None)
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before
    return text


def moved(root: Path) -> verify.PinResult:
    image = pins.load(root).image("cuda-13.0")
    found = "sha256:" + "7" * 64
    return verify.PinResult(
        image.name,
        "image",
        image.reference,
        image.digest,
        "moved",
        found,
        (),
        "the tag names another digest",
        None,
    )


def test_nothing_new_says_nothing(root: Path) -> None:
    assert ask(root, Relock(root, {"python-3.11.txt": OLD}), replace(moved(root), status="not reachable")) == ""


def test_new_versions_are_summed_up_and_shown_as_a_patch(root: Path) -> None:
    text = ask(root, Relock(root, {"python-3.11.txt": NEW}))
    first, _, patch = text.partition("\n")
    assert first == "docker/locks/python-3.11.txt: aiohttp 3.14.5 -> 3.15.0, -gone 1.0, +new 2.0"
    assert "--- a/docker/locks/python-3.11.txt\n+++ b/docker/locks/python-3.11.txt\n" in patch
    assert "-aiohttp==3.14.5 \\\n" in patch


def test_new_files_of_the_same_version_are_told_apart(root: Path) -> None:
    text = ask(root, Relock(root, {"python-3.11.txt": OLD.replace("a" * 64, "e" * 64)}))
    assert text.startswith("docker/locks/python-3.11.txt: other files of the same versions\n")


def test_moved_digest_is_part_of_the_patch(root: Path) -> None:
    result = moved(root)
    path = root / "docker/pins.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    text = ask(root, Relock(root, {"python-3.11.txt": OLD}), result)
    assert text.splitlines()[0] == f"cuda-13.0: {result.pinned} -> {result.found}"
    assert f'-      "digest": "{result.pinned}",\n+      "digest": "{result.found}",\n' in text


def test_patch_can_be_applied(root: Path) -> None:
    text = ask(root, Relock(root, {"python-3.11.txt": NEW}), moved(root))
    program = shutil.which("patch")
    argv = [program, "-p1"] if program else ["git", "apply", "--unsafe-paths"]
    applied = subprocess.run(argv, input=text + "\n", cwd=root, capture_output=True, text=True)
    assert applied.returncode == 0, applied.stderr
    assert (root / "docker/locks/python-3.11.txt").read_text() == NEW
    assert pins.load(root).image("cuda-13.0").digest == "sha256:" + "7" * 64


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ({"returncode": 127, "stderr": "relock: line 25: uv: command not found"}, "uv is not on PATH"),
        ({"returncode": 1, "stderr": "error:  Request failed\nafter 3 retries"}, "error: Request failed after 3"),
        ({"returncode": None, "timed_out": True}, "not done after 900 s"),
        ({"returncode": None, "error": "No such file or directory"}, "No such file or directory"),
        ({"returncode": 0}, r"docker/relock does not make python-3\.11\.txt"),
    ],
)
def test_resolution_that_fails(root: Path, ending: dict[str, Any], said: str) -> None:
    with pytest.raises(DoctorError, match=said):
        ask(root, Relock(root, {}, **ending))


def test_folder_without_locks_or_relock(root: Path) -> None:
    (root / "docker/relock").unlink()
    with pytest.raises(DoctorError, match="has no Python locks, or not the program that makes them"):
        ask(root, Relock(root, {}))


def test_progress_counts_the_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_APART_S", 0.05)
    said: list[str] = []
    host = Relock(root, {"python-3.11.txt": OLD}, seconds=0.3)
    assert update.diff(pins.load(root), host, (), said.append) == ""
    assert said[0] == "0 of 1 locks resolved anew"


@pytest.mark.skipif(shutil.which("bash") is None, reason="docker/relock is written for bash")
def test_the_repositorys_own_program_is_called_as_it_expects(tmp_path: Path) -> None:
    """docker/relock itself, with a uv that writes what it was asked for."""
    given = pins.load()
    stand_in = tmp_path / "uv"
    stand_in.write_text(
        '#!/bin/sh\ntest "$1 $2" = "pip compile" || exit 9\n'
        'while [ $# -gt 1 ]; do shift; [ "$1" = --output-file ] && printf "a==1.0\\n" >"$2"; done; true\n'
    )
    stand_in.chmod(0o755)
    host = LocalHost(env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    text = update.diff(given, host, (), lambda _: None)
    for version in ("3.11", "3.12", "3.13"):
        for name in ("python", "doctor"):
            assert f"+++ b/docker/locks/{name}-{version}.txt\n" in text
    assert "+a==1.0\n" in text
