"""Whole fake hosts for the probes of system, WSL, storage and network. Texts are of real machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.fakes import FakeHost

UBUNTU = """PRETTY_NAME="Ubuntu 24.04.1 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.1 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
HOME_URL="https://www.ubuntu.com/"
UBUNTU_CODENAME=noble
"""

LIMITS = """Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max open files            1024                 1048576              files     
Max locked memory         8388608              8388608              bytes     
Max address space         unlimited            unlimited            bytes     
"""  # noqa: W291  the kernel pads with blanks

MEMINFO = """MemTotal:       {total} kB
MemFree:        23516400 kB
MemAvailable:   {available} kB
SwapTotal:      {swap} kB
SwapFree:       {swap} kB
CommitLimit:    {limit} kB
Committed_AS:   {committed} kB
HugePages_Total:       0
"""

STATUS = """Name:\tpython3
Uid:\t1000\t1000\t1000\t1000
Gid:\t1000\t1000\t1000\t1000
Groups:\t4 27 1000
Cpus_allowed:\tff
Cpus_allowed_list:\t0-5,8,10-11
"""

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD Ryzen 7 5800X 8-Core Processor
flags\t\t: fpu sse4_2 fma avx avx2 f16c

"""

MOUNTS = """22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24683656k
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate
"""

LIBC = b"\x7fELF...GNU C Library (Ubuntu GLIBC 2.39-0ubuntu8.3) stable release version 2.39.\nCopyright (C) 2024"

#: mountinfo of a drive under WSL2, as printed there.
DRIVE_C = (
    r"75 72 0:49 / /mnt/c rw,noatime - 9p C:\134 "
    r"rw,dirsync,aname=drvfs;path=C:\;uid=1000;gid=1000;symlinkroot=/mnt/,mmap,access=client,msize=65536,trans=fd"
    "\n"
)

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 3600007F:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000   991        0 20337 1 0000000000000000 100 0 0 10 5
   1: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 77123 1 0000000000000000 100 0 0 10 0
   2: 0100007F:B2C6 0100007F:1F41 01 00000000:00000000 00:00000000 00000000  1000        0 77200 1 0000000000000000 20 4 30 10 -1
