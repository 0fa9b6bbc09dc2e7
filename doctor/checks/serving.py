"""Checks of the area serving that a live host can show before a server runs."""

from __future__ import annotations

import re

from doctor.checks.registry import check, found
from doctor.checks.words import age
from doctor.finding import Confidence, Evidence, Finding, Remedy, Severity, Skipped
from doctor.snapshot import Snapshot


@check("tensor-parallel-exceeds-gpus", needs=("serving", "gpus"))
def tensor_parallel_exceeds_gpus(s: Snapshot) -> Finding | Skipped | None:
    """More ranks are asked for than there are cards, by flags or by CUDA_VISIBLE_DEVICES.

    Signals: tensor times pipeline parallel above the visible cards proves it. CUDA_VISIBLE_DEVICES naming an
    index that does not exist is a hint: CUDA ignores that index and all after it, so fewer cards are seen.
    Source: CUDA programming guide, environment variables.
    """
    serving, gpus = s.serving, s.gpus
    assert serving is not None and gpus is not None  # noqa: S101, PT018  needs=
    visible = _visible(s)
    wanted = None
    if serving.tensor_parallel is not None:
        wanted = serving.tensor_parallel * (serving.pipeline_parallel or 1)
    if wanted is not None and wanted > visible:
        evidence = [s.evidence("serving.tensor_parallel"), _cards(s), *_variable(s, "CUDA_VISIBLE_DEVICES")]
        text = f"{wanted} ranks are asked for and {_cards_text(visible)} visible"
        fix = Remedy(f"Start with --tensor-parallel-size {max(visible, 1)} and no pipeline parallel")
        return found("tensor-parallel-exceeds-gpus", Confidence.PROVEN, text, evidence, fixes=(fix,))
    absent = _absent_indexes(s)
    if absent:
        evidence = [*_variable(s, "CUDA_VISIBLE_DEVICES"), _cards(s)]
        text = (
            f"CUDA_VISIBLE_DEVICES names card {absent[0]}, but {_cards_text(len(gpus))} here: the list ends there"
        )
        fix = Remedy(f"Set CUDA_VISIBLE_DEVICES={','.join(str(g.index) for g in gpus)}, or unset it")
        return found("tensor-parallel-exceeds-gpus", Confidence.HINT, text, evidence, fixes=(fix,))
    if wanted is None and "CUDA_VISIBLE_DEVICES" not in serving.env:
        return Skipped("tensor-parallel-exceeds-gpus", "no parallel size and no CUDA_VISIBLE_DEVICES is known")
    return None


@check("single-card-launcher-defaults-tp2", needs=("python", "gpus"))
def single_card_launcher(s: Snapshot) -> Finding | Skipped | None:
    """The Turing fork's launcher would take two cards on a machine with one.

    Signals: the fork's tree and one card, with GPU_DEVICES naming two or TP_SIZE above one (proven); or neither
    variable nor CUDA_VISIBLE_DEVICES set, so that its detection falls back to "0,1" (a hint: read in release
    0.1.7, a later one may detect better).
    """
    python, gpus = s.python, s.gpus
    assert python is not None and gpus is not None  # noqa: S101, PT018  needs=
    if python.turing_fork is None:
        return Skipped("single-card-launcher-defaults-tp2", "it is not known whether the Turing fork is used")
    if not python.turing_fork or len(gpus) != 1:
        return None
    env = s.serving.env if s.serving else {}
    devices = [d for d in env.get("GPU_DEVICES", "").split(",") if d.strip()]
    size = env.get("TP_SIZE", "").strip()
    evidence = [s.evidence("python.turing_fork"), _cards(s)]
    fix = Remedy(
        "Give the launcher both, outside of a profile (a profile cannot carry them)",
        commands=(("env", "GPU_DEVICES=0", "TP_SIZE=1", "./launcher.sh"),),
    )
    if len(devices) > 1 or (size.isascii() and size.isdigit() and len(size) < 6 and int(size) > 1):
        shown = " and ".join(f"{k}={env[k]}" for k in ("GPU_DEVICES", "TP_SIZE") if env.get(k))
        evidence += [*_variable(s, "GPU_DEVICES"), *_variable(s, "TP_SIZE")]
        text = f"{shown} for the launcher of the Turing fork, and this machine has one card"
        return found("single-card-launcher-defaults-tp2", Confidence.PROVEN, text, evidence, fixes=(fix,))
    if not devices and not env.get("CUDA_VISIBLE_DEVICES"):
        text = "on one card the Turing fork's launcher falls back to devices 0,1 and tensor parallel 2 unless told"
        return found("single-card-launcher-defaults-tp2", Confidence.HINT, text, evidence, fixes=(fix,))
    return None


