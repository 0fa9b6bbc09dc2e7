"""Evidence of the area host: memory that ran out, mappings refused, a C library that is too old."""

from __future__ import annotations

import re

from doctor.checks.evidence.common import HINT, LIKELY, PROVEN, events, file_of, first, near, rule, say, together
from doctor.checks.evidence.toolkit import is_compiler
from doctor.checks.registry import Result
from doctor.snapshot import Event, Snapshot

#: Names under which the kernel knows a vLLM process (it keeps 15 characters).
_OURS = re.compile(r"^(?:python|vllm|ray|pt_main_thread|uvicorn|enginecore|api_?server|worker|vllm::)", re.I)


@rule("host-memory-oom-killed", start=False)
def oom_killed(s: Snapshot) -> Result:
    """The kernel's record names a Python or vLLM process, or "Killed" stands beside exit status 137 (proven).

    A bare "Killed" in the middle of loading is likely; exit status 137 alone is a hint: `docker stop` gives it
    too. A build that is killed is another cause.
    """
    cause = "host-memory-oom-killed"
    other: Event | None = None
    killed = first(s, "host.killed-line")
    state = first(s, "host.oomkilled-state")
    for record in events(s, "host.oom-kill"):
        name = record.values.get("process", "")
        if _OURS.match(name):
            size = record.values.get("rss")
            held = f" while it held {int(size) / 2**20:.1f} GiB" if size else ""
            return say(cause, PROVEN, f"the kernel ran out of memory and killed {name}{held}", record, killed)
        if not is_compiler(name):
            other = other or record
    if first(s, "compiler.cc1plus-killed"):
        return None
    denied = first(s, "host.not-oomkilled")
    if state and not denied:
        text = "the container went over its memory limit and was killed (OOMKilled)"
        return say(cause, PROVEN, text, state, killed)
    status = first(s, "host.exit-137")
    build = first(s, "image.build-killed")
    if build and status and (status.line, file_of(status)) == (build.line, file_of(build)):
        return None  # a step of an image build, which is another cause
    if killed and (status or other):
        return say(
            cause,
            together(s, killed, other or status),
            "the process was killed and the kernel or its exit status says so",
            killed,
            other or status,
        )
    where = _loading(s)
    if killed:
        during = " while the weights were being loaded" if where else ""
        return say(cause, LIKELY if where else HINT, f"the process was killed{during}", killed, where)
    if other:
        text = f"the kernel ran out of memory and killed {other.values.get('process') or 'a process'}"
        return say(cause, LIKELY if not other.values.get("process") else HINT, text, other)
    died = first(s, "vllm.process-died")
    if died and not denied:
        text = "a process of vLLM ended by signal 9" + (" while the weights were being loaded" if where else "")
        return say(cause, LIKELY if where else HINT, text, died, where)
    if status and not denied and not first(s, "image.finished"):
        return say(cause, HINT, "exit status 137: something killed the process", status)
    return None


def _loading(s: Snapshot) -> Event | None:
    """The last sign of loading, when loading never ended in that text."""
    seen = events(s, "vllm.loading")
    if not seen:
        return None
    last = seen[-1]
    done = [e for e in events(s, "vllm.loaded", "vllm.kv-ready") if file_of(e) == file_of(last)]
    if any((e.line or 0) >= (last.line or 0) for e in done) or last.values.get("percent") == "100":
        return None
    return last


_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


@rule("mmap-overcommit-refused")
def mmap_refused(s: Snapshot) -> Result:
    """Mapping a weights file failed with errno 12 (proven); the same without the file's name is likely."""
    for event in events(s, "host.mmap-refused"):
        path = event.values.get("path", "")
        if path.endswith(_WEIGHTS):
            amount = event.values.get("bytes")
            size = f" of {int(amount) / 2**30:.1f} GiB" if amount else ""
            text = f"the kernel refused to map {path}{size} (errno 12)"
            return say("mmap-overcommit-refused", PROVEN, text, event)
        if "safetensor" in event.text.lower() or ("bare" not in event.values and "/torch_" not in path):
            return say("mmap-overcommit-refused", LIKELY, "mapping the weights failed with errno 12", event)
        if near(s, event, {"memory.load-frame", "vllm.loading"}, before=12, after=3):
            text = "memory was refused (errno 12) while the weights were loaded"
            return say("mmap-overcommit-refused", LIKELY, text, event)
    return None


@rule("glibc-too-old")
def glibc_too_old(s: Snapshot) -> Result:
    """The loader asked for a GLIBC version that this C library lacks (proven)."""
    event = first(s, "host.glibc-symbol")
    if event:
        have = s.system.glibc if s.system else None
        text = f"{_base(event.values.get('by')) or 'a library'} needs glibc {event.values['needed']}"
        if have:
            text += f", this machine has {have}"
        return say("glibc-too-old", PROVEN, text, event)
    wheel = first(s, "host.wheel-not-supported")
    if wheel and s.system and s.system.glibc and _pair(s.system.glibc) < (2, 31):
        text = f"pip refused the wheel on a machine with glibc {s.system.glibc}"
        return say("glibc-too-old", LIKELY, text, wheel, s.evidence("system.glibc"))
    return None


@rule("libstdcxx-too-old")
def libstdcxx_too_old(s: Snapshot) -> Result:
    """The loader asked for a GLIBCXX or CXXABI version that the libstdc++ it found lacks (proven)."""
    event = first(s, "host.libstdcxx-symbol")
    if event is None:
        return None
    text = f"{_base(event.values.get('by')) or 'a library'} needs {event.values['needed']} of libstdc++"
    return say("libstdcxx-too-old", PROVEN, text, event)


@rule("cpu-governor-powersave", start=False)
def governor(s: Snapshot) -> Result:
    """The text shows a slow frequency governor (a hint)."""
    event = first(s, "host.governor")
    if event is None:
        return None
    text = f"the frequency governor is {event.values.get('governor', 'powersave')}"
    return say("cpu-governor-powersave", HINT, text, event)


def _base(path: str | None) -> str:
    return (path or "").rsplit("/", 1)[-1]


def _pair(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (9, 9)
