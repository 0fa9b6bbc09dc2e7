"""What a text is, and which of its lines say most."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from doctor.evidence.builder import FactBuilder
from doctor.evidence.scan import Scan
from doctor.evidence.strip import Line
from doctor.snapshot import Event


@dataclass(frozen=True)
class Kind:
    """One kind of text, the line where it was first seen, and a detail such as a version."""

    label: str
    line: int
    detail: str = ""


_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (label, re.compile(pattern))
    for label, pattern in (
        ("vLLM log", r"vLLM API server version|Initializing (?:a V1|an) LLM engine|\[(?:core|gpu_worker|"
        r"gpu_model_runner|api_server|model|loggers|launcher)\.py:\d+\]|vllm\.engine\.|"
        r"vllm/entrypoints|Loading safetensors checkpoint shards"),
        ("environment report", r"Collecting environment information|^(?:CUDA used to build|PyTorch version\s*:)"),
        ("nvidia-smi", r"NVIDIA-SMI|=+NVSMI LOG=+|^GPU \d+: .{3,60} \(UUID"),
        ("Python traceback", r"Traceback \(most recent call last\)"),
        ("docker", r"Error response from daemon|OCI runtime|docker(?:\.errors\.|: )|^\$ docker |"
        r"nvidia-container-cli|docker compose"),
        ("kernel log", r"NVRM: |oom-kill|Out of memory: Kill|dxgk|\bXid\b|invoked oom-killer|segfault at"),
        ("pip or uv output", r"^Collecting \w|^Successfully installed|ERROR: Could not find a version|"
        r"subprocess-exited-with-error|Building wheels? for|^ {0,2}[×╰]|^Resolved \d+ packages|"
        r"No solution found when resolving|^\[pip3?\]"),
        ("apt output", r"^(?:Reading package lists|E: |Unpacking |Setting up |Commandline: |Start-Date: )|dpkg: "
        r"error|^ii  "),
        ("compiler output", r"\bnvcc (?:fatal|error|warning)|fatal error: \S+\.h|cc1plus|: error: |ninja: |"
        r"/usr/bin/ld|ptxas "),
        ("NCCL log", r"NCCL (?:INFO|WARN|version)"),
        ("Kubernetes", r"kubectl|OOMKilled|CrashLoopBackOff|FailedScheduling|Back-off restarting"),
    )
)  # fmt: skip


def recognise(result: Scan, facts: FactBuilder) -> tuple[Kind, ...]:
    """All kinds of text in it, in order of appearance."""
    first: dict[str, int] = {}
    for line in result.ends:
        for label, pattern in _KINDS:
            if label not in first and pattern.search(line.text if line.text.strip() else line.raw):
                first[label] = line.number
        if len(first) == len(_KINDS):
            break
    version = facts.get("serving", "vllm")
    return tuple(
        Kind(label, number, str(version) if label == "vLLM log" and version else "")
        for label, number in sorted(first.items(), key=lambda item: item[1])
    )


_ERROR = re.compile(
    r"^\s*(?:[\w.]{1,120}(?:Error|Exception|Exit|Interrupt|Warning)\b: ?.{3,}|(?:fatal|FATAL|"
    r"Fatal)[: ].{3,}|\w{0,40}\s?(?:error|Error|ERROR): .{3,}"
    r"|.{0,200}\b(?:Segmentation fault|core dumped|SIGSEGV|SIGKILL|Killed|Aborted|cannot|failed|"
    r"Failed|not found|No such file)\b.{0,200})"
)
_EMPTY = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineCore encountered|See "
    r"stack trace|EngineDeadError|"
    r"The above exception was the direct|During handling of the above|EngineCore encountered an "
    r"issue|asynchronously reported|"
    r"For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|^\s*File \"|^Traceback|"
    r"UserWarning|FutureWarning|DeprecationWarning"
)


def telling(result: Scan, most: int = 8) -> tuple[Event, ...]:
    """The lines that say most when nothing is known: first errors, without the ones that only repeat others."""
    chosen: list[Event] = []
    seen: set[str] = set()
    for line in _candidates(result.ends):
        key = re.sub(r"\d+", "#", line.text.strip())[:120]
        if key in seen:
            continue
        seen.add(key)
        chosen.append(Event("telling", f"{result.name}:{line.number}", line.text.strip()[:300], line.number))
    errors = [e for e in chosen if re.match(r"\s*[\w.]*(?:Error|Exception)\b", e.text)]
    picked = (errors or chosen)[:most]
    return tuple(sorted(picked, key=lambda e: e.line or 0))


def _candidates(lines: Iterable[Line]) -> Iterable[Line]:
    for line in lines:
        if _EMPTY.search(line.text):
            continue
        if _ERROR.match(line.text) or (line.level in ("ERROR", "CRITICAL") and line.text.strip()):
            yield line
