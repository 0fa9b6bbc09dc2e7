"""Turns the tar that ``docker save`` or ``podman save`` prints into one OCI archive that all engines read.

In: the layout of Docker up to 24 (a folder a layer), that of 25 and later (OCI blobs, layers plain) and podman's.
Out: ``oci-layout``, ``index.json`` and ``blobs/`` for podman, skopeo and containerd, and ``manifest.json`` beside
them for ``docker load`` of any version. Layers are gzip of one kind: the same image gives the same bytes, with the
same zlib. Nothing is kept in memory but small files and a few pieces of a layer.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any, Protocol, cast

from doctor.errors import DoctorError
from doctor.image import registry_client

#: zlib level of layers. On vLLM's files level 6 needs 2.8 times as long for 14 % less (measured, 2026-11-30).
LEVEL = 1
#: Layers are compressed in pieces of this size, each for itself, so that all cores can help; joined they are one
#: gzip stream. It decides the bytes of the archive.
PIECE_BYTES = 1 << 20
_MOST_WORKERS = 16
_LARGEST_SMALL_BYTES = 16 << 20
_SMALL_TOTAL_BYTES = 64 << 20
_GZIP = b"\x1f\x8b"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"

Moved = Callable[[int], None]


class Stream(Protocol):
    """Something to read to its end: ``read`` gives as many bytes as asked for, fewer only at the end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Layer:
    """``diff_id`` is the digest of the plain tar, ``digest`` and ``bytes`` those of the blob in the archive."""

    diff_id: str
    digest: str
    bytes: int


@dataclass(frozen=True)
class Converted:
    """What is in the archive. ``image_id`` is the digest of the config, as Docker shows it."""

    image_id: str
    manifest: str
    names: tuple[str, ...]
    layers: tuple[Layer, ...]


def convert(stream: Stream, out: IO[bytes], moved: Moved) -> Converted:
    """Reads ``stream`` to its end and writes the archive to ``out``, a new seekable file.

    ``moved`` is told how many bytes of layers were read since the last call. DoctorError for a stream that is cut
    short, damaged, or not one image.
    """
    writer = _Writer(out)
    writer.file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    writer.folder("blobs")
    writer.folder("blobs/sha256")
    workers = max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(workers) as pool:
        source = _read(stream, writer, pool, workers, moved)
    return _finish(source, writer)


class _Source:
    """What the members of the tar were, by name."""

    def __init__(self) -> None:
        self.small: dict[str, bytes] = {}
        self.layers: dict[str, Layer] = {}
        self.links: dict[str, str] = {}

    def name(self, name: object) -> str:
        """Where a name of manifest.json leads: Docker stores a layer once and links the others to it."""
        found = posixpath.normpath(name) if isinstance(name, str) else ""
        for _ in range(40):
            if found not in self.links:
                break
            found = self.links[found]
        return found

    def json(self, name: object) -> tuple[Any, bytes]:
        data = self.small.get(self.name(name))
        if data is None:
            raise _damaged(f"{name} is missing")
        try:
            return json.loads(data), data
        except (ValueError, RecursionError):
            raise _damaged(f"{name} is not JSON") from None


def _damaged(why: str) -> DoctorError:
    return DoctorError(f"the engine's archive is not usable: {why}", 2)


def _read(stream: Stream, writer: _Writer, pool: ThreadPoolExecutor, workers: int, moved: Moved) -> _Source:
    source = _Source()
    total = 0
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", bufsize=PIECE_BYTES) as tar:
            for member in tar:
                name = posixpath.normpath(member.name)
                if member.issym():
                    target = posixpath.join(posixpath.dirname(name), member.linkname)
                    source.links[name] = posixpath.normpath(target)
                elif member.islnk():
                    source.links[name] = posixpath.normpath(member.linkname)
                elif member.isfile() and (data := tar.extractfile(member)) is not None:
                    head = data.read(512)
                    if _is_layer(head):
                        pieces = _pieces(head, data, moved)
                        packed = head[:2] == _GZIP
                        blob = _copied(pieces) if packed else _compressed(pieces, pool, workers)
                        source.layers[name] = writer.blob(blob)
                    elif (
                        member.size <= _LARGEST_SMALL_BYTES
                        and (total := total + member.size) <= _SMALL_TOTAL_BYTES
                    ):
                        source.small[name] = head + data.read()
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(f"it is no tar or ends early ({error})") from None
    except zlib.error as error:
        raise _damaged(f"a layer is not valid gzip ({error})") from None
    while stream.read(PIECE_BYTES):  # the engine writes to its end, whatever follows the last member
        pass
    return source


def _is_layer(head: bytes) -> bool:
    # an empty layer is nothing but zeros; a small file of JSON has neither mark
    return head[257:262] == b"ustar" or head[:2] == _GZIP or (len(head) == 512 and not any(head))


def _pieces(head: bytes, data: IO[bytes], moved: Moved) -> Iterator[bytes]:
    """The whole in pieces of exactly PIECE_BYTES, the last one shorter."""
    piece = head + data.read(PIECE_BYTES - len(head))
    while piece:
        moved(len(piece))
        yield piece
        piece = data.read(PIECE_BYTES)


_Blob = Iterator[tuple[bytes, "str | None"]]


