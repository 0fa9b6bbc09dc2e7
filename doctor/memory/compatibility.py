"""Whether a card can run a quantisation format with a vLLM version: from the table, nothing assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from doctor.catalogue.loader import table
from doctor.memory.shape import Quantisation
from doctor.memory.versions import Switches


@dataclass(frozen=True)
class Support:
    """``ok`` is None when the card's capability is not known. ``why`` is one short phrase."""

    title: str
    ok: bool | None
    why: str
    native: bool | None = None


def capability_text(capability: tuple[int, int] | None) -> str:
    """ "7.5", or "not known"."""
    return "not known" if capability is None else f"{capability[0]}.{capability[1]}"


def quantisation_support(scheme: Quantisation | None, capability: tuple[int, int] | None,
                         version: Switches) -> Support:  # fmt: skip
    """Judges one format on one card."""
    if scheme is None:
        return Support("16 bit", True, "no quantisation")
    row: dict[str, Any] = table("quantization")[scheme.method]
    title = f"{row['title']} {scheme.bits} bit"
    if removed := row.get("removed_in"):
        from packaging.version import Version

        if Version(version.version) >= Version(removed):
            return Support(title, False, f"{row['title']} left vLLM with {removed}")
    least = row["min_capability"]
    for until, older in row.get("before", {}).items():
        from packaging.version import Version

        if Version(version.version) < Version(until):
            least = older
    if capability is None:
        return Support(title, None, f"needs compute capability {least}")
    if capability < _pair(least):
        return Support(
            title, False, f"needs compute capability {least}, this card has {capability_text(capability)}"
        )
    native = row.get("native")
    if native and capability < _pair(native):
        return Support(title, True, f"unpacked to 16 bit; native from {native}", native=False)
    return Support(title, True, f"from compute capability {least}", native=True if native else None)


def _pair(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def kv_dtype_problem(kv_cache_dtype: str, capability: tuple[int, int] | None) -> str:
    """Why this KV format cannot be recommended on this card, "" when nothing is known against it."""
    if kv_cache_dtype.startswith("fp8") and capability is not None and capability < (8, 9):
        return f"fp8 arithmetic needs compute capability 8.9, this card has {capability_text(capability)}"
    return ""
