"""The build context: a temporary folder with what the Dockerfile copies and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

import doctor
from doctor.errors import DoctorError
from doctor.host import Host
from doctor.image.pins import Target
from doctor.image.sbom import read_lock

#: Files beside docker/ and doctor/ that the Dockerfile copies.
FILES = ("pyproject.toml", "README.md", "LICENSE")
#: All that the package consists of; a checkout may hold anything beside it.
PACKAGE_SUFFIXES = (".py", ".json", ".typed")
#: Never sent to an engine, whatever a checkout holds: what may be a secret, what is a cache or an editor's.
_UNWANTED = re.compile(
    r"\.|.*(~|\.(pyc|whl|pem|key|crt|p12|pfx|env|swp|orig|rej|log))$|__pycache__$", re.IGNORECASE
)
#: Every staged file carries this time, the first that a zip archive can hold: a new checkout is no new content.
STAMP = 315532800
#: Seconds that git may take.
GIT_S = 5.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wheels:
    """Wheels for a build without an index: those of the target's lock, as they lie in ``folder``."""

    folder: Path
    files: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.stat().st_size for f in self.files)


def wheels_for(folder: Path, target: Target, root: Path) -> Wheels:
    """The wheels in ``folder`` that the lock names; DoctorError when some are missing.

    Their content is compared in the build, with the hashes of the lock.
    """
    try:
        present = sorted(p for p in folder.iterdir() if p.suffix == ".whl" and p.is_file())
    except OSError as error:
        raise DoctorError(f"--wheels {folder}: {error.strerror}") from None
    if target.python_lock is None:
        chosen = present
    else:
        named = locked(root / target.python_lock)
        by_name: dict[tuple[str, str], list[Path]] = {}
        for path in present:
            try:
                name, version, _, _ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            by_name.setdefault((str(name), str(version)), []).append(path)
        missing = [f"{n}=={v}" for n, v in named if (n, v) not in by_name]
        if missing:
            some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            of = f"{len(missing)} of the {len(named)} wheels of {target.python_lock}"
            raise DoctorError(f"--wheels {folder} lacks {of}: {some}")
        chosen = [p for key in named for p in by_name[key]]
    if not chosen:
        raise DoctorError(f"--wheels {folder}: there is no wheel in it")
    return Wheels(folder, tuple(chosen))


def locked(path: Path) -> tuple[tuple[str, str], ...]:
    """Name, in normal form, and version of every requirement of a lock."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DoctorError(f"cannot read the lock {path}: {error.strerror}") from None
    return tuple((canonicalize_name(p.name), p.version) for p in read_lock(text, str(path)))


@contextmanager
def staged(root: Path, wheels: Wheels | None, say: Say) -> Iterator[Path]:
    """A temporary context, removed at the end whatever happens. ``root`` is that of the pins."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="vllm-doctor-build-"))
    except OSError as error:
        raise DoctorError(f"no temporary folder for the build context: {error.strerror}; set TMPDIR", 2) from None
    try:
        _fill(folder, root, wheels, say)
        yield folder
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith(str(folder)):
            raise
        raise DoctorError(f"cannot write the build context {folder}: {error.strerror}; set TMPDIR", 2) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, root: Path, wheels: Wheels | None, say: Say) -> None:
    for name in FILES:
        source = root / name
        if not source.is_file():
            raise DoctorError(f"{source} is missing, and the image is built from it: install again")
        _copy(source, folder / name)
    _tree(root / "docker", folder / "docker", _is_image_file)
    _tree(Path(doctor.__file__).parent, folder / "doctor", lambda p: p.suffix in PACKAGE_SUFFIXES)
    place = folder / "docker" / "wheels"
    place.mkdir(exist_ok=True)
    if wheels is not None:
        _lay(wheels, place, say)
    for path, _folders, _files in os.walk(folder, topdown=False):
        os.chmod(path, 0o755)  # noqa: S103  a folder of the image, for every user in it
        os.utime(path, (STAMP, STAMP))


def _is_image_file(path: Path) -> bool:
    return _UNWANTED.match(path.name) is None


def _tree(source: Path, target: Path, wanted: Callable[[Path], bool]) -> None:
    """Copies regular files; links are not followed and not copied."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_symlink() or not _is_image_file(path):
            continue
        if path.is_dir():
            _tree(path, target / path.name, wanted)
        elif path.is_file() and wanted(path):
            _copy(path, target / path.name)


def _copy(source: Path, target: Path) -> None:
    """Content and the executable bit; owner, umask and time of the checkout do not reach the image."""
    shutil.copyfile(source, target)
    os.chmod(target, 0o755 if os.access(source, os.X_OK) else 0o644)
    os.utime(target, (STAMP, STAMP))


def _lay(wheels: Wheels, place: Path, say: Say) -> None:
    """Linked where that is possible, copied elsewhere: the wheels are gigabytes."""
    linked = True
    say(f"laying {len(wheels.files)} wheels ready")
    for number, source in enumerate(wheels.files, 1):
        target = place / source.name
        if linked:
            try:
                os.link(source, target)
                continue
            except OSError:  # another file system, or a file of somebody else
                linked = False
                _room_for(wheels, place)
        say(f"copying wheels: {number} of {len(wheels.files)}")
        shutil.copyfile(source, target)


def _room_for(wheels: Wheels, place: Path) -> None:
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    if free < wheels.size:
        raise DoctorError(
            f"the wheels ({wheels.size / 2**30:.1f} GiB) must be copied and {place.parents[2]} has "
            f"{free / 2**30:.1f} GiB left: set TMPDIR to a folder beside {wheels.folder}",
            2,
        )


def revision(host: Host, root: Path) -> str:
    """The commit of a checkout, with "-changed" when its files are not the commit's; else the version.

    An installed doctor may lie inside somebody's repository: only a repository of its own counts.
    """
    git = ["git", "-C", str(root)]
    answer = host.run([*git, "rev-parse", "--show-toplevel", "HEAD"], timeout=GIT_S)
    top, _, commit = answer.stdout.strip().partition("\n")
    if (
        not answer.ok
        or host.realpath(top) != host.realpath(str(root))
        or not re.fullmatch(r"[0-9a-f]{40,64}", commit)
    ):
        return f"v{doctor.__version__}"
    state = host.run([*git, "status", "--porcelain", "--", "docker", "doctor", *FILES], timeout=GIT_S)
    return commit if state.ok and not state.stdout.strip() else f"{commit}-changed"
