"""The driver probe on hosts made of files; NVML and programs as planned."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from doctor.facts import DriverFacts
from doctor.host import kernel_log, nvml
from doctor.host.access import RunResult
from doctor.host.driver import probe
from doctor.host.examine import Options
from tests.host.fake_nvml import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    MISMATCH,
    UNKNOWN,
    FakeNvml,
    card,
    failing,
)
from tests.host.gpu_hosts import (
    KERNEL,
    LIB,
    PROPRIETARY_MODULE,
    GpuHost,
    add_card,
    add_libraries,
    bare,
    healthy,
    wsl2,
)

SMI_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running.\n\n"
)


def read(host: GpuHost, **options: Any) -> DriverFacts:
    facts = probe(host, Options(**options))["driver"]
    assert isinstance(facts, DriverFacts)
    assert not [k for k in facts.sources if k.startswith("error:")], facts.sources
    return facts


def test_a_healthy_machine(tmp_path: Path) -> None:
    library = card()
    host = healthy(tmp_path, library, env={"CUDA_VISIBLE_DEVICES": "0"})
    d = read(host)
    assert (d.nvml_status, d.version, d.cuda) == ("ok", "580.159.03", "13.0")
    assert (d.module_version, d.module_open, d.module_loaded) == ("580.159.03", True, True)
    assert (d.module_file_present, d.nouveau_loaded, d.secure_boot) == (True, False, False)
    assert d.libcuda == f"{LIB}/libcuda.so.580.159.03"
    assert (d.libcuda_version, d.nvml_version, d.libcuda_is_stub) == ("580.159.03", "580.159.03", False)
    assert d.device_nodes == ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0", "/dev/nvidiactl")
    assert d.pci_nvidia == ("0000:01:00.0 10de:2335",)
    assert d.env == {"CUDA_VISIBLE_DEVICES": "0"}
    assert d.sources["version"] == "NVML nvmlSystemGetDriverVersion"
    assert library.unplanned == []
    assert host.calls == [("/sbin/ldconfig", "-p")]  # nvidia-smi is not started when NVML answers


def test_a_machine_without_a_driver(tmp_path: Path) -> None:
    d = read(bare(tmp_path, failing(LIBRARY_NOT_FOUND)))
    assert (d.nvml_status, d.nvml_error_code) == ("LibraryNotFound", 12)
    assert (d.libcuda, d.libnvidia_ml, d.nvidia_smi, d.device_nodes) == ("", "", "", ())
    assert (d.module_loaded, d.version, d.pci_nvidia) == (False, None, ())


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DRIVER_NOT_LOADED, "DriverNotLoaded", 9),
        (UNKNOWN, "Unknown", 999),
        (MISMATCH, "LibRmVersionMismatch", 18),
        (OSError("libnvidia-ml.so.1: invalid ELF header"), "OSError", None),
    ],
)
def test_errors_of_nvml_keep_name_code_and_text(
    tmp_path: Path, error: Exception, status: str, code: int | None
) -> None:
    host = bare(tmp_path, failing(error))
    add_libraries(host, "535.261.03")
    d = read(host)
    assert (d.nvml_status, d.nvml_error_code, d.nvml_error) == (status, code, str(error))
    assert d.version == "535.261.03"  # from the file name, as NVML cannot be asked


def test_nvidia_smi_is_asked_when_nvml_fails(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(DRIVER_NOT_LOADED))
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=9, stdout=SMI_NO_DRIVER))
    d = read(host)
    assert (d.nvidia_smi, d.nvidia_smi_exit) == ("/usr/bin/nvidia-smi", 9)
    assert (d.nvidia_smi_output or "").startswith("NVIDIA-SMI has failed because it couldn't communicate")


def test_a_hanging_nvidia_smi_is_a_fact(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(UNKNOWN))
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, timed_out=True))
    d = read(host)
    assert d.nvidia_smi_exit is None
    assert d.nvidia_smi_output == "no answer within 3 s"


def test_a_hanging_nvml_costs_its_own_fields_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    host = healthy(tmp_path, card(nvmlInit=lambda: release.wait(30)))
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, timed_out=True))
    began = time.monotonic()
    assert nvml.connect(host, 0.2).status == "NoAnswer"
    assert time.monotonic() - began < 2
    d = read(host)
    release.set()
    assert (d.nvml_status, d.module_version, d.version) == ("NoAnswer", "580.159.03", "580.159.03")
    assert d.nvidia_smi_output == "no answer within 1.5 s"


def test_nvml_is_opened_once_for_both_probes(tmp_path: Path) -> None:
    opened = []
    host = healthy(tmp_path, card(nvmlInit=lambda: opened.append(1)))
    assert nvml.connect(host) is nvml.connect(host)
    assert opened == [1]


def test_device_nodes_are_those_before_nvml_was_opened(tmp_path: Path) -> None:
    """As root NVML makes /dev/nvidiactl by itself; that is no sign of a grant."""
    host = bare(tmp_path, FakeNvml())

    def init() -> None:
        host.write("/dev/nvidiactl", "")
        raise UNKNOWN

    host.nvml = FakeNvml(nvmlInit=init)
    d = read(host)
    assert host.exists("/dev/nvidiactl")
    assert d.device_nodes == ()


def test_nodes_that_this_user_cannot_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = healthy(tmp_path, failing(DRIVER_NOT_LOADED))
    host.program("/usr/bin/nvidia-smi", "")
    monkeypatch.setattr(host, "access", lambda path, _mode: not path.startswith("/dev/nvidia0"))
    assert read(host).device_nodes_denied == ("/dev/nvidia0",)


def test_the_missing_binding_is_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_host: object) -> None:
        raise ImportError("No module named 'pynvml'")

    monkeypatch.setattr(nvml, "_library", missing)
    d = read(bare(tmp_path, FakeNvml()))
    assert (d.nvml_status, d.nvml_error) == (
        "BindingsMissing",
        "nvidia-ml-py is not installed: No module named 'pynvml'",
    )


def test_another_root_folder_does_not_load_this_machines_library(tmp_path: Path) -> None:
    host = bare(tmp_path, FakeNvml())
    del host.nvml
    assert read(host).nvml_status is None


def test_an_image_build_opens_nothing(tmp_path: Path) -> None:
    library = FakeNvml()
    d = read(bare(tmp_path, library), inside_image=True)
    assert d.nvml_status is None
    assert library.unplanned == []


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        (PROPRIETARY_MODULE, "535.183.01", False),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Mod", None, False),
        ("", None, None),
        ("\x00\xff garbage 12", None, None),
    ],
)
def test_module_version_texts(tmp_path: Path, text: str, version: str | None, is_open: bool | None) -> None:
    host = healthy(tmp_path, card())
    host.write("/proc/driver/nvidia/version", text)
    d = read(host)
    assert (d.module_version, d.module_open, d.module_loaded) == (version, is_open, True)


def test_module_file_for_another_kernel_only(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(DRIVER_NOT_LOADED))
    host.write(f"/lib/modules/{KERNEL}/modules.dep", "kernel/drivers/gpu/drm/nouveau/nouveau.ko.zst:\n")
    host.write("/lib/modules/6.8.0-40-generic/modules.dep", "updates/dkms/nvidia.ko.zst:\n")
    host.write("/sys/module/nouveau/refcnt", "1\n")
    d = read(host)
    assert (d.module_file_present, d.nouveau_loaded) == (False, True)


def test_secure_boot_is_the_fifth_byte(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(DRIVER_NOT_LOADED))
    host.write("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\x06\0\0\0\x01")
    assert read(host).secure_boot is True


def test_a_stub_is_not_taken_for_the_driver(tmp_path: Path) -> None:
    stubs = "/usr/local/cuda/lib64/stubs"
    host = bare(tmp_path, failing(LIBRARY_NOT_FOUND), env={"LD_LIBRARY_PATH": stubs})
    host.write(f"{stubs}/libcuda.so", b"\x7fELF")
    host.link(f"{stubs}/libcuda.so.1", "libcuda.so")
    d = read(host)
    assert (d.libcuda, d.libcuda_is_stub) == (f"{stubs}/libcuda.so", True)


def test_the_small_libraries_of_wsl2_are_no_stubs(tmp_path: Path) -> None:
    d = read(wsl2(tmp_path, card()))
    assert (d.libcuda, d.libcuda_is_stub, d.libcuda_version) == ("/usr/lib/wsl/lib/libcuda.so.1", False, None)


@pytest.mark.parametrize(("answer", "state"), [("active\n", "active"), ("inactive\n", "inactive"), ("\n", None)])
def test_fabric_manager_of_an_nvswitch_machine(tmp_path: Path, answer: str, state: str | None) -> None:
    host = healthy(tmp_path, card())
    host.write("/sys/bus/pci/devices/0000:05:00.0/vendor", "0x10de\n")
    host.write("/sys/bus/pci/devices/0000:05:00.0/class", "0x068000\n")
    host.program("/usr/bin/systemctl", lambda argv: RunResult(argv, returncode=3, stdout=answer))
    d = read(host)
    assert (d.nvswitch, d.fabric_manager) == (True, state)


KMSG = (
    "4,1201,5510221,-;NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has "
    "fallen off the bus.\n"
    "4,1202,5510229,-;NVRM: Xid (PCI:0000:01:00): 31, pid=4711, name=python3, Ch 00000008, intr 1. MMU Fault\n"
    "3,1203,5510240,-;Out of memory: Killed process 812 (VLLM::EngineCor) total-vm:48318384kB, anon-rss:1kB\n"
    "3,1204,5510250,-;misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12\n"
    "6,1205,5510260,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.03\n"
    "3,1206,5510270,-;NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0xffff:1239)\n"
    "6,1207,5510280,-;usb 1-1: new device\n SUBSYSTEM=usb\n"
)


def test_telling_lines_of_the_kernel_log(tmp_path: Path) -> None:
    host = healthy(tmp_path, card())
    host.write("/dev/kmsg", KMSG)
    events = read(host).kernel_events or ()
    assert [(e.kind, e.code, e.process) for e in events] == [
        ("xid", 79, None),
        ("xid", 31, "python3"),
        ("oom-kill", None, "VLLM::EngineCor"),
        ("dxg-make-resident", None, None),
        ("nvrm", None, None),
    ]
    assert events[2].text.startswith("Out of memory: Killed process 812")


def test_dmesg_then_kern_log(tmp_path: Path) -> None:
    host = bare(tmp_path / "a", card())
    host.program("/usr/bin/dmesg", "[ 12.0] NVRM: Xid (PCI:0000:01:00): 48, DBE\n")
    assert [e.code for e in read(host).kernel_events or ()] == [48]
    host = bare(tmp_path / "b", card())
    refused = "dmesg: read kernel buffer failed: Operation not permitted\n"
    host.program("/usr/bin/dmesg", lambda argv: RunResult(argv, returncode=1, stderr=refused))
    host.write("/var/log/kern.log", "")
    old_boot = "Nov 1 x kernel: NVRM: Xid (PCI:0000:01:00): 79, old\nNov 2 x kernel: Linux version 6.8.0\n"
    host.program("/usr/bin/tail", old_boot + "Nov 2 x kernel: NVRM: Xid (PCI:0000:01:00): 13, new\n")
    assert [e.code for e in read(host).kernel_events or ()] == [13]


def test_no_readable_kernel_log_is_not_an_empty_one(tmp_path: Path) -> None:
    assert read(bare(tmp_path, card())).kernel_events is None


def test_a_huge_binary_kernel_log_stays_bounded() -> None:
    noise = ("\x00\x01\ufffd" * 400 + "\n") * 2000
    storm = "".join(f"NVRM: Xid (PCI:0000:01:00): 13, pid={i}, name=a\n" for i in range(5000))
    other = "".join(f"NVRM: message {chr(97 + i % 26)}{chr(97 + i // 26)}\n" for i in range(600))
    began = time.monotonic()
    events = kernel_log.parse(noise + storm + other + "NVRM: Xid (PCI:0000:01:00): " + "9" * 3000, "x")
    assert time.monotonic() - began < 3
    assert len(events) == kernel_log.MOST


def test_a_100_mb_kernel_log_is_read_in_part(tmp_path: Path) -> None:
    host = bare(tmp_path, card())
    path = tmp_path / "dev/kmsg"
    with path.open("wb") as file:
        file.write(KMSG.encode())
        file.truncate(100 << 20)
    began = time.monotonic()
    assert len(read(host).kernel_events or ()) == 5
    assert time.monotonic() - began < 2


def test_hosts_with_a_card_and_no_module(tmp_path: Path) -> None:
    host = bare(tmp_path, failing(DRIVER_NOT_LOADED))
    add_card(host)
    for gone in ("/proc/driver/nvidia/version", "/sys/module/nvidia/refcnt"):
        Path(str(tmp_path) + gone).unlink()
    Path(str(tmp_path) + "/sys/module/nvidia").rmdir()
    host.program("/usr/bin/nvidia-smi", lambda argv: RunResult(argv, returncode=9, stdout=SMI_NO_DRIVER))
    d = read(host)
    assert (d.module_loaded, d.module_file_present) == (False, True)


ODD = [
    None,
    b"\xff\xfe",
    "",
    "\x00\x01",
    -1,
    2**64,
    3.5,
    [],
    {},
    True,
    object(),
    RuntimeError("x"),
    ValueError(),
    "9" * 9999,
]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_answers_leave_fields_unknown(tmp_path: Path, odd: Any) -> None:
    library = card(nvmlSystemGetDriverVersion=odd, nvmlSystemGetCudaDriverVersion_v2=odd)
    facts = probe(healthy(tmp_path, library), Options())["driver"]
    assert facts.nvml_status == "ok"
    assert facts.cuda is None
    assert facts.version is None or isinstance(facts.version, str)
    assert facts.version is None or len(facts.version) <= 200
