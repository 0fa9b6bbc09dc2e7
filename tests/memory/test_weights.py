"""Weight bytes: quantisation formats, checkpoint headers, the index, and what decoding reads."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from doctor.memory.checkpoint import INDEX, part_of, read_header, weights_of
from doctor.memory.compatibility import kv_dtype_problem, quantisation_support
from doctor.memory.config import shape_of
from doctor.memory.fields import ConfigError
from doctor.memory.quantisation import is_quantised, stored_bytes
from doctor.memory.roofline import break_even, ceiling, measured_acceptance
from doctor.memory.shape import ModelShape, Part, Quantisation, Role, Weight
from doctor.memory.versions import switches
from doctor.memory.weights import weights_from_shapes
from tests.memory.support import config_path, shape

CONFIG: dict[str, Any] = json.loads(config_path("qwen3.5-9b").read_text())
GB = 1e9


def quantised(config: dict[str, Any]) -> ModelShape:
    data = copy.deepcopy(CONFIG)
    data["quantization_config"] = config
    return shape_of(data, "model")


def scheme(config: dict[str, Any]) -> Quantisation:
    found = quantised(config).quantisation
    assert found is not None
    return found


LINEAR = Weight("model.layers.3.mlp.up_proj", 1024, 4096)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        # 4 bits a value, a 16-bit scale and a 4-bit zero point for every 128
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 2_097_152 + 65_536 + 16_384),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 4_194_304 + 2),
        ({"quant_method": "fp8"}, 4_194_304 + 4),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 4_194_304 + 256 * 4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 2_097_152 + 65_536 * 4),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "group_size": 16}},
         2_097_152 + 262_144),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True, "type": "int"}}}},
         2_097_152 + 131_072 * 2),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 8, "strategy": "channel", "type": "float"}}}}, 4_194_304 + 1024 * 2),
    ],
)  # fmt: skip
def test_bytes_of_one_projection(config: dict[str, Any], size: int) -> None:
    assert stored_bytes(LINEAR, scheme(config), 2) == size


def test_what_stays_at_full_precision() -> None:
    awq = scheme({"quant_method": "awq", "modules_to_not_convert": ["self_attn", "model.layers.1."]})
    assert is_quantised(LINEAR, awq)
    assert not is_quantised(Weight("model.layers.3.self_attn.q_proj", 8, 8), awq)
    assert not is_quantised(Weight("model.layers.1.mlp.up_proj", 8, 8), awq)
    assert is_quantised(Weight("model.layers.11.mlp.up_proj", 8, 8), awq)
    assert not is_quantised(Weight("lm_head", 8, 8, Role.HEAD), awq)
    assert not is_quantised(Weight("model.embed_tokens", 8, 8, Role.EMBEDDING), awq)
    pattern = scheme({"quant_method": "compressed-tensors", "ignore": ["re:.*mlp.gate$"], "config_groups": {
        "g": {"targets": ["Linear"], "weights": {"num_bits": 8}}}})  # fmt: skip
    assert not is_quantised(Weight("model.layers.0.mlp.gate", 8, 8), pattern)
    assert is_quantised(Weight("model.layers.0.mlp.gate_proj", 8, 8), pattern)


def test_gpt_oss_quantises_its_experts_only() -> None:
    data = json.loads(config_path("families/gpt-oss").read_text())
    data["quantization_config"] = {"quant_method": "mxfp4"}
    packed = weights_from_shapes(shape_of(data, "gpt-oss")).language
    assert 60 * GB < packed < 66 * GB  # the published 120B checkpoint is about 61 GiB


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "awq", "bits": 7}, "bits = 7 is not a number of bits"),
        ({"quant_method": "awq", "group_size": -5}, "group_size = -5 is out of range"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "0 config_groups"),
        ({"quant_method": "modelopt", "quant_algo": "W9"}, "quant_algo 'W9' is not known"),
        ({}, None),
    ],
)
def test_odd_quantisation_configs(config: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert quantised(config).quantisation is None
        return
    with pytest.raises(ConfigError, match=message):
        quantised(config)


# -- checkpoints -----------------------------------------------------------------------------------------


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """Headers only, over a sparse body: nothing reads the weights."""
    header, at = {}, 0
    sizes = {"BF16": 2, "F16": 2, "I32": 4, "F32": 4}
    for name, (dtype, dims) in tensors.items():
        size = sizes[dtype]
        for d in dims:
            size *= d
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + size]}
        at += size
    data = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(data)) + data)
        file.truncate(8 + len(data) + at)


TENSORS: dict[str, tuple[str, list[int]]] = {
    "model.language_model.embed_tokens.weight": ("BF16", [248320, 4096]),
    "model.language_model.layers.0.mlp.up_proj.weight": ("BF16", [12288, 4096]),
    "model.language_model.layers.1.mlp.up_proj.qweight": ("I32", [4096, 1536]),
    "model.visual.blocks.0.attn.qkv.weight": ("BF16", [3456, 1152]),
    "mtp.fc.weight": ("BF16", [4096, 8192]),
    "lm_head.weight": ("BF16", [248320, 4096]),
}


def test_headers_are_split_by_prefix(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    w = weights_of(shape("qwen3.5-9b"), tmp_path)
    table = 248320 * 4096 * 2
    assert w.source == "safetensors headers"
    assert w.language == 2 * table + 12288 * 4096 * 2 + 4096 * 1536 * 4
    assert (w.vision, w.draft) == (3456 * 1152 * 2, 4096 * 8192 * 2)
    assert w.decode_read == w.language - table  # the embedding is looked up
    assert w.draft_read == w.draft + table  # every draft token reads the output matrix
    assert w.resident(vision=False, draft=True) == w.language + w.buffers + w.draft


def test_two_files_by_their_index(tmp_path: Path) -> None:
    names = list(TENSORS)
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {n: TENSORS[n] for n in names[:3]})
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {n: TENSORS[n] for n in names[3:]})
    files = {n: f"model-0000{1 + (i > 2)}-of-00002.safetensors" for i, n in enumerate(names)}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    assert weights_of(shape("qwen3.5-9b"), tmp_path).source == "safetensors headers"


def test_an_index_alone_gives_the_sum(tmp_path: Path) -> None:
    total = 19_306_208_736
    files = dict.fromkeys(TENSORS, "model-00001-of-00002.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": files}))
    w = weights_of(shape("qwen3.5-9b"), tmp_path)
    assert w.source == "safetensors index"
    assert w.language + w.vision + w.draft == total
    without = {n: f for n, f in files.items() if not n.startswith(("mtp.", "model.visual."))}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": without}))
    assert weights_of(shape("qwen3.5-9b"), tmp_path).language == total


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x01", "cut short, 2 bytes"),
        (struct.pack("<Q", 5000) + b"{}", "not a whole safetensors file"),
        (struct.pack("<Q", 1 << 60) + b"{}", "not a whole safetensors file"),
        (struct.pack("<Q", 4) + b"nope", "header is not valid JSON"),
        (struct.pack("<Q", 2) + b"[]", "header is not an object"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "tensor 'a' has no description"),
        (struct.pack("<Q", 41) + b'{"a": {"dtype": "F16", "shape": [-1, 2]}}', "no known dtype and shape"),
    ],
)
def test_damaged_headers(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "no weight_map"),
        ({"weight_map": {"a": "../../etc/passwd"}}, "outside the folder"),
        ({"weight_map": {"a": "model.safetensors"}}, "no total_size"),
        ({"weight_map": {"a": "x.safetensors"}, "metadata": {"total_size": -1}}, "no total_size"),
        ({"weight_map": {"model.visual.a": "x.safetensors"}, "metadata": {"total_size": 5}}, "less than"),
    ],
)
def test_damaged_indexes(tmp_path: Path, index: dict[str, Any], message: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=message):
        weights_of(shape("qwen3.5-9b"), tmp_path)


def test_parts_by_prefix() -> None:
    assert part_of("model.layers.61.eh_proj.weight", 61) is Part.DRAFT
    assert part_of("model.layers.60.mlp.up_proj.weight", 61) is Part.LANGUAGE
    assert part_of("vision_tower.encoder.layers.99.x", 61) is Part.VISION


# -- decoding --------------------------------------------------------------------------------------------


def test_the_ceiling_of_the_reference_card() -> None:
    w = weights_from_shapes(shape("qwen3.5-9b-awq"))
    plain = ceiling(w, 32_768, 0, 616e9)
    assert plain.tokens_per_s is not None
    assert round(plain.target_bytes / 1e9, 2) == 8.94
    assert round(plain.tokens_per_s, 1) == 68.9
    drafted = ceiling(w, 32_768, 0, 616e9, draft_tokens=2)
    assert drafted.tokens_per_s is not None
    assert round(drafted.step_bytes / 1e9, 2) == 13.99
    assert round(drafted.tokens_per_s, 1) == pytest.approx(105.3, abs=0.11)
    assert round(break_even(w, 2), 2) == 1.56
    full = ceiling(w, 32_768, 262_144, 616e9)
    assert full.tokens_per_s is not None
    assert round(full.tokens_per_s, 1) == 35.1


def test_acceptance_is_only_told_where_it_was_measured() -> None:
    assert measured_acceptance(0) == 1
    assert measured_acceptance(2) == pytest.approx(2.392)
    assert measured_acceptance(3) is None


def test_experts_are_read_in_part() -> None:
    w = weights_from_shapes(shape("qwen3.5-35b-a3b"))
    assert w.decode_read < w.language / 10


@pytest.mark.parametrize(
    ("config", "capability", "version", "ok"),
    [
        (None, (7, 0), "0.26.0", True),
        ({"quant_method": "awq"}, (7, 5), "0.26.0", True),
        ({"quant_method": "awq"}, (7, 0), "0.26.0", False),
        ({"quant_method": "awq"}, None, "0.26.0", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, (8, 6), "0.26.0", True),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, (8, 6), "0.28.0", False),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, (8, 6), "0.26.0", False),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, (8, 6), "0.32.0", True),
    ],
)
def test_formats_and_cards(
    config: dict[str, Any] | None, capability: tuple[int, int] | None, version: str, ok: bool | None
) -> None:
    assert quantisation_support(scheme(config) if config else None, capability, switches(version)).ok is ok


def test_fp8_on_an_older_card_is_unpacked() -> None:
    support = quantisation_support(scheme({"quant_method": "fp8"}), (7, 5), switches("0.26.0"))
    assert (support.ok, support.native) == (True, False)
    assert kv_dtype_problem("fp8", (7, 5))
    assert not kv_dtype_problem("fp8", (8, 9))
