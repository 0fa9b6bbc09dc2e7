"""Rows of a sweep for report tests: the whole plan of a 22 GB card, with invented figures."""

from __future__ import annotations

from typing import Any

from doctor.sweep.store import FORMAT

SETUP = {
    "vllm": "0.26.0", "card": "NVIDIA GeForce RTX 2080 Ti", "card_bytes": 23_000_000_000, "cpu": "CPU", "cpus": 8,
    "utilization": 0.8, "serve_args": [],
}  # fmt: skip


def row(context: int, drafts: int, sequences: int = 1, batched: int = 2048, **more: Any) -> dict[str, Any]:
    """One measured start."""
    number = f"{context:x}{drafts}{sequences}{batched:x}"
    kv = int(188_847 / (1 + drafts * 0.6))
    return {
        "format": FORMAT, "key": f"{number:0>16}", "setup_id": "aaaabbbbcccc", "setup": SETUP,
        "label": f"Qwen3.5-9B-AWQ, {context // 1024}K, MTP {drafts}, {sequences} sequence, {batched:,} batched",
        "model": "Qwen3.5-9B-AWQ", "outcome": "ok", "state": "healthy", "ready_s": 61.5, "seconds": 95.0,
        "axes": ["context"] if sequences == 1 and batched == 2048 else ["sequences"] if batched == 2048
        else ["batched"],
        "settings": {"max_model_len": context, "draft_tokens": drafts, "max_num_seqs": sequences,
                     "max_num_batched_tokens": batched},
        "argv": ["/home/petramuster/env/bin/vllm", "serve", "/home/petramuster/models/Qwen3.5-9B-AWQ",
                 "--max-model-len", str(context)],
        "env": {"VLLM_NO_USAGE_STATS": "1"}, "findings": [], "compile": "warm", "weights_gib": 10.4,
        "peak_activation_gib": 0.16, "kv_gib": 7.06, "kv_tokens": kv + context // 8,
        "concurrency": round(kv / context, 2), "block_size": 544 if drafts else 528,
        "prefill_tokens_per_s": 1800.5, "ttft_s": 0.081, "decode_tokens_per_s": 71.2 + 20 * drafts,
        "together_tokens_per_s": (60.0 + 20 * drafts) * sequences * 0.9,
        "acceptance_per_position": {"0": 0.76, "1": 0.48} if drafts else None,
        "cached_tokens": [0, 544, 544] if drafts else [0, 1056, 1056], "memory_used_gib": 17.5,
        "predicted": {"fits": True, "why": "", "start": "later", "kv_tokens": kv + context // 9,
                      "kv_tokens_range": [kv - 9000, kv + 9000], "difference_percent": 0.52, "block_size": 544},
        **more,
    }  # fmt: skip


def plan() -> list[dict[str, Any]]:
    """Contexts, sequences and batched tokens, one point refused."""
    contexts = (8192, 16384, 32768, 65536, 131072)
    out = [row(c, k) for k in (0, 2) for c in contexts]
    out += [row(8192, k, n) for k in (0, 2) for n in (2, 3, 4)]
    for k in (0, 2):  # the base belongs to this axis too
        base = next(r for r in out if r["settings"]["draft_tokens"] == k)
        base["axes"] = ["context", "sequences", *(["batched"] if k else [])]
    out += [row(8192, 2, 1, b) for b in (1024, 4096, 8192)]
    out.append(row(262144, 2, **refused()))
    return out


def refused() -> dict[str, Any]:
    """What a refused start has instead of figures."""
    finding = {
        "id": "kv-cache-too-small-for-context", "area": "memory", "severity": "blocker", "confidence": "proven",
        "title": "The KV cache is too small for this context", "cause": "...",
        "summary": "One request of 262,144 tokens needs 9.23 GiB, the pool has 7.06 GiB.",
        "evidence": [{"fact": "line", "value": "To serve at least one request", "source": "log:41"}],
    }  # fmt: skip
    return {
        "outcome": "refused", "cause": finding["id"], "why": finding["summary"], "findings": [finding],
        "ready_s": None, "kv_tokens": None, "concurrency": None, "decode_tokens_per_s": None,
        "together_tokens_per_s": None, "prefill_tokens_per_s": None, "ttft_s": None, "cached_tokens": None,
        "acceptance_per_position": None, "memory_used_gib": None,
    }  # fmt: skip
