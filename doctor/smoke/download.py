"""Fetches a hub model into the hub's own cache layout, so that vLLM and ``hf`` find it: blobs, snapshots, refs.

Nothing is fetched unasked. A file is resumed where it ended, and kept only when its size and hash are those
that the hub lists: sha256 for large files, git's blob hash for small ones. A snapshot appears when it is whole.
``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE`` and the proxy variables count.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from doctor.errors import DoctorError
from doctor.host import Host
from doctor.smoke.model import HUB_ID, cached_folder, hub_cache
from doctor.smoke.options import HERE, Missing

#: Seconds without a byte until a connection counts as cut.
SILENCE_S = 30.0
#: Connections in a row that bring nothing until it is given up, and the wait after the first one.
TRIES = 5
WAIT_S = 1.0
_PIECE = 1 << 20
_LISTING_LIMIT = 16 << 20
#: Errors of the disk, which asking again does not change.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES)
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
#: The same weights in other forms, of which vLLM reads none when there are safetensors files.
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".tflite")

#: The cause of a hub that is out of reach, whether its name resolves or not.
_UNREACHABLE = "hub-name-resolution-failed"

Say = Callable[[str], None]


class DownloadError(DoctorError):
    """It could not be fetched; one line, and the cause in the catalogue."""

    def __init__(self, message: str, cause: str = Missing.cause) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub lists it. ``digest``: sha256 when ``large``, else git's sha1 of the blob. Bytes."""

    name: str
    size: int
    digest: str
    large: bool


@dataclass(frozen=True)
class Plan:
    """What is to be fetched. ``folder`` is the model's place in the cache, ``missing`` the bytes to come."""

    id: str
    revision: str
    commit: str
    endpoint: str
    folder: Path
    files: tuple[RemoteFile, ...]
    missing: int

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)

    @property
    def snapshot(self) -> Path:
        """The folder that vLLM is given."""
        return self.folder / "snapshots" / self.commit

    def text(self) -> str:
        """How much, and where to."""
        there = f" of {size_text(self.total)}, the rest is there already" if self.missing < self.total else ""
        return (
            f"{self.id} at {self.commit[:12]}: {size_text(self.missing)}{there}, from {self.endpoint} "
            f"to {self.folder} ({size_text(_free(self.folder))} free)"
        )


def obtain(given: str, host: Host, agree: Callable[[str], bool], say: Say, every_s: float = 0.5) -> Missing:
    """Sees to it that a hub model is here; "" when it is, or when ``given`` is no hub name, else why it is not.

    ``agree`` is told how much and where to, and answers whether to fetch it. ``say`` hears of progress every
    ``every_s`` seconds.
    """
    if os.path.exists(os.path.expanduser(given)) or not HUB_ID.match(given) or cached_folder(host, given):
        return HERE
    if any(host.env.get(n, "").lower() in ("1", "true", "yes", "on") for n in _OFFLINE):
        why = f"{given} is not in {hub_cache(host.env)}, and HF_HUB_OFFLINE forbids to fetch it"
        return Missing.because("hub-model-not-cached-offline", why)
    try:
        wanted = plan(given, host.env)
    except DownloadError as error:
        return Missing.because(error.cause, f"{given} is not in {hub_cache(host.env)}, and {error}")
    if wanted.missing > _free(wanted.folder):
        return Missing.because("disk-full", f"no room for {wanted.text()}")
    if not agree(wanted.text()):
        return Missing(f"not fetched: {wanted.text()}; --download fetches it")
    try:
        fetch(wanted, host.env, say, every_s)
    except DownloadError as error:
        return Missing.because(error.cause, str(error))
    return HERE


_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def plan(given: str, env: Mapping[str, str]) -> Plan:
    """Asks the hub which files there are. Raises DownloadError."""
    match = HUB_ID.match(given)
    if match is None:
        raise DownloadError(f"{given!r} is not a hub name like Qwen/Qwen3.5-9B")
    name, revision = match[1], match[2] or "main"
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if urllib.parse.urlsplit(endpoint).scheme not in ("http", "https"):
        raise DownloadError(f"HF_ENDPOINT {endpoint!r} is not an http address")
    url = f"{endpoint}/api/models/{name}/revision/{urllib.parse.quote(revision, safe='')}?blobs=true"
    try:
        with _open(url, env, name) as answer:
            listing = json.loads(answer.read(_LISTING_LIMIT))
        commit = str(listing["sha"])
        files = tuple(_file(row) for row in listing["siblings"])
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{endpoint} cannot be asked: {_reason(error)}", _UNREACHABLE) from None
    except (ValueError, KeyError, TypeError):
        raise DownloadError(f"{url} does not answer as a hub does") from None
    if not _COMMIT.match(commit) or not files:
        raise DownloadError(f"{url} names no commit and files")
    folder = Path(hub_cache(env)) / f"models--{name.replace('/', '--')}"
    chosen = _wanted(files)
    missing = sum(max(0, f.size - _have(folder, f)) for f in chosen)
    return Plan(name, revision, commit, endpoint, folder, chosen, missing)


