"""The same comparison with vLLM's code itself, on cases drawn anew each time.

Set VLLM_DOCTOR_VLLM_PYTHON to a Python that has vLLM (a CPU build will do): 20 to 90 s.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from doctor.memory.kv import size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.versions import switches
from tests.memory.support import GIB, config_path, shape

PYTHON = os.environ.get("VLLM_DOCTOR_VLLM_PYTHON", "")
MODELS = ("qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b", "families/llama", "families/gemma3", "families/gpt-oss",
          "families/granite-hybrid", "families/qwen3-next")  # fmt: skip


def draw(chance: random.Random, model: str) -> dict[str, Any]:
    hybrid = model.startswith("qwen3.5")
    return {
        "model": model,
        "config": str(config_path(model).parent),
        "available_bytes": int(GIB * 0.5 * 160 ** chance.random()),
        "max_model_len": chance.randint(1024, 262_144 if hybrid else 65_536),
        "mtp": 2 if hybrid and model != "qwen3.5-27b" else 0,
        "prefix_caching": chance.random() < 0.5,
        "kv_cache_dtype": chance.choice(("auto", "fp8")),
        "max_num_batched_tokens": chance.choice((1024, 2048, 8192)),
    }


@pytest.mark.server
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PYTHON, reason="VLLM_DOCTOR_VLLM_PYTHON names no Python with vLLM")
def test_fresh_cases_equal_vllm() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    cases = [draw(chance, model) for model in MODELS for _ in range(12)]
    script = Path(__file__).with_name("vllm_oracle.py")
    ran = subprocess.run(["nice", PYTHON, str(script)], input="".join(json.dumps(c) + "\n" for c in cases),
                         capture_output=True, text=True, timeout=580)  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(answers) == len(cases)
    assert {a["fits"] for a in answers} == {True, False}
    for answer in answers:
        case = answer["case"]
        options = KvOptions(case["max_model_len"], case["mtp"], case["prefix_caching"], case["kv_cache_dtype"],
                            max_num_batched_tokens=case["max_num_batched_tokens"])  # fmt: skip
        version = switches(answer["vllm"].split("+")[0])
        pool = size_pool(shape(case["model"]), case["available_bytes"], options, version)
        assert pool.fits == answer["fits"], (seed, answer)
        if pool.fits:
            got = (pool.block_size, pool.num_blocks, pool.capacity_tokens, pool.max_concurrency)
            assert got == tuple(answer[k] for k in ("block_size", "num_blocks", "capacity_tokens",
                                                    "max_concurrency")), (seed, answer)  # fmt: skip
