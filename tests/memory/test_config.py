"""What config.json may say, and the one line that a wrong one gets."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.memory.checkpoint import INDEX, read_header
from doctor.memory.config import LARGEST_CONFIG_BYTES, read_json, shape_of
from doctor.memory.families import builders
from doctor.memory.fields import ConfigError
from doctor.memory.model import open_model
from doctor.memory.weights import weights_from_shapes
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


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match="is not a regular file"):
            read_json(path)
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_header(tmp_path / "pipe")


def test_a_number_without_end(tmp_path: Path) -> None:
    assert "not valid JSON" in write(tmp_path / "config.json", b'{"hidden_size": ' + b"9" * 6000 + b"}") or (
        sys.version_info < (3, 10, 7)  # the limit of digits came with a security release
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "name is empty"),
        ("  ", "name is empty"),
        ("a\tb\nc", r"a\\tb\\nc: no such"),
        ("x" * 5000, "name"),
        ("a\0b", "name"),
    ],
)
def test_names_that_no_model_has(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_model(given, {}, print)
    text = str(caught.value)
    assert len(text) < 400
    assert "\n" not in text


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path, **__: object) -> bool:  # the tests may run as root, who may enter every folder
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(ConfigError, match="Permission denied"):
        open_model(str(tmp_path), {}, print)


def test_a_folder_without_config(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(ConfigError) as caught:
            open_model(str(tmp_path), {}, print)
        return str(caught.value)

    assert refused().endswith("a folder without config.json")
    (tmp_path / "model.gguf").touch()
    assert "GGUF files carry no config.json" in refused()
    (tmp_path / "model.gguf").unlink()
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/config.json").touch()
    assert refused().endswith("'inner' below it has one")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"metadata": {"total_size": 1%s}, "weight_map": {"a": "b"}}' % ("0" * 400), "no total_size"),
        ('{"metadata": {"total_size": NaN}, "weight_map": {"a": "b"}}', "no total_size"),
        ('{"metadata": {"total_size": 1e400}, "weight_map": {"a": "b"}}', "no total_size"),
        ('{"metadata": {"total_size": 5}, "weight_map": {"a": "%s"}}' % ("x" * 5000), "no files at all"),
        ('{"metadata": {"total_size": 5}, "weight_map": {"a": "x\\u0000y"}}', "no files at all"),
        ('{"metadata": {"total_size": 5}, "weight_map": {"a": "../../etc/passwd"}}', "outside the folder"),
    ],
)
def test_an_index_of_nonsense(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(ConfigError, match=message) as caught:
        open_model(str(tmp_path), {}, print)
    assert len(str(caught.value).splitlines()) == 1


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


CONFIGS = sorted(config_path("x").parent.parent.rglob("config.json"))


def _paths(data: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in data.items():
        found.append((*before, key))
        if isinstance(value, dict):
            found += _paths(value, (*before, key))
    return found


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_mutilated_config_is_understood_or_refused_in_one_line(chance: st.DataObject) -> None:
    """Every family's real configuration with up to three values, at any depth, replaced by junk."""
    data: Any = json.loads(chance.draw(st.sampled_from(CONFIGS)).read_text())
    for path in chance.draw(st.lists(st.sampled_from(_paths(data)), min_size=1, max_size=3)):
        inner = data
        for key in path[:-1]:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner[path[-1]] = chance.draw(JUNK)
    message = ""
    try:
        weights_from_shapes(shape_of(data, "model"))
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("name", ["qwen3.5-9b", "families/glm", "families/glm4-moe", "families/qwen3-next"])
@pytest.mark.parametrize("value", ["", "0.25", {}, [1, 2], True, -1, 2.0, float("nan")])
def test_a_rotary_share_that_is_none(name: str, value: object) -> None:
    data = json.loads(config_path(name).read_text())
    text = data.get("text_config", data)
    text["rope_parameters"] = {**(text.get("rope_parameters") or {}), "partial_rotary_factor": value}
    assert "partial_rotary_factor should be a number from 0 to 1" in refusal(data)
