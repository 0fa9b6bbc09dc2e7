"""Windows Subsystem for Linux."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WslFacts:
    """``version`` 0: a native host, 1: WSL 1, 2: WSL 2, None: not known."""

    version: int | None = None
    kernel: str | None = None  # "5.15.167.4-microsoft-standard-WSL2"
    distro: str | None = None  # WSL_DISTRO_NAME
    dxg: bool | None = None  # /dev/dxg exists
    lib_dir: bool | None = None  # /usr/lib/wsl/lib exists
    libcuda_in_lib_dir: bool | None = None
    libnvidia_ml_in_lib_dir: bool | None = None
    interop: bool | None = None  # Windows programs can be started
    systemd_enabled: bool | None = None  # [boot] systemd= of /etc/wsl.conf
    wslconfig_path: str | None = None
    wslconfig: Mapping[str, str] | None = None  # [wsl2] keys of .wslconfig, when readable
    linux_driver_packages: tuple[str, ...] | None = None  # driver packages installed inside the distribution
    libcuda_resolved: str | None = None  # path the loader resolves libcuda.so.1 to
    libnvidia_ml_resolved: str | None = None
    libcuda_so_resolved: str | None = None  # the same for the plain name libcuda.so
    library_path: str | None = None  # LD_LIBRARY_PATH ("" = not set)
    signs: tuple[str, ...] = ()  # what tells that this is (not) WSL
    cwd_on_windows_drive: bool | None = None
    windows_build: int | None = None  # 19045, 22631
    pin_memory_kernel_ok: bool | None = None  # first gate: kernel >= 4.19.121
    pin_memory_enabled: bool | None = None  # second gate: VLLM_WSL2_ENABLE_PIN_MEMORY
    sources: Mapping[str, str] = field(default_factory=dict)
