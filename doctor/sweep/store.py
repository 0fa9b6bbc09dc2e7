"""The rows of a sweep: one JSON line per finished point, on the disk before the next point begins."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from doctor.errors import DoctorError

NAME = "sweep.jsonl"
#: In every row, so that a file can be told from others.
FORMAT = "vllm-doctor-sweep/1"
#: How a point ended: measured; refused for a cause of the catalogue; ended for a reason that nobody knows.
OK, REFUSED, DIED = "ok", "refused", "died"
#: Bytes of a file that are read; a row has about 2 kB.
LIMIT = 256 << 20


@dataclass
class Rows:
    """What a file holds. ``cut``: bytes of a half-written last line; ``unreadable``: numbers of other lines."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    cut: int = 0
    unreadable: tuple[int, ...] = ()

    def by_key(self) -> dict[str, dict[str, Any]]:
        """The last row of each point: a point that was repeated on request counts as it ended last."""
        return {str(row["key"]): row for row in self.rows}


def parse(data: bytes) -> Rows:
    """The rows in ``data``. A last line without its newline is half-written unless it is a whole row."""
    out = Rows()
    bad = []
    lines = data.split(b"\n")
    tail = lines.pop()
    for number, line in enumerate(lines, 1):
        if row := _row(line):
            out.rows.append(row)
        elif line.strip():
            bad.append(number)
    if tail:
        if row := _row(tail):
            out.rows.append(row)
        else:
            out.cut = len(tail)
    out.unreadable = tuple(bad)
    return out


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and row.get("format") == FORMAT and isinstance(row.get("key"), str)
    return row if whole else None


def read(path: Path) -> Rows:
    """The rows of a file; none when it does not exist. Raises DoctorError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return parse(file.read(LIMIT))
    except FileNotFoundError:
        return Rows()
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from None


class Store:
    """Appends rows to one file, which it holds locked: two sweeps must not measure side by side."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.rows = Rows()
        self._fd = -1

    def __enter__(self) -> Store:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DoctorError(f"cannot write {self.path}: {error.strerror}; give another --out") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise DoctorError(f"{self.path}: another sweep writes there now; give another --out") from None
        except OSError:  # a file system without locks, as some network drives: two sweeps are not told apart
            pass
        try:
            self._repair()
        except (OSError, DoctorError) as error:
            self._close()
            if isinstance(error, DoctorError):
                raise
            raise DoctorError(f"cannot write {self.path}: {error.strerror}") from None
        return self

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self._close()

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row and waits until it is on the disk. Raises DoctorError when it cannot be written."""
        whole = {"format": FORMAT, **row}
        # one write: a reader sees the whole line or a last line without its end
        data = json.dumps(whole, ensure_ascii=False).encode() + b"\n"
        before = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # a full disk took a part of it
                os.ftruncate(self._fd, before)
            raise DoctorError(f"cannot write {self.path}: {error.strerror}", exit_code=3) from None
        self.rows.rows.append(whole)

    def _repair(self) -> None:
        """Cuts a half-written last line, and ends a whole one that lacks its newline."""
        if os.fstat(self._fd).st_size > LIMIT:
            raise DoctorError(f"{self.path} is larger than {LIMIT >> 20} MiB: not a file of this command")
        data = b"".join(self._blocks())
        self.rows = parse(data)
        if self.rows.cut:
            os.ftruncate(self._fd, len(data) - self.rows.cut)
        elif data and not data.endswith(b"\n"):
            os.write(self._fd, b"\n")
        os.fsync(self._fd)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # some file systems (WSL's Windows drives) cannot sync a folder; the rows themselves are synced
            with contextlib.suppress(OSError):
                os.fsync(folder)
        finally:
            os.close(folder)

    def _blocks(self) -> Iterator[bytes]:
        position = 0
        while block := os.pread(self._fd, 1 << 20, position):
            position += len(block)
            yield block

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
