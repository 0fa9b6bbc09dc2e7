"""Everything the doctor knows about one machine or one run, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from doctor.codec import DecodeError, decode, encode
from doctor.facts import (
    ContainerFacts,
    DriverFacts,
    GpuFacts,
    NetworkFacts,
    PythonFacts,
    ServingFacts,
    StorageFacts,
    SystemFacts,
    ToolchainFacts,
    WslFacts,
)
from doctor.finding import Evidence

#: Version of the snapshot document. Readers accept this one and older.
SCHEMA_VERSION = 1


class SnapshotError(ValueError):
    """The file is not a snapshot this doctor can read; the message says what and where."""


@dataclass(frozen=True)
class ProbeStatus:
    """How one probe ended. ``status``: "ok", "failed", "timeout" or "not run"."""

    name: str
    status: str
    seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class Event:
    """One recognised passage of evidence text. ``signal`` is its stable name, ``values`` what it captured."""

    signal: str
    source: str  # "server.log:412"
    text: str = ""
    line: int | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    count: int = 1


@dataclass(frozen=True)
class Snapshot:
    """Facts by domain; a domain that is None was not looked at or could not be read (see ``probes``).

    ``origin``: "host" (probed live) or "evidence" (read from text somebody pasted).
    """

    origin: str = "host"
    taken_at: str | None = None  # ISO 8601, UTC
    doctor_version: str | None = None
    deep: bool = False
    inside_image: bool = False
    system: SystemFacts | None = None
    wsl: WslFacts | None = None
    toolchain: ToolchainFacts | None = None
    driver: DriverFacts | None = None
    gpus: tuple[GpuFacts, ...] | None = None
    container: ContainerFacts | None = None
    python: PythonFacts | None = None
    storage: StorageFacts | None = None
    network: NetworkFacts | None = None
    serving: ServingFacts | None = None
    events: tuple[Event, ...] = ()
    probes: tuple[ProbeStatus, ...] = ()

    @property
    def is_wsl(self) -> bool | None:
        """True under WSL 1 or 2, False on a native host, None when not known."""
        version = self.wsl.version if self.wsl else None
        return None if version is None else version > 0

    @property
    def is_wsl2(self) -> bool | None:
        """True under WSL 2 only; None when not known."""
        version = self.wsl.version if self.wsl else None
        return None if version is None else version == 2

    @property
    def in_container(self) -> bool | None:
        """True inside a container; None when not known."""
        return self.system.in_container if self.system else None

    def probe(self, name: str) -> ProbeStatus | None:
        """The status of one probe, or None when it is not recorded."""
        return next((p for p in self.probes if p.name == name), None)

    def evidence(self, path: str, value: str | None = None) -> Evidence:
        """Evidence for a fact by its path, such as ``driver.version`` or ``gpus[0].free_bytes``.

        ``value`` replaces the printed form. Raises AttributeError for a path that does not exist.
        """
        owner: Any = self
        name = ""
        for part in path.split("."):
            parent = owner
            name, _, index = part.partition("[")
            owner = getattr(owner, name) if owner is not None else None
            if index and owner is not None:
                owner = owner[int(index.rstrip("]"))]
        sources: Mapping[str, str] = getattr(parent, "sources", {}) or {}
        shown = value if value is not None else _shown(owner)
        return Evidence(path, shown, sources.get(name) or sources.get("*") or self.origin)


def _shown(value: Any) -> str:
    if value is None:
        return "not known"
    if value == "" or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(str(v) for v in value)
    return str(value)


def dump(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as a JSON object with its schema version."""
    return {"schema_version": SCHEMA_VERSION, "kind": "vllm-doctor-snapshot", **encode(snapshot)}


def dumps(snapshot: Snapshot) -> str:
    """The snapshot as indented JSON text with sorted keys, so that files can be compared."""
    return json.dumps(dump(snapshot), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def loads(text: str, name: str = "snapshot") -> Snapshot:
    """Reads :func:`dumps`'s text, or the ``--json`` answer of a command that carries a snapshot.

    Raises :class:`SnapshotError` with one line that names the file, the place and the reason.
    """
    try:
        data = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{name}: not a whole snapshot, cut off or not valid JSON ({error})") from None
    if isinstance(data, dict) and isinstance(data.get("snapshot"), dict):
        data = data["snapshot"]
    if not isinstance(data, dict):
        raise SnapshotError(f"{name}: a snapshot is a JSON object, this is {type(data).__name__}")
    version = data.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SnapshotError(f"{name}: schema_version is {str(version)[:40]!r}, not a number from 1 on")
    if version > SCHEMA_VERSION:
        raise SnapshotError(
            f"{name}: snapshot schema {version!r} is newer than this doctor reads ({SCHEMA_VERSION}); upgrade it"
        )
    known = {f.name for f in fields(Snapshot)}
    if not known & data.keys():
        raise SnapshotError(f"{name}: no facts found; save one with `vllm-doctor check --save FILE`")
    try:
        return decode(Snapshot, {k: v for k, v in data.items() if k in known})
    except DecodeError as error:
        raise SnapshotError(f"{name}: {error}") from None
