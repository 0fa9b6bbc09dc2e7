"""A vLLM plugin that makes a server die while loading for what it was told to do: a fault that a setting cures.

REFUSE=seqs      more than one sequence at a time
       drafts    speculative decoding
       caching   prefix caching

Installed as an entry point of ``vllm.general_plugins`` (see ``plugins.install``); it does nothing without REFUSE.
"""

import os


def register():
    refused = os.environ.get("REFUSE", "").split()
    if not refused:
        return
    from vllm.v1.worker.cpu_worker import CPUWorker

    load = CPUWorker.load_model
    if getattr(load, "refuses", False):
        return

    def load_model(self, *arguments, **options):
        config = self.vllm_config
        told = {
            "seqs": config.scheduler_config.max_num_seqs > 1,
            "drafts": config.speculative_config is not None,
            "caching": config.cache_config.enable_prefix_caching,
        }
        for name in refused:
            if told[name]:
                raise RuntimeError(f"refuse_plugin: no server with {name} on this machine")
        return load(self, *arguments, **options)

    load_model.refuses = True
    CPUWorker.load_model = load_model
