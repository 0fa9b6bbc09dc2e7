"""Installed distributions, read from folder names: importlib.metadata opens every file of 300 packages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from doctor.host.access import Host

#: Bytes read of one METADATA file. The header of vllm's, the longest known, has 20 kB.
_METADATA_LIMIT = 512 << 10

_DIST_INFO = re.compile(r"(?P<name>[^-].*?)-(?P<version>[^-]+)\.dist-info")
_EGG_INFO = re.compile(r"(?P<name>[^-].*?)(?:-(?P<version>[^-]+?)(?:-py\d[\d.]*)?)?\.egg-info")


@dataclass(frozen=True)
class Dist:
    """One installed distribution: normalised name, version, and its metadata folder (or egg-info file)."""

    name: str
    version: str
    path: str
    site: str


@dataclass(frozen=True)
class Metadata:
    """The header fields of METADATA that matter here."""

    version: str | None
    requires: tuple[str, ...]
    requires_python: str | None
    path: str


def normalise(name: str) -> str:
    """PEP 503 form of a distribution name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def scan(host: Host, sites: Iterable[str]) -> tuple[dict[str, Dist], tuple[str, ...]]:
    """Distributions by name, the first folder winning as in an import, and names found twice in one folder."""
    found: dict[str, Dist] = {}
    twice: set[str] = set()
    for site in sites:
        here: dict[str, Dist] = {}
        for entry in host.listdir(site):
            dist = _dist(host, site, entry)
            if dist is None:
                continue
            if dist.name in here and here[dist.name].version != dist.version:
                twice.add(dist.name)
            here[dist.name] = dist
        for name, dist in here.items():
            found.setdefault(name, dist)
    return found, tuple(sorted(twice))


def _dist(host: Host, site: str, entry: str) -> Dist | None:
    if entry.endswith(".dist-info"):
        match = _DIST_INFO.fullmatch(entry)
    elif entry.endswith(".egg-info"):
        match = _EGG_INFO.fullmatch(entry)
    else:
        return None
    if match is None or entry.startswith("~"):  # pip leaves "~orch-..." of an interrupted removal
        return None
    path = f"{site}/{entry}"
    version = match["version"]
    if version is None:  # "name.egg-info" of a development install
        version = _header(host, path).version or ""
    return Dist(normalise(match["name"]), version, path, site)


def metadata(host: Host, dist: Dist) -> Metadata:
    """METADATA (or PKG-INFO) of one distribution. A damaged file gives what can be read of it."""
    return _header(host, dist.path)


def _header(host: Host, path: str) -> Metadata:
    place, text = path, None
    for place in (f"{path}/METADATA", f"{path}/PKG-INFO", path):
        text = host.read(place, _METADATA_LIMIT)
        if text is not None:
            break
    version = requires_python = None
    requires: list[str] = []
    for line in (text or "").split("\n"):
        if line in ("", "\r"):
            break  # the description follows
        key, colon, value = line.partition(":")
        value = value.strip()
        if not colon or not value:
            continue
        if key == "Version":
            version = version or value
        elif key == "Requires-Dist":
            requires.append(value)
        elif key == "Requires-Python":
            requires_python = requires_python or value
    return Metadata(version, tuple(requires), requires_python, place)


def editable_root(host: Host, dist: Dist) -> str:
    """The source folder of an editable install (direct_url.json), "" when it is not one."""
    text = host.read(f"{dist.path}/direct_url.json", 65536)
    try:
        data = json.loads(text or "{}")
        url, info = data.get("url", ""), data.get("dir_info", {})
        return url[len("file://") :] if info.get("editable") and url.startswith("file:///") else ""
    except (ValueError, AttributeError, RecursionError):
        return ""