def _compressed(pieces: Iterator[bytes], pool: ThreadPoolExecutor, workers: int) -> _Blob:
    """One gzip stream without name and time: (bytes, None) again and again, at last (bytes, diff id)."""
    plain, crc, size = hashlib.sha256(), 0, 0
    waiting: deque[Future[bytes]] = deque()
    # no time, the mark of the fastest level, no operating system
    yield b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff", None
    for piece in pieces:
        waiting.append(pool.submit(_deflated, piece))
        plain.update(piece)
        crc = zlib.crc32(piece, crc)
        size += len(piece)
        if len(waiting) > 2 * workers:
            yield waiting.popleft().result(), None
    for future in waiting:
        yield future.result(), None
    end = b"\x03\x00" + crc.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
    yield end, f"sha256:{plain.hexdigest()}"


def _deflated(piece: bytes) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    # ends on a byte and refers to nothing before: pieces can be joined
    return packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)


def _copied(pieces: Iterator[bytes]) -> _Blob:
    """A layer that is gzip already, as a containerd store hands it out, stays as it is."""
    plain = hashlib.sha256()
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    for piece in pieces:
        rest = piece
        while rest:
            if unpacker.eof:
                unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
            plain.update(unpacker.decompress(rest, PIECE_BYTES))
            rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        yield piece, None
    while not unpacker.eof:
        left = unpacker.decompress(unpacker.unconsumed_tail, PIECE_BYTES)
        if not left and not unpacker.eof:
            raise zlib.error("it ends early")
        plain.update(left)
    yield b"", f"sha256:{plain.hexdigest()}"


class _Writer:
    """A tar of files and folders of no time and no owner."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._blobs: set[str] = set()

    def folder(self, name: str) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        self._out.write(member.tobuf(tarfile.GNU_FORMAT))

    def file(self, name: str, data: bytes) -> None:
        self._out.write(_header(name, len(data)) + data + _padding(len(data)))

    def data(self, data: bytes) -> str:
        """A small blob; returns its digest."""
        digits = hashlib.sha256(data).hexdigest()
        if digits not in self._blobs:
            self._blobs.add(digits)
            self.file(f"blobs/sha256/{digits}", data)
        return f"sha256:{digits}"

    def blob(self, pieces: _Blob) -> Layer:
        """A large one, whose name and size are known only after it was written: then the header is."""
        began = self._out.tell()
        self._out.write(bytes(tarfile.BLOCKSIZE))
        digest, size, diff_id = hashlib.sha256(), 0, ""
        for piece, last in pieces:
            self._out.write(piece)
            digest.update(piece)
            size += len(piece)
            diff_id = last or diff_id
        digits = digest.hexdigest()
        if digits in self._blobs:  # the same layer twice is stored once
            self._out.seek(began)
            self._out.truncate()
        else:
            self._blobs.add(digits)
            self._out.write(_padding(size))
            self._out.seek(began)
            self._out.write(_header(f"blobs/sha256/{digits}", size))
            self._out.seek(0, os.SEEK_END)
        return Layer(diff_id, f"sha256:{digits}", size)

    def end(self) -> None:
        self._out.write(bytes(2 * tarfile.BLOCKSIZE))
        self._out.flush()


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member.tobuf(tarfile.GNU_FORMAT)  # one block, also beyond 8 GiB


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _finish(source: _Source, writer: _Writer) -> Converted:
    """Checks that all parts belong together, then writes what names them."""
    entries, _ = source.json("manifest.json")
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise _damaged("manifest.json does not describe one image")
    entry: dict[str, Any] = entries[0]
    config, config_bytes = source.json(entry.get("Config"))
    layers = []
    for name in entry.get("Layers") or []:
        if source.name(name) not in source.layers:
            raise _damaged(f"the layer {name} is missing, or neither a plain tar nor gzip")
        layers.append(source.layers[source.name(name)])
    rootfs = config.get("rootfs") if isinstance(config, dict) else None
    expected = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if expected != [layer.diff_id for layer in layers]:
        raise _damaged("its layers are not those that the image's config names")
    names = tuple(n for n in entry.get("RepoTags") or [] if isinstance(n, str))
    return _named(config, config_bytes, layers, names, writer)


def _named(
    config: Mapping[str, Any],
    config_bytes: bytes,
    layers: Sequence[Layer],
    names: tuple[str, ...],
    writer: _Writer,
) -> Converted:
    image_id = writer.data(config_bytes)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": image_id, "size": len(config_bytes)},
            "layers": [{"mediaType": _LAYER, "digest": one.digest, "size": one.bytes} for one in layers],
        }
    )
    digest = writer.data(manifest)
    platform = {k: config[k] for k in ("architecture", "os", "variant") if config.get(k)}
    descriptor = {"mediaType": _MANIFEST, "digest": digest, "size": len(manifest), "platform": platform}
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{**descriptor, "annotations": _annotations(n)} for n in names] or [descriptor],
    }
    docker = [
        {
            "Config": _path(image_id),
            "RepoTags": list(names) or None,
            "Layers": [_path(layer.digest) for layer in layers],
        }
    ]
    writer.file("index.json", _json(index))
    writer.file("manifest.json", _json(docker))
    writer.end()
    return Converted(image_id, digest, names, tuple(layers))


def _annotations(name: str) -> dict[str, str]:
    """Docker, BuildKit and containerd write both: the tag alone, and the full name."""
    try:
        parts = registry_client.parse(name)
    except ValueError:
        raise _damaged(f"{name!r} is not a name with a tag") from None
    full = f"{parts.registry}/{parts.repository}:{parts.tag}"
    return {"io.containerd.image.name": full, "org.opencontainers.image.ref.name": parts.tag}


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
