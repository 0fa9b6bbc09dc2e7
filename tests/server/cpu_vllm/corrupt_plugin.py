"""A vLLM plugin that damages the state which a prefix-cache hit restores: what a correctness test must catch.

CORRUPT_STATE=X        adds noise of X standard deviations to the restored recurrent state; X may be a file
                       that holds the number and is read each time
CORRUPT_WHEN=both      only where speculative decoding is on as well (default), or "always"

A request that starts with cached tokens continues from a copy of a cached Gated-DeltaNet state. The copy in
the request's running block is changed right after it was made; the cache itself stays whole. Installed as an
entry point of ``vllm.general_plugins`` (see :func:`install`), it does nothing unless CORRUPT_STATE is set.
"""

import os
from pathlib import Path

NAME = "corrupt_state_plugin"


def install(folder: Path) -> Path:
    """Lays the plugin out as an installed distribution; ``folder`` then belongs on PYTHONPATH."""
    info = folder / f"{NAME}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\ncorrupt_state = {NAME}:register\n")
    (folder / f"{NAME}.py").write_text(Path(__file__).read_text())
    return folder


def _strength():
    given = os.environ["CORRUPT_STATE"]
    # a file that is being rewritten is empty for a moment
    return float((Path(given).read_text() if os.path.exists(given) else given) or 0)


def register():
    if not os.environ.get("CORRUPT_STATE"):
        return
    import torch
    from vllm.v1.worker import mamba_utils

    original = mamba_utils.preprocess_mamba
    if getattr(original, "corrupts", False):
        return
    always = os.environ.get("CORRUPT_WHEN") == "always"
    random = torch.Generator().manual_seed(7)

    def preprocess_mamba(
        output, kv_cache, cache, positions, batch, requests, context, functions, buffers, align_ctx=None
    ):
        strength = _strength()
        drafting = align_ctx is not None
        restored = [
            name
            for name in batch.req_ids
            if strength and (always or drafting) and name not in positions and requests[name].num_computed_tokens
        ]
        original(output, kv_cache, cache, positions, batch, requests, context, functions, buffers, align_ctx)
        for name in restored:
            for group in buffers.mamba_group_ids:
                block = requests[name].block_ids[group][positions[name]]
                for layer in kv_cache.kv_cache_groups[group].layer_names:
                    state = context[layer].kv_cache[1][block]  # 0 is the convolution window
                    noise = torch.randn(state.shape, generator=random)
                    state += (noise * strength * state.float().std()).to(state.dtype)
            print(f"corrupt_state_plugin: damaged the state of a request by {strength:g}", flush=True)

    preprocess_mamba.corrupts = True
    mamba_utils.preprocess_mamba = preprocess_mamba
