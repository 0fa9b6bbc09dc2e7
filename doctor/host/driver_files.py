"""What the file of a driver library says about itself, without loading it."""

from __future__ import annotations

import os
import re

from doctor.host.access import Host

_VERSION = re.compile(r"\.so\.(\d{2,4}\.\d+(?:\.\d+)?)$")


def version_of(path: str) -> str | None:
    """The driver version in a file name such as ``libcuda.so.580.159.03``, or None."""
    match = _VERSION.search(path)
    return match[1] if match else None


def is_stub(host: Host, path: str) -> bool:
    """True for the link-time stub of a CUDA toolkit, which has no driver behind it.

    The stub lies in a folder named ``stubs``; copied elsewhere it is still tiny and carries no
    version. The libraries of WSL2 are small and unversioned too, and are the real ones.
    """
    if "/stubs/" in path:
        return True
    if version_of(path) or "/wsl/" in path:
        return False
    stat = host.stat(path)
    return (
        stat is not None
        and 0 < stat.st_size < 1 << 20
        and os.path.basename(path) in ("libcuda.so", "libcuda.so.1")
    )
