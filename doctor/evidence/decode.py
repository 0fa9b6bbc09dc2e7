"""Any file of text -> chunks of plain UTF-8 bytes in constant memory.

Undoes gzip, bzip2 and xz, UTF-16 and UTF-32 (with or without BOM), terminal colours and cursor
movements, NULs and CRLF. Line numbers stay those of the file: only ``\\n`` ends a line; a lone ``\\r``
(a progress bar that redraws itself) only separates what was shown one after the other.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

#: Bytes read at a time.
CHUNK = 1 << 20
#: A line longer than this is handed on in pieces, so that a file without line ends needs no more memory.
LONGEST_LINE = 2 << 20
_SNIFF = 4096

#: CSI and OSC sequences, and the two-byte escapes. Bounded, so that a stray ESC costs nothing.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_=>])")
#: Colour codes whose ESC was lost on the way through a web form: "[0;36m" or "[1m" at a word border.
_ESCAPE_REST = re.compile(rb"(?:\xe2\x90\x9b|\^\[)\[[0-9;]{0,16}m")

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass
class Decoded:
    """What was met on the way. ``damage`` says in words what could not be undone."""

    layers: list[str] = field(default_factory=list)  # "gzip", "utf-16-le"
    damage: list[str] = field(default_factory=list)
    bytes_read: int = 0  # of the file itself, for progress
    bytes_text: int = 0  # after unpacking


class _Counting(io.RawIOBase):
    """Counts what is read of the file itself, so that progress is right for packed files too."""

    def __init__(self, raw: IO[bytes], decoded: Decoded) -> None:
        self._raw = raw
        self._decoded = decoded

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self._raw.read(len(view))
        view[: len(data)] = data
        self._decoded.bytes_read += len(data)
        return len(data)


class _Unpacked(io.RawIOBase):
    """Hands on what an unpacker has, little by little: what was readable before damaged data is kept."""

    def __init__(self, packed: Any) -> None:
        self._packed = packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self._packed.read1(len(view))
        view[: len(data)] = data
        return len(data)


def chunks(raw: IO[bytes], decoded: Decoded) -> Iterator[bytes]:
    """Plain UTF-8 in chunks that end at a line end (the last one, and pieces of endless lines, excepted)."""
    carry: list[bytes] = []
    held = 0
    for block in _clean(_plain(_unpack(raw, decoded), decoded)):
        decoded.bytes_text += len(block)
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join((*carry, block[:cut]))
            carry, held = [], 0
        if cut < len(block):
            carry.append(block[cut:])
            held += len(block) - cut
            if held >= LONGEST_LINE:
                yield b"".join(carry)
                carry, held = [], 0
    if carry:
        yield b"".join(carry)


def _unpack(raw: IO[bytes], decoded: Decoded) -> io.BufferedReader[Any]:
    stream: io.BufferedReader[Any] = io.BufferedReader(_Counting(raw, decoded), CHUNK)
    for _ in range(3):  # a .gz inside a .gz is seen in the wild; more is no log
        head = _peek(stream, 8)
        kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
        if kind is None:
            break
        decoded.layers.append(kind)
        packed: Any
        if kind == "gzip":
            packed = gzip.GzipFile(fileobj=stream, mode="rb")
        else:
            packed = bz2.BZ2File(stream) if kind == "bzip2" else lzma.LZMAFile(stream)  # noqa: SIM115  read to its end below
        stream = io.BufferedReader(_Unpacked(packed), CHUNK)
    return stream


#: What the unpackers raise on damaged data.
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def _peek(stream: io.BufferedReader[Any], size: int) -> bytes:
    """The first bytes; none of damaged data, which is reported when it is read."""
    try:
        return bytes(stream.peek(size)[:size])
    except _DAMAGE:
        return b""


def _blocks(stream: io.BufferedReader[Any], decoded: Decoded) -> Iterator[bytes]:
    while True:
        try:
            block = stream.read1(CHUNK)
        except _DAMAGE as error:
            decoded.damage.append(
                f"the {decoded.layers[-1] if decoded.layers else 'file'} data is damaged: {error}"
            )
            return
        if not block:
            return
        yield block


def _plain(stream: io.BufferedReader[Any], decoded: Decoded) -> Iterator[bytes]:
    head = _peek(stream, _SNIFF)
    encoding, skip = sniff_encoding(head)
    if encoding == "utf-8":
        if skip:
            stream.read(skip)
        yield from _blocks(stream, decoded)
        return
    decoded.layers.append(encoding)
    stream.read(skip)
    reader = codecs.getincrementaldecoder(encoding)(errors="replace")
    for block in _blocks(stream, decoded):
        yield reader.decode(block).encode("utf-8", "replace")
    yield reader.decode(b"", final=True).encode("utf-8", "replace")


def sniff_encoding(head: bytes) -> tuple[str, int]:
    """The encoding that the first bytes tell, and the length of the BOM to skip. UTF-8 when nothing tells."""
    for bom, name in _BOMS:
        if head.startswith(bom):
            return name, len(bom)
    even, odd = head[0::2], head[1::2]
    if len(head) >= 8:
        if odd.count(0) > 0.6 * len(odd) and even.count(0) < 0.2 * len(even):
            return "utf-16-le", 0
        if even.count(0) > 0.6 * len(even) and odd.count(0) < 0.2 * len(odd):
            return "utf-16-be", 0
    return "utf-8", 0


def _clean(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Takes colours and NULs out. An escape sequence cut by the block border is joined again first."""
    carry = b""
    remains = None  # colour codes whose ESC was lost are there from the first lines on, or not at all
    for block in blocks:
        block = carry + block if carry else block
        carry = b""
        last = block.rfind(b"\x1b", max(0, len(block) - 32))
        if last >= 0 and not _ESCAPES.match(block, last) and len(block) > last:
            block, carry = block[:last], block[last:]
        if remains is None:
            remains = b"^[[" in block or b"\xe2\x90\x9b[" in block
        yield _ESCAPE_REST.sub(b"", _scrub(block)) if remains else _scrub(block)
    if carry:
        yield _scrub(carry)


def _scrub(block: bytes) -> bytes:
    if b"\x1b" in block:
        block = _ESCAPES.sub(b"", block).replace(b"\x1b", b"")
    if b"\0" in block:
        block = block.replace(b"\0", b"")
    return block
