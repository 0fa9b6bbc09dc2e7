"""The operating system this process sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SystemFacts:
    """Distribution, kernel, memory, limits. Sizes in bytes; ``-1`` means unlimited."""

    os_id: str | None = None  # "ubuntu", "debian"
    os_version: str | None = None  # "24.04"
    os_name: str | None = None  # "Ubuntu 24.04.1 LTS"
    os_like: tuple[str, ...] = ()
    kernel: str | None = None  # uname -r
    arch: str | None = None  # "x86_64"
    glibc: str | None = None  # "2.39"
    cpu_model: str | None = None
    cpu_count: int | None = None  # usable by this process
    cpu_flags: tuple[str, ...] | None = None  # of those that matter: avx2, avx512f, amx_tile, ...
    cpu_governors: tuple[str, ...] | None = None  # distinct scaling governors
    cpu_scaling_driver: str | None = None  # "intel_pstate", "amd-pstate-epp", "acpi-cpufreq"
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    commit_limit_bytes: int | None = None
    committed_bytes: int | None = None
    overcommit_memory: int | None = None  # vm.overcommit_memory: 0, 1, 2
    cgroup_version: int | None = None  # 1 or 2
    cgroup_memory_limit_bytes: int | None = None  # -1 unlimited
    cgroup_memory_used_bytes: int | None = None
    cgroup_oom_kills: int | None = None
    cgroup_cpus: float | None = None  # quota in CPUs, -1 unlimited
    in_container: bool | None = None
    container_kind: str | None = None  # "docker", "podman", "kubernetes", "lxc"
    systemd: bool | None = None  # process 1 is systemd
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None  # soft limit
    nofile_soft: int | None = None
    nofile_hard: int | None = None
    locale: str | None = None
    clock_skew_s: float | None = None  # wall clock minus a trusted one; None when nothing to compare with
    uid: int | None = None
    groups: tuple[str, ...] | None = None
    cwd: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
