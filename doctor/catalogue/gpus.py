"""What is known of a card by its name, and of a driver by its version. Tables carry source and date."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from doctor.catalogue import table


@dataclass(frozen=True)
class GpuModel:
    """One row of the table of cards. ``bandwidth_gbs`` is the peak memory bandwidth in GB/s (10^9 bytes)."""

    pattern: str
    capability: str
    architecture: str
    vram_gib: tuple[int, ...]
    bandwidth_gbs: float | None


@cache
def models() -> tuple[GpuModel, ...]:
    """All known cards, the longest name first."""
    rows = [
        GpuModel(r["pattern"], r["capability"], r["architecture"], tuple(r["vram_gib"]), r["bandwidth_gbs"])
        for r in table("gpus")
    ]
    return tuple(sorted(rows, key=lambda r: -len(r.pattern)))


def lookup(name: str | None) -> GpuModel | None:
    """The card with this name, as the driver prints it or as people shorten it ("3090", "2080 ti"), or None.

    Laptop variants keep only what they share with the desktop card: capability and architecture.
    """
    if not name:
        return None
    words = _words(name)
    for model in models():
        if _contains(words, _words(model.pattern)) or _contains(words, _short(model.pattern)):
            if "laptop" in words or "mobile" in words or "max-q" in words:
                return GpuModel(model.pattern, model.capability, model.architecture, (), None)
            return model
    return None


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+(?:-q)?", re.sub(r"(\d)(ti|super)\b", r"\1 \2", name.lower())))


def _short(pattern: str) -> tuple[str, ...]:
    """ "GeForce RTX 2080 Ti" is also written "2080 Ti": only names that stay unmistakable are shortened."""
    words = _words(pattern)
    return words[2:] if words[:1] == ("geforce",) and len(words) > 2 and words[2].isdigit() else words


def _contains(words: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(words[i : i + len(part)] == part for i in range(len(words) - len(part) + 1))


def capability_tuple(text: str | None) -> tuple[int, int] | None:
    """ "8.6" as (8, 6); None when it is not known or malformed."""
    match = re.fullmatch(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def version_tuple(text: str | None) -> tuple[int, ...] | None:
    """A driver version such as "580.159.03" as numbers; None when there is none in the text."""
    match = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(p) for p in match[0].split(".")) if match else None


def cuda_of_driver(version: str | None, *, windows: bool = False) -> str | None:
    """The highest CUDA release whose own driver is not newer than this one, or None."""
    have = version_tuple(version)
    if have is None:
        return None
    for row in table("driver_cuda")["releases"]:
        need = version_tuple(row["windows"] if windows else row["linux"]) or version_tuple(row["linux"])
        if windows and row["windows"] is None and need:
            need = need[:1]  # no Windows figure is published: the branch stands
        if need and have >= need:
            return str(row["cuda"])
    return None


def minimum_driver(cuda: str | None, *, windows: bool = False) -> str | None:
    """The lowest driver that runs builds of this CUDA major ("13.0" -> "580.65.06"), or None.

    Within a major release an older driver of the family runs newer builds (minor version
    compatibility), so the family's first driver counts, not that of the exact release.
    """
    major = (version_tuple(cuda) or (0,))[0]
    for row in table("driver_cuda")["families"]:
        if row["major"] == major:
            return str(row["windows" if windows else "linux"])
    return None


def branch_driver(cuda: str | None) -> str | None:
    """The driver branch to install for a CUDA major, such as "580"."""
    minimum = minimum_driver(cuda)
    return minimum.split(".")[0] if minimum else None
