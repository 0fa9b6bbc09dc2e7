"""What vLLM says of itself: version, flags, resolved configuration, memory figures, life signs."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from doctor.evidence.builder import FactBuilder
from doctor.evidence.facts_env import add_vllm
from doctor.snapshot import Event

#: Architectures that mix attention with recurrent state (their registry in vLLM: IsHybrid).
_HYBRID = re.compile(
    r"Qwen3_5|Qwen3Next|Mamba|Jamba|Bamba|FalconH1|Zamba2|NemotronH|GraniteMoeHybrid|Plamo2|MiniMaxText01|"
    r"MiniMaxM1|Lfm2|KimiLinear|OlmoHybrid",
    re.I,
)
_HYBRID_NAME = re.compile(r"qwen-?3\.[5-9]|qwen-?3-next|nemotron-?h\b|jamba|falcon-?h1|zamba2|kimi-linear", re.I)


def read(events: Iterable[Event], facts: FactBuilder) -> None:
    """Facts of the ``fact.*`` events, in order; later runs in the same text replace earlier figures."""
    for event in events:
        reader = _READERS.get(event.signal)
        if reader:
            reader(event.values, event.source, facts)


def _version(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    add_vllm(values["version"], source, facts)


def _arguments(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    arguments(parse_arguments(values["args"]), source, facts)


def _command(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    """A command line: ``vllm serve MODEL --flag value ...``."""
    text = values["args"].split(" && ")[0].split(" | ")[0].rstrip("\\ ")
    flags: dict[str, Any] = {}
    for name, quoted, plain in re.findall(
        r"(?:^|\s)--([a-z][a-z0-9-]{1,50})(?:[= ]('[^']{0,400}'|\"[^\"]{0,400}\"|\{\S{1,300}\}|"
        r"(?!-)[^\s'\"]\S{0,300}))?()",
        text,
    ):
        value = (quoted or plain).strip("'\"")
        if name.startswith("no-") and not value:
            flags[name[3:].replace("-", "_")] = False
        else:
            flags[name.replace("-", "_")] = value if value else True
    first = re.match(r"\s*(?!-)([\w./:@~-]{2,200})", text)
    if first:
        flags.setdefault("model", first[1])
    arguments(flags, source, facts)


def _config(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    """The line "Initializing ... with config: model='...', dtype=..., ..."."""
    text = values["args"]
    if "version" in values:
        _version(values, source, facts)
    known = dict(re.findall(r"\b([a-z_]{4,40})=('[^']{0,300}'|\"[^\"]{0,300}\"|[\w.+:/-]{1,120})", text))
    flags = {k: _literal(v) for k, v in known.items()}
    flags.pop("speculative_config", None)  # shown as an object here; the arguments have the figures
    drafted = re.search(r"speculative_config=SpeculativeConfig\([^)]{0,300}?method='?(\w+)'?", text)
    tokens = re.search(r"speculative_config=SpeculativeConfig\([^)]{0,300}?num_spec_tokens=(\d+)", text)
    if drafted:
        facts.put("serving", "speculative_method", drafted[1], source)
    if tokens:
        facts.put("serving", "speculative_tokens", int(tokens[1]), source)
    if "max_seq_len" in flags:
        flags["max_model_len"] = flags.pop("max_seq_len")
    mode = re.search(
        r"cudagraph_mode['\"]?\s*[:=]\s*(?:<CUDAGraphMode\.|CUDAGraphMode\.|['\"])?([A-Z_]{4,40})", text
    )
    if mode:
        facts.put("serving", "cudagraph_mode", mode[1], source)
    arguments({k: v for k, v in flags.items() if k in _FLAGS}, source, facts)


def parse_arguments(text: str) -> dict[str, Any]:
    """``Namespace(a=1, b='x')``, ``{'a': 1, 'b': 'x'}`` or JSON -> a dict; what cannot be read is left out."""
    text = text.strip()
    if text.startswith("Namespace("):
        body = text[len("Namespace(") :].rstrip(")")
        pairs = re.findall(
            r"\b([a-z_]{2,60})=('(?:[^'\\]|\\.){0,400}'|\{[^{}]{0,400}\}|\[[^\[\]]{0,400}\]|[^,()\s]{1,120})", body
        )
        return {k: _literal(v) for k, v in pairs}
    try:
        data = ast.literal_eval(text)
        if isinstance(data, dict):
            return {str(k): v for k, v in data.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    pairs = re.findall(
        r"['\"]([a-z_]{2,60})['\"]: ?('(?:[^'\\]|\\.){0,400}'|\{[^{}]{0,400}\}|"
        r"\[[^\[\]]{0,400}\]|[^,{}\[\]]{1,120})",
        text,
    )
    return {k: _literal(v) for k, v in pairs}


def _literal(text: str) -> Any:
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text.strip("'\"")


def arguments(flags: Mapping[str, Any], source: str, facts: FactBuilder) -> None:
    """Flags by their names in vLLM's argument parser."""
    rest: dict[str, str] = {}
    for name, value in flags.items():
        if value is None:
            continue
        entry = _FLAGS.get(name)
        if entry:
            field, convert = entry
            try:
                facts.put("serving", field, convert(value), source, replace=True)
            except (TypeError, ValueError):
                continue
            if field == "model":
                _model(str(value), source, facts)
        elif name == "speculative_config":
            _speculative(value, source, facts)
        elif isinstance(value, (str, int, float, bool)):
            rest[name] = str(value)[:200]
    compilation = flags.get("compilation_config")
    if compilation is not None:
        mode = re.search(r"cudagraph_mode['\"]?\s*[:=]\s*['\"]?([A-Z_]{4,40})", str(compilation))
        facts.put("serving", "cudagraph_mode", mode[1] if mode else None, source)
    if rest:
        facts.merge("serving", "flags", rest, source)


