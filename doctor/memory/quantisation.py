"""Reads ``quantization_config``: how many bits, which groups, and which modules stay at full precision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from doctor.memory.fields import ConfigError, Fields
from doctor.memory.shape import Quantisation, Role, Weight


def quantisation_of(*objects: Fields) -> Quantisation | None:
    """The quantisation that config.json declares, None when the weights are plain.

    Raises :class:`ConfigError` for a method whose storage is not known: sizes are never guessed.
    """
    for fields in objects:
        data = fields.nested("quantization_config") or fields.nested("compression_config")
        if data:
            return _read(Fields(f"{fields.name} (quantization_config)", data), data)
    return None


def _read(fields: Fields, data: Mapping[str, Any]) -> Quantisation | None:
    method = fields.text("quant_method", default="").lower().replace("-", "_")
    if not method and "quant_algo" in data:
        method = "modelopt"
    reader = _READERS.get(method)
    if reader is None:
        raise ConfigError(f"{fields.name}: quantisation method {method or '(none named)'!r} is not known here")
    return reader(fields)


def _names(fields: Fields, *keys: str) -> tuple[str, ...]:
    return fields.texts(*keys) or ()


def _bits(fields: Fields, *keys: str, default: int | None = None) -> int:
    bits = fields.integer(*keys, default=default)
    if bits not in (2, 3, 4, 5, 6, 8):
        raise ConfigError(f"{fields.name}: {keys[0]} = {bits} is not a number of bits that weights are stored in")
    return bits


def _awq(fields: Fields) -> Quantisation:
    return Quantisation(
        "awq", _bits(fields, "bits", "w_bit", default=4),
        fields.integer("group_size", "q_group_size", default=128, least=-1),
        zero_points=fields.flag("zero_point", default=True), left_alone=_names(fields, "modules_to_not_convert"),
    )  # fmt: skip


def _gptq(fields: Fields) -> Quantisation:
    dynamic = fields.nested("dynamic") or {}
    skipped = tuple(f"re:{key[2:]}" for key in dynamic if key.startswith("-:"))
    return Quantisation(
        "gptq", _bits(fields, "bits"), fields.integer("group_size", default=128, least=-1), zero_points=True,
        left_alone=(*_names(fields, "modules_in_block_to_not_quantize", "modules_to_not_convert"), *skipped),
        quantises_head=fields.flag("lm_head", default=False),
    )  # fmt: skip


def _fp8(fields: Fields) -> Quantisation:
    block = fields.integers("weight_block_size")
    if block is not None and (len(block) != 2 or min(block) < 1):
        raise ConfigError(f"{fields.name}: weight_block_size should be two positive numbers")
    return Quantisation(
        "fp8", 8, block[0] * block[1] if block else -1, scale_bytes=4,
        left_alone=_names(fields, "modules_to_not_convert", "ignored_layers"),
    )  # fmt: skip


def _bitsandbytes(fields: Fields) -> Quantisation:
    four = fields.flag("load_in_4bit", "_load_in_4bit", default=False)
    if not four and not fields.flag("load_in_8bit", "_load_in_8bit", default=False):
        raise ConfigError(f"{fields.name}: neither load_in_4bit nor load_in_8bit is set")
    # 4 bit: one float32 per 64 values, itself stored in 8 bits when double quantisation is on
    double = fields.flag("bnb_4bit_use_double_quant", default=False)
    return Quantisation(
        "bitsandbytes", 4 if four else 8, 64 if four else 0, scale_bytes=1 if double else 4,
        left_alone=(*_names(fields, "llm_int8_skip_modules"), "lm_head"),
    )  # fmt: skip


def _mxfp4(fields: Fields) -> Quantisation:
    return Quantisation("mxfp4", 4, 32, scale_bytes=1,
                        left_alone=_names(fields, "modules_to_not_convert"), only=("experts",))  # fmt: skip


def _modelopt(fields: Fields) -> Quantisation:
    inner = fields.nested("quantization")
    if inner is not None:
        fields = Fields(fields.name, inner)
    algorithm = fields.text("quant_algo").upper()
    ignored = tuple(_glob(n) for n in _names(fields, "exclude_modules", "ignore"))
    if algorithm == "FP8":
        return Quantisation("modelopt", 8, -1, scale_bytes=4, left_alone=ignored)
    if algorithm == "NVFP4":
        return Quantisation("modelopt_fp4", 4, fields.integer("group_size", default=16), scale_bytes=1,
                            left_alone=ignored)  # fmt: skip
    raise ConfigError(f"{fields.name}: quant_algo {algorithm!r} is not known here")


def _compressed(fields: Fields) -> Quantisation:
    groups = fields.nested("config_groups") or {}
    if len(groups) != 1:
        raise ConfigError(f"{fields.name}: {len(groups)} config_groups; sizing knows files with exactly one")
    (group,) = groups.values()
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise ConfigError(f"{fields.name}: config_groups has no weights entry")
    weights = Fields(f"{fields.name} weights", group["weights"])
    strategy = weights.text("strategy", default="group")
    sizes = {"tensor": -1, "channel": 0, "group": weights.integer("group_size", default=128, least=-1),
             "tensor_group": weights.integer("group_size", default=16, least=-1)}  # fmt: skip
    if strategy == "block":
        block = weights.integers("block_structure") or (128, 128)
        sizes["block"] = block[0] * block[1]
    if strategy not in sizes:
        raise ConfigError(f"{fields.name}: strategy {strategy!r} is not known here")
    bits = _bits(weights, "num_bits")
    floating = weights.text("type", default="int") == "float"
    targets = tuple(t for t in group.get("targets", ()) if isinstance(t, str))
    return Quantisation(
        "compressed-tensors", bits, sizes[strategy],
        zero_points=not weights.flag("symmetric", default=True),
        scale_bytes=1 if floating and bits == 4 else 2,
        left_alone=_names(fields, "ignore"),
        only=tuple(t for t in targets if t != "Linear"),
    )  # fmt: skip


_READERS = {
    "awq": _awq, "awq_marlin": _awq, "gptq": _gptq, "gptq_marlin": _gptq, "fp8": _fp8, "fbgemm_fp8": _fp8,
    "bitsandbytes": _bitsandbytes, "mxfp4": _mxfp4, "gpt_oss_mxfp4": _mxfp4, "modelopt": _modelopt,
    "modelopt_fp4": _modelopt, "compressed_tensors": _compressed,
}  # fmt: skip


def _glob(pattern: str) -> str:
    """A shell-style pattern as the regular expression form that ``left_alone`` understands."""
    if "*" not in pattern:
        return pattern
    return "re:" + ".*".join(re.escape(piece) for piece in pattern.split("*"))


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    if not pattern.startswith("re:"):
        return None
    try:
        return re.compile(pattern[3:])
    except re.error:
        return None


def _matches(module: str, patterns: tuple[str, ...]) -> bool:
    for pattern in patterns:
        expression = _compiled(pattern)
        if expression.match(module) if expression else pattern.rstrip(".") + "." in f"{module}.":
            return True
    return False


def is_quantised(weight: Weight, scheme: Quantisation) -> bool:
    """True when this module is stored in ``scheme.bits``."""
    if weight.role is Role.HEAD:
        return scheme.quantises_head and not _matches(weight.module, scheme.left_alone)
    if weight.role not in (Role.LINEAR, Role.EXPERT):
        return False
    if scheme.only and not _matches(weight.module, scheme.only):
        return False
    return not _matches(weight.module, scheme.left_alone)


def stored_bytes(weight: Weight, scheme: Quantisation | None, plain_bytes: int) -> int:
    """Bytes of this module's weights: values, scales and zero points."""
    if scheme is None or not is_quantised(weight, scheme):
        return weight.elements * plain_bytes
    values = -(-weight.elements * scheme.bits // 8)
    if scheme.group_size == -1:
        return values + scheme.scale_bytes * weight.count
    rows = weight.outputs * weight.count
    groups = rows if scheme.group_size == 0 else -(-weight.elements // scheme.group_size)
    zeros = -(-groups * scheme.bits // 8) if scheme.zero_points else 0
    return values + groups * scheme.scale_bytes + zeros
