"""Asks vLLM's own code how it sizes the KV cache; run by a Python that has vLLM, no GPU and no weights needed.

    python vllm_oracle.py < cases.jsonl > answers.jsonl

A case is one JSON object a line: config (folder), available_bytes, max_model_len, mtp, prefix_caching,
kv_cache_dtype, max_num_batched_tokens. vLLM builds its own model class without memory (meta device), every layer
says itself what it caches, and vLLM's own functions group the layers and size the pool. Only what a CPU build
decides differently from a GPU is set here: blocks in steps of 16, and states in the model's own number format.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from dataclasses import replace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")

STEP = 16  # tokens; what every GPU attention backend accepts


def build(folder: str, mtp: int) -> tuple[Any, dict[str, Any]]:
    """vLLM's configuration and the attention layers of its model, target and draft."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.distributed.parallel_state import destroy_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model

    drafting = {"method": "mtp", "num_speculative_tokens": mtp} if mtp else None
    config = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=8192,
        enable_prefix_caching=False,
        max_num_batched_tokens=8192,
        load_format="dummy",
        dtype="bfloat16",
        language_model_only=True,
        block_size=STEP,
        speculative_config=drafting,
    ).create_engine_config()
    if not config.model_config.architecture.startswith(("Qwen3_5", "NemotronH")):
        config.cache_config.mamba_ssm_cache_dtype = "auto"  # the CPU platform forces float32
    config.scheduler_config.async_scheduling = True
    config.cache_config.kv_cache_layout = "LBHNC"
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            port = 20000 + os.getpid() % 20000
            init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        destroy_model_parallel()
        ensure_model_parallel_initialized(1, 1)
        with torch.device("meta"):
            torch.set_default_dtype(torch.bfloat16)
            initialize_model(config)
    layers = config.compilation_config.static_forward_context
    return config, {name: layer for name, layer in layers.items() if isinstance(layer, AttentionLayerBase)}


def ask(case: dict[str, Any], built: dict[tuple[str, int], Any]) -> dict[str, Any]:
    """One answer; {"fits": False} when vLLM refuses."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs

    key = (case["config"], case["mtp"])
    if key not in built:
        built[key] = build(*key)
    config, layers = built[key]
    cache, dtype, caching = config.cache_config, case["kv_cache_dtype"], case["prefix_caching"]
    cache.cache_dtype, cache.enable_prefix_caching = dtype, caching
    cache.block_size, cache.mamba_page_size_padded = STEP, None
    config.model_config.max_model_len = case["max_model_len"]
    config.scheduler_config.max_num_batched_tokens = case["max_num_batched_tokens"]
    for layer in layers.values():
        if hasattr(layer, "kv_cache_dtype"):
            layer.kv_cache_dtype = dtype
            layer.kv_cache_torch_dtype = torch.bfloat16 if dtype == "auto" else torch.float8_e4m3fn
        if type(layer).__name__ == "Attention":
            layer.attn_backend = TritonAttentionBackend
    platform = type(current_platform)
    platform._find_non_ssm_backends = classmethod(lambda cls, _: [TritonAttentionBackend])
    with set_current_vllm_config(config):
        if config.model_config.is_hybrid:
            cache.mamba_cache_mode = "align" if caching else "none"
            cache.mamba_block_size = STEP if caching else case["max_model_len"]
            current_platform._align_hybrid_block_size(config, TritonAttentionBackend)
        specs = {name: spec for name, layer in layers.items() if (spec := layer.get_kv_cache_spec(config))}
    if case["mtp"]:  # one more layer of full attention, like the target's
        attention = next(s for s in specs.values() if type(s).__name__.endswith("AttentionSpec"))
        specs["mtp.layers.0.self_attn.attn"] = replace(attention)
    try:
        sized = get_kv_cache_configs(config, [dict(specs)], [case["available_bytes"]])[0]
    except ValueError as error:
        return {"fits": False, "error": str(error)[:300]}
    tokens, concurrency = get_kv_cache_capacity(config, sized)
    return {
        "fits": True,
        "block_size": cache.block_size,
        "num_blocks": sized.num_blocks,
        "capacity_tokens": tokens,
        "max_concurrency": concurrency,
    }


def main() -> None:
    """Answers every line of stdin."""
    import vllm

    logging.disable(logging.WARNING)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print: only our JSON goes to stdout
    built: dict[tuple[str, int], Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VLLM_CONFIG_ROOT"] = folder
        for line in sys.stdin:
            case = json.loads(line)
            print(json.dumps({"vllm": vllm.__version__, "case": case, **ask(case, built)}), file=out, flush=True)


if __name__ == "__main__":
    main()
