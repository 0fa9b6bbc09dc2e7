"""The NVIDIA driver: kernel module, user-space libraries, device nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KernelEvent:
    """One telling kernel log line. ``kind``: "xid", "oom-kill", "dxg-make-resident", "nvrm"."""

    kind: str
    text: str
    code: int | None = None  # Xid number
    process: str | None = None
    source: str = ""


@dataclass(frozen=True)
class DriverFacts:
    """``nvml_status`` is "ok" or the NVML error name ("LibraryNotFound", "DriverNotLoaded", "Unknown", ...)."""

    nvml_status: str | None = None
    nvml_error: str | None = None  # text of the error
    nvml_error_code: int | None = None
    version: str | None = None  # user-space driver, "580.159.03"
    cuda: str | None = None  # highest CUDA release it serves, "13.0"
    nvml_version: str | None = None  # version of libnvidia-ml
    module_version: str | None = None  # /proc/driver/nvidia/version
    module_open: bool | None = None  # open kernel module
    module_loaded: bool | None = None
    module_file_present: bool | None = None  # nvidia.ko for the running kernel exists
    nouveau_loaded: bool | None = None
    secure_boot: bool | None = None
    libcuda: str | None = None  # resolved path of libcuda.so.1 ("" = the loader finds none)
    libnvidia_ml: str | None = None
    libcuda_is_stub: bool | None = None
    libcuda_version: str | None = None  # from its file name; None under WSL2, whose files carry none
    nvidia_smi: str | None = None  # path ("" = not on PATH)
    nvidia_smi_exit: int | None = None
    nvidia_smi_output: str | None = None  # first lines, only when it failed
    device_nodes: tuple[str, ...] | None = None  # /dev/nvidia*
    device_nodes_denied: tuple[str, ...] = ()  # those this user cannot open
    pci_nvidia: tuple[str, ...] | None = None  # NVIDIA display devices on the PCI bus ("0000:01:00.0 10de:1e07")
    fabric_manager: str | None = None  # state of the service, when NVSwitches exist
    nvswitch: bool | None = None
    kernel_events: tuple[KernelEvent, ...] | None = None  # None: kernel log not readable
    env: Mapping[str, str] = field(
        default_factory=dict
    )  # CUDA_VISIBLE_DEVICES, NVIDIA_*, LD_LIBRARY_PATH when set
    sources: Mapping[str, str] = field(default_factory=dict)
