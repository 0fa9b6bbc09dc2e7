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
_QUOTE = re.compile(r"(?:>[ \t]?){1,6}")
_KUBECTL = re.compile(r"\[(?:pod|deployment|service)/[^\]\s]{1,200}\][ \t]")  # kubectl logs --prefix
_COMPOSE = re.compile(r"[\w.-]{1,80}[ \t]+\|[ \t]")
_STAMP = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?[ \t]+"
    r"(?:\|[ \t]|std(?:out|err) [FP] )?"  # Docker Desktop; the log files of Kubernetes
)
_SYSLOG = re.compile(
    r"[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d [\w.-]{1,80} [\w./@() -]{1,80}?(?:\[\d{1,9}\])?: "
)
_KERNEL = re.compile(r"(?:<\d{1,3}>)?\[ {0,8}\d{1,9}\.\d{3,6}\][ \t]")  # seconds since boot
_DMESG_T = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\][ \t]")
_KERNEL_NAME = re.compile(r"kernel: ")
_RANK = re.compile(r"\[rank\d{1,5}\]:(?:\[[EWIV]\d{3,4} [\d:.]{8,20} [\w./-]{1,80}:\d{1,6}\])?[ \t]?")  # torch

_NCCL = re.compile(r"[\w.-]{1,64}:\d{1,8}:\d{1,8} \[\d{1,3}\] ")  # host:pid:thread [rank]

_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SMALL = _CAPITALS.lower()
#: What a line can start with, by its first character.
_BY_START: dict[str, tuple[re.Pattern[str], ...]] = {
    ">": (_QUOTE,),
    "[": (_KERNEL, _RANK, _DMESG_T, _KUBECTL),
    "<": (_KERNEL,),
    "(": (_PROCESS,),
    **dict.fromkeys("0123456789", (_STAMP, _COMPOSE, _NCCL)),
    **dict.fromkeys(_CAPITALS, (_LEVEL, _SYSLOG, _COMPOSE, _NCCL)),
    **dict.fromkeys(_SMALL, (_COMPOSE, _NCCL)),
    "k": (_KERNEL_NAME, _COMPOSE, _NCCL),
}


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
        body = text if prefixed else text.lstrip(" \t")
        found = next((m for p in _BY_START.get(body[:1], ()) if (m := p.match(body))), None)
        if found is None:
            break
        if found.re is _LEVEL:
            level, module = found[1], found[2] or found[3]
        elif found.re is _PROCESS:
            process = found[1]
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
