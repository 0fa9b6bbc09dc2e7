"""``config.json`` to a validated :class:`ModelShape`. An unknown architecture is refused by its name."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doctor.memory.families import Source, builders
from doctor.memory.fields import ConfigError, Fields
from doctor.memory.shape import ModelShape

#: Published config.json files are a few KB; the largest (with per-module quantisation lists) stay under 1 MB.
LARGEST_CONFIG_BYTES = 16 << 20


def read_json(path: Path, largest: int = LARGEST_CONFIG_BYTES) -> dict[str, Any]:
    """One JSON object from a file. Raises :class:`ConfigError` with one line that says what is wrong."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # a pipe would be waited for, a device may never end
            raise ConfigError(f"{path} is not a regular file")
        size = about.st_size
        if size > largest:
            raise ConfigError(f"{path} is {size:,} bytes; a file of this kind has at most {largest:,}: not read")
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON ({_json_problem(error)})") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: should hold one JSON object, holds a {type(data).__name__}")
    return data


def _json_problem(error: Exception) -> str:
    return "a number with too many digits" if "int_max_str_digits" in str(error) else str(error)


def shape_of(data: Mapping[str, Any], name: str) -> ModelShape:
    """The model's shape. ``name`` is used in messages. Raises :class:`ConfigError`."""
    root = Fields(name, data)
    architectures = root.texts("architectures")
    if not architectures:
        raise ConfigError(f"{name}: key 'architectures' is missing; is this the model's own config.json?")
    architecture = architectures[0]
    known = builders()
    builder = known.get(architecture)
    if builder is None:
        import difflib  # only to help a typo

        near = difflib.get_close_matches(architecture, known, n=1, cutoff=0.8)
        hint = f"; the nearest known one is {near[0]}" if near else ""
        raise ConfigError(f"{name}: architecture {architecture!r} is not known, and sizes are never guessed{hint}")
    inner = root.nested("text_config")
    text = Fields(f"{name} (text_config)", inner, data) if inner is not None else root
    return builder(Source(name, architecture, text, root))
