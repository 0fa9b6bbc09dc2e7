"""Checks of the area: host."""

from __future__ import annotations

import re

from doctor import catalogue
from doctor.checks.registry import check, found
from doctor.checks.words import age, size
from doctor.facts import KernelEvent, SystemFacts
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot

#: The limit that vLLM sets for itself (vllm/utils/system_utils.py, set_ulimit).
NOFILE_WANTED = 65_535
#: Clock behind by this much is worth a word; by a day, certificates of the hub start to fail.
CLOCK_HINT_S, CLOCK_LIKELY_S = 600.0, 86_400.0
#: Frequency drivers whose "powersave" follows the load instead of pinning the lowest frequency.
_ADAPTIVE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


@check("host-memory-oom-killed", needs=("system",))
def host_memory_oom_killed(s: Snapshot) -> Finding | Skipped | None:
    """The kernel killed vLLM or Python because RAM ran out.

    Signals: an oom-kill record of the kernel log that names vLLM (proven) or Python (likely: it may have been
    another program); the kill counter of this control group, or less RAM than the largest weights file (hints).
    Source: kernel log since boot, memory.events / memory.oom_control.
    """
    cause = "host-memory-oom-killed"
    events = s.driver.kernel_events if s.driver else None
    kills = [e for e in events or () if e.kind == "oom-kill"]
    named = [e for e in kills if _is(e, r"vllm")] or [e for e in kills if _is(e, r"python|pt_main_thread|ray::")]
    memory = _memory(s)
    if named:
        last = named[-1]
        sure = Confidence.PROVEN if _is(last, r"vllm") else Confidence.LIKELY
        summary = f"The kernel ended {last.process or 'a Python process'} for lack of RAM{_has(s)}."
        evidence = [Evidence("driver.kernel_events", last.text, last.source or "kernel log"), *memory]
        return found(cause, sure, summary, evidence, fixes=_more_memory(s))
    if s.system and s.system.cgroup_oom_kills:
        count = s.system.cgroup_oom_kills
        summary = (
            f"This control group has had {count} out-of-memory kill{'' if count == 1 else 's'}; "
            "of which program is not recorded."
        )
        return found(
            cause,
            Confidence.HINT,
            summary,
            [s.evidence("system.cgroup_oom_kills"), *memory],
            fixes=_more_memory(s),
        )
    largest = s.storage.model_largest_file_bytes if s.storage else None
    limit = _ram_limit(s.system)
    if largest is not None and limit is not None and largest > limit:
        summary = f"The largest weights file has {size(largest)}, this machine can give {size(limit)} of RAM."
        evidence = [s.evidence("storage.model_largest_file_bytes", size(largest)), *memory]
        return found(cause, Confidence.HINT, summary, evidence, fixes=_more_memory(s))
    if events is None:
        return Skipped(cause, "the kernel log cannot be read by this user")
    return None


def _is(event: KernelEvent, pattern: str) -> bool:
    """The kernel cuts names to 15 characters: "VLLM::EngineCor"."""
    return bool(re.search(pattern, event.process or "", re.I))


def _ram_limit(system: SystemFacts | None) -> int | None:
    """RAM this process can have: the machine's, or its control group's when that is less."""
    if system is None or system.ram_total_bytes is None:
        return None
    limit = system.cgroup_memory_limit_bytes
    return min(system.ram_total_bytes, limit) if limit is not None and limit >= 0 else system.ram_total_bytes


def _memory(s: Snapshot) -> list[Evidence]:
    names = ("ram_total_bytes", "swap_total_bytes", "cgroup_memory_limit_bytes")
    known = [(n, getattr(s.system, n)) for n in names] if s.system else []
    return [s.evidence(f"system.{n}", size(v) if v >= 0 else "unlimited") for n, v in known if v is not None]


def _has(s: Snapshot) -> str:
    if s.system is None or s.system.ram_total_bytes is None:
        return ""
    limit = s.system.cgroup_memory_limit_bytes
    swap = s.system.swap_total_bytes or 0
    if limit is not None and 0 <= limit < s.system.ram_total_bytes:
        return f" (its control group may use {size(limit)})"
    return f" (the machine has {size(s.system.ram_total_bytes)} and {size(swap)} of swap)"


def _more_memory(s: Snapshot) -> tuple[Remedy, ...]:
    """The catalogue's ways out, without those for another kind of machine."""
    fixes = catalogue.cause("host-memory-oom-killed").remedies
    drop = set()
    if s.is_wsl is not None:
        drop.add("Native host" if s.is_wsl else "WSL2")
    if s.in_container is not None:
        drop |= {"Native host", "WSL2"} if s.in_container else {"Container"}
    return tuple(f for f in fixes if not f.summary.startswith(tuple(drop)))


