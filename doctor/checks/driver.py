"""Checks of the area: driver. Exactly one cause is left standing for each way a driver can fail."""

from __future__ import annotations

from doctor.catalogue.gpus import version_tuple
from doctor.checks.registry import check, found
from doctor.facts import DriverFacts
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Skipped
from doctor.snapshot import Snapshot

_IMAGE = "an image build is not expected to have a GPU"
VERIFY = ("nvidia-smi lists the card", "vllm-doctor check")

#: Statuses of NVML that have a check of their own, or no finding at all.
_EXPLAINED = {None, "ok", "LibraryNotFound", "LibRmVersionMismatch", "BindingsMissing"}


def facts_of(s: Snapshot) -> DriverFacts:
    assert s.driver is not None  # noqa: S101  every check here needs=("driver",)
    return s.driver


def rows_of(s: Snapshot, *names: str) -> list[Evidence]:
    """Evidence for those facts of the driver that are known."""
    return [s.evidence(f"driver.{n}") for n in names if getattr(s.driver, n) is not None]


def _bus(s: Snapshot) -> list[Evidence]:
    """Whether a card is on the PCI bus at all; nothing under WSL, where Windows owns the bus."""
    if s.is_wsl or s.driver is None or s.driver.pci_nvidia is None:
        return []
    if s.driver.pci_nvidia == ():
        return [s.evidence("driver.pci_nvidia", "no NVIDIA device on the PCI bus either")]
    return [s.evidence("driver.pci_nvidia")]


def install_driver(s: Snapshot) -> Remedy:
    """How this distribution installs the driver. A system change and a restart: by hand."""
    name = s.system.os_id if s.system else None
    commands: tuple[tuple[str, ...], ...] = ()
    if name == "ubuntu":
        commands = (("sudo", "ubuntu-drivers", "install"),)
        text = "Install the driver that Ubuntu recommends for this card, then restart"
    elif name == "debian":
        commands = (("sudo", "apt-get", "install", "nvidia-driver", "firmware-misc-nonfree"),)
        text = "Install Debian's driver (needs the non-free and non-free-firmware components), then restart"
    else:
        text = "Install the NVIDIA driver of this distribution, then restart"
    return Remedy(text, commands=commands, verify=VERIFY)


