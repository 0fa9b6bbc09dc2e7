"""Probe of the operating system: distribution, kernel, C library, CPU, memory, limits, identity.

Everything is read from files, so that a folder can stand for a host; no program is started unless the
C library cannot be found as a file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any

from doctor.facts import SystemFacts
from doctor.host import cgroup, isolation
from doctor.host.access import Host
from doctor.host.clock import clock_skew
from doctor.host.examine import Options
from doctor.host.parts import Read, bounded, gather, number

#: CPU features that vLLM's CPU kernels, torch and tokenizers choose code by.
FLAGS = (
    "sse4_2", "fma", "f16c", "avx", "avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile",
    "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip

#: Where distributions keep the C library. Its banner carries the version, so nothing has to run.
LIBC = (
    "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib64/libc.so.6",
    "/lib/aarch64-linux-gnu/libc.so.6", "/usr/lib/libc.so.6", "/lib/libc.so.6",
)  # fmt: skip
_ELF_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64", 0x15: "ppc64le", 0xF3: "riscv64", 0x16: "s390x"}


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """Returns ``{"system": SystemFacts}``."""
    parts = (
        _distribution, _kernel, _arch, _glibc, _cpu, _governors, _meminfo, _overcommit, _limits, _identity, _cwd,
        _shm, _locale, cgroup.facts, isolation.facts, _clock,
    )  # fmt: skip
    values, sources = gather(partial(part, host) for part in parts)
    return {"system": SystemFacts(**values, sources=sources)}


def _distribution(host: Host) -> dict[str, Read]:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        fields = os_release(host.read(path, 1 << 16) or "")
        if fields.get("ID"):
            return {
                "os_id": Read(fields["ID"].lower(), path),
                "os_version": Read(fields.get("VERSION_ID", ""), path),
                "os_name": Read(fields.get("PRETTY_NAME") or fields.get("NAME"), path),
                "os_like": Read(tuple(fields.get("ID_LIKE", "").lower().split()), path),
            }
    path = "/etc/redhat-release"  # CentOS 6 has nothing newer: "CentOS release 6.10 (Final)"
    old = re.match(r"(\w+)[\w ]*? release (\d+(?:\.\d+)*)", host.read(path, 4096) or "")
    return {"os_id": Read(old[1].lower(), path), "os_version": Read(old[2], path)} if old else {}


def os_release(text: str) -> dict[str, str]:
    """The assignments of an os-release file; lines that are none are left out."""
    fields = {}
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and re.fullmatch(r"[A-Z][A-Z0-9_]*", key):
            try:
                fields[key] = " ".join(shlex.split(value))[:200]
            except ValueError:  # an unclosed quote
                fields[key] = value.strip("\"'")[:200]
    return fields


def _kernel(host: Host) -> dict[str, Read]:
    path = "/proc/sys/kernel/osrelease"
    release = (host.read(path, 4096) or "").strip()
    return {"kernel": Read(release, path)} if re.match(r"\d+\.\d+", release) else {}


def _arch(host: Host) -> dict[str, Read]:
    path = "/proc/sys/kernel/arch"  # Linux 6.1 and later
    name = (host.read(path, 256) or "").strip()
    if re.fullmatch(r"[a-z0-9_]{3,20}", name):
        return {"arch": Read(name, path)}
    path = "/proc/self/exe"  # the machine this program was built for
    head = host.read_bytes(path, 20) or b""
    if head[:4] == b"\x7fELF" and len(head) == 20:
        machine = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
        return {"arch": Read(_ELF_MACHINES.get(machine), path)}
    return {}


def _glibc(host: Host) -> dict[str, Read]:
    for path in LIBC:
        if not host.exists(path):
            continue
        data = host.read_bytes(path, 8 << 20) or b""
        banner = re.search(rb"GNU C Library [^\n]{0,200}?version (\d+\.\d+)", data)
        if banner:
            return {"glibc": Read(banner[1].decode(), path)}
    musl = host.glob("/lib/ld-musl-*")
    if musl:
        return {"glibc": Read("", musl[0])}  # a distribution on musl: no glibc at all
    if host.which("getconf"):
        answer = re.match(r"glibc (\d+\.\d+)", host.run(["getconf", "GNU_LIBC_VERSION"], timeout=1.0).stdout)
        if answer:
            return {"glibc": Read(answer[1], "getconf GNU_LIBC_VERSION")}
    return {}


def _cpu(host: Host) -> dict[str, Read]:
    path = "/proc/cpuinfo"
    text = host.read(path, 1 << 14) or ""  # the first processors; the kernel is slow at writing hundreds
    facts: dict[str, Read] = {}
    model = re.search(r"^model name\s*:[ \t]*(\S.*)$", text, re.M)
    if model:
        facts["cpu_model"] = Read(" ".join(model[1].split())[:120], path)
    flags = re.search(r"^(?:flags|Features)\s*:[ \t]*(\S.*)$", text, re.M)
    if flags:
        have = set(flags[1].split())
        facts["cpu_flags"] = Read(tuple(f for f in FLAGS if f in have), path)
    count = _allowed_cpus(host)
    if count:
        facts["cpu_count"] = count
    return facts


def _allowed_cpus(host: Host) -> Read | None:
    path = "/proc/self/status"
    allowed = re.search(r"^Cpus_allowed_list:[ \t]*([\d,\-]+)[ \t]*$", host.read(path, 1 << 16) or "", re.M)
    if not allowed:
        return None
    total = 0
    for item in allowed[1].split(","):
        first, _, last = item.partition("-")
        if first.isdigit() and (last or first).isdigit() and len(item) < 16:
            total += max(0, int(last or first) - int(first) + 1)
    return Read(total, path) if total else None


def _governors(host: Host) -> dict[str, Read]:
    folder = "/sys/devices/system/cpu/cpufreq"
    files = host.glob(f"{folder}/policy*/scaling_governor")
    if not files:
        # a virtual machine has no frequency control; without the folder above it nothing can be said
        return {"cpu_governors": Read((), folder)} if host.is_dir("/sys/devices/system/cpu/cpu0") else {}
    names = {(host.read(f, 64) or "").strip() for f in files[:256]}
    drivers = {(host.read(f.rpartition("/")[0] + "/scaling_driver", 64) or "").strip() for f in files[:1]}
    good = tuple(sorted(n for n in names if re.fullmatch(r"[a-z_]{2,20}", n)))
    facts = {"cpu_governors": Read(good or None, f"{folder}/policy*/scaling_governor")}
    driver = next((d for d in drivers if re.fullmatch(r"[a-z0-9_\-]{2,30}", d)), None)
    facts["cpu_scaling_driver"] = Read(driver, f"{folder}/policy0/scaling_driver")
    return facts


_MEMINFO = {
    "MemTotal": "ram_total_bytes",
    "MemAvailable": "ram_available_bytes",
    "SwapTotal": "swap_total_bytes",
    "SwapFree": "swap_free_bytes",
    "CommitLimit": "commit_limit_bytes",
    "Committed_AS": "committed_bytes",
}


def _meminfo(host: Host) -> dict[str, Read]:
    path = "/proc/meminfo"
    facts = {}
    for name, kib in re.findall(r"^(\w+):[ \t]+(\d{1,15}) kB$", host.read(path, 1 << 16) or "", re.M):
        if name in _MEMINFO:
            facts[_MEMINFO[name]] = Read(int(kib) * 1024, path)
    return facts


def _overcommit(host: Host) -> dict[str, Read]:
    path = "/proc/sys/vm/overcommit_memory"
    mode = number(host.read(path, 64))
    return {"overcommit_memory": Read(mode, path)} if mode in (0, 1, 2) else {}


def _limits(host: Host) -> dict[str, Read]:
    path = "/proc/self/limits"
    text = host.read(path, 1 << 16) or ""
    facts = {}
    for title, fields in (
        ("Max open files", ("nofile_soft", "nofile_hard")),
        ("Max locked memory", ("memlock_bytes", None)),
    ):
        row = re.search(rf"^{title}[ \t]+(unlimited|\d{{1,19}})[ \t]+(unlimited|\d{{1,19}})[ \t]+\w+", text, re.M)
        for field, value in zip(fields, row.groups() if row else (), strict=False):
            if field:
                facts[field] = Read(-1 if value == "unlimited" else int(value), path)
    return facts


def _identity(host: Host) -> dict[str, Read]:
    path = "/proc/self/status"
    text = host.read(path, 1 << 16) or ""
    uid = re.search(r"^Uid:\t(\d+)\t(\d+)", text, re.M)
    groups = re.search(r"^Groups:\t?([\d ]*)$", text, re.M)
    gid = re.search(r"^Gid:\t(\d+)\t(\d+)", text, re.M)
    facts = {"uid": Read(int(uid[2]), path)} if uid else {}
    if groups:
        named = dict(re.findall(r"^([^:\n]+):[^:\n]*:(\d+)", host.read("/etc/group") or "", re.M))
        names = {number: name for name, number in named.items()}
        ids = dict.fromkeys([*([gid[2]] if gid else []), *groups[1].split()])
        facts["groups"] = Read(tuple(names.get(i, i) for i in ids), path)
    return facts


def _cwd(host: Host) -> dict[str, Read]:
    path = "/proc/self/cwd"
    folder = host.readlink(path)
    return {"cwd": Read(folder, path)} if folder and folder.startswith("/") else {}


def _shm(host: Host) -> dict[str, Read]:
    path = "/dev/shm"  # noqa: S108  its size is what is asked
    if not bounded(lambda: host.is_dir(path), 0.5, False):
        return {}
    room = bounded(lambda: host.statvfs(path), 0.5, None)
    if room is None:
        return {}
    return {
        "shm_total_bytes": Read(room.f_blocks * room.f_frsize, path),
        "shm_free_bytes": Read(room.f_bavail * room.f_frsize, path),
    }


def _locale(host: Host) -> dict[str, Read]:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):  # the order of precedence in setlocale(3)
        if host.env.get(name):
            return {"locale": Read(host.env[name][:60], name)}
    return {"locale": Read("", "environment")}


def _clock(host: Host) -> dict[str, Read]:
    return clock_skew(host)