@check("mmap-overcommit-refused", needs=("system", "storage"))
def mmap_overcommit_refused(s: Snapshot) -> Finding | Skipped | None:
    """The kernel would refuse to map the largest weights file.

    Signals: strict accounting (mode 2) and a file above what is left of the commit limit, or heuristic
    accounting (mode 0) and a file above RAM plus swap, which is the kernel's own rule (proven). In mode 0 a file
    above the rest of the commit limit is a hint: that limit is not enforced there.
    Source: Linux mm/util.c, __vm_enough_memory; measured on 6.18.
    """
    cause = "mmap-overcommit-refused"
    system, storage = s.system, s.storage
    assert system is not None and storage is not None  # noqa: S101, PT018  needs=
    mode, largest = system.overcommit_memory, storage.model_largest_file_bytes
    if mode == 1:
        return None
    if largest is None:
        return Skipped(cause, "the largest weights file is not known (give --model)")
    if mode is None:
        return Skipped(cause, "vm.overcommit_memory is not known")
    evidence = [
        s.evidence("storage.model_largest_file_bytes", size(largest)),
        s.evidence("system.overcommit_memory"),
    ]
    left = None
    if system.commit_limit_bytes is not None and system.committed_bytes is not None:
        left = max(0, system.commit_limit_bytes - system.committed_bytes)
        evidence.append(s.evidence("system.commit_limit_bytes", size(system.commit_limit_bytes)))
        evidence.append(s.evidence("system.committed_bytes", size(system.committed_bytes)))
    most = None
    if system.ram_total_bytes is not None and system.swap_total_bytes is not None:
        most = system.ram_total_bytes + system.swap_total_bytes
        evidence.append(s.evidence("system.ram_total_bytes", size(system.ram_total_bytes)))
        evidence.append(s.evidence("system.swap_total_bytes", size(system.swap_total_bytes)))
    fixes = (
        Remedy(
            "Set vm.overcommit_memory=1 (until the next boot; a file in /etc/sysctl.d makes it last)",
            automatic=True,
            commands=(("sudo", "sysctl", "-w", "vm.overcommit_memory=1"),),
            risk=Risk.CAUTION,
            verify=("sysctl vm.overcommit_memory prints 1",),
        ),
        *(r for r in catalogue.cause(cause).remedies if not r.automatic),
    )
    if mode == 2 and left is not None and largest > left:
        summary = f"Strict accounting leaves {size(left)}, the largest weights file has {size(largest)}."
        return found(cause, Confidence.PROVEN, summary, evidence, fixes=fixes)
    if mode == 0 and most is not None and largest > most:
        summary = f"The largest weights file has {size(largest)}, RAM and swap together {size(most)}."
        return found(cause, Confidence.PROVEN, summary, evidence, fixes=fixes)
    if mode == 0 and left is not None and largest > left:
        summary = (
            f"The largest weights file has {size(largest)}, {size(left)} are left of the commit limit "
            "(enforced in mode 2 only)."
        )
        return found(cause, Confidence.HINT, summary, evidence, severity=Severity.NOTE, fixes=fixes)
    if (left if mode == 2 else most) is None:
        return Skipped(cause, "the memory figures of the kernel are not known")
    return None


@check("glibc-too-old", needs=("system",))
def glibc_too_old(s: Snapshot) -> Finding | Skipped | None:
    """The C library is older than vLLM's wheel needs, or is no glibc at all.

    Signals: glibc below the platform tag of the installed vLLM's wheel (proven), or below what the newest wheel
    needs when none is installed (likely: an older one or a build of one's own may be wanted); musl.
    Source: wheel tags on PyPI (tables/vllm_glibc.json).
    """
    cause = "glibc-too-old"
    system = s.system
    assert system is not None  # noqa: S101  needs=
    if system.glibc is None:
        return Skipped(cause, "the version of the C library is not known")
    installed = (s.python.vllm if s.python else None) or (s.serving.vllm if s.serving else None) or ""
    if s.python and s.python.turing_fork:
        return None  # built on this machine, against this machine's C library
    needed, basis, exact = _needed(installed)
    if needed is None:
        return Skipped(cause, f"vLLM {installed} is a build of its own; what it needs is not known")
    evidence = [s.evidence("system.glibc", system.glibc or "musl (no glibc)"), s.evidence("system.os_name")]
    if installed:
        evidence.append(Evidence("python.vllm", installed, basis))
    which = f"vLLM {installed}" if installed else "The current vLLM"
    if system.glibc == "":
        summary = f"{which} needs glibc {needed}; this distribution uses musl."
        return found(cause, Confidence.PROVEN if exact else Confidence.LIKELY, summary, evidence)
    version = _version(system.glibc)
    if version is None:
        return Skipped(cause, f"the C library calls itself {system.glibc!r}")
    if version >= (_version(needed) or (0, 0)):
        return None
    summary = f"{which} needs glibc {needed}; this distribution has {system.glibc}."
    return found(cause, Confidence.PROVEN if exact else Confidence.LIKELY, summary, evidence)


