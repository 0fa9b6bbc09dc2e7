"""What is seen of a model before the start."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from doctor.smoke.model import inspect
from doctor.smoke.options import Missing
from tests.fakes import FakeHost

CONFIG = json.dumps({"architectures": ["Qwen3_5ForConditionalGeneration"]})


def header(*names: str) -> bytes:
    text = json.dumps({n: {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]} for n in names}).encode()
    return struct.pack("<Q", len(text)) + text + b"\0\0"


def test_mtp_from_the_index_or_the_only_file(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    for folder, names in {"/with": ["mtp.fc.weight"], "/without": ["model.norm.weight"]}.items():
        host.write(f"{folder}/config.json", CONFIG)
        host.write(f"{folder}/model.safetensors.index.json", json.dumps({"weight_map": dict.fromkeys(names, "f")}))
    assert inspect(host, "/with").has_mtp is True
    assert inspect(host, "/without").has_mtp is False
    host.write("/single/config.json", CONFIG)
    host.write("/single/model.safetensors", header("lm_head.weight", "mtp.norm.weight"))
    assert inspect(host, "/single").has_mtp is True


@pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 32, struct.pack("<Q", 9) + b"not json!"])
def test_an_unreadable_header_is_not_known(tmp_path: Path, data: bytes) -> None:
    host = FakeHost(tmp_path)
    host.write("/m/config.json", CONFIG)
    host.write("/m/model.safetensors", data)
    found = inspect(host, "/m")
    assert found.problem is None
    assert found.has_mtp is None


def test_problems(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write("/models/Qwen3.5-9B-AWQ/config.json", CONFIG)
    assert "/models has Qwen3.5-9B-AWQ" in str(inspect(host, "/models/Qwen3.5-9B-AWK").problem)
    assert "is a file" in str(inspect(host, "/models/Qwen3.5-9B-AWQ/config.json").problem)
    host.write("/empty/readme", "")
    assert "no config.json" in str(inspect(host, "/empty").problem)
    host.write("/odd/config.json", "[]")
    assert "names no architecture" in str(inspect(host, "/odd").problem)


def test_hub_names_come_from_the_cache_only(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, env={"HF_HOME": "/hf"})
    assert "--download fetches it" in str(inspect(host, "a/b").problem)
    assert inspect(host, "a/b", Missing("the hub does not answer")).problem == "the hub does not answer"
    folder = "/hf/hub/models--a--b"
    host.write(f"{folder}/refs/main", "c0ffee\n")
    host.write(f"{folder}/snapshots/c0ffee/config.json", CONFIG)
    assert "not a folder" not in str(inspect(host, "a/b").problem)  # a configuration alone is no model
    assert inspect(host, "a/b").problem is not None
    host.write(f"{folder}/snapshots/c0ffee/model.safetensors", header("lm_head.weight"))
    found = inspect(host, "a/b")
    assert (found.problem, found.path) == (None, f"{folder}/snapshots/c0ffee")
    assert inspect(host, "a/b@c0ffee").path == found.path
    assert inspect(host, "a/b@0ther").problem is not None
    index = json.dumps({"weight_map": {"x": "model.safetensors", "y": "model-2.safetensors"}})
    host.write(f"{folder}/snapshots/c0ffee/model.safetensors.index.json", index)
    assert inspect(host, "a/b").problem is not None  # a shard is missing


@pytest.mark.parametrize(
    ("config", "declares"),
    [
        ({"model_type": "qwen3_5"}, True),
        ({"model_type": "x", "text_config": {"model_type": "qwen3_5_text"}}, True),
        ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}, True),
        ({"model_type": "x", "text_config": {"mtp_num_hidden_layers": 1}}, True),
        ({"model_type": "llama", "num_nextn_predict_layers": 0}, False),
        ({"model_type": "llama"}, False),
    ],
)
def test_which_configurations_promise_drafts(tmp_path: Path, config: dict[str, object], declares: bool) -> None:
    host = FakeHost(tmp_path)
    host.write("/m/config.json", json.dumps({"architectures": ["A"], **config}))
    assert inspect(host, "/m").declares_mtp is declares
