"""Sets keys of an ini file such as /etc/wsl.conf and leaves every other line as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from doctor.fix.actions.write_file import WriteFile, read_original
from doctor.host.access import Host

T = TypeVar("T", bound="MergeIni")


class MergeIni(WriteFile):
    """An ini file with sections."""

    kind: ClassVar[str] = "merge_ini"

    @classmethod
    def merge(cls: type[T], host: Host, path: str, section: str, values: Mapping[str, str], **rest: Any) -> T:
        """Sets ``values`` in ``[section]``."""
        original = read_original(host, path)
        return cls(path=path, original=original, content=merged(original, section, values), **rest)


def merged(original: bytes | None, section: str, values: Mapping[str, str]) -> bytes:
    """The file's new bytes; section and keys are compared without regard to case, as WSL does."""
    text = (original or b"").decode("utf-8", "surrogateescape")
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _section(line) == section.lower()), None)
    if start is None:
        if lines and lines[-1].strip():
            lines.append("")
        lines.append(f"[{section}]")
        start = len(lines) - 1
    for name, value in values.items():
        end = next((i for i in range(start + 1, len(lines)) if _section(lines[i]) is not None), len(lines))
        at = next((i for i in range(start + 1, end) if _key(lines[i]) == name.lower()), None)
        if at is not None:
            lines[at] = f"{name}={value}"
        else:
            while end > start + 1 and not lines[end - 1].strip():
                end -= 1  # above the blank lines that close the section
            lines.insert(end, f"{name}={value}")
    return "".join(line + ending for line in lines).encode("utf-8", "surrogateescape")


def _section(line: str) -> str | None:
    match = re.match(r"\s*\[([^\]]+)\]", line)
    return match[1].strip().lower() if match else None


def _key(line: str) -> str:
    return "" if line.lstrip().startswith(("#", ";")) else line.partition("=")[0].strip().lower()