def _speculative(value: Any, source: str, facts: FactBuilder) -> None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = _pairs(value)
    if isinstance(value, dict):
        tokens = value.get("num_speculative_tokens")
        facts.put("serving", "speculative_tokens", int(str(tokens)) if str(tokens).isdigit() else None, source)
        method = value.get("method")
        facts.put("serving", "speculative_method", str(method) if method else None, source)


def _pairs(text: str) -> dict[str, str]:
    """A dict that was cut or quoted in ways that no parser reads."""
    found = {}
    tokens = re.search(r"num_speculative_tokens\W{1,8}(\d{1,3})", text)
    method = re.search(r"method\W{1,8}([a-z0-9_]{2,40})", text)
    if tokens:
        found["num_speculative_tokens"] = tokens[1]
    if method:
        found["method"] = method[1]
    return found


def _model(name: str, source: str, facts: FactBuilder) -> None:
    if _HYBRID_NAME.search(name):
        facts.put("serving", "hybrid", True, f"{source} (by the name of the model)")


def _architecture(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    facts.put("serving", "architecture", values["name"], source)
    facts.put("serving", "hybrid", bool(_HYBRID.search(values["name"])), source, replace=True)


def _figure(name: str, convert: Callable[[str], Any]) -> Callable[[Mapping[str, str], str, FactBuilder], None]:
    def reader(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
        facts.put("serving", name, convert(values["value"].replace(",", "")), source, replace=True)

    return reader


def _arches(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    facts.put("python", "torch_arches", tuple(re.findall(r"(?:sm|compute)_\w{2,5}", values["list"])), source)


def _wsl_mark(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    facts.put("wsl", "version", 2, source)


def _block(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    facts.put("serving", "block_size", int(values["value"]), source, replace=True)
    facts.put("serving", "hybrid", True, source, replace=True)


def _free(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    facts.put("serving", "free_gib", float(values["free"]), source, replace=True)
    facts.put("serving", "total_gib", float(values["total"]), source, replace=True)
    if "util" in values:
        facts.put("serving", "gpu_memory_utilization", float(values["util"]), source, replace=True)


def _started(values: Mapping[str, str], source: str, facts: FactBuilder) -> None:
    facts.put("serving", "started", True, source, replace=True)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "1"):
        return True
    if str(value).lower() in ("false", "0"):
        return False
    raise ValueError(value)


def _word(value: Any) -> str:
    return str(value).removeprefix("torch.")


#: vLLM's argument -> (field of ServingFacts, how to read it).
_FLAGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "model": ("model", str),
    "model_tag": ("model", str),
    "dtype": ("dtype", _word),
    "quantization": ("quantization", str),
    "max_model_len": ("max_model_len", int),
    "max_num_seqs": ("max_num_seqs", int),
    "max_num_batched_tokens": ("max_num_batched_tokens", int),
    "gpu_memory_utilization": ("gpu_memory_utilization", float),
    "tensor_parallel_size": ("tensor_parallel", int),
    "pipeline_parallel_size": ("pipeline_parallel", int),
    "enable_prefix_caching": ("prefix_caching", _truth),
    "mamba_cache_mode": ("mamba_cache_mode", str),
    "kv_cache_dtype": ("kv_cache_dtype", str),
    "enforce_eager": ("enforce_eager", _truth),
    "port": ("port", int),
    "num_speculative_tokens": ("speculative_tokens", int),
    "speculative_method": ("speculative_method", str),
    "architecture": ("architecture", str),
}

_READERS: dict[str, Callable[[Mapping[str, str], str, FactBuilder], None]] = {
    "fact.vllm-version": _version,
    "fact.arguments": _arguments,
    "fact.engine-config": _config,
    "fact.command": _command,
    "fact.architecture": _architecture,
    "fact.max-model-len": _figure("max_model_len", int),
    "fact.batched-tokens": _figure("max_num_batched_tokens", int),
    "fact.weights": _figure("weights_gib", float),
    "fact.available-kv": _figure("available_kv_gib", float),
    "fact.kv-tokens": _figure("kv_tokens", int),
    "fact.concurrency": _figure("concurrency", float),
    "fact.block-size": _block,
    "fact.free-memory": _free,
    "fact.started": _started,
    "fact.arch-list": _arches,
    "fact.wsl-mark": _wsl_mark,
}
