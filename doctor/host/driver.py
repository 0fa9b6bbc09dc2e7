"""The NVIDIA driver: NVML, kernel module, user-space libraries, device nodes, kernel log. Changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from doctor.facts import DriverFacts
from doctor.host import kernel_log, nvml
from doctor.host.access import Host
from doctor.host.driver_files import is_stub, version_of
from doctor.host.examine import Options
from doctor.host.libraries import Loader

_MODULE_VERSION = re.compile(r"(?:Kernel Module(?: for \S+)?)\s+(\d{2,4}\.\d+(?:\.\d+)?)")
_MODULE_FILE = re.compile(r"(?:^|/)nvidia(?:-current[\w-]*|-\d+[\w-]*)?\.ko(?:\.\w+)?:", re.MULTILINE)
_SMI_S = 3.0
_ENV = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_DISABLE_REQUIRE", "LD_LIBRARY_PATH",
)  # fmt: skip


class Notes:
    """Collects fields and their sources; a part that raises costs its own fields only."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def set(self, name: str, value: Any, source: str) -> None:
        """Records a field that is known."""
        if value is not None:
            self.values[name] = value
            self.sources[name] = source

    def part(self, function: Callable[[], None]) -> None:
        """Runs one part of the probe."""
        try:
            function()
        except Exception as error:  # noqa: BLE001  one unreadable corner must not hide the rest
            self.sources[f"error:{function.__name__}"] = f"{type(error).__name__}: {error}"[:200]


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """Returns {"driver": DriverFacts}. In an image build no library of the driver is loaded."""
    notes = Notes()
    connection = nvml.Connection(nodes=nvml.device_nodes(host)) if options.inside_image else nvml.connect(host)

    def nodes() -> None:
        notes.set("device_nodes", connection.nodes, "/dev")
        denied = [n for n in connection.nodes if not host.access(n, os.R_OK | os.W_OK)]
        notes.set("device_nodes_denied", tuple(denied), "access(2)")
        notes.set("env", {k: host.env[k] for k in _ENV if k in host.env}, "environment")

    def module() -> None:
        _module(host, notes)

    def boot() -> None:
        _secure_boot(host, notes)

    def shared_libraries() -> None:
        _libraries(host, notes)

    def bus() -> None:
        _pci(host, notes)

    def log() -> None:
        events, source = kernel_log.read(host)
        notes.set("kernel_events", events, source)

    def library() -> None:
        _nvml(connection, notes)

    def smi() -> None:
        _nvidia_smi(host, connection, notes)

    for part in (nodes, module, boot, shared_libraries, bus, library, smi, log):
        notes.part(part)
    return {"driver": DriverFacts(**notes.values, sources=notes.sources)}


def _nvml(connection: nvml.Connection, notes: Notes) -> None:
    notes.set("nvml_status", connection.status, "NVML nvmlInit")
    notes.set("nvml_error", connection.error, "NVML nvmlInit")
    notes.set("nvml_error_code", connection.code, "NVML nvmlInit")
    if connection.lib is not None:
        lib = connection.lib
        for field, function, convert in (
            ("version", "nvmlSystemGetDriverVersion", nvml.text),
            ("cuda", "nvmlSystemGetCudaDriverVersion_v2", nvml.cuda_release),
        ):
            try:
                answer = nvml.bounded(getattr(lib, function), 1.0)
                notes.set(field, convert(answer), f"NVML {function}")
            except Exception as error:  # noqa: BLE001  an answer that is refused or odd is not known
                notes.sources[f"error:{field}"] = "NVML " + ": ".join(str(x) for x in nvml.describe(error))
    if "version" not in notes.values:
        for field in ("module_version", "nvml_version", "libcuda_version"):
            if notes.values.get(field):
                notes.set("version", notes.values[field], notes.sources[field])
                break


