"""A vLLM plugin that damages recurrent state: what a correctness test must catch.

CORRUPT_STATE=X        adds noise of X standard deviations; or a file that is read each time and holds the number,
                       and behind it, where it differs from CORRUPT_WHEN, when
CORRUPT_WHEN=both      state that a prefix-cache hit restores, where speculative decoding is on as well (default)
             restored  the same, also without speculative decoding
             drafted   state that a step with drafts leaves, with prefix caching and without

A request that starts with cached tokens continues from a copy of a cached Gated-DeltaNet state. The copy in
the request's running block is changed right after it was made; the cache itself stays whole. Installed as an
entry point of ``vllm.general_plugins`` (see ``plugins.install``), it does nothing unless CORRUPT_STATE is set.
"""

import os
from pathlib import Path


def _wanted():
    """(strength, when)."""
    given = os.environ["CORRUPT_STATE"]
    # a file that is being rewritten is empty for a moment
    words = (Path(given).read_text() if os.path.exists(given) else given).split() or ["0"]
    return float(words[0]), words[1] if len(words) > 1 else os.environ.get("CORRUPT_WHEN", "both")


def register():
    if not os.environ.get("CORRUPT_STATE"):
        return
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec
    from vllm.v1.worker import mamba_utils
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    preprocess = mamba_utils.preprocess_mamba
    update = GPUModelRunner._update_states_after_model_execute
    if getattr(preprocess, "corrupts", False):
        return
    random = torch.Generator().manual_seed(7)

    def damage(kv_cache, groups, context, blocks, strength):
        for group in groups:
            for layer in kv_cache.kv_cache_groups[group].layer_names:
                for block in blocks(group):
                    state = context[layer].kv_cache[1][block]  # 0 is the convolution window
                    noise = torch.randn(state.shape, generator=random)
                    state += (noise * strength * state.float().std()).to(state.dtype)
        print(f"corrupt_plugin: damaged the state of a request by {strength:g}", flush=True)

    def preprocess_mamba(
        output, kv_cache, cache, positions, batch, requests, context, functions, buffers, align_ctx=None
    ):
        strength, when = _wanted()
        wanted = strength and (when == "restored" or (when == "both" and align_ctx is not None))
        restored = [
            name
            for name in batch.req_ids
            if wanted and name not in positions and requests[name].num_computed_tokens
        ]
        preprocess(output, kv_cache, cache, positions, batch, requests, context, functions, buffers, align_ctx)
        for name in restored:

            def running(group, name=name):
                return [requests[name].block_ids[group][positions[name]]]

            damage(kv_cache, buffers.mamba_group_ids, context, running, strength)

    def after_drafts(self, *arguments, **options):
        update(self, *arguments, **options)
        strength, when = _wanted()
        if not strength or when != "drafted" or self.speculative_config is None:
            return
        groups = self.kv_cache_config.kv_cache_groups
        mamba = [number for number, group in enumerate(groups) if isinstance(group.kv_cache_spec, MambaSpec)]
        context = self.compilation_config.static_forward_context
        for name in self.input_batch.req_ids:
            damage(self.kv_cache_config, mamba, context, self.requests[name].block_ids.__getitem__, strength)

    preprocess_mamba.corrupts = True
    mamba_utils.preprocess_mamba = preprocess_mamba
    GPUModelRunner._update_states_after_model_execute = after_drafts
