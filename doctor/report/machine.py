"""The machine in a few rows: what was examined, so that a wrong environment is noticed at once."""

from __future__ import annotations

from doctor.snapshot import Snapshot

_GIB = 1 << 30


def machine_rows(s: Snapshot) -> list[tuple[str, str]]:
    """Label and text of each row; rows with nothing known are left out."""
    rows = [
        ("host", _host(s)),
        ("gpu", _gpus(s)),
        ("driver", _driver(s)),
        ("python", _python(s)),
        ("vllm", _vllm(s)),
        ("compiler", _compiler(s)),
        ("docker", _docker(s)),
    ]
    return [(label, text) for label, text in rows if text]


def gib(value: int | None) -> str:
    """Bytes as GiB with one decimal, or ``?``."""
    return "?" if value is None else f"{value / _GIB:.1f} GiB"


def _host(s: Snapshot) -> str:
    facts = s.system
    if facts is None:
        return ""
    where = {1: "WSL 1", 2: "WSL 2"}.get(s.wsl.version or 0, "") if s.wsl else ""
    parts = [
        facts.os_name or facts.os_id,
        where,
        f"{facts.container_kind or 'a'} container" if facts.in_container else "",
        f"kernel {facts.kernel}" if facts.kernel else "",
        f"{facts.cpu_count} CPUs" if facts.cpu_count else "",
        f"RAM {gib(facts.ram_total_bytes)}" if facts.ram_total_bytes else "",
    ]
    return _join(parts)


def _gpus(s: Snapshot) -> str:
    if s.gpus is None:
        return ""
    if not s.gpus:
        return "none"
    lines = []
    for gpu in s.gpus:
        total = gpu.cuda_total_bytes or gpu.total_bytes
        free = gpu.cuda_free_bytes if gpu.cuda_free_bytes is not None else gpu.free_bytes
        memory = f"{gib(free)} of {gib(total)} free" if total else ""
        capability = f"capability {gpu.compute_capability}" if gpu.compute_capability else ""
        lines.append(_join([f"{gpu.index}: {gpu.name or 'unnamed'}", capability, memory]))
    return "\n".join(lines)


def _driver(s: Snapshot) -> str:
    if s.driver is None:
        return ""
    if not s.driver.version:
        return "none" if s.driver.nvml_status not in (None, "ok") and not s.driver.module_version else ""
    return _join([s.driver.version, f"serves CUDA {s.driver.cuda}" if s.driver.cuda else ""])


def _python(s: Snapshot) -> str:
    facts = s.python
    if facts is None or not (facts.executable or facts.error):
        return ""
    if facts.error:
        return f"cannot be examined: {facts.error}"
    return _join([facts.version, facts.executable, f"chosen by {facts.chosen_by}" if facts.chosen_by else ""])


def _vllm(s: Snapshot) -> str:
    facts = s.python
    if facts is None or facts.vllm is None:
        return ""
    if not facts.vllm:
        return "not installed there"
    torch = f"torch {facts.torch}" if facts.torch else "no torch"
    return _join([facts.vllm, torch, f"transformers {facts.transformers}" if facts.transformers else ""])


def _compiler(s: Snapshot) -> str:
    facts = s.toolchain
    if facts is None or facts.compilers is None:
        return ""
    pairs = sorted(
        {
            f"{c.name} {c.version}"
            for c in facts.compilers
            if c.version and c.path in (facts.default_cc, facts.default_cxx)
        }
    )
    nvcc = sorted({f"nvcc {n.release}" for n in facts.nvccs or () if n.release})
    return _join([*pairs, *nvcc]) or "none"


def _docker(s: Snapshot) -> str:
    facts = s.container
    if facts is None or not facts.daemon_reachable:
        return ""
    gpu = "nvidia" in (facts.runtimes or ()) or bool(facts.cdi_nvidia_devices)
    return _join([facts.daemon_version, facts.daemon_name, "GPU support registered" if gpu else "no GPU support"])


def _join(parts: list[str | None]) -> str:
    return " · ".join(p for p in parts if p)
