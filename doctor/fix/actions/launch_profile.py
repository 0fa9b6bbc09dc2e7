"""Sets options in a launch profile: the YAML file of ``vllm serve --config``, one ``option: value`` a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from doctor.fix.actions.write_file import WriteFile, read_original
from doctor.host.access import Host

T = TypeVar("T", bound="LaunchProfile")


class LaunchProfile(WriteFile):
    """Options at the top level of the file; nested ones and comments are left as they are."""

    kind: ClassVar[str] = "launch_profile"

    @classmethod
    def merge(cls: type[T], host: Host, path: str, values: Mapping[str, str], head: str = "", **rest: Any) -> T:
        """Sets ``values``, named as on the command line without the dashes."""
        original = read_original(host, path)
        return cls(path=path, original=original, content=merged(original, values, head), **rest)


def merged(original: bytes | None, values: Mapping[str, str], head: str = "") -> bytes:
    """The file's new bytes. vLLM takes ``max-model-len`` and ``max_model_len`` for the same option."""
    lines = (head if original is None else original.decode("utf-8", "surrogateescape")).splitlines()
    for name, value in values.items():
        pattern = re.compile(rf"^{re.escape(name).replace(chr(92) + '-', '[-_]')}\s*:")
        at = next((i for i, line in enumerate(lines) if pattern.match(line)), None)
        if at is None:
            lines.append(f"{name}: {value}")
        else:
            lines[at] = f"{lines[at].partition(':')[0]}: {value}"
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")
