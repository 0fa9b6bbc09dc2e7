"""Where the loader finds a library, and which packages brought a driver: read from files."""

from __future__ import annotations

import re

from doctor.host.access import Host
from doctor.host.parts import Read

#: Folders the loader searches without being told, besides its cache.
DEFAULT_DIRS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")

#: Packages that carry driver files. Containers' toolkit and CUDA's compilers have similar names and are welcome.
_DRIVER = re.compile(
    rb"nvidia-(?:driver|dkms|kernel|open|headless|utils|compute|firmware|legacy)(?:-[\w.\-]+)?|"
    rb"libnvidia-(?:compute|ml1|gl|cfg1|decode|encode|fbc1|common)(?:-[\w.\-]+)?|libcuda1(?:-[\w.\-]+)?|"
    rb"cuda-drivers(?:-[\w.\-]+)?|xserver-xorg-video-nvidia[\w.\-]*|nvidia-smi|nvidia-settings"
)
_PARAGRAPH = re.compile(
    rb"^Package: ([^\n]*nvidia[^\n]*|cuda-drivers[^\n]*|libcuda1[^\n]*)\n(?:[^\n]+\n)*?Status: ([^\n]+)$", re.M
)
_DPKG = "/var/lib/dpkg/status"
_PACMAN = "/var/lib/pacman/local"


def linux_driver_packages(host: Host) -> dict[str, Read]:
    """``linux_driver_packages``: installed packages that carry an NVIDIA driver; left out when not known."""
    data = host.read_bytes(_DPKG, 32 << 20)
    if data and data.startswith(b"Package:"):
        names = sorted(
            name.decode("ascii", "replace")
            for name, status in _PARAGRAPH.findall(data)
            if status.split()[-1:] == [b"installed"] and _DRIVER.fullmatch(name)
        )
        return {"linux_driver_packages": Read(tuple(names), _DPKG)}
    packages = host.listdir(_PACMAN)
    if packages:
        names = [p for p in packages if re.match(r"nvidia-(?:utils|open|dkms|lts|[\d.]+-)", p)]
        return {"linux_driver_packages": Read(tuple(names), _PACMAN)}
    return {}


class Loader:
    """What ``dlopen`` would open for a name: LD_LIBRARY_PATH, then its cache, then the default folders."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._cache: dict[str, str] | None = None
        self._asked = False

    def resolve(self, name: str) -> Read | None:
        """The file with links resolved, "" when the loader finds none, None when it cannot be told."""
        for folder in self._host.env.get("LD_LIBRARY_PATH", "").split(":"):
            if folder.startswith("/") and self._host.exists(f"{folder}/{name}"):
                return Read(self._host.realpath(f"{folder}/{name}"), "LD_LIBRARY_PATH")
        cache = self._entries()
        if cache is not None and name in cache:
            return Read(self._host.realpath(cache[name]), "ldconfig -p")
        for folder in DEFAULT_DIRS:
            if self._host.exists(f"{folder}/{name}"):
                return Read(self._host.realpath(f"{folder}/{name}"), folder)
        return None if cache is None else Read("", "ldconfig -p")

    def _entries(self) -> dict[str, str] | None:
        if not self._asked:
            self._asked = True
            program = next((p for p in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if self._host.exists(p)), None)
            program = program or self._host.which("ldconfig")
            if program:
                answer = self._host.run([program, "-p"], timeout=1.5)
                if answer.ok:
                    self._cache = parse_cache(answer.stdout)
        return self._cache


def parse_cache(text: str) -> dict[str, str]:
    """Name -> path of ``ldconfig -p``; the first entry wins, 32-bit ones are left out."""
    found: dict[str, str] = {}
    for name, kind, path in re.findall(r"^\s*(\S+) \(([^)]*)\) => (/.+)$", text, re.M):
        if "x86-64" in kind or "AArch64" in kind:
            found.setdefault(name, path.strip())
    return found
