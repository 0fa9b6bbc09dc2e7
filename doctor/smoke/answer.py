"""The ``smoke`` part of the JSON answer."""

from __future__ import annotations

from typing import Any

from doctor.finding import Verdict
from doctor.smoke.probes import ABSTAIN, FAIL
from doctor.smoke.run import SmokeResult

_FIGURES = ("block_size", "kv_tokens", "concurrency", "weights_gib", "available_kv_gib", "mamba_cache_mode")


def as_json(result: SmokeResult) -> dict[str, Any]:
    """The ``smoke`` part of the answer."""
    return {
        "server": _server_json(result),
        "probes": [
            {"name": r.name, "status": r.status, "measured": r.measured, "expected": r.expected, "why": r.why}
            for r in result.results
        ],
        "settings_that_passed": _passed_json(result),
        "notes": result.notes,
    }


def _server_json(result: SmokeResult) -> dict[str, Any]:
    environment, ready = result.environment, result.readiness
    out: dict[str, Any] = {
        "vllm": environment.vllm or None,
        "torch": environment.torch or None,
        "device": None if result.attached else "cpu" if environment.cpu else "gpu",
        "environment": environment.prefix,
        "model": result.model.path or result.model.given,
        "architecture": result.model.architecture or None,
        "url": result.attached.url if result.attached else None,
        "state": ready.state if ready else ("no answer" if result.attached else "not started"),
        "log": str(result.log) if result.log and result.log.exists() else None,
    }
    if result.command is not None:
        out |= {
            "argv": list(result.command.argv),
            "env": dict(result.command.env),
            "port": result.command.port,
            "pid": result.pid,
        }
    if ready is not None and not result.attached:
        out |= {"ready_s": ready.seconds if ready.state == "healthy" else None, "phase": ready.phase}
        out["exit"] = ready.exit.code if ready.exit else None
    if result.attached and result.attached.session:
        out |= {name: getattr(result.attached.session.server, name) for name in _FIGURES}
    if result.follower is not None:
        facts = result.follower.facts
        out["phases"] = [{"phase": p, "at_s": s} for p, s in result.follower.phases]
        out |= {name: getattr(facts, name) for name in _FIGURES}
    out |= {"stop_s": result.stop_s, "left_processes": list(result.left)}
    return out


def _passed_json(result: SmokeResult) -> dict[str, Any]:
    judged = result.judgement
    open_ = any(r.status == FAIL or (r.status == ABSTAIN and r.asked) for r in result.results)
    # slow first requests and the like cost something and leave the settings as they are
    passed = judged.verdict is Verdict.READY or (judged.verdict is Verdict.DEGRADED and not open_)
    if not passed or result.settings is None or result.command is None:
        return {}
    settings = result.settings
    return {
        "model": settings.model,
        "max_model_len": settings.max_model_len,
        "gpu_memory_utilization": None if result.environment.cpu else settings.utilization,
        "num_speculative_tokens": settings.draft_tokens,
        "prefix_caching": settings.prefix_caching,
        "block_size": result.follower.facts.block_size if result.follower else None,
        "serve_args": list(settings.extra),
        "env": dict(result.command.env),
        "vllm": result.environment.vllm,
    }
