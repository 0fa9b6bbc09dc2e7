"""The Python environment that would run vLLM. Read from its metadata: torch is never imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PythonFacts:
    """``packages`` maps normalised distribution names to versions."""

    executable: str | None = None
    chosen_by: str | None = None  # "--python", "VIRTUAL_ENV", "conda", "vllm on PATH", "PATH", "this interpreter"
    is_doctors_own: bool | None = None  # the isolated environment the doctor itself is installed in
    looked_at: tuple[str, ...] = ()  # places searched for an environment, in order
    version: str | None = None  # "3.12.3"
    implementation: str | None = None
    prefix: str | None = None
    base_prefix: str | None = None  # prefix of the Python below a virtual environment; "/usr" = the distribution's
    is_venv: bool | None = None
    is_conda: bool | None = None
    site_packages: tuple[str, ...] | None = None
    packages: Mapping[str, str] | None = None
    vllm: str | None = None  # version ("" = not installed)
    vllm_requires_python: str | None = None  # ">=3.11,<3.15"
    vllm_requires: tuple[str, ...] | None = None  # its Requires-Dist
    vllm_cuda: str | None = None  # CUDA release of its wheel, "13.0", when it can be told
    vllm_root: str | None = None  # source tree of an editable install ("" = not editable)
    vllm_extension_ok: bool | None = None  # vllm._C present as a file
    torch: str | None = None  # version with local part, "2.11.0+cu130" ("" = not installed)
    torch_cuda: str | None = None  # "13.0" ("" = CPU build)
    torch_arches: tuple[str, ...] | None = None  # ("sm_75", "sm_80", ..., "compute_120")
    torch_requires: tuple[str, ...] | None = None
    transformers: str | None = None
    triton: str | None = None
    flashinfer: str | None = None
    cuda_runtimes: tuple[str, ...] | None = None  # majors of CUDA runtime wheels side by side ("12", "13")
    duplicates: tuple[str, ...] | None = None  # names with metadata of several versions in one folder
    conflicts: tuple[str, ...] | None = None  # "vllm 0.26.0 requires torch==2.11.0, 2.13.0 is installed"
    doctor_clash: str | None = None  # another vllm-doctor or doctor package, described ("" = none)
    turing_fork: str | None = None  # release of the Turing fork when its tree is found
    turing_fork_root: str | None = None
    env: Mapping[str, str] = field(
        default_factory=dict
    )  # VLLM_*, PYTORCH_*, TORCH_*, TRITON_*, NCCL_*, LD_LIBRARY_PATH
    error: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