"""  # noqa: E501
TCP_FREE = "\n".join(line for line in TCP.splitlines() if ":1F40 0000" not in line) + "\n"


def native(
    root: Path,
    env: Mapping[str, str] | None = None,
    ram_kib: int = 32_768_000,
    swap_kib: int = 2_097_152,
    committed_kib: int = 4_000_000,
) -> FakeHost:
    """An Ubuntu 24.04 desktop with an ext4 root, a user called ana and nothing wrong."""
    host = FakeHost(root, env={"HOME": "/home/ana", "USER": "ana", "LANG": "en_US.UTF-8", **(env or {})})
    host.write("/etc/os-release", UBUNTU)
    host.write("/etc/group", "root:x:0:\nadm:x:4:syslog,ana\nsudo:x:27:ana\nana:x:1000:\n")
    host.write("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nana:x:1000:1000::/home/ana:/bin/bash\n")
    host.write("/lib/x86_64-linux-gnu/libc.so.6", LIBC)
    host.write("/proc/1/comm", "systemd\n")
    host.write("/proc/1/cgroup", "0::/init.scope\n")
    host.write("/proc/cpuinfo", CPUINFO)
    host.write("/proc/self/cgroup", "0::/user.slice/user-1000.slice/session-3.scope\n")
    host.write("/proc/self/limits", LIMITS)
    host.write("/proc/self/mountinfo", MOUNTS)
    host.write("/proc/self/status", STATUS)
    host.write("/proc/sys/kernel/arch", "x86_64\n")
    host.write("/proc/sys/kernel/osrelease", "6.8.0-48-generic\n")
    host.write("/proc/version", "Linux version 6.8.0-48-generic (buildd@lcy02-amd64-010) #48-Ubuntu SMP\n")
    host.write("/proc/sys/vm/overcommit_memory", "0\n")
    host.write("/proc/uptime", "86400.00 600000.00\n")
    host.write("/proc/net/tcp", TCP_FREE)
    meminfo = MEMINFO.format(
        total=ram_kib,
        available=ram_kib // 2,
        swap=swap_kib,
        limit=ram_kib // 2 + swap_kib,
        committed=committed_kib,
    )
    host.write("/proc/meminfo", meminfo)
    host.write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n")
    host.write("/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/memory.current", "123\n")
    for folder in ("/home/ana/.cache", "/tmp", "/dev/shm", "/run/systemd/system", "/sys/devices/system/cpu/cpu0"):
        host.write(f"{folder}/.keep", "")
    host.link("/proc/self/cwd", "/home/ana")
    return host


def wsl2(
    root: Path, env: Mapping[str, str] | None = None, release: str = "5.15.167.4-microsoft-standard-WSL2"
) -> FakeHost:
    """Ubuntu 24.04 under WSL2 as an updated Windows 11 gives it, GPU and all."""
    path = "/usr/bin:/bin:/mnt/c/Windows/system32:/mnt/c/Users/Ana Lima/AppData/Local/Microsoft/WindowsApps"
    wsl = {"WSL_DISTRO_NAME": "Ubuntu-24.04", "WSL_INTEROP": "/run/WSL/11_interop", "PATH": path}
    host = native(root, env={**wsl, **(env or {})}, ram_kib=16_300_000, swap_kib=4_194_304)
    host.write("/proc/sys/kernel/osrelease", release + "\n")
    host.write("/proc/version", f"Linux version {release} (root@f9c826d3017f) (gcc (GCC) 11.2.0) #1 SMP\n")
    host.write(
        "/proc/sys/fs/binfmt_misc/WSLInterop", "enabled\ninterpreter /init\nflags: PF\noffset 0\nmagic 4d5a\n"
    )
    host.write("/proc/self/mountinfo", MOUNTS + DRIVE_C)
    host.write("/run/WSL/11_interop", "")
    host.write("/dev/dxg", "")
    for name in (
        "libcuda.so",
        "libcuda.so.1",
        "libcuda.so.1.1",
        "libnvidia-ml.so.1",
        "libdxcore.so",
        "nvidia-smi",
    ):
        host.write(f"/usr/lib/wsl/lib/{name}", "")
    host.write("/etc/wsl.conf", "[boot]\nsystemd=true\n")
    host.write("/mnt/c/Users/Ana Lima/.wslconfig", "[wsl2]\r\nmemory=16GB\r\nswap=4GB # disk\r\n")
    host.write("/mnt/c/Users/Public/.wslconfig", "[wsl2]\nmemory=1GB\n")
    host.write("/var/lib/dpkg/status", dpkg("libc6", "cuda-toolkit-12-8", "nvidia-container-toolkit"))
    host.program("/sbin/ldconfig", ldconfig("/usr/lib/wsl/lib"))
    return host


def wsl1(root: Path) -> FakeHost:
    """Ubuntu under WSL1: the kernel of Windows build 19041, drives as drvfs, no GPU device."""
    host = native(root, env={"WSL_DISTRO_NAME": "Ubuntu"})
    host.write("/proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n")
    host.write(
        "/proc/version",
        "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc version 5.4.0 (GCC) ) #488\n",
    )
    host.write("/proc/sys/fs/binfmt_misc/WSLInterop", "enabled\n")
    host.write("/proc/self/mountinfo", MOUNTS + r"9 2 0:9 / /mnt/c rw,noatime - drvfs C:\134 rw,uid=1000" + "\n")
    host.program("/sbin/ldconfig", "0 libs found in cache `/etc/ld.so.cache'\n")
    return host


def docker_container(root: Path, limit: str = "2147483648", cgroup: int = 2) -> FakeHost:
    """A container with a memory limit, as docker makes it on cgroup 2 (own namespace) or 1."""
    host = native(root)
    host.write("/.dockerenv", "")
    host.write("/proc/1/comm", "vllm\n")
    overlay = "/var/lib/docker/overlay2"
    mounts = (
        f"500 400 0:60 / / rw,relatime - overlay overlay rw,lowerdir={overlay}/l/AB,upperdir={overlay}/x/diff\n"
        "501 500 0:63 / /proc rw,nosuid - proc proc rw\n"
    )
    if cgroup == 2:
        host.write("/proc/self/cgroup", "0::/\n")
        host.write("/sys/fs/cgroup/memory.max", limit + "\n")
        host.write("/sys/fs/cgroup/memory.current", "104857600\n")
        host.write("/sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
        host.write("/sys/fs/cgroup/cpu.max", "150000 100000\n")
        mounts += "510 501 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
    else:
        group = "/docker/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
        host.write("/proc/1/cgroup", f"4:memory:{group}\n1:cpu,cpuacct:{group}\n")
        host.write("/proc/self/cgroup", f"4:memory:{group}\n1:cpu,cpuacct:{group}\n0::/\n")
        host.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", limit + "\n")
        host.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n")
        host.write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
        host.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
        host.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
        mounts += (
            f"510 501 0:30 {group} /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"
            f"511 501 0:31 {group} /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct\n"
        )
    host.write("/proc/self/mountinfo", mounts)
    return host


def dpkg(*names: str, state: str = "install ok installed") -> str:
    """/var/lib/dpkg/status with these packages."""
    paragraph = "Package: {}\nStatus: {}\nPriority: optional\nVersion: 1.0\nDescription: x\n more\n"
    return "\n".join(paragraph.format(name, state) for name in names)


def ldconfig(*folders: str, names: tuple[str, ...] = ("libcuda.so.1", "libnvidia-ml.so.1")) -> str:
    """What ``ldconfig -p`` prints."""
    rows = [f"\t{name} (libc6,x86-64) => {folder}/{name}" for folder in folders for name in names]
    head = f"{len(rows) + 1} libs found in cache `/etc/ld.so.cache'"
    return (
        "\n".join(
            [head, *rows, "\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libc.so.6"]
        )
        + "\n"
    )
