"""What an engine is sent: the files of the image and no others, the same from every checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import doctor
from doctor.errors import DoctorError
from doctor.host.access import RunResult
from doctor.image import context, pins
from doctor.image.context import STAMP, revision, staged, wheels_for
from tests.fakes import FakeHost

TARGET = pins.load().target("bookworm")
LOCK = "Torch==2.11.0 \\\n    --hash=sha256:{0}\nmy.pkg[x]==1.0 \\\n    --hash=sha256:{0}\n".format("a" * 64)
TORCH = "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl"
MY_PKG = "my_pkg-1.0-py3-none-any.whl"


def say(_text: str) -> None:
    pass


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout's own files, and what lies about in one."""
    made = tmp_path / "checkout"
    files = {
        "pyproject.toml": "", "README.md": "", "LICENSE": "", "notes.txt": "mine", ".env": "TOKEN=1",
        "docker/Dockerfile": "FROM x", "docker/Dockerfile.dockerignore": "*", "docker/entrypoint": "#!/bin/sh",
        "docker/locks/python-3.11.txt": LOCK, "docker/locks/apt-debian-12.txt": "", "docker/wheels/README": "",
        "docker/.env": "TOKEN=1", "docker/company.pem": "key", "docker/server.KEY": "key", "docker/old.log": "",
        "docker/Dockerfile~": "", "docker/__pycache__/x.pyc": "", "docker/wheels/big.whl": "gigabytes",
    }  # fmt: skip
    for name, text in files.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (made / "docker/entrypoint").chmod(0o700)
    (made / "docker/Dockerfile").chmod(0o600)
    (made / "docker/secret").symlink_to("/etc/passwd")
    return made


def names(folder: Path, below: str = "docker") -> set[str]:
    return {str(p.relative_to(folder)) for p in (folder / below).rglob("*") if p.is_file()}


def test_the_files_of_the_image_and_no_others(root: Path, temporary: Path) -> None:
    with staged(root, None, say) as folder:
        assert {p.name for p in folder.iterdir()} == {"docker", "doctor", "pyproject.toml", "README.md", "LICENSE"}
        assert names(folder) == {
            "docker/Dockerfile", "docker/Dockerfile.dockerignore", "docker/entrypoint",
            "docker/locks/python-3.11.txt", "docker/locks/apt-debian-12.txt", "docker/wheels/README",
        }  # fmt: skip
        package = Path(doctor.__file__).parent
        own = {
            str(p.relative_to(package.parent)) for p in package.rglob("*") if p.suffix in context.PACKAGE_SUFFIXES
        }
        assert names(folder, "doctor") == {n for n in own if "__pycache__" not in n}
        assert not [p for p in folder.rglob("*") if p.is_symlink()]
    assert list(temporary.iterdir()) == []


def test_umask_owner_and_time_do_not_reach_the_image(root: Path, temporary: Path) -> None:
    with staged(root, None, say) as folder:
        for path in folder.rglob("*"):
            seen = path.stat()
            executable = path.is_dir() or path.name == "entrypoint"
            assert seen.st_mode & 0o7777 == (0o755 if executable else 0o644), path
            assert seen.st_mtime == STAMP, path


