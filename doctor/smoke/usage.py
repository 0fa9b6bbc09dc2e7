"""How much memory a server of our own holds, and how much is left beside it.

On a card: what NVML says of the server's processes, else (under WSL2, in a container) of the whole card that
it uses. On a CPU: anonymous resident memory of all its processes; pages of files are shared and come and go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from doctor.checks.gpu_common import visible
from doctor.host import Host
from doctor.serve import supervisor
from doctor.smoke import profile
from doctor.smoke.probes import Session
from doctor.snapshot import Snapshot

PROCESSES, CARD, RESIDENT = "its processes on the card", "the whole card", "resident memory of its processes"


@dataclass(frozen=True)
class Usage:
    """Bytes. ``how`` says what was read; figures of two readings compare only when it is the same."""

    how: str
    used_bytes: int
    free_bytes: int | None = None  # left on the card, or available on the host


def read(session: Session) -> Usage | None:
    """Memory now; None when it cannot be told (a server elsewhere, no driver)."""
    if session.host is None or session.pid is None:
        return None
    pids = {session.pid, *supervisor.living(session.pid, session.pid, "none")}
    if session.cpu:
        return _resident(session.host, pids)
    return _on_cards(profile.look(session.host), pids)


def _on_cards(snapshot: Snapshot, pids: set[int]) -> Usage | None:
    held = [
        (g, p.used_bytes) for g in snapshot.gpus or () for p in g.processes or () if p.pid in pids and p.used_bytes
    ]
    if held:
        free = [g.free_bytes for g, _ in held if g.free_bytes is not None]
        return Usage(PROCESSES, sum(used or 0 for _, used in held), min(free, default=None))
    cards = visible(snapshot)
    if not cards or cards[0].used_bytes is None:
        return None
    return Usage(CARD, cards[0].used_bytes, cards[0].free_bytes)


def _resident(host: Host, pids: set[int]) -> Usage | None:
    total = sum(_kib(host.read(f"/proc/{pid}/status") or "", "RssAnon") for pid in pids)
    available = _kib(host.read("/proc/meminfo") or "", "MemAvailable")
    return Usage(RESIDENT, total, available or None) if total else None


def _kib(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.M)
    return int(match[1]) * 1024 if match else 0
