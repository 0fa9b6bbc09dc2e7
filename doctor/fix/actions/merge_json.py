"""Sets keys of a JSON file and leaves every other key, their order and the indentation as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from doctor.fix.actions.write_file import WriteFile, read_original
from doctor.fix.errors import ActionError
from doctor.host.access import Host

T = TypeVar("T", bound="MergeJson")


class MergeJson(WriteFile):
    """A file of JSON."""

    kind: ClassVar[str] = "merge_json"

    @classmethod
    def merge(cls: type[T], host: Host, path: str, patch: Mapping[str, Any], **rest: Any) -> T:
        """Sets the keys of ``patch``, nested objects key by key; None removes a key."""
        original = read_original(host, path)
        return cls(path=path, original=original, content=merged(path, original, patch), **rest)


def merged(path: str, original: bytes | None, patch: Mapping[str, Any]) -> bytes:
    """The file's new bytes. Raises ActionError when it is not a JSON object."""
    text = (original or b"").decode("utf-8-sig", "replace")
    document: Any = {}
    if text.strip():
        try:
            document = json.loads(text, object_pairs_hook=_no_twins)
        except (ValueError, RecursionError) as error:
            raise ActionError(f"{path} is not valid JSON ({error}), so nothing is merged into it") from None
        if not isinstance(document, dict):
            raise ActionError(f"{path} holds no JSON object, so nothing is merged into it")
    changed = _merge(document, patch)
    if text.strip() and changed == document:
        return original or b""
    return (json.dumps(changed, indent=_indent(text), ensure_ascii=False) + "\n").encode()


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twin = next((n for n in names if names.count(n) > 1), None)
    if twin is not None:  # one of the two would be lost without a word
        raise ValueError(f"the key {twin!r} is there twice")
    return dict(pairs)


def _merge(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(document)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            inner = out.get(key)
            out[key] = _merge(inner if isinstance(inner, dict) else {}, value)
        else:
            out[key] = value
    return out


def _indent(text: str) -> int | str:
    match = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    if match is None:
        return 4
    return "\t" if match[1].startswith("\t") else len(match[1])


#: A string, or a comment, or a comma before a closing bracket: what a person leaves in JSON by mistake.
_SLIPS = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|(?m:^[ \t]*#[^\n]*)|/\*[\s\S]*?\*/|,(?=\s*(?:[}\]]))')


def repaired(data: bytes) -> bytes | None:
    """The same settings as valid JSON when only comments, a comma too many or a byte order mark stand in the way.

    None when that does not help: nothing is guessed.
    """
    text = data.decode("utf-8-sig", "replace")
    before = None
    while before != text:  # a comment may stand between a comma and the bracket
        before, text = text, _SLIPS.sub(lambda m: m[1] or "", text)
    try:
        document = json.loads(text, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    return (json.dumps(document, indent=_indent(text), ensure_ascii=False) + "\n").encode()