@check("nvidia-driver-missing", needs=("driver",), essential=True)
def nvidia_driver_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds a native host without any part of an NVIDIA driver.

    Signals: no libcuda, no libnvidia-ml, no kernel module, no device node, no nvidia-smi. In a
    container the host lends the driver and under WSL Windows does: other checks judge those.
    """
    cause, d = "nvidia-driver-missing", facts_of(s)
    if d.nvml_status == "ok" or d.module_loaded:
        return None
    if s.inside_image:
        return Skipped(cause, _IMAGE)
    if s.in_container or s.is_wsl:
        return None
    parts = (d.libcuda, d.libnvidia_ml, d.device_nodes, d.nvidia_smi)
    if any(p for p in parts if p is not None):
        return None
    if any(p is None for p in parts):
        return Skipped(cause, "libraries, device nodes or programs of the driver could not be looked for")
    sure = d.module_loaded is False and s.in_container is False and s.is_wsl is False
    bus = _bus(s)
    no_card = d.pci_nvidia == ()
    summary = "No NVIDIA driver: no kernel module, no libcuda.so.1, no /dev/nvidia*, no nvidia-smi" + (
        ", and no NVIDIA device on the PCI bus either" if no_card and bus else ""
    )
    fixes = [install_driver(s)]
    if no_card and bus:
        fixes.insert(0, Remedy("Check that this machine has an NVIDIA card: the PCI bus shows none"))
    return found(
        cause,
        Confidence.PROVEN if sure else Confidence.LIKELY,
        summary,
        rows_of(s, "module_loaded", "libcuda", "libnvidia_ml", "device_nodes", "nvidia_smi", "nvml_status") + bus,
        fixes=fixes,
        excludes=() if s.in_container is None else ("container-gpu-not-exposed: this is not a container",),
    )


@check("nvidia-kernel-module-not-loaded", needs=("driver",))
def nvidia_kernel_module_not_loaded(s: Snapshot) -> Finding | Skipped | None:
    """Finds driver libraries without a running kernel module, and says why it does not run.

    Signals: libnvidia-ml (or libcuda) present, NVML says "driver not loaded" (9), no nvidia in
    /sys/module. A container shares the kernel of its host, so the same holds there. As root in a
    container without a grant NVML says 999 instead: that is another cause.
    """
    cause, d = "nvidia-kernel-module-not-loaded", facts_of(s)
    if d.nvml_status in ("ok", None, "LibRmVersionMismatch") or d.module_loaded or s.is_wsl:
        return None
    if not (d.libnvidia_ml or d.libcuda) or (d.nvml_status == "LibraryNotFound" and not d.libcuda):
        return None
    if d.nvml_status != "DriverNotLoaded" and not (d.module_loaded is False and s.in_container is False):
        return None
    sure = d.nvml_status == "DriverNotLoaded" and d.module_loaded is False and s.is_wsl is False
    if s.in_container and not sure:
        return None
    where = "the kernel of this container's host" if s.in_container else "the kernel"
    summary = f"The driver libraries {d.version or ''} are here".replace("  ", " ") + (
        f", but {where} has no nvidia module: {_why_not_loaded(s)}"
    )
    rows = rows_of(
        s, "nvml_status", "nvml_error", "libnvidia_ml", "libcuda", "module_loaded", "module_file_present",
        "nouveau_loaded", "secure_boot", "device_nodes", "nvidia_smi_exit",
    )  # fmt: skip
    return found(
        cause,
        Confidence.PROVEN if sure else Confidence.LIKELY,
        summary,
        rows + _bus(s),
        fixes=_load_module(s),
    )


def _why_not_loaded(s: Snapshot) -> str:
    d = facts_of(s)
    if s.in_container:
        return "the driver must be installed and running on the host"
    if d.nouveau_loaded:
        return "nouveau holds the card"
    if d.module_file_present is False:
        return f"there is no nvidia.ko for kernel {s.system.kernel if s.system and s.system.kernel else 'in use'}"
    if d.module_file_present and d.secure_boot:
        return "its file exists, and Secure Boot refuses a module that is not signed with an enrolled key"
    if d.pci_nvidia == ():
        return "there is no NVIDIA device on the PCI bus for it to drive"
    if d.module_file_present:
        return "its file exists for this kernel, it is just not loaded"
    return "why is not known (module file and Secure Boot state cannot be read)"


def _load_module(s: Snapshot) -> list[Remedy]:
    d = facts_of(s)
    if s.in_container:
        return [
            Remedy("On the host: install or load the driver, then start the container with a GPU", verify=VERIFY)
        ]
    load = Remedy("Load the module", commands=(("sudo", "modprobe", "nvidia"),), verify=VERIFY)
    kernel = s.system.kernel if s.system else None
    fixes = []
    if d.nouveau_loaded:
        fixes.append(
            Remedy("Keep nouveau from loading (the driver's package does that) and restart", verify=VERIFY)
        )
    elif d.module_file_present is False and kernel and s.system and s.system.os_id in ("ubuntu", "debian"):
        fixes.append(
            Remedy(
                "Build the module for this kernel",
                commands=(
                    ("sudo", "apt-get", "install", f"linux-headers-{kernel}"),
                    ("sudo", "dkms", "autoinstall"),
                    ("sudo", "modprobe", "nvidia"),
                ),
                verify=VERIFY,
            )
        )
    elif d.module_file_present is False:
        fixes.append(Remedy("Install the module for this kernel, or start the kernel it was built for"))
    elif d.module_file_present and d.secure_boot:
        fixes.append(
            Remedy("See whether the key is enrolled, then sign the module", commands=(("mokutil", "--sb-state"),))
        )
    return [*fixes, load] if load not in fixes else fixes


@check("nvml-library-missing", needs=("driver",))
def nvml_library_missing(s: Snapshot) -> Finding | Skipped | None:
    """Finds that libnvidia-ml.so.1 cannot be loaded although other parts of the driver are there.

    vLLM asks NVML which platform it runs on, so it infers no device although libcuda works. A file
    that is there but is no library gives the same NVML error (12). Nothing of a driver at all is
    another cause.
    """
    cause, d = "nvml-library-missing", facts_of(s)
    if s.inside_image:
        return Skipped(cause, _IMAGE)
    if d.nvml_status is None:
        return Skipped(cause, "NVML was not asked")
    if d.nvml_status != "LibraryNotFound":
        return None
    real_libcuda = d.libcuda and not d.libcuda_is_stub
    if not (real_libcuda or d.module_loaded or d.nvidia_smi or d.libnvidia_ml):
        return None
    rows = rows_of(s, "nvml_error", "libnvidia_ml", "libcuda", "module_loaded", "nvidia_smi", "nvidia_smi_output")
    if d.libnvidia_ml:
        summary = f"{d.libnvidia_ml} is there but cannot be loaded (damaged, or for another architecture)"
    else:
        has = d.libcuda if real_libcuda else ("the kernel module" if d.module_loaded else d.nvidia_smi)
        summary = f"libnvidia-ml.so.1 is not on the loader path, while {has} is there"
    sure = bool(real_libcuda or d.module_loaded or d.libnvidia_ml)
    return found(
        cause, Confidence.PROVEN if sure else Confidence.LIKELY, summary, rows, fixes=_nvml_package(s) or None
    )


def _nvml_package(s: Snapshot) -> list[Remedy]:
    d = facts_of(s)
    if s.in_container:
        text = "Start the container with the utility capability: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return [Remedy(text, automatic=True, risk=Risk.SAFE, verify=VERIFY)]
    version = d.module_version or d.version
    if s.is_wsl:
        return []
    if s.system and s.system.os_id == "ubuntu" and version:
        package = f"libnvidia-compute-{version.split('.')[0]}"
        command = ("sudo", "apt-get", "install", package)
        return [
            Remedy(f"Install {package}, of the running module {version}", True, (command,), Risk.CAUTION, VERIFY)
        ]
    if s.system and s.system.os_id == "debian":
        return [
            Remedy(
                "Install libnvidia-ml1 of the running module's version",
                True,
                (("sudo", "apt-get", "install", "libnvidia-ml1"),),
                Risk.CAUTION,
                VERIFY,
            )
        ]
    return []


@check("driver-library-version-mismatch", needs=("driver",))
def driver_library_version_mismatch(s: Snapshot) -> Finding | Skipped | None:
    """Finds user-space libraries of another version than the loaded kernel module.

    Signals: NVML error 18, CUDA error 803, or the version in /proc/driver/nvidia/version against the
    one in the file name of libnvidia-ml. NVML shortens versions, so equal beginnings are equal.
    """
    cause, d = "driver-library-version-mismatch", facts_of(s)
    cuda_says = any(g.cuda_error_code == 803 for g in s.gpus or ())
    module, library = version_tuple(d.module_version), version_tuple(d.nvml_version)
    differ = bool(module and library and any(a != b for a, b in zip(module, library, strict=False)))
    if d.nvml_status == "ok" and not cuda_says:
        return None  # the library that was loaded and the module do understand each other
    if d.nvml_status != "LibRmVersionMismatch" and not cuda_says and not (differ and not s.is_wsl):
        if d.nvml_status is None and (module is None or library is None):
            return Skipped(cause, "neither NVML nor both versions are known")
        return None
    rows = rows_of(s, "module_version", "nvml_version", "libnvidia_ml", "nvml_status", "nvml_error")
    rows += [s.evidence(f"gpus[{i}].cuda_error") for i, g in enumerate(s.gpus or ()) if g.cuda_error_code == 803]
    summary = f"The loaded kernel module is {d.module_version or 'of another version'}, the libraries are " + (
        d.nvml_version or "not the same"
    )
    if module and library and not differ:
        summary = f"The driver says that module and libraries differ, though both name {d.module_version} on disk"
    sure = d.nvml_status == "LibRmVersionMismatch" or cuda_says
    fixes = [Remedy("Restart the machine, so that the new module is loaded", verify=VERIFY)]
    if s.in_container:
        fixes = [Remedy("Recreate the container: it must get the libraries of the host's running module")]
    elif s.system and s.system.os_id in ("ubuntu", "debian") and d.nvml_version:
        branch = d.nvml_version.split(".")[0]
        package = f"nvidia-driver-{branch}" if s.system.os_id == "ubuntu" else "nvidia-driver"
        fixes.append(
            Remedy(
                f"Hold {package}, so that an automatic upgrade does not bring it back",
                commands=(("sudo", "apt-mark", "hold", package),),
            )
        )
    return found(cause, Confidence.PROVEN if sure else Confidence.LIKELY, summary, rows, fixes=fixes)


_WSL_DRIVER = (
    Remedy("End WSL and start it again (all its distributions stop)", commands=(("wsl.exe", "--shutdown"),)),
    Remedy("Look in Windows whether the card works: nvidia-smi in PowerShell, and the Device Manager"),
    Remedy("Install the newest NVIDIA driver for Windows, restart Windows; no driver inside the distribution"),
)


@check("nvml-init-failed", needs=("driver",))
def nvml_init_failed(s: Snapshot) -> Finding | Skipped | None:
    """Finds an NVML error that no other cause explains: a hang, a lost card, refused access.

    Other causes (no driver, module not loaded, version mismatch, container without a grant) fold this.
    """
    cause, d = "nvml-init-failed", facts_of(s)
    if s.inside_image:
        return Skipped(cause, _IMAGE)
    if d.nvml_status == "BindingsMissing":
        return Skipped(cause, d.nvml_error or "the Python binding of NVML is missing")
    if d.nvml_status is None:
        return Skipped(cause, "NVML was not asked")
    if d.nvml_status in _EXPLAINED:
        return None
    code = f" ({d.nvml_error_code})" if d.nvml_error_code is not None else ""
    summary = f"NVML answers {d.nvml_status}{code}: {d.nvml_error or 'no text'}"
    if d.nvml_status == "Unknown" and s.in_container:
        summary += "; root sees this in a container that was given no GPU, or lost it"
    if d.nvidia_smi_output:
        first = d.nvidia_smi_output.splitlines()[0]
        summary += f"; nvidia-smi: {first[:120]}"
    rows = rows_of(
        s, "nvml_status", "nvml_error", "module_loaded", "module_version", "device_nodes", "nvidia_smi_exit",
        "nvidia_smi_output",
    )  # fmt: skip
    # Windows owns the card and the kernel half of the driver: there is no kernel log to read here
    fixes = _WSL_DRIVER if s.is_wsl2 and not s.in_container else None
    return found(cause, Confidence.LIKELY, summary, rows + _bus(s), fixes=fixes)


@check("no-gpu-visible", needs=("driver",))
def no_gpu_visible(s: Snapshot) -> Finding | Skipped | None:
    """Finds a working driver that lists no card.

    Signals: NVML opens, its device count is 0.
    """
    d = facts_of(s)
    if s.inside_image:
        return Skipped("no-gpu-visible", _IMAGE)
    if d.nvml_status != "ok":
        return Skipped("no-gpu-visible", "NVML is not open")
    if s.gpus is None:
        return Skipped("no-gpu-visible", "the cards were not counted")
    if s.gpus:
        return None
    where = ""
    if d.pci_nvidia:
        where = f"; on the PCI bus: {', '.join(d.pci_nvidia)}"
    elif d.pci_nvidia == () and not s.is_wsl:
        where = "; there is no NVIDIA device on the PCI bus either"
    rows = rows_of(s, "nvml_status", "version", "device_nodes") + _bus(s)
    rows += [
        Evidence("NVIDIA_VISIBLE_DEVICES", d.env[n], "environment") for n in d.env if n == "NVIDIA_VISIBLE_DEVICES"
    ]
    return found(
        "no-gpu-visible", Confidence.PROVEN, f"Driver {d.version or ''} works but lists no card{where}", rows
    )


@check("device-node-permission-denied", needs=("driver",))
def device_node_permission_denied(s: Snapshot) -> Finding | Skipped | None:
    """Finds device nodes of the driver that this user may not open.

    Signals: access(2) on /dev/nvidiactl and /dev/nvidiaN. Proven when NVML fails too.
    """
    cause, d = "device-node-permission-denied", facts_of(s)
    if d.device_nodes is None:
        return Skipped(cause, "the device nodes are not known")
    denied = [n for n in d.device_nodes_denied if not n.endswith(("-modeset", "-uvm-tools"))]
    if not denied or d.nvml_status == "ok":
        return None
    rows = rows_of(s, "device_nodes", "device_nodes_denied", "nvml_status", "nvml_error")
    user = f"user {s.system.uid}" if s.system and s.system.uid is not None else "this user"
    groups = ", ".join(s.system.groups or ()) if s.system else ""
    summary = f"{user} may not open {', '.join(denied)}" + (f" (groups: {groups})" if groups else "")
    return found(cause, Confidence.PROVEN, summary, rows)


@check("cuda-visible-devices-hides-gpu", needs=("driver",))
def cuda_visible_devices_hides_gpu(s: Snapshot) -> Finding | Skipped | None:
    """Finds a CUDA_VISIBLE_DEVICES that leaves no card: empty, -1, or one that does not exist first."""
    cause, d = "cuda-visible-devices-hides-gpu", facts_of(s)
    value = d.env.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    if not s.gpus:
        return Skipped(cause, "no card is known that could be hidden")
    first = value.split(",")[0].strip()
    if first.startswith("MIG-") or any(g.mig for g in s.gpus):
        return Skipped(cause, "instances of a divided card (MIG) are not listed here")
    if any(
        first == str(g.index) or (first.startswith("GPU-") and (g.uuid or "").startswith(first)) for g in s.gpus
    ):
        return None
    if first.startswith("GPU-") and any(g.uuid is None for g in s.gpus):
        return Skipped(cause, "the UUIDs of the cards are not known")
    listed = ", ".join(str(g.index) for g in s.gpus)
    summary = f"CUDA_VISIBLE_DEVICES={value!r} leaves no GPU; NVML lists {listed}"
    fix = Remedy("Unset it in the shell that starts vLLM: unset CUDA_VISIBLE_DEVICES", True, risk=Risk.SAFE)
    rows = [Evidence("CUDA_VISIBLE_DEVICES", repr(value), "environment"), Evidence("GPUs", listed, "NVML")]
    return found(cause, Confidence.PROVEN, summary, rows, fixes=[fix])