def _module(host: Host, notes: Notes) -> None:
    text = host.read("/proc/driver/nvidia/version", 4096)
    if text is not None:
        match = _MODULE_VERSION.search(text)
        if match:
            notes.set("module_version", match[1], "/proc/driver/nvidia/version")
        if "NVRM version" in text:
            notes.set("module_open", "Open Kernel Module" in text, "/proc/driver/nvidia/version")
    if text is not None or host.is_dir("/sys/module/nvidia"):
        notes.set("module_loaded", True, "/sys/module/nvidia")
    elif host.is_dir("/sys/module"):
        notes.set("module_loaded", False, "/sys/module")
    if host.is_dir("/sys/module"):
        notes.set("nouveau_loaded", host.is_dir("/sys/module/nouveau"), "/sys/module")
    kernel = (host.read("/proc/sys/kernel/osrelease", 256) or "").strip()
    index = f"/lib/modules/{kernel}/modules.dep"
    if kernel:
        text = host.read(index, 8 << 20)
        if text is not None:
            notes.set("module_file_present", bool(_MODULE_FILE.search(text)), index)


def _secure_boot(host: Host, notes: Notes) -> None:
    for path in host.glob("/sys/firmware/efi/efivars/SecureBoot-*"):
        data = host.read_bytes(path, 16)
        if data is not None and len(data) >= 5:  # four bytes of attributes, then the value
            notes.set("secure_boot", data[4] == 1, path)
            return
    if host.is_dir("/sys/firmware") and not host.is_dir("/sys/firmware/efi"):
        notes.set("secure_boot", False, "/sys/firmware (no EFI)")


def _libraries(host: Host, notes: Notes) -> None:
    loader = Loader(host)
    for field, name in (("libcuda", "libcuda.so.1"), ("libnvidia_ml", "libnvidia-ml.so.1")):
        found = loader.resolve(name)
        if found is None:
            continue
        path = str(found.value)
        notes.set(field, path, found.source)
        version = version_of(path)
        if field == "libnvidia_ml":
            notes.set("nvml_version", version, path)
        else:
            notes.set("libcuda_is_stub", bool(path) and is_stub(host, path), path or found.source)
            notes.set("libcuda_version", version, path)


def _pci(host: Host, notes: Notes) -> None:
    base = "/sys/bus/pci/devices"
    if not host.is_dir(base):
        return
    displays, switch = [], False
    for name in host.listdir(base):
        if (host.read(f"{base}/{name}/vendor", 32) or "").strip().lower() != "0x10de":
            continue
        kind = (host.read(f"{base}/{name}/class", 32) or "").strip().lower()
        device = (host.read(f"{base}/{name}/device", 32) or "").strip().lower().removeprefix("0x")
        if kind.startswith("0x03"):
            displays.append(f"{name} 10de:{device}")
        switch = switch or kind.startswith("0x0680")
    notes.set("pci_nvidia", tuple(displays), base)
    notes.set("nvswitch", switch, base)
    if switch:
        _fabric_manager(host, notes)


def _fabric_manager(host: Host, notes: Notes) -> None:
    if host.exists("/run/nvidia-fabricmanager/nv-fabricmanager.pid"):
        notes.set("fabric_manager", "active", "/run/nvidia-fabricmanager")
        return
    program = host.which("systemctl")
    if program:
        result = host.run([program, "is-active", "nvidia-fabricmanager"], timeout=1.0)
        state = result.stdout.strip().splitlines()
        if state and re.fullmatch(r"[a-z-]{1,20}", state[0]):
            notes.set("fabric_manager", state[0], "systemctl is-active nvidia-fabricmanager")


def _nvidia_smi(host: Host, connection: nvml.Connection, notes: Notes) -> None:
    path = host.which("nvidia-smi")
    notes.set("nvidia_smi", path or "", "PATH")
    program = path or next((p for p in ("/usr/lib/wsl/lib/nvidia-smi",) if host.exists(p)), None)
    if program is None or connection.status in (None, "ok"):
        return  # NVML has answered: the program would say the same, slower
    deadline = _SMI_S if connection.status != "NoAnswer" else _SMI_S / 2
    result = host.run([program], timeout=deadline, limit=1 << 16)
    source = "nvidia-smi"
    if result.timed_out:
        notes.set("nvidia_smi_output", f"no answer within {deadline:g} s", source)
        return
    notes.set("nvidia_smi_exit", result.returncode, source)
    if not result.ok:
        lines = (result.stdout + "\n" + result.stderr + "\n" + (result.error or "")).strip().splitlines()
        shown = "\n".join("".join(c for c in line if c.isprintable())[:300] for line in lines[:4])
        notes.set("nvidia_smi_output", shown, source)
