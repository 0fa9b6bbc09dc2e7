"""One raw line -> its message and what its prefixes told.

Prefixes come in any combination: quotes of a bug report, `docker compose`, Kubernetes and journald
stamps, kernel time, Ray and vLLM process names, vLLM's own "LEVEL date [file:line]".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

#: Characters of one line that are looked at. What matters is said in far fewer.
LONGEST = 8192


@dataclass(frozen=True)
class Line:
    """``text`` is the message without prefixes; ``level`` and ``module`` are vLLM's, when it has them."""

    number: int
    text: str
    raw: str
    level: str | None = None
    module: str | None = None
    process: str | None = None
    prefixed: bool = False  # had any prefix: it starts a message rather than continuing one


_LEVEL = re.compile(
    r"(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})? "
    r"(?:\[([\w./-]{1,120}:\d{1,6})\]|([\w./-]{1,120}:\d{1,6})\]) ?"
)
_PROCESS = re.compile(r"\(([A-Za-z][\w .:-]{0,60}?(?:pid|rank|ip|local_rank)=[^()]{1,80})\)[ \t]?")
_PREFIXES = (
    re.compile(r"(?:>[ \t]?){1,6}"),  # quote
    re.compile(r"\[(?:pod|deployment|service)/[^\]\s]{1,200}\][ \t]"),  # kubectl logs --prefix
    re.compile(r"[\w.-]{1,80}[ \t]+\|[ \t]"),  # docker compose
    re.compile(
        re.compile(
            r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?[ \t]+(?:\|[ \t]|std(?:out|err) [FP] )?"
        ),
    ),
    re.compile(
        r"[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d [\w.-]{1,80} [\w./@() -]{1,80}?(?:\[\d{1,9}\])?: "
    ),  # syslog
    re.compile(r"(?:<\d{1,3}>)?\[ {0,8}\d{1,9}\.\d{3,6}\][ \t]"),  # kernel, seconds
    re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\][ \t]"),  # dmesg -T
    re.compile(r"kernel: "),
    re.compile(r"\[rank\d{1,5}\]:(?:\[[EWIV]\d{3,4} [\d:.]{8,20} [\w./-]{1,80}:\d{1,6}\])?[ \t]?"),  # torch
    _PROCESS,
)
_STARTS = re.compile(r"[\s>\[(<A-Za-z0-9{]")


def strip(raw: str, number: int = 0) -> Line:
    """Takes the prefixes off. Never fails; a line without any comes back as it is."""
    raw = raw.rstrip("\r\n")
    if "\r" in raw:  # what a redrawn line showed last
        raw = next((part for part in reversed(raw.split("\r")) if part.strip()), "")
    text = raw[:LONGEST]
    level = module = process = None
    prefixed = False
    if text.startswith('{"') and '"log"' in text[:4096]:
        text = _docker_json(text) or text
    for _ in range(12):
        body = text.lstrip(" \t") if prefixed is False else text
        if not body or not _STARTS.match(body):
            break
        found = _LEVEL.match(body)
        if found:
            level, module = found[1], found[2] or found[3]
        else:
            found = next((m for p in _PREFIXES if (m := p.match(body))), None)
            if found and found.re is _PROCESS:
                process = found[1]
        if not found or found.end() == 0:
            break
        text, prefixed = body[found.end() :], True
    return Line(number, text, raw, level, module, process, prefixed)


def _docker_json(text: str) -> str | None:
    """The message of one line of Docker's json-file log."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    message = data.get("log") if isinstance(data, dict) else None
    return message.rstrip("\n") if isinstance(message, str) else None
