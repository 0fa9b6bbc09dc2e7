"""The ``smoke`` part of the JSON answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from doctor.serve.command import Settings
from doctor.smoke.ladder import BUDGET_S, STARTS, Ladder
from doctor.smoke.result import SmokeResult

_FIGURES = ("block_size", "kv_tokens", "concurrency", "weights_gib", "available_kv_gib", "mamba_cache_mode")
_GIB = 1 << 30


def as_json(result: SmokeResult) -> dict[str, Any]:
    """The ``smoke`` part of the answer."""
    return {
        "server": _server_json(result),
        "settings": _settings_json(result),
        "prediction": _prediction_json(result),
        "probes": [
            {"name": r.name, "status": r.status, "measured": r.measured, "expected": r.expected, "why": r.why}
            for r in result.results
        ],
        "ladder": None if result.ladder is None else _ladder_json(result.ladder),
        "settings_that_passed": _passed_json(result),
        "notes": result.notes,
        "seconds": result.seconds,
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


def _values(settings: Settings, cpu: bool) -> dict[str, Any]:
    return {
        "model": settings.model,
        "max_model_len": settings.max_model_len,
        "gpu_memory_utilization": None if cpu else settings.utilization,
        "num_speculative_tokens": settings.draft_tokens,
        "prefix_caching": settings.prefix_caching,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "text_only": settings.text_only,
        "dtype": settings.dtype or None,
        "eager": replace(settings, eager=settings.eager or cpu).enforce_eager,
        "serve_args": list(settings.extra),
    }


def _settings_json(result: SmokeResult) -> dict[str, Any] | None:
    """What was tried, and where each value comes from."""
    if result.settings is None:
        return None
    return {"values": _values(result.settings, result.environment.cpu), "sources": dict(result.reasons)}


def _prediction_json(result: SmokeResult) -> dict[str, Any] | None:
    """What ``fit`` said before the start; ``first_start`` is one with an empty compile cache. Bytes."""
    fit = result.fit
    if fit is None or fit.first is None or fit.later is None:
        return None
    return {
        "fits": fit.fits,
        "why": fit.why or None,
        "weights_bytes": fit.later.weights_bytes,
        **{
            name: {
                "kv_bytes": [start.available.low, start.available.likely, start.available.high],
                "kv_tokens": [start.low.capacity_tokens, start.likely.capacity_tokens, start.high.capacity_tokens],
                "concurrency": round(start.likely.max_concurrency, 3),
            }
            for name, start in (("first_start", fit.first), ("later_start", fit.later))
        },
    }


def _ladder_json(ladder: Ladder) -> dict[str, Any]:
    return {
        "passed": ladder.best is not None,
        "why": ladder.why,
        "gave_up": list(ladder.gave_up),
        "limit": {"starts": STARTS, "seconds": BUDGET_S},
        "steps": [
            {
                "changes": list(s.changes),
                "again": s.again,
                "passed": s.passed,
                "why": s.why or None,
                "seconds": s.seconds,
                "settings": _values(r.settings, r.environment.cpu) if r.settings else None,
            }
            for s, r in zip(ladder.steps, ladder.runs, strict=True)
        ],
    }


def _passed_json(result: SmokeResult) -> dict[str, Any]:
    best = result.best
    if best is None or best.settings is None or best.command is None:
        return {}
    facts = best.follower.facts if best.follower else None
    return {
        **_values(best.settings, best.environment.cpu),
        "block_size": facts.block_size if facts else None,
        "kv_tokens": facts.kv_tokens if facts else None,
        "env": dict(best.command.env),
        "vllm": best.environment.vllm,
        "after_ladder": result.ladder is not None,
    }
