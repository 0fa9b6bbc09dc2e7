"""Names of distribution packages for remedies: what to install is data, how to ask for it is here."""

from __future__ import annotations

from doctor import catalogue
from doctor.snapshot import Snapshot


def family(snapshot: Snapshot) -> str | None:
    """Package manager of the examined host: "apt", "dnf", "zypper", "pacman"; None when not known."""
    system = snapshot.system
    if system is None:
        return None
    families = catalogue.table("packages")["families"]
    for os_id in (system.os_id, *system.os_like):
        for name, ids in families.items():
            if os_id and os_id.lower() in ids:
                return str(name)
    return None


def package(
    snapshot: Snapshot, *tools: str, major: int | None = None, python: str | None = None
) -> tuple[str, ...]:
    """Package names for tools of the table (``g++-major``, ``python-headers``, ``ninja``, ...).

    ``major`` is a gcc major, ``python`` a version such as "3.12.3". Empty when the distribution is not
    known, or when it has no such package for one of the tools.
    """
    manager = family(snapshot)
    names: list[str] = []
    minor = ".".join((python or "").split(".")[:2])
    for tool in tools:
        template = catalogue.table("packages")["names"][tool].get(manager) if manager else None
        if not template or ("{major}" in template and major is None) or ("{py" in template and not minor):
            return ()
        names += template.format(major=major, py=minor, pynodot=minor.replace(".", "")).split()
    return tuple(dict.fromkeys(names))


def install(
    snapshot: Snapshot, *tools: str, major: int | None = None, python: str | None = None
) -> tuple[tuple[str, ...], ...]:
    """Commands (argv) that install the tools on this host, with sudo unless root; empty when not known."""
    names = package(snapshot, *tools, major=major, python=python)
    manager = family(snapshot)
    if not names or manager is None:
        return ()
    root = snapshot.system is not None and snapshot.system.uid == 0
    start = () if root else ("sudo",)
    return ((*start, *catalogue.table("packages")["install"][manager], *names),)
