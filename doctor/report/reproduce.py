"""The commands with which what a report says can be seen again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from doctor.report.fit_parts import fits, part
from doctor.report.issue import shell
from doctor.report.parts import dicts
from doctor.sweep.plan import AXES

_SWEEP_OPTIONS = (
    ("--context", "max_model_len"),
    ("--mtp", "draft_tokens"),
    ("--sequences", "max_num_seqs"),
    ("--batched", "max_num_batched_tokens"),
)


def reproduce(answer: Mapping[str, Any]) -> list[str]:
    """Shell lines for one answer, in order; [] when it takes nothing but a file."""
    sweep = answer.get("sweep")
    if isinstance(sweep, dict):
        rows = [r for r in dicts(sweep.get("rows")) if r.get("argv") and isinstance(r.get("settings"), dict)]
        return [_sweep_command(rows, sweep.get("setup") or {})] if rows else []
    if known := fits(answer):
        return [line for line in map(_fit_command, known) if line]
    smoke = answer.get("smoke")
    if not isinstance(smoke, dict):
        warm = answer.get("warmup")
        if isinstance(warm, dict):
            return [shell(["vllm-doctor", "warmup", "--url", warm.get("url") or "", "--json"])]
        return ["vllm-doctor check --json"] if answer.get("command") in (None, "check") else []
    server = smoke.get("server") or {}
    if server.get("url"):
        return [shell(["vllm-doctor", "smoke", "--url", server["url"], "--json"])]
    if not server.get("argv"):
        return []
    asked = ["vllm-doctor", "smoke", "--url", f"http://127.0.0.1:{server.get('port') or 8000}", "--json"]
    return [shell(server["argv"], server.get("env")), shell(asked)]


def _fit_command(fit: Mapping[str, Any]) -> str:
    """The prediction of the same options on the same card; "" for a model that could not be read."""
    given, options, card = part(fit, "model").get("given"), part(fit, "options"), part(fit, "gpu")
    if not given or not options:
        return ""
    out = ["vllm-doctor", "fit", str(given)]
    if isinstance(card.get("total_bytes"), int):
        out += ["--gpu", str(card.get("name")), "--vram", f"{card['total_bytes'] / 2**30:.4f}"]
        if isinstance(card.get("free_bytes"), int):
            out += ["--free", f"{card['free_bytes'] / 2**30:.4f}"]
        out += ["--util", str(fit.get("utilization"))]
    elif (pool := part(fit, "kv").get("available_bytes")) is not None:
        out += ["--available-kv-bytes", str(pool)]
    for name in ("max_model_len", "mtp", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype", "tp"):
        if options.get(name) is not None:
            out += [f"--{name.replace('_', '-')}", str(options[name])]
    out.append("--prefix-caching" if options.get("prefix_caching") else "--no-prefix-caching")
    version = part(fit, "vllm").get("version")
    return shell([*out, *(["--vllm", str(version)] if version else []), "--json"])


def _sweep_command(rows: Sequence[Mapping[str, Any]], setup: Mapping[str, Any]) -> str:
    """The sweep that starts these points again."""
    out = ["vllm-doctor", "sweep"]
    for model in dict.fromkeys(_served(r["argv"]) for r in rows):
        out += ["--model", model]
    axes = {a for r in rows for a in r.get("axes") or ()} - {"edge"}
    out += ["--axes", ",".join(a for a in AXES if a in axes)]
    for option, name in _SWEEP_OPTIONS:
        # the first model's: what a further one adds follows from its edge
        values = sorted({r["settings"].get(name) for r in rows if "edge" not in (r.get("axes") or ())})
        out += [option, ",".join(map(str, values))]
    if setup.get("utilization"):
        out += ["--util", str(setup["utilization"])]
    if setup.get("images"):
        out.append("--images")
    extra = setup.get("serve_args") or []
    return shell([*out, *(["--", *extra] if extra else [])])


def _served(argv: Sequence[Any]) -> str:
    """The model of a `vllm serve` command."""
    words = [str(a) for a in argv]
    return words[words.index("serve") + 1] if "serve" in words[:-1] else "MODEL"
