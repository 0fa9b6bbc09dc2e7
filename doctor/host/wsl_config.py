"""The two configuration files of WSL: /etc/wsl.conf inside, .wslconfig on the Windows side."""

from __future__ import annotations

import codecs
import re

from doctor.host.access import Host
from doctor.host.mounts import read_mounts
from doctor.host.parts import Read, bounded

WSL_CONF = "/etc/wsl.conf"
#: Windows folders below Users that belong to nobody.
_NOBODY = frozenset({"public", "default", "default user", "all users", "defaultappuser"})


def of_distribution(host: Host) -> dict[str, Read]:
    """``systemd_enabled``: ``[boot] systemd=`` of /etc/wsl.conf; without the key systemd is off by default."""
    data = host.read_bytes(WSL_CONF, 1 << 16)
    if data is None:
        return {} if host.exists(WSL_CONF) else {"systemd_enabled": Read(False, f"{WSL_CONF} (absent)")}
    value = sections(text_of(data)).get("boot", {}).get("systemd", "false")
    return {"systemd_enabled": Read(value.lower() == "true", WSL_CONF)}


def of_windows(host: Host) -> dict[str, Read]:
    """``wslconfig_path`` and its ``[wsl2]`` keys, when the Windows user's file can be read and told apart."""
    # the drive is a bridge to Windows, which may be slow to answer
    return bounded(lambda: _of_windows(host), 1.0, {})


def _of_windows(host: Host) -> dict[str, Read]:
    users = f"{_system_drive(host)}/Users"
    name = _windows_user(host, users)
    if name is None:
        found = [p for p in host.glob(f"{users}/*/.wslconfig") if p.split("/")[-2].lower() not in _NOBODY]
        if len(found) != 1:
            return {}  # none, or several people's: whose counts is not known
        path = found[0]
    else:
        path = f"{users}/{name}/.wslconfig"
    data = host.read_bytes(path, 1 << 16)
    if data is None:
        known = name is not None and host.is_dir(f"{users}/{name}") and not host.exists(path)
        return {"wslconfig": Read({}, path), "wslconfig_path": Read("", path)} if known else {}
    return {"wslconfig_path": Read(path, path), "wslconfig": Read(sections(text_of(data)).get("wsl2", {}), path)}


def _system_drive(host: Host) -> str:
    """Where drive C: is mounted; ``[automount] root=`` can move it."""
    for mount in read_mounts(host):
        path = re.search(r"path=([A-Za-z]):", ";".join(mount.super_options))
        letter = path[1] if path else mount.source[:1] if re.match(r"[A-Za-z]:", mount.source) else ""
        if mount.windows_drive and letter.lower() == "c":
            return mount.point.rstrip("/")
    return "/mnt/c"


def _windows_user(host: Host, users: str) -> str | None:
    """The Windows user, told by the Windows folders that WSL appends to PATH."""
    for folder in host.env.get("PATH", "").split(":"):
        match = re.match(re.escape(users) + r"/([^/]+)/AppData/", folder)
        if match and match[1].lower() not in _NOBODY:
            return match[1]
    return None


def text_of(data: bytes) -> str:
    """Text of a file that Notepad or PowerShell may have written: UTF-16 or UTF-8, with or without a mark."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    if data[1:2] == b"\0":
        return data.decode("utf-16-le", "replace")
    return data.decode("utf-8-sig", "replace")


def sections(text: str) -> dict[str, dict[str, str]]:
    """Section -> key -> value of an ini file, names in lower case. Never fails: unknown lines are left out."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for raw in text.replace("\0", "").splitlines():
        line = raw.strip().lstrip("\ufeff")
        head = re.fullmatch(r"\[([^\]]{1,60})\]\s*(?:[#;].*)?", line)
        if head:
            current = found.setdefault(head[1].strip().lower(), {})
            continue
        key, separator, value = line.partition("=")
        if separator and re.fullmatch(r"[A-Za-z][\w.]{0,60}", key.strip()):
            current[key.strip().lower()] = re.sub(r"\s+#.*$", "", value).strip().strip('"')[:300]
    return found
