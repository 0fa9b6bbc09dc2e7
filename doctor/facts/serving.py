"""What is known of one vLLM run: its flags, environment and the figures it printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ServingFacts:
    """Flags in their command-line meaning; memory figures in GiB as vLLM prints them."""

    vllm: str | None = None
    model: str | None = None
    architecture: str | None = None
    hybrid: bool | None = None  # attention plus recurrent state
    dtype: str | None = None
    quantization: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    speculative_method: str | None = None
    speculative_tokens: int | None = None
    prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    kv_cache_dtype: str | None = None
    enforce_eager: bool | None = None
    cudagraph_mode: str | None = None
    block_size: int | None = None
    port: int | None = None
    free_gib: float | None = None
    total_gib: float | None = None
    weights_gib: float | None = None
    available_kv_gib: float | None = None
    kv_tokens: int | None = None
    concurrency: float | None = None
    started: bool | None = None  # the server reported that it serves
    flags: Mapping[str, str] = field(default_factory=dict)  # every other flag seen
    env: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
