"""Hosts with and without a driver, as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doctor.host.driver import probe as probe_driver
from doctor.host.examine import Options
from doctor.host.gpu import probe as probe_gpus
from doctor.snapshot import ProbeStatus, Snapshot
from tests.fakes import FakeHost
from tests.host.fake_nvml import FakeNvml

KERNEL = "6.8.0-45-generic"
LIB = "/usr/lib/x86_64-linux-gnu"
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (dvs-builder@)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
PROPRIETARY_MODULE = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)


class GpuHost(FakeHost):
    """A fake host that carries its own NVML, so that the machine's library is never loaded."""

    def __init__(self, root: Path, nvml: FakeNvml, **options: Any) -> None:
        super().__init__(root, **options)
        self.nvml = nvml


def bare(root: Path, nvml: FakeNvml, **options: Any) -> GpuHost:
    """A native machine without anything of NVIDIA."""
    host = GpuHost(root, nvml, **options)
    host.write("/proc/sys/kernel/osrelease", KERNEL + "\n")
    host.write("/proc/version", f"Linux version {KERNEL} (buildd@x) #45-Ubuntu SMP\n")
    host.write("/sys/module/ext4/refcnt", "1\n")
    host.write("/sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n")
    host.write("/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n")
    host.write("/sys/firmware/acpi/x", "")
    host.write("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\x06\0\0\0\0")
    host.write("/dev/null", "")
    host.program("/sbin/ldconfig", "2 libs found in cache\n")
    return host


def add_libraries(
    host: GpuHost, version: str = "580.159.03", names: tuple[str, ...] = ("cuda", "nvidia-ml")
) -> None:
    """The user-space half of a driver."""
    lines = []
    for name in names:
        host.write(f"{LIB}/lib{name}.so.{version}", b"\x7fELF" + b"\0" * 64)
        host.link(f"{LIB}/lib{name}.so.1", f"lib{name}.so.{version}")
        lines.append(f"\tlib{name}.so.1 (libc6,x86-64) => {LIB}/lib{name}.so.1\n")
    host.program("/sbin/ldconfig", "2 libs found in cache\n" + "".join(lines))


def add_card(host: GpuHost, module: str = OPEN_MODULE) -> None:
    """A card on the bus, the running kernel module and its device nodes."""
    host.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    host.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
    host.write("/sys/bus/pci/devices/0000:01:00.0/device", "0x2335\n")
    host.write("/proc/driver/nvidia/version", module)
    host.write("/sys/module/nvidia/refcnt", "3\n")
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        host.write(f"/dev/{name}", "")
    host.program("/usr/bin/nvidia-smi")
    host.write(f"/lib/modules/{KERNEL}/modules.dep", "updates/dkms/nvidia.ko.zst: kernel/drivers/video.ko\n")


def healthy(root: Path, nvml: FakeNvml, **options: Any) -> GpuHost:
    """A native machine with one card and a driver that works."""
    host = bare(root, nvml, **options)
    add_libraries(host)
    add_card(host)
    return host


def wsl2(root: Path, nvml: FakeNvml, **options: Any) -> GpuHost:
    """WSL2 with the driver that Windows lends."""
    host = GpuHost(root, nvml, **options)
    kernel = "5.15.167.4-microsoft-standard-WSL2"
    host.write("/proc/sys/kernel/osrelease", kernel + "\n")
    host.write("/proc/version", f"Linux version {kernel} (root@x) (gcc 11.2.0) #1 SMP\n")
    host.write("/dev/dxg", "")
    host.write("/sys/module/kernel/x", "")
    host.write("/sys/bus/pci/slots/x", "")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        host.write(f"/usr/lib/wsl/lib/{name}", b"\x7fELF" + b"\0" * 64)
    lines = "".join(
        f"\t{n} (libc6,x86-64) => /usr/lib/wsl/lib/{n}\n" for n in ("libcuda.so.1", "libnvidia-ml.so.1")
    )
    host.program("/sbin/ldconfig", lines)
    return host


def snapshot(host: GpuHost, *, deep: bool = False, **fields: Any) -> Snapshot:
    """What driver and GPU probes make of a host, with further facts of other areas."""
    options = Options(deep=deep, inside_image=bool(fields.get("inside_image")))
    statuses = (ProbeStatus("driver", "ok"), ProbeStatus("gpus", "ok"))
    found = {**probe_driver(host, options), **probe_gpus(host, options)}
    return Snapshot(deep=deep, probes=statuses, **{**found, **fields})
