"""Who holds memory on a card. The program's name and owner, never its arguments."""

from __future__ import annotations

import os
from typing import Any

from doctor.facts import GpuProcess
from doctor.host import isolation, nvml
from doctor.host.access import Host

_KINDS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)


def processes_of(host: Host, lib: Any, handle: Any, wsl: bool) -> tuple[GpuProcess, ...] | None:
    """Processes by descending memory; None when the driver does not tell.

    Under WSL2 (where Windows holds the card) and inside a container (whose processes alone are
    visible) an empty list does not mean that nobody uses the card.
    """
    container = isolation.in_container(host) is True
    found: dict[int, GpuProcess] = {}
    answered = False
    for kind, function in _KINDS:
        try:
            rows = list(getattr(lib, function)(handle))
        except Exception:  # noqa: BLE001, S112  not supported or odd: this kind is not known
            continue
        answered = True
        for row in rows[:200]:
            try:
                pid, used = nvml.number(row.pid), getattr(row, "usedGpuMemory", None)
            except Exception:  # noqa: BLE001, S112  a row that cannot be read
                continue
            if pid != os.getpid() and pid not in found:
                found[pid] = _process(host, pid, kind, used, container)
    if not answered or (not found and (wsl or container)):
        return None
    return tuple(sorted(found.values(), key=lambda p: (-(p.used_bytes or 0), p.pid)))


def _process(host: Host, pid: int, kind: str, used: Any, container: bool) -> GpuProcess:
    try:
        used_bytes: int | None = nvml.number(used)
    except TypeError:
        used_bytes = None  # "N/A" under WDDM
    if container:
        return GpuProcess(pid, used_bytes, None, kind)  # the number may belong to another PID namespace
    name = (host.read(f"/proc/{pid}/comm", 256) or "").strip()
    printable = "".join(c for c in name if c.isprintable())[:64]
    return GpuProcess(pid, used_bytes, printable or None, kind, _age(host, pid), _user(host, pid))


def _age(host: Host, pid: int) -> float | None:
    stat = host.read(f"/proc/{pid}/stat", 4096)
    boot = next(
        (line for line in (host.read("/proc/stat", 1 << 20) or "").splitlines() if line[:6] == "btime "), ""
    )
    try:
        ticks = int((stat or "").rpartition(")")[2].split()[19])  # field 22, counted after the name
        started = int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (IndexError, ValueError, OSError):
        return None
    return max(0.0, round(host.time() - started, 1))


def _user(host: Host, pid: int) -> str | None:
    """Whether it is ours; other people stay numbers."""
    stat = host.stat(f"/proc/{pid}")
    if stat is None:
        return None
    if stat.st_uid == os.getuid():
        return "yours"
    return "root" if stat.st_uid == 0 else f"user id {stat.st_uid}"