def _file(row: Mapping[str, Any]) -> RemoteFile:
    name, large = str(row["rfilename"]), row.get("lfs")
    size = int(large["size"] if large else row["size"])
    digest = str(large["sha256"] if large else row["blobId"])
    parts = name.split("/")
    if size < 0 or not _HASH.match(digest) or "" in parts or ".." in parts or "\0" in name:
        raise ValueError(name)
    return RemoteFile(name, size, digest, bool(large))


def _wanted(files: tuple[RemoteFile, ...]) -> tuple[RemoteFile, ...]:
    """Without the same weights in other forms."""
    if not any(f.name.endswith(".safetensors") for f in files):
        return files
    return tuple(f for f in files if not f.name.endswith(_OTHER_WEIGHTS))


def _have(folder: Path, file: RemoteFile) -> int:
    """Bytes of the file that are here, whole or in part."""
    with contextlib.suppress(OSError):
        if _blob(folder, file).stat().st_size == file.size:
            return file.size
    with contextlib.suppress(OSError):
        size = _part(folder, file).stat().st_size
        return size if size <= file.size else 0
    return 0


def _blob(folder: Path, file: RemoteFile) -> Path:
    return folder / "blobs" / file.digest


def _part(folder: Path, file: RemoteFile) -> Path:
    return folder / "blobs" / f"{file.digest}.incomplete"


