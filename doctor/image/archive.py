"""Saves an image as one file for machines without a registry, with its checksum and bill of materials beside it.

``FILE`` is an OCI archive that ``docker load``, ``podman load`` and skopeo read, ``FILE.sha256`` is what
``sha256sum -c`` checks, ``FILE.cdx.json`` the bill of materials. FILE appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from doctor import files
from doctor.checks.words import size as words
from doctor.errors import DoctorError
from doctor.host.access import LocalHost
from doctor.image import oci_tar, sbom

#: Seconds without a byte after which the engine is given up. Docker first writes all layers to its own disk.
SILENCE_S = 1800.0
#: Seconds for a question about the image.
_INSPECT_S = 30.0
#: Seconds between two lines of progress.
_APART_S = 2.0
#: Seconds an engine whose output is not usable gets to end by itself and to say why.
_LAST_WORDS_S = 1.0
_PIECE = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True)
class Saved:
    """``sha256`` in hex and ``bytes`` of the archive, ``image_id`` as the engine shows it, all three paths."""

    path: Path
    sha256: str
    bytes: int
    image_id: str
    checksum: Path
    sbom: Path


def save(engine: Sequence[str], image: str, path: Path, say: Say) -> Saved:
    """Writes the three files. ``engine``: ("docker",) or ("podman",), with options; ``say`` is told of progress.

    DoctorError when there is no room, no such image, no bill of materials in it, or the engine fails; then the old
    files are as they were.
    """
    path = path.absolute()
    _check_place(path)
    plain = _size(engine, image)
    say("reading the bill of materials")
    bill = sbom.of_image(engine, image)
    _check_room(engine, path, image, plain)
    checksum, bill_path = (path.with_name(path.name + ending) for ending in (".sha256", ".cdx.json"))
    with _partial(path) as (file, partial):
        progress = _Progress(say, plain)
        with _output([*engine, "save", image], progress) as stream:
            converted = oci_tar.convert(stream, file, progress.moved)
        say("computing the checksum")
        digest = _sha256(file)
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        with contextlib.suppress(FileNotFoundError):
            checksum.unlink()  # never a checksum beside an archive that it is not for
        partial.replace(path)
    files.write(checksum, f"{digest}  {path.name}\n")
    files.write(bill_path, bill)
    return Saved(path, digest, size, converted.image_id, checksum, bill_path)


def _check_place(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise DoctorError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder is missing'}")
    if path.exists() and not path.is_file():
        raise DoctorError(f"cannot write {path}: it is not a plain file")
    if any(c in path.name for c in "\n\r\\"):
        raise DoctorError(f"a checksum file cannot name {path.name!r}")


def _size(engine: Sequence[str], image: str) -> int:
    answer = LocalHost().run([*engine, "image", "inspect", "--format", "{{.Size}}", image], timeout=_INSPECT_S)
    if not answer.ok or not answer.stdout.strip().isdecimal():
        why = " ".join((answer.stderr or answer.error or answer.stdout).split())[:300]
        raise DoctorError(f"{engine[0]} cannot tell the size of {image}: {why or 'no answer in time'}", 2)
    return int(answer.stdout)


def _check_room(engine: Sequence[str], path: Path, image: str, plain: int) -> None:
    """For the archive, as if nothing could be compressed, and for the copy of all layers Docker makes first."""
    needed = {os.stat(path.parent).st_dev: (path.parent, plain)}
    copy = _copy_folder(engine)
    if copy is not None:
        device = os.stat(copy).st_dev
        place, already = needed.get(device, (copy, 0))
        needed[device] = (place, already + plain)
    for place, count in needed.values():
        free = shutil.disk_usage(place).free
        if place == path.parent:
            with contextlib.suppress(OSError):
                free += _partial_path(path).stat().st_size  # left by a save that was killed, written over
        if free < count:
            text = f"saving {image} may need up to {words(count)} in {place}, which has {words(free)} left"
            raise DoctorError(text, 2)


def _copy_folder(engine: Sequence[str]) -> Path | None:
    """Where a Docker daemon of this machine unpacks what it saves; podman and a containerd store do not."""
    form = "{{.DockerRootDir}}|{{.DriverStatus}}"
    answer = LocalHost().run([*engine, "info", "--format", form], timeout=_INSPECT_S)
    root, _, status = answer.stdout.strip().partition("|")
    if not answer.ok or not root.startswith("/") or "io.containerd.snapshotter" in status:
        return None
    return Path(root) if os.path.isdir(root) else None


def _partial_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A file beside the wanted one, for one process alone, to be renamed; removed when anything fails before."""
    partial = _partial_path(path)
    try:
        # not truncated before it is ours: another process may be writing it
        file = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644), "r+b")
    except OSError as error:
        raise DoctorError(f"cannot write {partial}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(file.fileno()), os.stat(partial))  # the other one may have renamed it
        except OSError:
            ours = False
        if not ours:
            raise DoctorError(f"another process is writing {path}")
        try:
            file.truncate(0)
            yield file, partial
        except BaseException as error:
            partial.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                file.close()  # tries once more to write what the disk did not take
            if isinstance(error, OSError):
                raise DoctorError(f"cannot write {path}: {error.strerror or error}", 2) from None
            raise


@contextlib.contextmanager
def _output(argv: Sequence[str], progress: _Progress) -> Iterator[_Patient]:
    """The engine's standard output. The engine ends with the block; its failure is a DoctorError."""
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, "LC_ALL": "C"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise DoctorError(f"cannot start {argv[0]}: {error.strerror}") from None
        assert process.stdout is not None  # noqa: S101
        failure: DoctorError | None = None
        alive = True
        try:
            yield _Patient(process.stdout, progress)
            alive = _outlives(process, _INSPECT_S)
        except DoctorError as error:
            failure = error
            alive = _outlives(process, _LAST_WORDS_S)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()
        if not alive and process.returncode != 0:  # then that is why the stream ended early
            errors.seek(0)
            said = " ".join(errors.read(4000).decode("utf-8", "replace").split())[:300]
            raise DoctorError(f"`{' '.join(argv)}` failed: {said or f'exit {process.returncode}'}", 2)
        if failure is not None:
            raise failure
        if alive:
            raise DoctorError(f"`{' '.join(argv)}` closed its output and did not end", 2)


def _outlives(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


class _Patient:
    """A pipe that says how long it has been waited for, and is given up after SILENCE_S seconds."""

    def __init__(self, pipe: IO[bytes], progress: _Progress) -> None:
        self._pipe = pipe
        self._progress = progress
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes, fewer only at the end."""
        pieces: list[bytes] = []
        while size > 0:
            end = time.monotonic() + SILENCE_S
            while not self._selector.select(min(_APART_S, SILENCE_S)):
                if time.monotonic() >= end:
                    raise DoctorError(f"the engine sent nothing for {SILENCE_S:g} s", 2)
                self._progress.waiting()
            piece = os.read(self._pipe.fileno(), min(size, _PIECE))
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


class _Progress:
    """Bytes of layers read so far, in words, now and then."""

    def __init__(self, say: Say, total: int) -> None:
        self._say = say
        self._total = total
        self._done = 0
        self._next = 0.0

    def moved(self, count: int) -> None:
        self._done += count
        self._speak(f"{words(self._done)} of about {words(self._total)} read and compressed")

    def waiting(self) -> None:
        if not self._done:
            self._speak("waiting for the engine, which collects the layers first")

    def _speak(self, text: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _APART_S
            self._say(text)


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()
