"""The kernel's own log: the few lines that explain a GPU or memory failure. Anything else is dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from doctor.facts import KernelEvent
from doctor.host.access import Host

#: Bytes of log looked at; the ring buffer of a kernel is rarely above 1 MiB.
LIMIT = 4 << 20

#: Events kept; a broken card can log thousands.
MOST = 40

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\)\s*:\s*(?P<code>\d+)(?P<rest>.*)")
_XID_NAME = re.compile(r"name=(?P<name>[^,<]+)")
_KILLED = re.compile(r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)")
_BOOT = re.compile(r"\bLinux version \d")
_CONTROL = re.compile(r"[^\x20-\x7e]+")


def read(host: Host) -> tuple[tuple[KernelEvent, ...] | None, str]:
    """The telling lines since the last boot and where they were read; None when no log can be read."""
    for source, text in _texts(host):
        if text is not None:
            return parse(text, source), source
    return None, ""


def _texts(host: Host) -> Iterator[tuple[str, str | None]]:
    """Possible logs, each read only when the one before could not be."""
    yield "/dev/kmsg", host.read("/dev/kmsg", LIMIT)
    dmesg, tail = host.which("dmesg"), host.which("tail")
    if dmesg:
        result = host.run([dmesg], timeout=1.0, limit=LIMIT)
        yield "dmesg", result.stdout if result.ok and result.stdout else None
    if tail and host.exists("/var/log/kern.log"):
        result = host.run([tail, "-c", str(LIMIT), "/var/log/kern.log"], timeout=1.0, limit=LIMIT)
        yield "/var/log/kern.log", _since_boot(result.stdout) if result.ok else None


def _since_boot(text: str) -> str:
    """A file holds older boots too, whose events say nothing about now."""
    starts = [m.start() for m in _BOOT.finditer(text)]
    return text[starts[-1] :] if starts else text


def parse(text: str, source: str) -> tuple[KernelEvent, ...]:
    """Xids, out-of-memory kills, refusals of WSL's GPU driver and other messages of the NVIDIA driver.

    The newest are kept; a line that repeats (but for its time) counts once.
    """
    events: dict[tuple[str, int | None, str], KernelEvent] = {}
    for line in text.splitlines():
        if len(line) > 2000:
            continue
        event = _event(line, source)
        if event is None:
            continue
        key = (event.kind, event.code, re.sub(r"\d+", "#", event.text))
        events.pop(key, None)
        events[key] = event
    return tuple(events.values())[-MOST:]


def _event(line: str, source: str) -> KernelEvent | None:
    if "NVRM: Xid" in line:
        match = _XID.search(line)
        if match:
            name = _XID_NAME.search(match["rest"])
            process = name["name"].strip() if name else None
            return KernelEvent("xid", _clean(match[0]), int(match["code"][:6]), process, source)
    if "Killed process" in line and ("ut of memory" in line or "oom" in line.lower()):
        match = _KILLED.search(line)
        if match:
            return KernelEvent(
                "oom-kill", _clean(line[line.find("ut of memory") - 1 :]), None, match["name"], source
            )
    if "dxgk" in line and "make_resident" in line:
        return KernelEvent("dxg-make-resident", _clean(line[line.find("dxgk") :]), None, None, source)
    if "NVRM:" in line and "loading NVIDIA" not in line:
        return KernelEvent("nvrm", _clean(line[line.find("NVRM:") :]), None, None, source)
    return None


def _clean(text: str) -> str:
    return _CONTROL.sub(" ", text).strip()[:300]