def _needed(installed: str) -> tuple[str | None, str, bool]:
    """(glibc, where from, known for this very wheel). Of a build of one's own nothing is known."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    table = catalogue.table("vllm_glibc")
    try:
        version = Version(installed or table["newest"])
    except InvalidVersion:
        return None, "", False
    if version.is_devrelease or (version.local and not re.fullmatch(r"cu\d+|cpu", version.local)):
        return None, "", False
    for row in table["ranges"]:
        if SpecifierSet(row["vllm"]).contains(version.base_version):
            return row["glibc"], row["basis"], bool(installed) and row["basis"].startswith("wheel tag")
    return None, "", False


def _version(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d{1,3})\.(\d{1,4})", text)
    return (int(match[1]), int(match[2])) if match else None


@check("cpu-governor-powersave", needs=("system",))
def cpu_governor_powersave(s: Snapshot) -> Finding | Skipped | None:
    """The CPU's frequency governor may slow decoding.

    Signals: a powersave governor. Alone it is a hint; that decoding rises after switching would prove it. Under
    intel_pstate and amd-pstate the governor of that name follows the load, so it is only a note.
    Source: /sys/devices/system/cpu/cpufreq.
    """
    cause = "cpu-governor-powersave"
    system = s.system
    assert system is not None  # noqa: S101  needs=
    if system.cpu_governors is None:
        return Skipped(cause, "the frequency governor is not known")
    if "powersave" not in system.cpu_governors:
        return None
    adaptive = system.cpu_scaling_driver in _ADAPTIVE
    driver = f" of {system.cpu_scaling_driver}" if system.cpu_scaling_driver else ""
    more = ", which follows the load" if adaptive else ", which keeps cores slow"
    files = "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
    fix = Remedy(
        "Set the governor to performance for this boot, then measure decoding again",
        automatic=True,
        commands=(("sudo", "sh", "-c", f"echo performance | tee {files}"),),
        risk=Risk.CAUTION,
        verify=(f"cat {files}",),
    )
    evidence = [s.evidence("system.cpu_governors")]
    if system.cpu_scaling_driver:
        evidence.append(s.evidence("system.cpu_scaling_driver"))
    return found(
        cause,
        Confidence.HINT,
        f"The governor{driver} is powersave{more}.",
        evidence,
        severity=Severity.NOTE if adaptive else None,
        fixes=(fix, *(r for r in catalogue.cause(cause).remedies if not r.automatic)),
    )


@check("nofile-limit-low", needs=("system",))
def nofile_limit_low(s: Snapshot) -> Finding | Skipped | None:
    """vLLM cannot raise its limit of open files as far as it wants.

    Signals: hard limit below 65,535, the figure in vLLM's set_ulimit. A low soft limit alone is no matter: vLLM
    raises it itself.
    """
    system = s.system
    assert system is not None  # noqa: S101  needs=
    hard = system.nofile_hard
    if hard is None:
        return Skipped("nofile-limit-low", "the limit of open files is not known")
    if hard < 0 or hard >= NOFILE_WANTED:
        return None
    summary = f"At most {hard:,} files may be open; vLLM asks for {NOFILE_WANTED:,}, warns and goes on."
    fix = Remedy(
        "Raise the hard limit: limits.conf, LimitNOFILE= of the service, or docker run --ulimit nofile=65536"
    )
    evidence = [s.evidence("system.nofile_hard"), s.evidence("system.nofile_soft")]
    return found("nofile-limit-low", Confidence.PROVEN, summary, evidence, fixes=(fix,))


@check("clock-wrong", needs=("system",))
def clock_wrong(s: Snapshot) -> Finding | Skipped | None:
    """The clock is behind a trusted one.

    Signals: system files newer than "now", or a hardware clock that is ahead by more than minutes and not by a
    time zone. Behind by a day or more is likely to break TLS; less is a hint.
    """
    system = s.system
    assert system is not None  # noqa: S101  needs=
    skew = system.clock_skew_s
    if skew is None:
        return Skipped("clock-wrong", "nothing on this machine to compare the clock with")
    if skew > -CLOCK_HINT_S:
        return None
    sure = Confidence.LIKELY if skew <= -CLOCK_LIKELY_S else Confidence.HINT
    summary = f"The clock is {age(-skew)} behind {system.sources.get('clock_skew_s', 'a trusted one')}."
    evidence = [s.evidence("system.clock_skew_s", f"{skew:.0f} s")]
    if s.is_wsl2:
        fixes = (Remedy("On Windows: wsl --shutdown, then start again; or set it from the hardware clock now",
                        commands=(("sudo", "hwclock", "-s"),), risk=Risk.CAUTION, verify=("date",)),)  # fmt: skip
    else:
        fixes = (Remedy("Switch on time synchronisation", commands=(("sudo", "timedatectl", "set-ntp", "true"),),
                        risk=Risk.CAUTION, verify=("timedatectl", "date")),)  # fmt: skip
    return found("clock-wrong", sure, summary, evidence, fixes=fixes)
