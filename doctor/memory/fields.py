"""Reads values out of a ``config.json`` and says exactly which key is wrong when one is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doctor.errors import DoctorError

#: No dimension of a real model comes near this; larger means a corrupt or hostile file.
_LIMIT = 1 << 40
#: Layers are built one by one, so their number is bounded more tightly.
MOST_LAYERS = 10_000


class ConfigError(DoctorError):
    """The model's files cannot be used for sizing; one line says which file or key and why."""


class Fields:
    """One JSON object with a name for messages. Later objects are asked when an earlier one lacks a key."""

    def __init__(self, name: str, *objects: Mapping[str, Any]) -> None:
        self.name = name
        self._objects = objects

    def get(self, *keys: str) -> Any:
        """The first value that is present and not null under any of ``keys``; None when there is none."""
        for key in keys:
            for data in self._objects:
                if data.get(key) is not None:
                    return data[key]
        return None

    def has(self, key: str) -> bool:
        """True when the key is present with a value that is not null."""
        return self.get(key) is not None

    def integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = _LIMIT) -> int:
        """A whole number of at least ``least``. Without ``default`` the key has to be there."""
        value = self.get(*keys)
        if value is None:
            if default is None:
                raise ConfigError(f"{self.name}: key {keys[0]!r} is missing")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.name}: {keys[0]} should be a whole number, is {_shown(value)}")
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most:,}"
            raise ConfigError(f"{self.name}: {keys[0]} = {_shown(value)} is out of range ({bound})")
        return value

    def share(self, *keys: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self.get(*keys)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ConfigError(f"{self.name}: {keys[0]} should be a number from 0 to 1, is {_shown(value)}")
        return float(value)

    def flag(self, *keys: str, default: bool = False) -> bool:
        """A boolean."""
        value = self.get(*keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.name}: {keys[0]} should be true or false, is {_shown(value)}")
        return value

    def text(self, *keys: str, default: str | None = None) -> str:
        """A string."""
        value = self.get(*keys)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise ConfigError(f"{self.name}: {keys[0]} should be text, is {_shown(value)}")
        return value

    def texts(self, *keys: str) -> tuple[str, ...] | None:
        """A list of strings, or None when the key is absent."""
        value = self.get(*keys)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ConfigError(f"{self.name}: {keys[0]} should be a list of names")
        return tuple(value)

    def integers(self, *keys: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or None when the key is absent."""
        value = self.get(*keys)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise ConfigError(f"{self.name}: {keys[0]} should be a list of whole numbers")
        return tuple(value)

    def nested(self, key: str) -> Mapping[str, Any] | None:
        """A JSON object, or None when the key is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(f"{self.name}: {key} should be an object, is {_shown(value)}")
        return value

    def inner(self, key: str) -> Fields:
        """The object under ``key``, asked before this one."""
        return Fields(f"{self.name}.{key}", self.nested(key) or {}, *self._objects)

    def divides(self, total: int, part: int, what: str) -> int:
        """``total // part``, refusing a remainder with ``what`` as the explanation."""
        if part <= 0 or total % part:
            raise ConfigError(f"{self.name}: {what} ({total} / {part} is not whole)")
        return total // part


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
