"""What config.json may say, and the one line that a wrong one gets."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.memory.config import LARGEST_CONFIG_BYTES, read_json, shape_of
from doctor.memory.families import builders
from doctor.memory.fields import ConfigError
from tests.memory.support import config_path, shape

CONFIG: dict[str, Any] = json.loads(config_path("qwen3.5-9b").read_text())


def changed(**text: Any) -> dict[str, Any]:
    data = copy.deepcopy(CONFIG)
    for key, value in text.items():
        if value is ...:
            del data["text_config"][key]
        else:
            data["text_config"][key] = value
    return data


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        shape_of(data, "model")
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_9b_is_understood() -> None:
    model = shape("qwen3.5-9b")
    assert (len(model.attention), len(model.states), model.has_mtp) == (8, 24, True)
    assert model.vision is not None


def test_an_unknown_architecture_is_refused_by_name() -> None:
    data = copy.deepcopy(CONFIG)
    data["architectures"] = ["Qwen9ForConditionalGeneration"]
    assert "architecture 'Qwen9ForConditionalGeneration' is not known" in refusal(data)
    data["architectures"] = ["Qwen3_5ForConditionalGenerationX"]
    assert "the nearest known one is Qwen3_5ForConditionalGeneration" in refusal(data)


def test_no_architecture_at_all() -> None:
    assert "'architectures' is missing" in refusal({"hidden_size": 4096})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": ...}, "key 'hidden_size' is missing"),
        ({"linear_conv_kernel_dim": ...}, "key 'linear_conv_kernel_dim' is missing"),
        ({"num_hidden_layers": -32}, "num_hidden_layers = -32 is out of range"),
        ({"hidden_size": 0}, "hidden_size = 0 is out of range"),
        ({"hidden_size": "4096"}, "hidden_size should be a whole number, is '4096'"),
        ({"hidden_size": True}, "hidden_size should be a whole number"),
        ({"num_hidden_layers": 1 << 39}, "is out of range (at most 10,000)"),
        ({"num_hidden_layers": 31}, "layer_types names 32 layers, num_hidden_layers is 31"),
        ({"layer_types": ["full_attention"] * 31 + ["magic"]}, "layer type 'magic' is not known"),
        ({"layer_types": "full_attention"}, "layer_types should be a list of names"),
        ({"mamba_ssm_dtype": "float13"}, "mamba_ssm_dtype 'float13' is not a known number format"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings should be true or false"),
    ],
)
def test_wrong_values_name_their_key(change: dict[str, Any], message: str) -> None:
    assert message in refusal(changed(**change))


def test_unknown_quantisation_is_refused() -> None:
    data = {**CONFIG, "quantization_config": {"quant_method": "magic"}}
    assert "quantisation method 'magic' is not known" in refusal(data)


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_json(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert "not valid JSON" in write(path, b'{"architectures": [')
    assert "not UTF-8" in write(path, b"\xff\xfe{")
    assert "holds a list" in write(path, b"[1, 2]")
    assert "not valid JSON" in write(path, b"[" * 100_000)
    with pytest.raises(ConfigError, match="No such file"):
        read_json(tmp_path / "missing.json")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2 << 30)  # sparse: nothing is written
    with pytest.raises(ConfigError, match=f"at most {LARGEST_CONFIG_BYTES:,}"):
        read_json(path)


def test_every_family_has_a_config_that_was_compared() -> None:
    compared = {
        json.loads(p.read_text())["architectures"][0] for p in config_path("x").parent.parent.rglob("*.json")
    }
    text_only = {name for name in builders() if not name.endswith("ForConditionalGeneration")}
    assert text_only - compared == {"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"}  # the same builder


JUNK = (
    st.none()
    | st.booleans()
    | st.integers(-5, 1 << 45)
    | st.floats()
    | st.text(max_size=5)
    | st.just([])
    | st.just({})
)


@given(st.dictionaries(st.sampled_from(sorted(CONFIG["text_config"])), JUNK, min_size=1, max_size=4))
def test_any_mutilated_config_is_understood_or_refused_in_one_line(junk: dict[str, Any]) -> None:
    data = copy.deepcopy(CONFIG)
    data["text_config"].update(junk)
    message = ""
    try:
        shape_of(data, "model")
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message