def _variable(s: Snapshot, name: str) -> list[Evidence]:
    serving = s.serving
    if serving is None or name not in serving.env:
        return []
    return [Evidence(name, serving.env[name] or "set to nothing", serving.sources.get("env") or s.origin)]


def _cards(s: Snapshot) -> Evidence:
    gpus = s.gpus or ()
    source = (gpus[0].sources.get("name") or gpus[0].sources.get("*")) if gpus else None
    return Evidence("gpus", ", ".join(f"{g.index}: {g.name or 'unnamed'}" for g in gpus), source or s.origin)


def _cards_text(count: int) -> str:
    return "one card is" if count == 1 else f"{count} cards are"


def _indexes(s: Snapshot) -> list[int] | None:
    """CUDA_VISIBLE_DEVICES as numbers; None when it is unset or names cards by UUID."""
    text = s.serving.env.get("CUDA_VISIBLE_DEVICES") if s.serving else None
    if text is None:
        return None
    words = [w.strip() for w in text.split(",")] if text.strip() else []
    if not all(re.fullmatch(r"-?[0-9]{1,5}", w) for w in words):
        return None
    return [int(w) for w in words]


def _visible(s: Snapshot) -> int:
    """How many cards CUDA will show: CUDA_VISIBLE_DEVICES up to its first index that does not exist."""
    gpus = s.gpus or ()
    wanted = _indexes(s)
    if wanted is None:
        return len(gpus)
    known = {g.index for g in gpus}
    count = 0
    for index in wanted:
        if index not in known:
            break
        count += 1
    return count


def _absent_indexes(s: Snapshot) -> list[int]:
    known = {g.index for g in s.gpus or ()}
    # -1 is the usual way to hide every card on purpose
    return [i for i in _indexes(s) or [] if i not in known and i >= 0]


@check("port-in-use", needs=("network",))
def port_in_use(s: Snapshot) -> Finding | Skipped | None:
    """Another process listens on the port that will be served.

    Signals: a listening socket on the port (proven). A note only when no port was asked for and the listener is
    vLLM itself: then a server simply runs already.
    Source: /proc/net/tcp and tcp6.
    """
    cause = "port-in-use"
    network = s.network
    assert network is not None  # noqa: S101  needs=
    if network.port_taken is None:
        return Skipped(cause, "the listening sockets are not known")
    if not network.port_taken:
        return None
    pid, name = network.port_listener_pid, network.port_listener
    who = name or "a process of another user"
    if pid:
        who += f" (pid {pid}{_since(network.port_listener_age_s)})"
    evidence = [s.evidence("network.port"), s.evidence("network.port_address")]
    if name:
        evidence.append(s.evidence("network.port_listener", who))
    other = (network.port or 8000) + 1
    fixes = [Remedy(f"Serve on another port, such as --port {other}, or end the listener when it is not wanted")]
    if pid and network.port_listener_is_vllm:
        fixes.append(Remedy("End the earlier server", commands=(("kill", str(pid)),), verify=(f"ps -p {pid}",)))
    running = bool(network.port_listener_is_vllm and not network.port_given)
    summary = f"Port {network.port} is taken by {who}."
    severity = Severity.NOTE if running else None
    return found(cause, Confidence.PROVEN, summary, evidence, severity=severity, fixes=fixes)


def _since(seconds: float | None) -> str:
    return "" if seconds is None else f", for {age(seconds)}"
