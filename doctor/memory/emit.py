"""A profile as something to run: ``vllm serve`` arguments, the Turing fork's profile, a compose file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Protocol

from doctor.memory.layout import KvOptions
from doctor.memory.model import Model
from doctor.memory.predict import Start


class Launch(Protocol):
    """What is written down of a launch profile: a chosen one, or settings that were tried."""

    @property
    def options(self) -> KvOptions:
        """Everything that the KV pool depends on."""

    @property
    def start(self) -> Start:
        """Fraction, compilation, images."""

    @property
    def dtype(self) -> str:
        """``--dtype``, "" for the model's own."""


def serve_arguments(model: Model, profile: Launch) -> list[str]:
    """The argv of ``vllm serve``."""
    o = profile.options
    argv = ["vllm", "serve", model.served, "--gpu-memory-utilization", f"{profile.start.utilization:g}"]
    argv += ["--max-model-len", str(o.max_model_len), "--max-num-seqs", str(o.max_num_seqs)]
    argv += ["--max-num-batched-tokens", str(o.max_num_batched_tokens)]
    if o.prefix_caching is not None:
        argv.append("--enable-prefix-caching" if o.prefix_caching else "--no-enable-prefix-caching")
    if o.kv_cache_dtype != "auto":
        argv += ["--kv-cache-dtype", o.kv_cache_dtype]
    if o.draft_tokens:
        argv += ["--speculative-config", _speculative(o.draft_tokens)]
    if model.shape.vision is not None and not profile.start.vision:
        argv.append("--language-model-only")
    if profile.dtype:
        argv += ["--dtype", profile.dtype]
    if o.tp > 1:
        argv += ["--tensor-parallel-size", str(o.tp)]
    if profile.start.compiled.value == "eager":
        argv.append("--enforce-eager")
    return [*argv, "--host", "127.0.0.1", "--port", "8000"]


def _speculative(drafts: int) -> str:
    return json.dumps({"method": "mtp", "num_speculative_tokens": drafts}, separators=(",", ":"))


def serve_text(model: Model, profile: Launch) -> str:
    """The command, one flag a line, to paste into a shell."""
    lines: list[str] = []
    for word in serve_arguments(model, profile)[3:]:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return f"vllm serve {shlex.quote(model.served)} \\\n  " + " \\\n  ".join(lines) + "\n"


def env_text(model: Model, profile: Launch) -> str:
    """A profile of the Turing fork's launcher.

    Its rules forbid TP_SIZE, GPU_DEVICES and MODEL_DIR inside; on one card they have to be given outside, or the
    launcher assumes two, so they stand in a comment.
    """
    o = profile.options
    name = re.sub(r"[^a-z0-9.]+", "-", model.shape.name.lower()).strip("-") or "model"
    length = f"{o.max_model_len // 1024}K"
    rows: dict[str, object] = {
        "SERVED_NAME": f"{name}-{length}{f'-mtp{o.draft_tokens}' if o.draft_tokens else ''}-{o.tp}card",
        "COMPATIBLE_MODES": "normal",
        "MODEL_FAMILY": "qwen" if "Qwen" in model.shape.family else name.split("-")[0],
        "MAX_MODEL_LEN": o.max_model_len,
        "GPU_UTIL": f"{profile.start.utilization:g}",
        "MAX_BATCHED_TOKENS": o.max_num_batched_tokens,
        "MAX_NUM_SEQS": o.max_num_seqs,
        "MTP_K": o.draft_tokens,
        **_quantisation(model),
    }
    if o.kv_cache_dtype != "auto":
        rows["KV_CACHE_DTYPE"] = o.kv_cache_dtype
    if o.prefix_caching is not None:
        rows["ENABLE_PREFIX_CACHING" if o.prefix_caching else "DISABLE_PREFIX_CACHING"] = 1
    if model.shape.vision is not None and not profile.start.vision:
        rows |= {"LANGUAGE_MODEL_ONLY": 1, "SKIP_MM_PROFILING": 1}
    if profile.start.compiled.value == "eager":
        rows["ENFORCE_EAGER"] = 1
    devices = ",".join(map(str, range(o.tp)))
    folder = " ".join(shlex.quote(model.served).splitlines())  # a comment is one line
    head = (
        f"# {'one card' if o.tp == 1 else f'{o.tp} cards'}: the launcher assumes two unless told otherwise, and a "
        "profile may not say it, so start with\n"
        f"#   GPU_DEVICES={devices} TP_SIZE={o.tp} MODEL_DIR={folder} ./launcher.sh --non-interactive\n"
    )
    return head + "".join(f"{key}={value}\n" for key, value in rows.items())


def _quantisation(model: Model) -> Mapping[str, object]:
    """The fork names Marlin's variants."""
    scheme = model.shape.quantisation
    if scheme is None:
        return {}
    name = {"awq": "awq_marlin", "gptq": "gptq_marlin"}.get(scheme.method, scheme.method)
    return {"QUANTIZATION": name}


def compose_text(model: Model, profile: Launch, image: str) -> str:
    """A compose file with one service; the port is published on loopback only."""
    words = serve_arguments(model, profile)[3:]
    arguments = words[: words.index("--host")]
    local = model.folder is not None
    return compose(image, model.served if local else None, "/model" if local else model.given, arguments,
                   profile.options.tp)  # fmt: skip


def compose(
    image: str, folder: str | None, served: str, arguments: Sequence[str], gpus: int, entry: Sequence[str] = ()
) -> str:
    """One service that serves ``served`` with ``arguments``; ``folder`` is mounted at /model.

    ``gpus``: how many cards are asked for. ``entry``: the entrypoint, when the image's own is not to be trusted.
    """
    listed = "\n".join(
        f"      - {_quoted(word)}"
        for word in [served, *arguments, "--host", "0.0.0.0", "--port", "8000"]  # noqa: S104  inside only
    )
    # a kept compile cache: more KV cache
    named = ["vllm-cache"] if folder is not None else ["huggingface", "vllm-cache"]
    mounts = "\n".join(
        ([_bind(folder)] if folder is not None else [])
        + [f'      - "{v}:/root/.cache/{v.removesuffix("-cache")}"' for v in named]
    )
    volumes = "".join(f"  {v}: {{}}\n" for v in named)
    entrypoint = f"    entrypoint: {json.dumps(list(entry))}\n" if entry else ""
    cards = (
        f"""    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: {gpus}
              capabilities: [gpu]
"""
        if gpus
        else ""
    )
    return f"""services:
  vllm:
    image: {image}
{entrypoint}    ipc: host
    ports:
      - "127.0.0.1:8000:8000"
    volumes:
{mounts}
    command:
{listed}
{cards}    healthcheck:
      test: ["CMD", "python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
      interval: 10s
      start_period: 300s
volumes:
{volumes}"""


def _quoted(word: str) -> str:
    """A YAML string; a dollar sign would be the start of a variable to compose."""
    return json.dumps(word.replace("$", "$$"))


def _bind(folder: str) -> str:
    if ":" not in folder:
        return f"      - {_quoted(f'{folder}:/model:ro')}"
    return (
        f"      - type: bind\n        source: {_quoted(folder)}\n        target: /model\n        read_only: true"
    )
