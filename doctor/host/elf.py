"""Two questions to an ELF file without loading it: which libraries it needs, and what its constants hold."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from doctor.host.access import Host

_PT_LOAD, _PT_DYNAMIC, _DT_NULL, _DT_NEEDED, _DT_STRTAB = 1, 2, 0, 1, 5
_CHUNK = 1 << 20
#: Longest constant that may straddle two chunks.
_OVERLAP = 512


class NotElf(ValueError):
    """Not a 64-bit little-endian ELF file, or a damaged one."""


def needed(host: Host, path: str) -> tuple[str, ...]:
    """Names of the DT_NEEDED entries. Raises OSError or :class:`NotElf`."""
    with _open(host, path) as file:
        try:
            return tuple(_needed(file))
        except (struct.error, ValueError, MemoryError, OverflowError) as error:
            raise NotElf(f"{path}: {error}") from None


def constants(host: Host, path: str, limit: int = 64 << 20) -> Iterator[bytes]:
    """The .rodata section in pieces of about a MiB that overlap. Raises OSError or :class:`NotElf`."""
    with _open(host, path) as file:
        try:
            offset, size = _rodata(file)
            file.seek(offset)
        except (struct.error, ValueError, MemoryError, OverflowError) as error:
            raise NotElf(f"{path}: {error}") from None
        tail = b""
        left = min(size, limit)
        while left > 0:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                return
            left -= len(chunk)
            yield tail + chunk
            tail = chunk[-_OVERLAP:]


def _open(host: Host, path: str) -> BinaryIO:
    # O_NONBLOCK: a FIFO in place of the library must not stop the probe
    return os.fdopen(os.open(host.local_path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _header(file: BinaryIO) -> tuple[int, ...]:
    head = file.read(64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        raise NotElf("not a 64-bit little-endian ELF file")
    # e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
    return struct.unpack_from("<QQIHHHHHH", head, 32)


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _needed(file: BinaryIO) -> Iterator[str]:
    phoff, _, _, _, phentsize, phnum, *_ = _header(file)
    loads, dynamic = [], None
    for index in range(phnum):
        kind, _, offset, vaddr, _, filesz = struct.unpack("<IIQQQQ", _at(file, phoff + index * phentsize, 40))
        if kind == _PT_LOAD:
            loads.append((vaddr, offset, filesz))
        elif kind == _PT_DYNAMIC:
            dynamic = _at(file, offset, min(filesz, 1 << 16))
    entries = list(struct.iter_unpack("<qQ", dynamic[: len(dynamic) // 16 * 16])) if dynamic else []
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), None)
    base = next((o + strings - v for v, o, size in loads if strings is not None and v <= strings < v + size), None)
    if base is None:
        return
    for tag, value in entries:
        if tag == _DT_NULL:
            return
        if tag == _DT_NEEDED:
            yield _at(file, base + value, 256).split(b"\0", 1)[0].decode("ascii", "replace")


def _rodata(file: BinaryIO) -> tuple[int, int]:
    _, shoff, _, _, _, _, shentsize, shnum, shstrndx = _header(file)
    table = []
    for index in range(shnum):
        name, _, _, _, offset, size = struct.unpack("<IIQQQQ", _at(file, shoff + index * shentsize, 40))
        table.append((name, offset, size))
    if not shstrndx < len(table):
        raise NotElf("no section names")
    names = _at(file, table[shstrndx][1], min(table[shstrndx][2], 1 << 16))
    for name, offset, size in table:
        if names[name : name + 8] == b".rodata\0":
            return offset, size
    raise NotElf("no .rodata section")
