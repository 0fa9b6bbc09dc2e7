"""Small things that several checks say alike."""

from __future__ import annotations


def size(count: int | float) -> str:
    """Bytes for people: "21.9 GiB", "640 MiB", "130 bytes"."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            value = count / unit
            return f"{value:.0f} {name}" if value >= 100 or value == int(value) else f"{value:.1f} {name}"
    return f"{count:.0f} bytes"


def age(seconds: float) -> str:
    """A span of time for people: "3 days", "5 hours", "12 minutes", "40 s"."""
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= unit:
            number = round(seconds / unit)
            return f"{number} {name}{'' if number == 1 else 's'}"
    return f"{seconds:.0f} s"


def on_windows_drive(path: str | None, fstype: str | None) -> bool:
    """True for a folder that WSL serves from Windows: by its file system, or below /mnt/<letter>."""
    if fstype in ("9p", "drvfs"):
        return True
    parts = (path or "").split("/")
    return fstype is None and len(parts) > 2 and parts[1] == "mnt" and len(parts[2]) == 1 and parts[2].isalpha()
