"""What would end a build: no daemon, an old one, no room. Said before it begins, by the catalogue's causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from doctor import catalogue
from doctor.catalogue.gpus import version_tuple
from doctor.checks.registry import found, judge
from doctor.finding import Confidence, Evidence, Finding, Remedy, Severity
from doctor.host import Host
from doctor.host.examine import PROBES, Options, examine
from doctor.image.engine import CLIENT_S, Engine
from doctor.image.pins import Target
from doctor.snapshot import ProbeStatus, Snapshot

GIB = 1 << 30
#: The probes whose facts a build is planned from; the Python of this machine plays no part.
NEEDED = ("system", "wsl", "driver", "gpus", "container")
#: The first daemon whose own frontend knows what the Dockerfile uses.
FIRST_DAEMON = (20, 10)
_DAEMON_CAUSES = ("docker-daemon-unreachable", "docker-socket-permission-denied")
_ROOTLESS = "the rootless daemon's socket"


@dataclass(frozen=True)
class Room:
    """Where the engine keeps its images. ``free``: bytes, None when it cannot be told."""

    folder: str
    free: int | None
    source: str


@dataclass(frozen=True)
class Needs:
    """Bytes on the engine's disk and of memory."""

    room: int
    memory: int


@dataclass(frozen=True)
class Preflight:
    """``findings`` end the build; ``notes`` are said."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def look(host: Host, on_done: Callable[[ProbeStatus], None]) -> Snapshot:
    """The facts that a build is planned from."""
    return examine(host, Options(), tuple(p for p in PROBES if p.name in NEEDED), on_done)


def environment(s: Snapshot, engine: Engine) -> Mapping[str, str]:
    """What the client must be told so that it asks the daemon that was looked at."""
    c = s.container
    if engine.kind == "docker" and c is not None and c.sources.get("docker_host", "").startswith(_ROOTLESS):
        return {**engine.environment, "DOCKER_HOST": c.docker_host or ""}
    return engine.environment


def elsewhere(s: Snapshot, engine: Engine) -> bool:
    """True when the daemon is on another machine, whose room, driver and cards are not this one's."""
    c = s.container
    return (
        engine.kind == "docker"
        and c is not None
        and c.daemon_reachable is None
        and (c.daemon_error or "").startswith("not asked")
    )


def inspect(s: Snapshot, engine: Engine, host: Host, target: Target, *, ignore_room: bool = False) -> Preflight:
    """Daemon, its version, room and memory. ``ignore_room``: too little is said and does not end the build."""
    notes = [f"{path_and_reason}; {engine.path} is used" for path_and_reason in engine.passed_over]
    if elsewhere(s, engine):
        assert s.container is not None  # noqa: S101  elsewhere() has looked
        return Preflight(notes=(*notes, f"the daemon is on another machine ({s.container.docker_host}): its room, "
                                        "memory, driver and card are not known here"))  # fmt: skip
    if engine.kind == "docker":
        problems = daemon(s)
        if problems:
            return Preflight(problems, tuple(notes))
    room = _room(s, engine, host)
    need = needs(target)
    if need is None:  # a lock of the user's own: nobody has measured it
        return Preflight((), tuple(notes))
    if room is None or room.free is None:
        notes.append(f"room of the engine not known; the build needs about {need.room / GIB:.0f} GiB")
    available = s.system.ram_available_bytes if s.system else None
    if available is not None and available < need.memory:
        notes.append(
            f"{available / GIB:.1f} GiB of memory available, the build may need {need.memory / GIB:.0f} GiB: "
            "a step that the kernel kills ends with code 137"
        )
    short = _short_of_room(room, need.room)
    if short is not None and ignore_room:
        notes.append(f"{short.summary} (--ignore-room)")
        short = None
    return Preflight((short,) if short else (), tuple(notes))


def daemon(s: Snapshot) -> tuple[Finding, ...]:
    """Why the docker daemon cannot build."""
    causes = judge(s, only=_DAEMON_CAUSES).findings
    if causes:
        return tuple(replace(f, severity=Severity.BLOCKER) for f in causes)
    c = s.container
    if c is None:
        status = s.probe("container")
        why = f"the probe ended with {status.status}: {status.detail}" if status else "it was not asked"
        return (_blocked("docker-daemon-unreachable", f"the docker daemon was not heard: {why}"),)
    if not c.daemon_reachable:
        evidence = [s.evidence("container.daemon_error"), s.evidence("container.docker_host")]
        text = f"the docker daemon was not heard: {c.daemon_error or 'no answer'}"
        return (_blocked("docker-daemon-unreachable", text, evidence),)
    number = version_tuple(c.daemon_version)
    if number is not None and number < FIRST_DAEMON and c.daemon_name != "Podman":
        text = f"the docker engine is {c.daemon_version}; the Dockerfile needs 20.10 or newer"
        return (_blocked("buildkit-missing", text, [s.evidence("container.daemon_version")]),)
    return ()


def _blocked(cause: str, text: str, evidence: list[Evidence] | None = None) -> Finding:
    return found(cause, Confidence.PROVEN, text, evidence or (), severity=Severity.BLOCKER)


def needs(target: Target) -> Needs | None:
    """What a whole build of the target needs by the table image_build; None when nobody has measured it."""
    for row in catalogue.table("image_build"):
        lock = (
            row["lock"] is None
            if target.python_lock is None
            else target.python_lock.startswith(row["lock"] or "!")
        )
        if row["dockerfile"] == target.dockerfile and lock:
            return Needs(int(row["room"]), int(row["memory"]))
    return None


def _room(s: Snapshot, engine: Engine, host: Host) -> Room | None:
    c = s.container
    if engine.kind == "docker":
        if c is None or not c.data_root:
            return None
        return Room(c.data_root, c.data_free_bytes, c.sources.get("data_free_bytes", "docker /info"))
    answer = host.run([engine.path, "info", "--format", "{{.Store.GraphRoot}}"], timeout=CLIENT_S)
    folder = answer.stdout.strip()
    if not answer.ok or not folder.startswith("/"):
        return None
    room = host.statvfs(folder)
    return Room(folder, room.f_bavail * room.f_frsize if room else None, f"statvfs {folder}")


def _short_of_room(room: Room | None, need: int) -> Finding | None:
    if room is None or room.free is None or room.free >= need:
        return None
    text = (
        f"{room.folder} has {room.free / GIB:.1f} GiB left; a whole build needs about {need / GIB:.0f} GiB there"
    )
    evidence = [
        Evidence("container.data_free_bytes", f"{room.free / GIB:.1f} GiB", room.source),
        Evidence("needed", f"{need / GIB:.0f} GiB", "table image_build"),
    ]
    finding = _blocked("docker-data-root-full", text, evidence)
    cached = Remedy("Or, when most layers are in the engine's cache already: --ignore-room")
    return replace(finding, fixes=(*finding.fixes, cached))