def test_the_wheels_folder_is_always_there(root: Path, temporary: Path) -> None:
    (root / "docker/wheels/README").unlink()
    (root / "docker/wheels/big.whl").unlink()
    (root / "docker/wheels").rmdir()
    with staged(root, None, say) as folder:
        assert list((folder / "docker/wheels").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left_behind(root: Path, temporary: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), staged(root, None, say):
        raise error
    assert list(temporary.iterdir()) == []


def test_a_missing_file_is_one_line(root: Path, temporary: Path) -> None:
    (root / "LICENSE").unlink()
    with pytest.raises(DoctorError, match="LICENSE is missing"), staged(root, None, say):
        pass
    assert list(temporary.iterdir()) == []


def test_no_place_for_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    with pytest.raises(DoctorError, match=r"no temporary folder.*set TMPDIR"), staged(root, None, say):
        pass


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in (TORCH, MY_PKG, "other-1-py3-none-any.whl", "torch-2.10.0-cp311-cp311-linux_x86_64.whl", "odd.whl",
                 "torch-2.11.0.tar.gz"):  # fmt: skip
        (folder / name).write_text(name)
    return folder


def test_the_wheels_of_the_lock_are_linked(root: Path, wheels: Path, temporary: Path) -> None:
    chosen = wheels_for(wheels, TARGET, root)
    assert {p.name for p in chosen.files} == {TORCH, MY_PKG}
    before = (wheels / TORCH).stat()
    with staged(root, chosen, say) as folder:
        assert names(folder, "docker/wheels") == {f"docker/wheels/{n}" for n in (TORCH, MY_PKG, "README")}
        assert (folder / "docker/wheels" / TORCH).stat().st_ino == before.st_ino
    after = (wheels / TORCH).stat()
    assert (after.st_mode, after.st_mtime, after.st_nlink) == (before.st_mode, before.st_mtime, 1)


def test_wheels_of_another_file_system_are_copied(
    root: Path, wheels: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    with staged(root, wheels_for(wheels, TARGET, root), say) as folder:
        copy = folder / "docker/wheels" / TORCH
        assert copy.read_text() == TORCH
        assert copy.stat().st_ino != (wheels / TORCH).stat().st_ino


def test_missing_wheels_are_named_before_anything_is_built(root: Path, wheels: Path) -> None:
    (wheels / TORCH).unlink()
    with pytest.raises(
        DoctorError, match=r"lacks 1 of the 2 wheels of docker/locks/python-3.11.txt: torch==2.11.0$"
    ):
        wheels_for(wheels, TARGET, root)
    with pytest.raises(DoctorError, match="--wheels /nonexistent: No such file"):
        wheels_for(Path("/nonexistent"), TARGET, root)


def test_a_target_without_a_lock_takes_all_wheels(root: Path, wheels: Path, tmp_path: Path) -> None:
    fork = pins.load().target("turing-fork")
    assert len(wheels_for(wheels, fork, root).files) == 5
    (tmp_path / "empty").mkdir()
    with pytest.raises(DoctorError, match="there is no wheel in it"):
        wheels_for(tmp_path / "empty", fork, root)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(root: Path, top: str, state: str = "") -> FakeHost:
    at = f"git -C {root}"
    tail = f"{at} status --porcelain -- docker doctor pyproject.toml README.md LICENSE"
    return FakeHost(root, programs={f"{at} rev-parse --show-toplevel HEAD": f"{top}\n{COMMIT}\n", tail: state})


def test_the_revision_of_a_checkout(tmp_path: Path) -> None:
    assert revision(git(tmp_path, str(tmp_path)), tmp_path) == COMMIT
    assert revision(git(tmp_path, str(tmp_path), " M doctor/cli.py\n"), tmp_path) == f"{COMMIT}-changed"


def test_somebody_elses_repository_is_not_ours(tmp_path: Path) -> None:
    inside = tmp_path / "venv/share/vllm-env-doctor"
    inside.mkdir(parents=True)
    assert revision(git(inside, str(tmp_path)), inside) == f"v{doctor.__version__}"


def test_without_git_the_version_stands(tmp_path: Path) -> None:
    at = f"git -C {tmp_path} rev-parse --show-toplevel HEAD"
    gone = RunResult(("git",), error="No such file or directory")
    assert revision(FakeHost(tmp_path, programs={at: gone}), tmp_path) == f"v{doctor.__version__}"


def test_an_installation_carries_all_that_a_build_needs(temporary: Path) -> None:
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    top = pins.load().root
    places = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "data-files"
    ]
    shipped = {f"{place}/{path.name}" for place, patterns in places.items() for pattern in patterns
               for path in top.glob(pattern)}  # fmt: skip
    with staged(top, None, say) as folder:
        wanted = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    wanted = {w for w in wanted if not w.startswith(("doctor/", "docker/wheels/"))}
    assert {f"share/vllm-env-doctor/{w}" for w in wanted} == shipped


@pytest.mark.parametrize("scheme", ["prefix", "data", "user"])
def test_where_pip_puts_the_files(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment; with Debian's own Python, below /usr/local; for one user, below the home."""
    monkeypatch.setattr(pins, "__file__", str(tmp_path / "lib/site-packages/doctor/image/pins.py"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(
        "sysconfig.get_path", lambda name, scheme=None: str(tmp_path / ("user" if scheme else "data"))
    )
    folder = tmp_path / scheme / "share/vllm-env-doctor/docker"
    with pytest.raises(DoctorError, match="the files of the image are missing"):
        pins.docker_folder()
    folder.mkdir(parents=True)
    (folder / "pins.json").write_text("{}")
    assert pins.docker_folder() == folder


def test_the_host_that_builds_may_be_read_only(root: Path, temporary: Path) -> None:
    """Nothing is written into the checkout."""
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*") if not p.is_symlink()}
    with staged(root, None, say):
        pass
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*") if not p.is_symlink()} == before
