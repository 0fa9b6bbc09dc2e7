"""Measured overhead of real starts: it replaces the range for the same machine, version and settings.

A start's log says how large the pool was. What is neither weights nor pool is the overhead, exact for every
further start whose profiled batch is the same; stored as one small JSON file per card and vLLM version.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from doctor import files
from doctor.errors import DoctorError
from doctor.memory.kv import size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.overhead import Compile, Span
from doctor.memory.predict import Card, Prediction
from doctor.memory.shape import ModelShape
from doctor.memory.start_check import GIB
from doctor.memory.versions import Switches


@dataclass(frozen=True)
class Measured:
    """One start as its log tells it. GiB are printed to two decimals; ``exact_bytes`` from the flag it suggests.

    ``num_blocks`` narrows the pool further; None for what the log does not say.
    """

    vllm: str | None = None
    total_gib: float | None = None
    utilization: float | None = None
    weights_gib: float | None = None
    available_gib: float | None = None
    tokens: int | None = None
    max_model_len: int | None = None
    cold: bool | None = None
    eager: bool | None = None


_NUMBER = r"(-?\d+(?:\.\d+)?)"
_PATTERNS: dict[str, re.Pattern[str]] = {
    "vllm": re.compile(
        r"vLLM API server version (\d+\.\d+[\w.+]*)|Initializing a V1 LLM engine \(v(\d+\.\d+[\w.+]*)\)"
    ),
    "weights_gib": re.compile(rf"Model loading took {_NUMBER} GiB"),
    "available_gib": re.compile(rf"Available KV cache memory: {_NUMBER} GiB"),
    "tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "max_model_len": re.compile(r"Maximum concurrency for ([\d,]+) tokens per request"),
    "total_gib": re.compile(rf"Free memory on device (?:cuda:\d+ )?\({_NUMBER}/{_NUMBER} GiB\) on startup"),
    "utilization": re.compile(rf"[Dd]esired GPU memory utilization (?:is )?\({_NUMBER},"),
}
# one graph compiled anew is enough: the peak of profiling is then that of a cold start
_COLD = re.compile(r"Compiling a graph for|Cache the graph of compile range|saved AOT compiled function")
_WARM = re.compile(r"Directly load AOT compilation from path|Directly load the (?:compiled|\d+-th) graph")
_EAGER = re.compile(r"enforce_eager=True|Enforce eager set|'enforce_eager': True|--enforce-eager")
_FLAG = re.compile(r"'?gpu_memory_utilization'?\s*[=:]\s*(0?\.\d+|1\.0)")


def read_log(text: str, name: str) -> Measured:
    """The last start that the text shows. Raises DoctorError when it does not say how large the pool was."""
    found: dict[str, str] = {}
    for key, pattern in _PATTERNS.items():
        for match in pattern.finditer(text):
            found[key] = next(g for g in reversed(match.groups()) if g is not None)
    if "available_gib" not in found and "tokens" not in found:
        raise DoctorError(
            f"{name}: no line says 'Available KV cache memory' or 'KV cache size'; give the log of a whole start"
        )
    if "utilization" not in found and (flag := _FLAG.search(text)):
        found["utilization"] = flag[1]

    def number(key: str) -> float | None:
        return float(found[key].replace(",", "")) if key in found else None

    tokens, length = number("tokens"), number("max_model_len")
    cold, warm = bool(_COLD.search(text)), bool(_WARM.search(text))
    return Measured(
        vllm=found.get("vllm"),
        total_gib=number("total_gib"),
        utilization=number("utilization"),
        weights_gib=number("weights_gib"),
        available_gib=number("available_gib"),
        tokens=int(tokens) if tokens is not None else None,
        max_model_len=int(length) if length is not None else None,
        cold=True if cold else False if warm else None,
        eager=bool(_EAGER.search(text)),
    )


@dataclass(frozen=True)
class Calibration:
    """What one start measured. ``key`` names the profiled batch it holds for; bytes.

    ``spent_bytes`` is requested - pool: weights, activations, runtime and graphs together.
    """

    machine: str
    vllm: str
    key: str
    spent_bytes: int
    uncertainty_bytes: int
    predicted_bytes: int = 0  # what the uncalibrated model expected to be spent, likely value

    @property
    def error_bytes(self) -> int:
        """How much more was spent than predicted."""
        return self.spent_bytes - self.predicted_bytes if self.predicted_bytes else 0


def batch_key(shape: ModelShape, options: KvOptions, compiled: Compile, vision: bool) -> str:
    """Everything that changes what profiling measures; the fraction and the pool do not."""
    quantised = shape.quantisation.method if shape.quantisation else "16bit"
    return (
        f"{shape.architecture}/{shape.hidden}x{len(shape.layers)}/{quantised} "
        f"tokens={options.max_num_batched_tokens} seqs={options.max_num_seqs} "
        f"mtp={options.draft_tokens} kv={options.kv_cache_dtype} tp={options.tp} "
        f"{compiled.value}{' vision' if vision else ''}"
    )


def calibrate(measured: Measured, prediction: Prediction, card: Card, shape: ModelShape, options: KvOptions,
              compiled: Compile, vision: bool, version: Switches) -> Calibration:  # fmt: skip
    """What this start teaches. The pool is known to one block or one hundredth of a GiB, whichever is less."""
    low, high = _pool_range(measured, prediction, options)
    middle = (low + high) // 2
    return Calibration(
        machine=machine_key(card),
        vllm=measured.vllm or version.version,
        key=batch_key(shape, options, compiled, vision),
        spent_bytes=prediction.requested_bytes - middle,
        uncertainty_bytes=(high - low) // 2,
        predicted_bytes=prediction.requested_bytes - prediction.available.likely,
    )


def _pool_range(measured: Measured, prediction: Prediction, options: KvOptions) -> tuple[int, int]:
    low, high = 0, 1 << 62
    if measured.available_gib is not None:
        low, high = int((measured.available_gib - 0.005) * GIB), int((measured.available_gib + 0.005) * GIB)
    if measured.tokens is not None and measured.max_model_len == options.max_model_len:
        layout = prediction.likely.layout
        blocks = _blocks_for(measured.tokens, layout.blocks_per_request, options.max_model_len)
        if blocks is None:
            high = -1  # no number of blocks prints as this many tokens
        else:
            low = max(low, blocks * layout.bytes_per_block)
            high = min(high, (blocks + 1) * layout.bytes_per_block - 1)
    if high < low or high == 1 << 62:
        raise DoctorError(
            "the log's pool and its token count do not belong to this model and these options; "
            "give --max-model-len, --mtp, --prefix-caching and --kv-cache-dtype as in that start"
        )
    return low, high


def _blocks_for(tokens: int, per_request: int, length: int) -> int | None:
    near = tokens * per_request // length
    return next((n for n in (near, near + 1) if int(n / per_request * length) == tokens), None)


def machine_key(card: Card) -> str:
    """A file name for this card on this machine: its name and its exact memory."""
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{card.name}-{card.total_bytes}").strip("-").lower()


# -- storage ---------------------------------------------------------------------------------------------


def folder(env: Mapping[str, str]) -> Path:
    """Where calibrations are kept."""
    base = env.get("XDG_STATE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local/state")
    return Path(base) / "vllm-doctor" / "calibration"


def _file(env: Mapping[str, str], machine: str, vllm: str) -> Path:
    return folder(env) / f"{machine}--{re.sub(r'[^0-9A-Za-z.]+', '-', vllm)}.json"


def load(env: Mapping[str, str], card: Card, vllm: str) -> dict[str, Calibration]:
    """The calibrations of this card and version by key; {} when there are none or the file is damaged."""
    return _read(_file(env, machine_key(card), vllm))


def _read(path: Path) -> dict[str, Calibration]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {key: Calibration(**entry) for key, entry in data["measured"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def save(env: Mapping[str, str], card: Card, calibration: Calibration) -> Path:
    """Adds or replaces one calibration."""
    path = _file(env, calibration.machine, calibration.vllm)
    known = _read(path) | {calibration.key: calibration}
    text = json.dumps({"card": card.name, "vllm": calibration.vllm,
                       "measured": {k: asdict(v) for k, v in known.items()}}, indent=1)  # fmt: skip
    files.write(path, text + "\n", folders=True)
    return path


def stored(env: Mapping[str, str]) -> list[tuple[Path, dict[str, Calibration]]]:
    """Every file and what it holds."""
    try:
        files = sorted(folder(env).glob("*.json"))
    except OSError:
        return []
    return [(path, _read(path)) for path in files]


def forget(env: Mapping[str, str]) -> int:
    """Deletes all calibrations; returns how many files."""
    files = [path for path, _ in stored(env)]
    for path in files:
        path.unlink(missing_ok=True)
    return len(files)


def applied(prediction: Prediction, calibration: Calibration, shape: ModelShape, options: KvOptions,
            version: Switches) -> Prediction:  # fmt: skip
    """The prediction with the measured overhead in place of the range."""
    middle = prediction.requested_bytes - calibration.spent_bytes
    half = calibration.uncertainty_bytes
    return _with(prediction, Span(middle - half, middle, middle + half), shape, options, version, exact=True)


def nearest(known: Mapping[str, Calibration], key: str) -> Calibration | None:
    """A start of the same model and compile cache state with other settings, None when there is none."""
    model, state = key.split(" ")[0], key.split(" ")[5:]
    return next((c for k, c in known.items() if k.split(" ")[0] == model and k.split(" ")[5:] == state), None)


def shifted(prediction: Prediction, near: Calibration, shape: ModelShape, options: KvOptions,
            version: Switches) -> Prediction:  # fmt: skip
    """The prediction moved by the error seen in a similar start; the range stays a range."""
    span, error = prediction.available, near.error_bytes
    return _with(
        prediction, Span(span.low - error, span.likely - error, span.high - error), shape, options, version
    )


def _with(prediction: Prediction, span: Span, shape: ModelShape, options: KvOptions, version: Switches,
          exact: bool = False) -> Prediction:  # fmt: skip
    low, likely, high = (size_pool(shape, max(0, b), options, version) for b in (span.low, span.likely, span.high))
    return replace(prediction, available=span, low=low, likely=likely, high=high, calibrated=exact)
