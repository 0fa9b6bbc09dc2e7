"""The ``fit`` part of ``fit --json``. Figures keep their full precision."""

from __future__ import annotations

from typing import Any

from doctor.memory.emit import serve_arguments
from doctor.memory.fit import Fit
from doctor.memory.kv import KvPool
from doctor.memory.overhead import Span
from doctor.memory.predict import Prediction


def fit_object(fit: Fit) -> dict[str, Any]:
    """One judged model and card."""
    shape, weights, options = fit.model.shape, fit.model.weights, fit.options
    out: dict[str, Any] = {
        "fits": fit.fits,
        "why": fit.why,
        "model": {
            "name": shape.name, "given": fit.model.given, "architecture": shape.architecture,
            "family": shape.family,
            "origin": fit.model.origin, "max_positions": shape.max_positions, "quantisation": fit.support.title,
            "quantisation_supported": fit.support.ok, "quantisation_why": fit.support.why, "mtp": shape.has_mtp,
        },
        "vllm": {"version": fit.version.version, "extrapolated": fit.version.extrapolated},
        "options": {
            "max_model_len": options.max_model_len, "mtp": options.draft_tokens,
            "prefix_caching": fit.pool.prefix_hit_step is not None, "kv_cache_dtype": options.kv_cache_dtype,
            "max_num_seqs": options.max_num_seqs, "max_num_batched_tokens": options.max_num_batched_tokens,
            "tp": options.tp,
        },
        "weights_bytes": weights.resident(
            vision=bool(fit.start and fit.start.vision), draft=options.draft_tokens > 0) // options.tp,
        "weights_source": weights.source,
        "kv": _pool(fit.pool),
    }  # fmt: skip
    if fit.card and fit.first and fit.later and fit.start:
        spent = [fit.first.overhead.total, fit.later.overhead.total]
        out |= {
            "gpu": {"name": fit.card.name, "total_bytes": fit.card.total_bytes, "free_bytes": fit.card.free_bytes,
                    "compute_capability": fit.card.capability, "bandwidth_bytes_per_s": fit.card.bandwidth},
            "overhead_bytes": [min(s.low for s in spent), max(s.high for s in spent)],
            "available_kv_bytes": [fit.first.available.low, fit.later.available.high],
            "first_start": _start(fit.first),
            "later_starts": _start(fit.later),
            "utilization": fit.start.utilization,
            "start_check": {"max_utilization": fit.max_utilization,
                            "recommended_utilization": fit.recommended_utilization},
        }  # fmt: skip
    if fit.ceiling_short and fit.ceiling_full:
        out |= {
            "decode_ceiling_tokens_per_s": fit.ceiling_short.tokens_per_s,
            "decode_likely_tokens_per_s": fit.ceiling_short.likely_tokens_per_s,
            "decode_ceiling_full_context_tokens_per_s": fit.ceiling_full.tokens_per_s,
            "decode_bytes_per_token": fit.ceiling_short.step_bytes / fit.ceiling_short.acceptance,
        }
    if fit.draft:
        d = fit.draft
        out["mtp"] = {"draft_tokens": d.tokens, "weights_bytes": d.weights_bytes,
                      "kv_tokens_without": d.kv_tokens_without,
                      "kv_tokens_with": d.kv_tokens_with, "break_even_acceptance": d.break_even,
                      "speedup_at_measured_acceptance": d.speedup}  # fmt: skip
    if fit.profile:
        o = fit.profile.options
        out["settings"] = {
            "gpu_memory_utilization": fit.profile.start.utilization, "max_model_len": o.max_model_len,
            "max_num_seqs": o.max_num_seqs, "max_num_batched_tokens": o.max_num_batched_tokens,
            "prefix_caching": o.prefix_caching, "kv_cache_dtype": o.kv_cache_dtype, "mtp": o.draft_tokens,
            "dtype": fit.profile.dtype or "auto",
            "language_model_only": shape.vision is not None and not fit.profile.start.vision,
            "argv": serve_arguments(fit.model, fit.profile),
        }  # fmt: skip
        out["reasons"] = dict(fit.profile.reasons)
    out["warnings"] = list(dict.fromkeys([*fit.warnings, *(fit.profile.warnings if fit.profile else ())]))
    return out


def _start(prediction: Prediction) -> dict[str, Any]:
    return {
        "available_kv_bytes": _span(prediction.available),
        "activation_bytes": _span(prediction.overhead.activation),
        "calibrated": prediction.calibrated,
        "kv": _pool(prediction.likely),
    }


def _span(span: Span) -> list[int]:
    return [span.low, span.likely, span.high]


def _pool(pool: KvPool) -> dict[str, Any]:
    return {
        "available_bytes": pool.available_bytes,
        "block_size": pool.block_size,
        "bytes_per_block": pool.layout.bytes_per_block,
        "num_blocks": pool.num_blocks,
        "blocks_per_request": pool.layout.blocks_per_request,
        "capacity_tokens": pool.capacity_tokens,
        "max_concurrency": pool.max_concurrency,
        "fits_one_request": pool.fits,
        "needed_bytes": pool.needed_bytes,
        "highest_context": pool.highest_context,
        "prefix_hit_step_tokens": pool.prefix_hit_step,
        "smallest_prefix_hit_tokens": pool.smallest_prefix_hit,
        "state_mode": pool.layout.state_mode,
        "groups": [{"kind": g.kind, "layers": g.layers, "block": g.block,
                    "blocks_per_request": g.blocks_per_request}
                   for g in pool.layout.groups],
    }  # fmt: skip
