"""Who listens on a TCP port: read from /proc, as ``ss -ltnp`` does."""

from __future__ import annotations

import posixpath
import re
import struct
from ipaddress import ip_address

from doctor.host.access import Host
from doctor.host.parts import Read

_LISTEN = "0A"
#: Bytes of each socket table. The kernel lists listening sockets first.
_TABLE_LIMIT = 8 << 20
#: Clock ticks a second in /proc/PID/stat: 100 on every Linux that runs vLLM (``getconf CLK_TCK``).
_TICKS = 100.0


def facts(host: Host, port: int) -> dict[str, Read]:
    """``port_taken`` and, when it may be known, ``port_listener``, its pid and age in seconds."""
    tables = {p: host.read(p, _TABLE_LIMIT) for p in ("/proc/net/tcp", "/proc/net/tcp6")}
    readable = {p: text for p, text in tables.items() if text and "local_address" in text[:200]}
    if not readable:
        return {}
    for path, text in readable.items():
        for address, inode in _listening(text, port):
            found = {"port_taken": Read(True, path), "port_address": Read(address, path)}
            pid = _owner(host, inode)
            return {**found, **_process(host, pid)} if pid else found
    return {"port_taken": Read(False, ", ".join(readable))}


def owners(host: Host, port: int) -> set[int]:
    """The processes that listen on the port, as far as this user may know."""
    texts = [host.read(path, _TABLE_LIMIT) or "" for path in ("/proc/net/tcp", "/proc/net/tcp6")]
    pids = {_owner(host, inode) for text in texts for _, inode in _listening(text, port)}
    return {pid for pid in pids if pid is not None}


def _listening(text: str, port: int) -> list[tuple[str, str]]:
    """(address, inode) of the listening sockets on a port."""
    rows = re.findall(
        rf"^ *\d+: ([0-9A-F]{{8}}|[0-9A-F]{{32}}):{port:04X} [0-9A-F]+:0000 {_LISTEN} "
        r"\S+ \S+ \S+ +\d+ +\d+ (\d+)",
        text,
        re.M,
    )
    return [(f"{_address(raw)}:{port}", inode) for raw, inode in rows]


def _address(raw: str) -> str:
    """The kernel writes addresses as 32-bit words in the machine's byte order."""
    words = [int(raw[i : i + 8], 16) for i in range(0, len(raw), 8)]
    text = str(ip_address(b"".join(struct.pack("=I", w) for w in words)))
    return f"[{text}]" if ":" in text else text


def _owner(host: Host, inode: str) -> int | None:
    """The process that holds a socket. Other users' processes are visible to root only."""
    wanted = f"socket:[{inode}]"
    for pid in sorted((n for n in host.listdir("/proc") if n.isdigit()), key=int):
        for fd in host.listdir(f"/proc/{pid}/fd"):
            target = host.readlink(f"/proc/{pid}/fd/{fd}")
            if target and target.endswith(wanted):
                return int(pid)
    return None


def _process(host: Host, pid: int) -> dict[str, Read]:
    folder = f"/proc/{pid}"
    words = [w for w in (host.read(f"{folder}/cmdline", 1 << 14) or "").split("\0") if w]
    comm = (host.read(f"{folder}/comm", 64) or "").strip()
    facts = {"port_listener_pid": Read(pid, f"{folder}/fd")}
    name = program(comm, words)
    if name:
        facts["port_listener"] = Read(name, f"{folder}/cmdline")
        facts["port_listener_is_vllm"] = Read("vllm" in name.lower(), f"{folder}/cmdline")
    age = _age(host, pid)
    if age is not None:
        facts["port_listener_age_s"] = Read(age, f"{folder}/stat")
    return facts


def program(comm: str, words: list[str]) -> str:
    """What runs, never with its arguments: ``vllm``, ``python3 -m http.server``, ``docker-proxy``."""
    first = posixpath.basename(words[0]) if words else comm
    if not re.match(r"python[\d.]*$", first):
        return (first.split(" ")[0] or comm)[:60]
    for index, word in enumerate(words[1:], 1):
        if word == "-m" and len(words) > index + 1:
            return f"{first} -m {words[index + 1]}"[:80]
        if not word.startswith("-"):
            return (
                posixpath.basename(word)[:60]
                if index == 1 or words[index - 1] not in ("-W", "-X", "-c")
                else first
            )
    return first


def _age(host: Host, pid: int) -> float | None:
    stat = host.read(f"/proc/{pid}/stat", 4096) or ""
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    uptime = re.match(r"(\d{1,15}(?:\.\d+)?) ", host.read("/proc/uptime", 256) or "")
    if len(fields) < 20 or not fields[19].isdigit() or uptime is None:
        return None
    return max(0.0, round(float(uptime[1]) - int(fields[19]) / _TICKS, 1))
