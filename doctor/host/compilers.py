"""Host compilers: every driver program by its name, and whether its C++ half really resolves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from doctor.facts import Compiler
from doctor.host.access import Host

_NAME = re.compile(r"(?:x86_64-(?:conda-)?linux-gnu-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+)(?:-(\d+)(?:\.\d+)*)?")
#: Seconds for one question to a compiler; it answers in milliseconds unless the disk is dead.
_TIMEOUT = 2.0
#: More drivers than this are a toolchain farm; the first on PATH matter.
_MOST = 24


def find(host: Host) -> tuple[str, ...]:
    """Absolute paths of compiler drivers on PATH and in /usr/bin: each name once, as PATH resolves it."""
    found: dict[str, str] = {}
    folders: dict[str, str] = {}
    for folder in (*host.env.get("PATH", os.defpath).split(os.pathsep), "/usr/bin"):
        if os.path.isabs(folder):
            folders.setdefault(host.realpath(folder), folder)
    for folder in folders.values():
        for name in host.listdir(folder):
            match = _NAME.fullmatch(name)
            if not match or name in found or name.startswith("x86_64-linux-gnu-"):
                continue  # Debian's prefixed names are the same programs
            path = os.path.join(folder, name)
            if host.access(path, os.X_OK) and not host.is_dir(path):
                found[name] = path
    return tuple(found.values())[:_MOST]


def named(host: Host, value: str) -> str | None:
    """The program that a variable such as CC names: a path, or a name on PATH. None if there is none."""
    if os.path.isabs(value):
        return value if host.access(value, os.X_OK) and not host.is_dir(value) else None
    return host.which(value)


def identity(host: Host, path: str) -> str:
    """Drivers with the same identity are the same program. A ccache link must be asked under its own name."""
    real = host.realpath(path)
    return real if "ccache" not in os.path.basename(real) else path


def ask(host: Host, path: str) -> Compiler:
    """Version and C++ front end of one driver. A program that answers nonsense keeps None."""
    name = os.path.basename(path)
    real = host.realpath(path)
    version = host.run([path, "--version"], timeout=_TIMEOUT, limit=4096)
    family, number = _version(version.stdout if version.ok else "")
    major = int(number.partition(".")[0]) if number else None
    cc1plus: str | None = None
    resolves: bool | None = None
    if family == "gcc":
        answer = host.run([path, "-print-prog-name=cc1plus"], timeout=_TIMEOUT, limit=4096)
        if answer.ok:
            cc1plus, resolves = _front_end(answer.stdout)
    return Compiler(
        path=path,
        name=name,
        family=family,
        version=number,
        major=major,
        cplusplus="++" in name,
        cc1plus=cc1plus,
        cc1plus_ok=resolves,
        target=real if real != path else None,
    )


def _version(text: str) -> tuple[str | None, str | None]:
    lines = text.splitlines()
    first = lines[0] if lines else ""
    clang = re.search(r"\bclang version (\d+(?:\.\d+){0,3})", first)
    if clang:
        return "clang", clang[1]
    # "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0": the number after the vendor's bracket
    gcc = re.search(r"(?:\)|\b(?:gcc|g\+\+|cc|c\+\+)\S*)\s+(\d{1,3}(?:\.\d+){1,2})(?:\s|$)", first)
    if gcc and ("Free Software Foundation" in text or "gcc" in first.lower() or "GCC" in text):
        return "gcc", gcc[1]
    return None, None


def _front_end(text: str) -> tuple[str | None, bool | None]:
    """gcc prints the full path of cc1plus when it has one, and the bare word when it has none."""
    word = text.strip()
    if os.path.isabs(word) and "\n" not in word:
        return word, True
    return (None, False) if word == "cc1plus" else (None, None)


def jobs(host: Host, paths: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(program to ask, all paths that are this program)."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(identity(host, path), []).append(path)
    for same in groups.values():
        yield same[0], tuple(same)
