"""Puts the wheels of a lock over an environment that already has torch, each compared with its hash first.

    python benchmarks/lock_over_torch.py LOCK WHEELS SITE --out FILE

For a machine without an index, where torch is there and may not be replaced. Every wheel in WHEELS must be one of
LOCK's files, or nothing is unpacked. FILE then says, for every package of the lock, whether it came from the lock
or was there, and at which version.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import importlib.metadata
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

_ENTRY = re.compile(r"^([A-Za-z0-9][\w.-]*)==(\S+)((?:\s*\\\n\s*--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)


def read_lock(text: str) -> dict[str, tuple[str, set[str]]]:
    """Name -> (version, sha256 of every file)."""
    return {
        _normal(name): (version, set(re.findall(r"sha256:([0-9a-f]{64})", hashes)))
        for name, version, hashes in _ENTRY.findall(text)
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def check(wheel: Path, lock: dict[str, tuple[str, set[str]]]) -> str:
    """The package's name. Raises ValueError when the file is not one of the lock's."""
    name = _normal(wheel.name.split("-")[0])
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if name not in lock or found not in lock[name][1]:
        raise ValueError(f"{wheel.name} (sha256 {found}) is not in the lock")
    return name


def unpack(wheel: Path, site: Path) -> None:
    """A wheel without installed scripts or data files: its content is the site's."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def main() -> int:
    """Returns 1 when a wheel is not one of the lock's."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lock", type=Path)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("site", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lock = read_lock(args.lock.read_text())
    wheels = sorted(args.wheels.glob("*.whl"))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        names = set(pool.map(lambda w: check(w, lock), wheels))
    for wheel in wheels:  # folders first, so that the workers do not race for them
        with zipfile.ZipFile(wheel) as archive:
            for folder in {str(Path(n).parent) for n in archive.namelist()}:
                (args.site / folder).mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor(16) as processes:
        list(processes.map(unpack, wheels, [args.site] * len(wheels)))
    sys.path.insert(0, str(args.site))
    importlib.invalidate_caches()
    there: dict[str, Any] = {}
    for name, (version, _) in sorted(lock.items()):
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = None
        if name not in names:
            there[name] = {"lock": version, "here": installed}
    equal = sum(1 for v in there.values() if v["lock"] == (v["here"] or "").partition("+")[0])
    report = {
        "wheels_checked_and_unpacked": len(wheels),
        "already_there_equal": equal,
        "already_there_other_version": {n: v for n, v in there.items() if v["here"] and not _same(v)},
        "absent": sorted(n for n, v in there.items() if v["here"] is None),
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


def _same(row: dict[str, Any]) -> bool:
    return bool(row["lock"] == row["here"].partition("+")[0])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"lock_over_torch: {error}; nothing was unpacked")
