"""WSL 1, WSL 2 and native hosts told apart; what Windows and its files say."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from doctor.facts import WslFacts
from doctor.host import wsl, wsl_config
from doctor.host.access import RunResult
from doctor.host.examine import Options
from doctor.host.libraries import parse_cache
from tests.fakes import FakeHost
from tests.host import linux_hosts


def facts(host: FakeHost) -> WslFacts:
    found = wsl.probe(host, Options())["wsl"]
    assert isinstance(found, WslFacts)
    assert not [name for name in found.sources if name.startswith("!")]
    return found


def test_wsl2_as_windows_11_gives_it(tmp_path: Path) -> None:
    seen = facts(linux_hosts.wsl2(tmp_path))
    assert (seen.version, seen.kernel, seen.distro) == (2, "5.15.167.4-microsoft-standard-WSL2", "Ubuntu-24.04")
    assert (seen.dxg, seen.lib_dir, seen.libcuda_in_lib_dir, seen.libnvidia_ml_in_lib_dir) == (True,) * 4
    assert (seen.interop, seen.systemd_enabled) == (True, True)
    assert seen.wslconfig_path == "/mnt/c/Users/Ana Lima/.wslconfig"
    assert seen.wslconfig == {"memory": "16GB", "swap": "4GB"}
    assert seen.linux_driver_packages == ()
    assert seen.libcuda_resolved == "/usr/lib/wsl/lib/libcuda.so.1"
    assert seen.libnvidia_ml_resolved == "/usr/lib/wsl/lib/libnvidia-ml.so.1"
    assert seen.libcuda_so_resolved == ""
    assert seen.cwd_on_windows_drive is False
    assert (seen.pin_memory_kernel_ok, seen.pin_memory_enabled) == (True, False)
    assert seen.windows_build is None  # not worth asking Windows: all is there


def test_wsl1(tmp_path: Path) -> None:
    seen = facts(linux_hosts.wsl1(tmp_path))
    assert (seen.version, seen.windows_build, seen.dxg) == (1, 19041, False)
    assert (seen.libcuda_in_lib_dir, seen.libcuda_resolved) == (False, "")


@pytest.mark.parametrize(
    "release",
    [
        "6.8.0-48-generic",
        "6.18.44-fc-v769",
        "5.15.0-1074-azure",
        "6.6.57-linuxkit",
        "4.18.0-553.el8_10.x86_64",
        "6.1.0-26-amd64",
    ],
)
def test_a_native_host_is_never_called_wsl(tmp_path: Path, release: str) -> None:
    # the variable travels along over ssh; a Hyper-V guest with a shared GPU has the device and the libraries
    host = linux_hosts.native(tmp_path, {"WSL_DISTRO_NAME": "Ubuntu"})
    host.write("/proc/sys/kernel/osrelease", release + "\n")
    host.write("/proc/version", f"Linux version {release} (build@microsoft-lab) (gcc) #1 SMP\n")
    host.write("/dev/dxg", "")
    host.write("/usr/lib/wsl/lib/libdxcore.so", "")
    assert facts(host).version == 0


@pytest.mark.parametrize(
    ("release", "sign", "version"),
    [
        ("4.19.104-microsoft-standard", None, 2),  # WSL2 of 2020
        ("5.10.16.3-microsoft-standard-WSL2", None, 2),
        ("6.6.87.2-microsoft-standard-WSL2+", None, 2),  # built by the user from Microsoft's sources
        ("5.15.90.1-microsoft-custom", None, None),  # perhaps a cloud kernel
        ("5.15.90.1-microsoft-custom", "/run/WSL/8_interop", 2),
        ("6.1.21-mykernel", "/run/WSL/8_interop", 0),  # one sign is not enough
        ("4.4.0-22621-Microsoft", None, 1),
    ],
)
def test_kernel_names(tmp_path: Path, release: str, sign: str | None, version: int | None) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/proc/sys/kernel/osrelease", release + "\n")
    host.program("/sbin/ldconfig", linux_hosts.ldconfig())
    if sign:
        host.write(sign, "")
    assert facts(host).version == version


def test_a_kernel_of_ones_own_is_told_by_wsls_services(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path, release="6.1.21-mykernel")
    assert facts(host).version == 2
    assert "/run/WSL" in facts(host).signs


def test_a_container_of_docker_desktop_is_version_2_without_a_distribution(tmp_path: Path) -> None:
    host = linux_hosts.docker_container(tmp_path)
    host.write("/proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n")
    host.program("/sbin/ldconfig", linux_hosts.ldconfig())
    seen = facts(host)
    assert (seen.version, seen.distro, seen.dxg) == (2, "", False)


def test_without_osrelease_the_version_file_tells(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    os.unlink(host._path("/proc/sys/kernel/osrelease"))
    assert facts(host).version == 2
    os.unlink(host._path("/proc/version"))
    assert facts(host).version is None


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("nvidia-driver-550", True),
        ("libnvidia-compute-535", True),
        ("cuda-drivers", True),
        ("cuda-drivers-560", True),
        ("libcuda1", True),
        ("libnvidia-ml1", True),
        ("nvidia-dkms-550-open", True),
        ("nvidia-utils-550", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("libnvidia-container-tools", False),
        ("nvidia-cuda-toolkit", False),
        ("nvidia-cuda-dev", False),
        ("cuda-toolkit-12-8", False),
        ("nvtop", False),
    ],
)
def test_driver_packages(tmp_path: Path, name: str, driver: bool) -> None:
    host = linux_hosts.wsl2(tmp_path)
    host.write("/var/lib/dpkg/status", linux_hosts.dpkg("adduser", name, "zlib1g"))
    assert facts(host).linux_driver_packages == ((name,) if driver else ())


def test_a_removed_package_with_its_configuration_left_is_not_installed(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    host.write("/var/lib/dpkg/status", linux_hosts.dpkg("nvidia-driver-550", state="deinstall ok config-files"))
    assert facts(host).linux_driver_packages == ()


@pytest.mark.parametrize("content", [b"", b"\0\xff junk", None])
def test_an_unreadable_package_list_is_not_an_empty_one(tmp_path: Path, content: bytes | None) -> None:
    host = linux_hosts.wsl2(tmp_path)
    if content is None:
        os.unlink(host._path("/var/lib/dpkg/status"))
    else:
        host.write("/var/lib/dpkg/status", content)
    assert facts(host).linux_driver_packages is None


def test_ld_library_path_comes_first_and_links_are_followed(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path, {"LD_LIBRARY_PATH": "/opt/lib:/usr/lib/x86_64-linux-gnu"})
    host.write("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54", "")
    host.link("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54")
    host.link("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
    seen = facts(host)
    assert seen.libcuda_resolved == "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54"
    assert seen.libnvidia_ml_resolved == "/usr/lib/wsl/lib/libnvidia-ml.so.1"


def test_the_loaders_cache_leaves_32_bit_libraries_out() -> None:
    text = "\tlibcuda.so.1 (libc6) => /lib32/libcuda.so.1\n\tlibcuda.so.1 (libc6,x86-64) => /a b/libcuda.so.1\n"
    assert parse_cache(text) == {"libcuda.so.1": "/a b/libcuda.so.1"}


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("\r\nMicrosoft Windows [Version 10.0.19041.1415]\r\n", 19041),
        ("\r\nMicrosoft Windows [\ufffd汾 10.0.22631.4317]\r\n", 22631),
        ("Access is denied.\r\n", None),
    ],
)
def test_windows_is_asked_for_its_build_when_libraries_are_missing(
    tmp_path: Path, text: str, build: int | None
) -> None:
    host = linux_hosts.wsl2(tmp_path)
    shutil.rmtree(host._path("/usr/lib/wsl/lib"))
    host.program("/mnt/c/Windows/System32/cmd.exe", text)
    assert facts(host).windows_build == build


def test_a_windows_that_does_not_answer_costs_only_its_build(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    shutil.rmtree(host._path("/usr/lib/wsl/lib"))
    host.program("/mnt/c/Windows/System32/cmd.exe", RunResult(("cmd.exe",), timed_out=True))
    assert (facts(host).windows_build, facts(host).version) == (None, 2)


def test_working_on_a_windows_drive(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    os.unlink(host._path("/proc/self/cwd"))
    host.link("/proc/self/cwd", "/mnt/c/work")
    assert facts(host).cwd_on_windows_drive is True


def test_interop_switched_off(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    host.write("/proc/sys/fs/binfmt_misc/WSLInterop", "disabled\n")
    assert facts(host).interop is False
    os.unlink(host._path("/proc/sys/fs/binfmt_misc/WSLInterop"))
    assert facts(host).interop is False


@pytest.mark.parametrize(
    ("value", "release", "enabled", "kernel"),
    [
        ("1", "4.19.121-microsoft-standard", True, True),
        ("0", "4.19.104-microsoft-standard", False, False),
        ("yes", "5.10.16.3-microsoft-standard-WSL2", False, True),
    ],
)
def test_the_two_gates_of_pinned_memory(
    tmp_path: Path, value: str, release: str, enabled: bool, kernel: bool
) -> None:
    seen = facts(linux_hosts.wsl2(tmp_path, {"VLLM_WSL2_ENABLE_PIN_MEMORY": value}, release))
    assert (seen.pin_memory_enabled, seen.pin_memory_kernel_ok) == (enabled, kernel)


@pytest.mark.parametrize(
    "data",
    [
        "[wsl2]\nmemory=8GB\n".encode("utf-8-sig"),
        "[wsl2]\r\nmemory = 8GB\r\n".encode("utf-16"),
        "[wsl2]\r\nmemory=8GB".encode("utf-16-le"),
        b"[wsl2]\rmemory=8GB\r",
        b'# mine\n[ WSL2 ]  # main\nMemory="8GB"   # half\n[experimental]\nmemory=1GB\n',
    ],
)
def test_files_of_windows_editors(data: bytes) -> None:
    assert wsl_config.sections(wsl_config.text_of(data))["wsl2"] == {"memory": "8GB"}


def test_several_windows_users_and_no_way_to_tell(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path, {"PATH": "/usr/bin"})
    assert facts(host).wslconfig == {"memory": "16GB", "swap": "4GB"}  # Public is nobody's
    host.write("/mnt/c/Users/ben/.wslconfig", "[wsl2]\nmemory=2GB\n")
    assert facts(host).wslconfig is None


def test_a_user_without_the_file_is_known_to_have_none(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path)
    os.unlink(host._path("/mnt/c/Users/Ana Lima/.wslconfig"))
    assert (facts(host).wslconfig, facts(host).wslconfig_path) == ({}, "")


def test_a_moved_drive(tmp_path: Path) -> None:
    host = linux_hosts.wsl2(tmp_path, {"PATH": "/win/c/Users/ana/AppData/Local"})
    host.write("/proc/self/mountinfo", linux_hosts.MOUNTS + linux_hosts.DRIVE_C.replace("/mnt/c", "/win/c"))
    host.write("/win/c/Users/ana/.wslconfig", "[wsl2]\nprocessors=4\n")
    assert facts(host).wslconfig == {"processors": "4"}
