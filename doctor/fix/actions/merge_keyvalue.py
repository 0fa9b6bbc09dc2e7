"""Sets variables in a KEY=value file (an environment file) and leaves every other line as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from doctor.fix.actions.write_file import WriteFile, read_original
from doctor.host.access import Host

T = TypeVar("T", bound="MergeKeyValue")
_LINE = re.compile(r"^(\s*(?:export\s+)?)([A-Za-z_]\w*)=(.*)$")


class MergeKeyValue(WriteFile):
    """A file of KEY=value lines that a shell, docker's --env-file and systemd's EnvironmentFile= can read."""

    kind: ClassVar[str] = "merge_keyvalue"

    @classmethod
    def merge(
        cls: type[T], host: Host, path: str, values: Mapping[str, str | None], head: str = "", **rest: Any
    ) -> T:
        """Sets ``values``; None removes a variable. ``head`` is the comment of a new file."""
        original = read_original(host, path)
        return cls(path=path, original=original, content=merged(original, values, head), **rest)


def merged(original: bytes | None, values: Mapping[str, str | None], head: str = "") -> bytes:
    """The file's new bytes. A variable that is there several times is set in its last line, which counts."""
    text = head if original is None else original.decode("utf-8", "surrogateescape")
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    for name, value in values.items():
        places = [i for i, line in enumerate(lines) if (m := _LINE.match(line)) and m[2] == name]
        if value is None:
            lines = [line for i, line in enumerate(lines) if i not in places]
        elif places:
            match = _LINE.match(lines[places[-1]])
            lines[places[-1]] = f"{match[1] if match else ''}{name}={value}"
        else:
            lines.append(f"{name}={value}")
    return "".join(line + ending for line in lines).encode("utf-8", "surrogateescape")


def parse(text: str) -> dict[str, str]:
    """The variables of such a file."""
    return {m[2]: m[3].strip().strip("\"'") for line in text.splitlines() if (m := _LINE.match(line))}
