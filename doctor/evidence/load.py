"""Files of any text -> one Snapshot, and a Reading that says what was met."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO

from doctor import __version__
from doctor.codec import field_names
from doctor.errors import DoctorError
from doctor.evidence import facts_env, facts_shell, facts_smi, facts_vllm
from doctor.evidence.builder import FactBuilder
from doctor.evidence.decode import Decoded, chunks
from doctor.evidence.recognise import Kind, recognise, telling
from doctor.evidence.scan import Scan, scan
from doctor.snapshot import Event, Snapshot, SnapshotError, loads

#: Events kept in the snapshot; no text needs as many.
MOST_EVENTS = 2000
#: Further chunks (of a mebibyte) of what begins like a snapshot; real ones have some 50 KB.
MOST_SNAPSHOT_CHUNKS = 63


@dataclass(frozen=True)
class Text:
    """One file read: what it is, its size, what was undone, its most informative lines."""

    name: str
    kinds: tuple[Kind, ...] = ()
    lines: int = 0
    bytes: int = 0
    layers: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    telling: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Reading:
    """What :func:`read_evidence` gives: the snapshot to judge and what is worth telling about the texts."""

    snapshot: Snapshot
    texts: tuple[Text, ...] = field(default=())


Progress = Callable[[int], None]


def read_evidence(paths: Sequence[str], on_bytes: Progress | None = None) -> Reading:
    """Reads files (``-`` is standard input). One saved snapshot given alone is returned as it is.

    Raises DoctorError when a file cannot be read.
    """
    facts = FactBuilder()
    texts: list[Text] = []
    events: list[Event] = []
    for path in paths:
        with _open(path) as raw:
            decoded = Decoded()
            name = "stdin" if path == "-" else Path(path).name
            try:
                # opened and read once: a pipe gives its text only once
                text = chunks(raw, decoded)
                head = next(text, b"")
                if len(paths) == 1 and _starts_a_snapshot(head):
                    head += b"".join(islice(text, MOST_SNAPSHOT_CHUNKS))
                    if b'"schema_version"' in head or _begins_as_saved(head):
                        return Reading(_snapshot(head, name if path == "-" else path))
                result = scan(chain((head,), text), name, on_bytes)
            except OSError as error:
                raise DoctorError(f"cannot read {path}: {error.strerror or error}") from None
        found = _facts(result, facts)
        events += [*result.events, *found]
        texts.append(
            Text(
                name,
                recognise(result, facts),
                result.lines,
                decoded.bytes_text,
                tuple(decoded.layers),
                tuple(decoded.damage),
                telling(result),
            )
        )
    events += facts.conflicts
    fields = facts.snapshot_fields()
    marks = [Event("text", t.name, ", ".join(k.label for k in t.kinds), 1, {"lines": str(t.lines)}) for t in texts]
    snapshot = Snapshot(
        origin="evidence", doctor_version=__version__, events=tuple([*marks, *events][:MOST_EVENTS]), **fields
    )
    return Reading(snapshot, tuple(texts))


def _facts(result: Scan, facts: FactBuilder) -> list[Event]:
    """All parsers on one text; they return what rules need as events."""
    lines = list(result.ends)
    found = facts_env.read(lines, result.name, facts)
    found += facts_smi.read(lines, result.name, facts)
    found += facts_shell.read(lines, result.name, facts)
    facts_vllm.read(result.facts, facts)
    return found


def snapshot_from(path: str) -> Snapshot:
    """A saved snapshot or any evidence, for ``check --from``. Raises DoctorError."""
    return read_evidence([path]).snapshot


def _open(path: str) -> IO[bytes]:
    if path == "-":
        return sys.stdin.buffer
    try:
        if Path(path).is_dir():
            raise DoctorError(f"{path} is a folder; name the files to read")
        if Path(path).is_char_device() and not os.path.realpath(path).startswith(
            ("/dev/pts/", "/dev/tty", "/proc/")
        ):
            raise DoctorError(f"{path} is a device without an end; name the files to read")
        return open(path, "rb")
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from None


def _starts_a_snapshot(head: bytes) -> bool:
    """A JSON object of ours: its keys are quoted right at the beginning."""
    return re.match(rb'\s*\{\s*"', head) is not None


def _begins_as_saved(head: bytes) -> bool:
    """Sorted keys put facts first and the schema version behind them: a file cut off does not have it."""
    begin = re.match(rb'\s*\{\s*"(\w+)"\s*:\s*\[?\s*\{\s*"(\w+)"', head)
    if begin is None:
        return False
    part, name = (group.decode() for group in begin.groups())
    return name in field_names(Snapshot, part)


def _snapshot(text: bytes, name: str) -> Snapshot:
    try:
        return loads(text.decode("utf-8", "replace"), name=name)
    except SnapshotError as error:
        raise DoctorError(str(error)) from None