def _free(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def size_text(size: float) -> str:
    """ "9.31 GB", "412 kB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


def fetch(wanted: Plan, env: Mapping[str, str], say: Say, every_s: float = 0.5) -> None:
    """Fetches what is missing, then makes the snapshot appear. Raises DownloadError."""
    meter = _Meter(wanted.missing, say, every_s)
    try:
        (wanted.folder / "blobs").mkdir(parents=True, exist_ok=True)
        for file in wanted.files:
            with _locked(wanted, file, say):
                blob = _blob(wanted.folder, file)
                if not blob.exists() or blob.stat().st_size != file.size:
                    _fetch_file(wanted, file, env, meter)
        for file in wanted.files:
            _link(wanted, file)
        if wanted.revision != wanted.commit:
            reference = wanted.folder / "refs" / wanted.revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(wanted.commit, encoding="utf-8")
    except OSError as error:
        raise DownloadError(
            f"{wanted.id}: {error.strerror or error} ({error.filename or wanted.folder}); what is there is kept"
        ) from None


@contextlib.contextmanager
def _locked(wanted: Plan, file: RemoteFile, say: Say) -> Iterator[None]:
    """The lock that the hub's own client takes for the same file."""
    path = wanted.folder.parent / ".locks" / wanted.folder.name / f"{file.digest}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                say(f"waiting: another program fetches {file.name}")
                time.sleep(WAIT_S)
        yield


def _link(wanted: Plan, file: RemoteFile) -> None:
    path = wanted.snapshot / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(_blob(wanted.folder, file), path.parent)
    if not path.is_symlink() or os.readlink(path) != target:
        path.unlink(missing_ok=True)
        path.symlink_to(target)


class _Meter:
    """Bytes, rate and time left, said now and then."""

    def __init__(self, missing: int, say: Say, every_s: float) -> None:
        self._missing = missing
        self._say = say
        self._every = every_s
        self._began = self._next = time.monotonic()
        self._done = 0

    def add(self, size: int, name: str) -> None:
        """``size`` more bytes came."""
        self._done += size
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        rate = self._done / (now - self._began) if now > self._began else 0.0
        left = f", {(self._missing - self._done) / rate:.0f} s left" if rate else ""
        self._say(f"{name}: {size_text(self._done)} of {size_text(self._missing)}, {size_text(rate)}/s{left}")

    def back(self, size: int) -> None:
        """``size`` bytes will have to come again."""
        self._done -= size
        self._missing += max(0, -self._done)
        self._done = max(0, self._done)

    def checking(self, name: str) -> None:
        """What is there of a file is read first."""
        self._say(f"{name}: checking what is there")


def _hasher(file: RemoteFile) -> Any:
    if file.large:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def _fetch_file(wanted: Plan, file: RemoteFile, env: Mapping[str, str], meter: _Meter) -> None:
    """One blob, in as many connections as it takes. A wrong hash of a resumed file is tried once more from 0."""
    part = _part(wanted.folder, file)
    resumed = part.exists()
    if _receive(wanted, file, env, meter):
        part.rename(_blob(wanted.folder, file))
        return
    part.unlink()
    if resumed:  # the beginning may be of another program or of a power cut
        meter.back(file.size)
        if _receive(wanted, file, env, meter):
            part.rename(_blob(wanted.folder, file))
            return
        part.unlink()
    raise DownloadError(f"{wanted.id}: {file.name} came with another hash than the hub lists; not kept")


def _receive(wanted: Plan, file: RemoteFile, env: Mapping[str, str], meter: _Meter) -> bool:
    """Brings the part to its full size; whether its hash is right."""
    url = f"{wanted.endpoint}/{wanted.id}/resolve/{wanted.commit}/{urllib.parse.quote(file.name)}"
    failed = 0
    with _part(wanted.folder, file).open("a+b") as out:
        hasher, size = _hasher(file), _resume(out, file, meter)
        out.seek(0)
        while piece := out.read(_PIECE):
            hasher.update(piece)
        while size < file.size:
            got, why = 0, "the connection ended early"
            try:
                with _open(url, env, wanted.id, size) as answer:
                    if size and answer.status != 206:  # it starts at the beginning
                        meter.back(size)
                        out.truncate(0)
                        hasher, size = _hasher(file), 0
                    while piece := answer.read(min(_PIECE, file.size - size)):
                        out.write(piece)
                        hasher.update(piece)
                        size, got = size + len(piece), got + len(piece)
                        meter.add(len(piece), file.name)
            except (http.client.HTTPException, OSError) as error:
                if isinstance(error, OSError) and error.errno in _DISK:
                    raise
                why = _reason(error)
            failed = 0 if got else failed + 1
            if size < file.size and failed >= TRIES:
                out.flush()
                raise DownloadError(
                    f"{wanted.id}: {file.name} stopped at {size_text(size)} of {size_text(file.size)} ({why}); "
                    "what is there is kept, the next run goes on",
                    _UNREACHABLE,
                )
            if failed:
                time.sleep(WAIT_S * 2 ** (failed - 1))
        out.flush()
        os.fsync(out.fileno())
    return bool(hasher.hexdigest() == file.digest)


def _resume(out: IO[bytes], file: RemoteFile, meter: _Meter) -> int:
    size = out.seek(0, os.SEEK_END)
    if size > file.size:
        out.truncate(0)
        return 0
    if size:
        meter.checking(file.name)
    return size


def _open(url: str, env: Mapping[str, str], name: str, offset: int = 0) -> http.client.HTTPResponse:
    """A connection that answers 200 or 206.

    Raises DownloadError for what asking again does not change, else ConnectionError.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "vllm-doctor"})  # noqa: S310  http(s) was checked
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    if token := env.get("HF_TOKEN", "").strip():
        # the hub sends large files from another machine, which must not see it
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        # one of our own: the shared opener keeps the proxies of its first use
        answer: http.client.HTTPResponse = urllib.request.build_opener().open(request, timeout=SILENCE_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (429, 500, 502, 503, 504):
            raise ConnectionError(f"the hub answered {error.code}") from None
        why = {
            401: "does not exist there or is gated: set HF_TOKEN",
            403: "is gated: accept its licence on the hub and set HF_TOKEN",
            404: "does not exist there",
        }
        cause = "hub-access-denied" if error.code in (401, 403) else Missing.cause
        said = why.get(error.code, f"is answered with {error.code}")
        raise DownloadError(f"{name} {said} ({url})", cause) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            text = f"{url}: its certificate is not trusted here ({_reason(error.reason)})"
            raise DownloadError(text, "hub-certificate-not-trusted") from None
        raise ConnectionError(_reason(error.reason)) from None
    return answer


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {SILENCE_S:g} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]
