"""What newer pins would be, as a patch to look at: fresh locks, and digests that moved. Nothing is written.

The Python locks are resolved anew by ``docker/relock``, the program that made them. The apt locks need the base
images: ``docker/relock apt IMAGE LOCK``.
"""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from doctor.errors import DoctorError
from doctor.host import Host, RunResult
from doctor.host.parts import Bounded
from doctor.image import sbom
from doctor.image.pins import Pins
from doctor.image.verify import MOVED, PinResult

#: Seconds for all resolutions. One takes seconds with a warm cache, a minute on a slow line.
DEADLINE_S = 900.0
_APART_S = 1.0
_LINES = 3


def diff(pins: Pins, host: Host, results: Iterable[PinResult], say: Callable[[str], None]) -> str:
    """First a line for each change, then a patch of the locks and of pins.json; "" when all is as it would be.

    ``results`` are those of ``verify.verify``. DoctorError when uv is missing or a resolution fails.
    """
    summary, patch = [], []
    names, fresh = _fresh(pins, host, say)
    for name in names:
        path = f"docker/locks/{name}"
        old = _read(pins.root / path)
        if old != fresh[name]:
            changes = _changes(old, fresh[name], name)
            summary.append(f"{path}: {changes or 'other files of the same versions'}")
            patch.append(_patch(path, old, fresh[name]))
    old = new = _read(pins.root / "docker/pins.json")
    for result in results:
        if result.status == MOVED and result.found:
            summary.append(f"{result.name}: {result.pinned} -> {result.found}")
            new = new.replace(result.pinned, result.found)
    if new != old:
        patch.append(_patch("docker/pins.json", old, new))
    return "\n".join([*summary, "", *patch]) if patch else ""


def _fresh(pins: Pins, host: Host, say: Callable[[str], None]) -> tuple[list[str], dict[str, str]]:
    """Names and new texts of the Python locks."""
    path = os.pathsep.join((host.env.get("PATH", os.defpath), os.path.dirname(sys.executable)))
    relock = pins.root / "docker" / "relock"
    names = sorted(p.name for p in (pins.root / "docker/locks").glob("*.txt") if not p.name.startswith("apt-"))
    if not names or not relock.is_file():
        raise DoctorError(f"{pins.root / 'docker'} has no Python locks, or not the program that makes them")
    with tempfile.TemporaryDirectory() as folder:
        ended = threading.Event()

        def resolve() -> RunResult:
            try:
                env = {"OUT": folder, "PATH": path}
                return host.run(["bash", str(relock), "python"], timeout=DEADLINE_S, env=env)
            finally:
                ended.set()

        calls = Bounded(2 * DEADLINE_S)
        calls.start("relock", resolve)
        while not ended.wait(_APART_S):
            say(f"{len(os.listdir(folder))} of {len(names)} locks resolved anew")
        answer: RunResult = calls.result("relock")
        if not answer.ok:
            raise DoctorError(f"docker/relock could not resolve the packages: {_why(answer)}")
        missing = [name for name in names if not (Path(folder) / name).is_file()]
        if missing:
            raise DoctorError(f"docker/relock does not make {', '.join(missing)}")
        return names, {name: _read(Path(folder) / name) for name in names}


def _why(answer: RunResult) -> str:
    if answer.returncode == 127 and "uv" in answer.stderr:
        return "uv is not on PATH (https://docs.astral.sh/uv/)"
    if answer.timed_out:
        return f"not done after {DEADLINE_S:g} s"
    return " ".join((answer.stderr or answer.error or f"exit {answer.returncode}").split())[:600]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DoctorError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _changes(old: str, new: str, where: str) -> str:
    """The versions that change: "torch 2.11.0 -> 2.13.0, +new 1.0, -gone 2.0"."""
    before, after = ({one.name: one.version for one in sbom.read_lock(text, where)} for text in (old, new))
    words = []
    for name in sorted({*before, *after}, key=str.lower):
        if name not in after:
            words.append(f"-{name} {before[name]}")
        elif name not in before:
            words.append(f"+{name} {after[name]}")
        elif before[name] != after[name]:
            words.append(f"{name} {before[name]} -> {after[name]}")
    return ", ".join(words)


def _patch(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}", n=_LINES
    )
    marked = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(marked).rstrip("\n")
