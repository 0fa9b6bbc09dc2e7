"""Collects facts while texts are read, and remembers where two texts contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from doctor.facts import (
    ContainerFacts,
    DriverFacts,
    GpuFacts,
    PythonFacts,
    ServingFacts,
    StorageFacts,
    SystemFacts,
    ToolchainFacts,
    WslFacts,
)
from doctor.snapshot import Event

_CLASSES: dict[str, Any] = {
    "system": SystemFacts,
    "wsl": WslFacts,
    "toolchain": ToolchainFacts,
    "driver": DriverFacts,
    "container": ContainerFacts,
    "python": PythonFacts,
    "storage": StorageFacts,
    "serving": ServingFacts,
}
#: Facts that cannot have two values on one machine in one run: a second value is a contradiction.
_SINGLE = {
    ("system", "glibc"),
    ("driver", "version"),
    ("python", "torch"),
    ("python", "torch_cuda"),
    ("serving", "vllm"),
}


@dataclass
class FactBuilder:
    """``put`` keeps the first value of a fact; ``replace`` the last (figures of the latest run)."""

    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: dict[str, dict[str, str]] = field(default_factory=dict)
    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    gpu_sources: dict[int, dict[str, str]] = field(default_factory=dict)
    conflicts: list[Event] = field(default_factory=list)

    def get(self, domain: str, name: str) -> Any:
        """The value known so far, or None."""
        return self.values.get(domain, {}).get(name)

    def put(self, domain: str, name: str, value: Any, source: str, *, replace: bool = False) -> None:
        """Records one fact. None is ignored; a contradiction is noted."""
        if value is None:
            return
        known = self.get(domain, name)
        if known is not None and not _agree(known, value):
            if (domain, name) in _SINGLE:
                text = f"{domain}.{name}: {known} here, {value} there"
                values = {"fact": f"{domain}.{name}", "first": str(known), "second": str(value)}
                if not any(c.values == values for c in self.conflicts):
                    self.conflicts.append(Event("contradiction", source, text, _line(source), values))
            if not replace:
                return
        elif known is not None and len(str(known)) >= len(str(value)) and not replace:
            return
        self.values.setdefault(domain, {})[name] = value
        self.sources.setdefault(domain, {})[name] = source

    def merge(self, domain: str, name: str, more: Mapping[str, str], source: str) -> None:
        """Adds entries to a mapping fact such as ``packages`` or ``env``; entries that exist stay."""
        known = self.values.setdefault(domain, {}).setdefault(name, {})
        for key, value in more.items():
            known.setdefault(key, value)
        self.sources.setdefault(domain, {}).setdefault(name, source)

    def gpu(self, index: int, source: str, **facts: Any) -> None:
        """Records facts of one card; the first value of each stays."""
        card = self.gpus.setdefault(index, {})
        for name, value in facts.items():
            if value is not None and name not in card:
                card[name] = value
                self.gpu_sources.setdefault(index, {})[name] = source

    def snapshot_fields(self) -> dict[str, Any]:
        """The facts classes that have at least one fact, by snapshot field."""
        result: dict[str, Any] = {}
        for domain, cls in _CLASSES.items():
            values = self.values.get(domain)
            if values:
                known = {f.name for f in fields(cls)}
                result[domain] = cls(
                    **{k: v for k, v in values.items() if k in known}, sources=self.sources.get(domain, {})
                )
        if self.gpus:
            result["gpus"] = tuple(
                GpuFacts(index=i, **self.gpus[i], sources=self.gpu_sources.get(i, {})) for i in sorted(self.gpus)
            )
        return result


def _agree(one: Any, other: Any) -> bool:
    """Equal, or one a longer spelling of the other ("2.11.0" and "2.11.0+cu130")."""
    if one == other:
        return True
    if isinstance(one, str) and isinstance(other, str):
        short, long = sorted((one, other), key=len)
        return long.startswith(short) and not long[len(short)].isdigit() if short else False
    return False


def _line(source: str) -> int | None:
    number = source.rpartition(":")[2]
    return int(number) if number.isdigit() else None
