"""KV capacity according to several estimators, against what vLLM 0.32.0 itself answered, in one run.

    python benchmarks/fit_peers.py            # with hf-mem, kvfit and modelinfo-cli installed beside the doctor

Each tool is asked through its own function for the KV bytes of one request of full length; the capacity is the
pool divided by that. `accelerate estimate-memory` answers for weights only, so it stands in a second table,
beside checkpoints whose size is published:

    python benchmarks/fit_peers.py --weights  # with accelerate, transformers and torch installed
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from doctor.memory.kv import size_pool  # noqa: E402
from doctor.memory.layout import KvOptions  # noqa: E402
from doctor.memory.versions import switches  # noqa: E402
from tests.memory.support import config_path, rows, shape  # noqa: E402

Config = dict[str, Any]
#: (config, its text part, length, fp8) -> bytes of one request of full length.
Estimator = Callable[[Config, Config, int, bool], float]


def _hf_mem() -> Estimator:
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

    return lambda _, text, length, fp8: compute_safetensors_kv_cache_size(
        text, "F8_E4M3" if fp8 else "BF16", length
    )


def _kvfit() -> Estimator:
    from kvfit.architectures import estimate_cache

    return lambda config, _, length, fp8: (
        estimate_cache(config, context_tokens=length, kv_bytes=1.0 if fp8 else 2.0).total_bytes
    )


def _modelinfo() -> Estimator:
    from modelinfo.calculator import calculate_footprint

    return lambda _, text, length, fp8: (
        calculate_footprint({}, length, 1, text)["kv_cache_bytes"] / (2 if fp8 else 1)
    )


PEERS: dict[str, Callable[[], Estimator]] = {"hf-mem": _hf_mem, "kvfit": _kvfit, "modelinfo-cli": _modelinfo}


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Recorded pools that every tool's options can express: no MTP, one card, 16-bit or fp8 cache."""
    qwen = [
        (r["model"], r)
        for r in rows("qwen35")[1]
        if r["num_blocks"] and r["mtp"] == 0 and r["tp"] == 1 and r["kv_cache_dtype"] in ("auto", "fp8")
    ]
    families = [(f"families/{r['model']}", r) for r in rows("families")[1] if r["num_blocks"]]
    return qwen + families


def ours(name: str, row: dict[str, Any], version: str) -> int:
    """The doctor's answer."""
    options = KvOptions(row["max_model_len"], 0, row["prefix_caching"], row["kv_cache_dtype"],
                        max_num_batched_tokens=row.get("max_num_batched_tokens", 2048))  # fmt: skip
    return size_pool(shape(name), row["available_bytes"], options, switches(version)).capacity_tokens


def measure() -> list[tuple[str, str, int, int, float, float, float]]:
    """Tool, group, answered, asked, median and worst absolute error, microseconds a question."""
    table = []
    configs = {name: json.loads(config_path(name).read_text()) for name, _ in cases()}
    for tool in ("vllm-doctor fit", *PEERS):
        try:
            estimate = None if tool == "vllm-doctor fit" else PEERS[tool]()
        except ImportError:
            table.append((f"{tool} (not installed)", "", 0, 0, 0.0, 0.0, 0.0))
            continue
        label = tool if estimate is None else f"{tool} {metadata.version(tool)}"
        for group, wanted in (("Qwen3.5", True), ("other families", False)):
            errors, asked, spent = [], 0, 0.0
            for name, row in cases():
                if name.startswith("qwen3.5") is not wanted:
                    continue
                asked += 1
                config = configs[name]
                began = time.perf_counter()
                try:
                    if estimate is None:
                        tokens: float = ours(name, row, "0.32.0")
                    else:
                        fp8 = row["kv_cache_dtype"] == "fp8"
                        size = estimate(config, config.get("text_config", config), row["max_model_len"], fp8)
                        tokens = row["available_bytes"] / size * row["max_model_len"]
                except Exception:  # noqa: BLE001  a peer that refuses or fails has no answer
                    continue
                finally:
                    spent += time.perf_counter() - began
                errors.append(abs(tokens / row["capacity_tokens"] - 1))
            table.append((label, group, len(errors), asked, statistics.median(errors) if errors else 0.0,
                          max(errors, default=0.0), spent / max(1, asked) * 1e6))  # fmt: skip
    return table


#: Bytes of published checkpoints, image encoder and MTP head included (12.4 GB and 51.75 GiB as published).
CHECKPOINTS = {"qwen3.5-9b-awq": 12.4e9, "qwen3.5-27b": 51.75 * (1 << 30)}


def accelerate_bytes(name: str) -> dict[str, float]:
    """What `accelerate estimate-memory` prints as total size, by number format; it knows no other formats."""
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(str(config_path(name).parent))
    with init_empty_weights():  # as its create_empty_model does after it asked the hub for the config
        model = AutoModel.from_config(config, torch_dtype="float32")
    total, _ = calculate_maximum_sizes(model)
    return {"float16": total / 2, "int4": total / 8}


def weights() -> None:
    """Prints the table of weights as Markdown."""
    from doctor.memory.weights import weights_from_shapes

    version = metadata.version("accelerate")
    print(f"| checkpoint | bytes | vllm-doctor fit | accelerate {version} float16 | int4 |\n|---|---|---|---|---|")
    for name, size in CHECKPOINTS.items():
        own = weights_from_shapes(shape(name)).resident(vision=True, draft=True)
        peer = accelerate_bytes(name)
        errors = [f"{value / 1e9:.2f} GB ({value / size - 1:+.1%})" for value in (own, *peer.values())]
        print(f"| {name} | {size / 1e9:.2f} GB | {' | '.join(errors)} |")


def main() -> None:
    """Prints the table as Markdown."""
    if "--weights" in sys.argv[1:]:
        weights()
        return
    print("| tool | models | answered | median error | worst error | us a question |\n|---|---|---|---|---|---|")
    for tool, group, answered, asked, median, worst, micro in measure():
        shown = f"{median:.1%} | {worst:.1%}" if answered else "- | -"
        print(f"| {tool} | {group} | {answered} of {asked} | {shown} | {micro:.0f} |")
    print("| accelerate estimate-memory | - | weights only, see below | - | - | - |")


if __name__ == "__main__":
    main()
