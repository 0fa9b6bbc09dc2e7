"""Frozen dataclasses to plain JSON values and back, by their type hints.

Supports what facts use: dataclasses, ``X | None``, ``tuple[X, ...]``, ``Mapping[str, X]``, enums and
JSON scalars. Unknown keys are ignored (a newer doctor wrote them); a wrong type is an error that names
the path.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class DecodeError(ValueError):
    """A JSON value does not fit the declared type; the message names the path inside the document."""


def encode(value: Any) -> Any:
    """Returns ``value`` as JSON-ready dicts, lists and scalars; fields at their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != field.default
            and (
                field.default_factory is dataclasses.MISSING
                or getattr(value, field.name) != field.default_factory()
            )
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list, frozenset, set)):
        return [encode(v) for v in value]
    if isinstance(value, collections.abc.Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def field_names(cls: type, part: str) -> frozenset[str]:
    """The names inside field ``part`` of ``cls``; empty when there is no such field or it holds no dataclass."""
    hint = _hints(cls).get(part)
    while hint is not None and not dataclasses.is_dataclass(hint):
        hint = next(iter(typing.get_args(hint)), None)  # X | None, tuple[X, ...]
    return frozenset(f.name for f in dataclasses.fields(hint)) if hint is not None else frozenset()


def decode(cls: type[T], data: Any, path: str = "$") -> T:
    """Builds ``cls`` from what :func:`encode` made. Raises :class:`DecodeError`."""
    return typing.cast(T, _decode(cls, data, path))


def _decode(hint: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if hint is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        options = [a for a in args if a is not type(None)]
        errors = []
        for option in options:
            try:
                return _decode(option, data, path)
            except DecodeError as error:
                errors.append(str(error))
        raise DecodeError(errors[0])
    if origin is tuple:
        if not isinstance(data, list):
            raise DecodeError(f"{path}: expected a list, got {type(data).__name__}")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(args[0], v, f"{path}[{i}]") for i, v in enumerate(data))
        if len(args) != len(data):
            raise DecodeError(f"{path}: expected {len(args)} items, got {len(data)}")
        return tuple(_decode(a, v, f"{path}[{i}]") for i, (a, v) in enumerate(zip(args, data, strict=True)))
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(data, dict):
            raise DecodeError(f"{path}: expected an object, got {type(data).__name__}")
        return {str(k): _decode(args[1], v, f"{path}.{k}") for k, v in data.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, data, path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(data)
        except ValueError:
            raise DecodeError(f"{path}: {data!r} is not one of {[e.value for e in hint]}") from None
    return _scalar(hint, data, path)


def _decode_dataclass(cls: type, data: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise DecodeError(f"{path}: expected an object, got {type(data).__name__}")
    hints = _hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        if field.name in data:
            values[field.name] = _decode(hints[field.name], data[field.name], f"{path}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{path}: key {field.name!r} is missing")
    return cls(**values)


def _scalar(hint: Any, data: Any, path: str) -> Any:
    if hint is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        return float(data)
    if hint is int and isinstance(data, bool):
        raise DecodeError(f"{path}: expected a number, got a boolean")
    if isinstance(hint, type) and isinstance(data, hint):
        return data
    raise DecodeError(f"{path}: expected {getattr(hint, '__name__', hint)}, got {type(data).__name__}")
