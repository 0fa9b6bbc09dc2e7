"""The system probe on whole fake hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from doctor.facts import SystemFacts
from doctor.host import system
from doctor.host.examine import Options
from tests.fakes import FakeHost
from tests.host import linux_hosts


def facts(host: FakeHost) -> SystemFacts:
    found = system.probe(host, Options())["system"]
    assert isinstance(found, SystemFacts)
    return found


def test_a_desktop(tmp_path: Path) -> None:
    seen = facts(linux_hosts.native(tmp_path))
    assert (seen.os_id, seen.os_version, seen.os_name, seen.os_like) == (
        "ubuntu",
        "24.04",
        "Ubuntu 24.04.1 LTS",
        ("debian",),
    )
    assert (seen.kernel, seen.arch, seen.glibc) == ("6.8.0-48-generic", "x86_64", "2.39")
    assert seen.cpu_model == "AMD Ryzen 7 5800X 8-Core Processor"
    assert seen.cpu_count == 9
    assert seen.cpu_flags == ("sse4_2", "fma", "f16c", "avx", "avx2")
    assert seen.ram_total_bytes == 32_768_000 * 1024
    assert seen.swap_total_bytes == 2 << 30
    assert seen.overcommit_memory == 0
    assert (seen.nofile_soft, seen.nofile_hard, seen.memlock_bytes) == (1024, 1048576, 8388608)
    assert (seen.in_container, seen.container_kind, seen.systemd) == (False, "", True)
    assert (seen.uid, seen.groups, seen.cwd) == (1000, ("ana", "adm", "sudo"), "/home/ana")
    assert seen.locale == "en_US.UTF-8"
    assert (seen.cgroup_version, seen.cgroup_memory_limit_bytes) == (2, -1)
    assert seen.sources["glibc"] == "/lib/x86_64-linux-gnu/libc.so.6"
    assert not [name for name in seen.sources if name.startswith("!")]


def test_no_program_is_started_when_the_c_library_is_a_file(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    facts(host)
    assert host.calls == []


def test_getconf_is_asked_when_the_library_is_elsewhere(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    os.unlink(host._path("/lib/x86_64-linux-gnu/libc.so.6"))
    assert facts(host).glibc is None
    host.program("/usr/bin/getconf", "glibc 2.35\n")
    host._programs["getconf"] = "glibc 2.35\n"
    assert facts(host).glibc == "2.35"


def test_musl_is_no_glibc(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    os.unlink(host._path("/lib/x86_64-linux-gnu/libc.so.6"))
    host.write("/lib/ld-musl-x86_64.so.1", "")
    assert facts(host).glibc == ""


def test_the_architecture_of_kernels_that_do_not_tell_it(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    os.unlink(host._path("/proc/sys/kernel/arch"))
    assert facts(host).arch is None
    host.write("/proc/self/exe", b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00")
    assert facts(host).arch == "aarch64"


def test_centos_6_has_no_os_release(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write("/etc/redhat-release", "CentOS release 6.10 (Final)\n")
    assert (facts(host).os_id, facts(host).os_version) == ("centos", "6.10")


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_sees_its_own_limits(tmp_path: Path, version: int) -> None:
    seen = facts(linux_hosts.docker_container(tmp_path, cgroup=version))
    assert (seen.in_container, seen.container_kind) == (True, "docker")
    assert seen.systemd is True  # /run/systemd/system of the fake desktop is still there
    assert seen.cgroup_version == version
    assert seen.cgroup_memory_limit_bytes == 2 << 30
    assert seen.cgroup_memory_used_bytes == 100 << 20
    assert seen.cgroup_oom_kills == 2
    assert seen.cgroup_cpus == 1.5


@pytest.mark.parametrize(("version", "limit"), [(1, "9223372036854771712"), (2, "max")])
def test_no_limit_is_minus_one(tmp_path: Path, version: int, limit: str) -> None:
    assert facts(linux_hosts.docker_container(tmp_path, limit, version)).cgroup_memory_limit_bytes == -1


def test_a_limit_of_a_group_above_counts(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/sys/fs/cgroup/user.slice/memory.max", "1000000000\n")
    host.write("/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/memory.max", "max\n")
    host.write("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n")
    seen = facts(host)
    assert seen.cgroup_memory_limit_bytes == 1_000_000_000
    assert seen.cgroup_cpus == -1


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("/run/.containerenv", "", "podman"),
        ("/run/systemd/container", "lxc\n", "lxc"),
        ("/proc/1/cgroup", "0::/kubepods.slice/kubepods-burstable.slice/x\n", "kubernetes"),
        ("/proc/1/cgroup", "12:memory:/lxc/web/ns\n", "lxc"),
        ("/proc/1/cgroup", "3:cpu:/machine.slice/libpod-0a.scope\n", "podman"),
    ],
)
def test_kinds_of_containers(tmp_path: Path, path: str, text: str, kind: str) -> None:
    host = linux_hosts.native(tmp_path)
    host.write(path, text)
    assert (facts(host).in_container, facts(host).container_kind) == (True, kind)


def test_kubernetes_by_its_variable_and_containerd_by_its_layers(tmp_path: Path) -> None:
    assert (
        facts(linux_hosts.native(tmp_path / "k", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})).container_kind
        == "kubernetes"
    )
    host = linux_hosts.native(tmp_path / "c")
    host.write(
        "/proc/self/mountinfo", "1 0 0:9 / / rw - overlay overlay rw,lowerdir=/v/io.containerd.snapshotter.v1/1\n"
    )
    assert facts(host).container_kind == "containerd"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/run/systemd/container", "wsl\n"),  # systemd calls a WSL distribution a container
        (
            "/proc/self/mountinfo",
            "1 0 0:9 / / rw - overlay overlayroot rw,lowerdir=/media/root-ro\n",
        ),  # a live USB
        ("/proc/1/cgroup", "0::/init.scope\n"),
    ],
)
def test_what_is_no_container(tmp_path: Path, path: str, text: str) -> None:
    host = linux_hosts.native(tmp_path)
    host.write(path, text)
    assert facts(host).in_container is False


def test_governors(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    assert facts(host).cpu_governors == ()  # a virtual machine
    for policy in ("policy0", "policy1"):
        host.write(f"/sys/devices/system/cpu/cpufreq/{policy}/scaling_governor", "powersave\n")
        host.write(f"/sys/devices/system/cpu/cpufreq/{policy}/scaling_driver", "intel_pstate\n")
    assert facts(host).cpu_governors == ("powersave",)
    assert facts(host).cpu_scaling_driver == "intel_pstate"


def test_unlimited_open_files(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/proc/self/limits", "Max open files            65536                unlimited            files\n")
    assert (facts(host).nofile_soft, facts(host).nofile_hard) == (65536, -1)


def _touch(host: FakeHost, path: str, when: float) -> None:
    if not host.exists(path):
        host.write(path, "")
    os.utime(host._path(path), (when, when))


def _aged(tmp_path: Path, rtc: float | None = None) -> FakeHost:
    """A host whose files are all a day old."""
    host = linux_hosts.native(tmp_path)
    for path in ("/etc/passwd", "/etc/ld.so.cache", "/var/lib/dpkg/status"):
        _touch(host, path, host.time() - 86_400)
    if rtc is not None:
        host.write("/sys/class/rtc/rtc0/since_epoch", f"{rtc:.0f}\n")
    return host


def test_the_clock(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    assert facts(_aged(tmp_path / "nothing")).clock_skew_s is None
    assert facts(_aged(tmp_path / "same", now - 1)).clock_skew_s == 1.0
    assert facts(_aged(tmp_path / "behind", now + 50_000)).clock_skew_s == -50_000.0
    assert facts(_aged(tmp_path / "local time", now + 7200 + 20)).clock_skew_s is None
    assert facts(_aged(tmp_path / "flat battery", 946_684_800)).clock_skew_s is None
    host = _aged(tmp_path / "files of the future")
    _touch(host, "/var/lib/dpkg/status", now + 500_000)
    assert facts(host).clock_skew_s == -500_000.0
    assert facts(host).sources["clock_skew_s"] == "mtime of /var/lib/dpkg/status"


def test_nothing_at_all_gives_unknowns(tmp_path: Path) -> None:
    seen = facts(FakeHost(tmp_path / "empty"))
    known = {n for n in SystemFacts.__dataclass_fields__ if getattr(seen, n) not in (None, ())}
    assert known <= {"locale", "sources"}
