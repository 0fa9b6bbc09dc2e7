"""How much memory a server of our own holds, and how much is left beside it.

On a card: what NVML says of the server's processes, else (under WSL2, in a container) of the whole card that
vLLM uses. On a CPU: anonymous resident memory of all its processes; pages of files are shared and come and go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from doctor.facts import GpuFacts
from doctor.host import Host
from doctor.serve import supervisor
from doctor.smoke.probes import Session

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
    gpus = cards(session.host)
    return _on_cards(gpus, pids, session.host) if gpus else None


def cards(host: Host) -> tuple[GpuFacts, ...]:
    """The cards as the driver tells; () when there is none or it does not answer."""
    from doctor.host.examine import Options
    from doctor.host.gpu import probe

    try:
        return tuple(probe(host, Options()).get("gpus", ()))
    except (OSError, RuntimeError, TimeoutError):
        return ()


def used_card(gpus: tuple[GpuFacts, ...], host: Host) -> GpuFacts | None:
    """The card that a server of one card uses: the first that CUDA_VISIBLE_DEVICES leaves, in NVML's order."""
    first = host.env.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if not first:
        return gpus[0] if gpus else None
    if first.isdigit():
        return next((g for g in gpus if g.index == int(first)), None)
    return next((g for g in gpus if g.uuid and g.uuid.startswith(first)), None)


def _on_cards(gpus: tuple[GpuFacts, ...], pids: set[int], host: Host) -> Usage | None:
    held = [(g, p.used_bytes) for g in gpus for p in g.processes or () if p.pid in pids and p.used_bytes]
    if held:
        free = [g.free_bytes for g, _ in held if g.free_bytes is not None]
        return Usage(PROCESSES, sum(used or 0 for _, used in held), min(free, default=None))
    card = used_card(gpus, host)
    if card is None or card.used_bytes is None:
        return None
    return Usage(CARD, card.used_bytes, card.free_bytes)


def _resident(host: Host, pids: set[int]) -> Usage | None:
    total = sum(_kib(host.read(f"/proc/{pid}/status") or "", "RssAnon") for pid in pids)
    available = _kib(host.read("/proc/meminfo") or "", "MemAvailable")
    return Usage(RESIDENT, total, available or None) if total else None


def _kib(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.M)
    return int(match[1]) * 1024 if match else 0
