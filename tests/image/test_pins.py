"""docker/pins.json as it is in the repository, and what is said about one that is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctor.errors import DoctorError
from doctor.image import pins

REPOSITORY = Path(__file__).resolve().parents[2]


def context(folder: Path, change: Callable[[dict[str, Any]], object] | None = None) -> Path:
    """A build context with the repository's pins, changed, and small locks."""
    data = json.loads((REPOSITORY / "docker/pins.json").read_bytes())
    if change:
        change(data)
    (folder / "docker/locks").mkdir(parents=True)
    (folder / "docker/pins.json").write_text(json.dumps(data))
    (folder / "docker/locks/python-3.11.txt").write_bytes(b"torch==2.11.0 --hash=sha256:00\n")
    (folder / "docker/locks/apt-debian-12.txt").write_bytes(b"gcc-12=12.2.0-14\n")
    return folder


def test_the_repositorys_pins_are_read() -> None:
    loaded = pins.load()
    assert loaded.root == REPOSITORY
    image = loaded.image("cuda-13.0")
    assert image.pinned.startswith("docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca2")
    assert loaded.target("ubuntu24.04").image == "cuda-13.0"
    assert loaded.target("bookworm").python == "3.11"
    assert loaded.model is not None
    assert loaded.model.id == "QuantTrio/Qwen3.5-9B-AWQ"


def test_each_file_that_the_repositorys_pins_name_stays_in_the_docker_folder() -> None:
    for target in pins.load().targets:
        for path in (target.dockerfile, target.python_lock, target.apt_lock):
            assert path is None or path.startswith("docker/")


def test_tag_follows_from_the_bytes_of_both_locks(tmp_path: Path) -> None:
    root = context(tmp_path)
    target = pins.load(root).target("bookworm")
    both = b"torch==2.11.0 --hash=sha256:00\ngcc-12=12.2.0-14\n"
    assert pins.tag(target, root) == f"vllm-doctor:0.26.0-cu130-{hashlib.sha256(both).hexdigest()[:12]}"
    (root / "docker/locks/apt-debian-12.txt").write_bytes(b"gcc-12=12.2.0-15\n")
    assert pins.lock_hash(target, root) != hashlib.sha256(both).hexdigest()[:12]


def test_lock_that_is_not_there_is_named(tmp_path: Path) -> None:
    root = context(tmp_path)
    with pytest.raises(DoctorError, match=r"cannot read the lock .*python-3\.13\.txt: No such file"):
        pins.tag(pins.load(root).target("trixie"), root)
    with pytest.raises(DoctorError, match="target turing-fork has no lock files"):
        pins.tag(pins.load(root).target("turing-fork"), root)


def test_unknown_target_is_answered_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=r"no target is called 'jammy'; there are ubuntu24\.04, bookworm"):
        pins.load(context(tmp_path)).target("jammy")


def test_context_without_pins_and_broken_json(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=r"cannot read .*pins\.json: No such file"):
        pins.load(tmp_path)
    root = context(tmp_path)
    (root / "docker/pins.json").write_text('{"images": ')
    with pytest.raises(DoctorError, match="is not valid JSON"):
        pins.load(root)
    (root / "docker/pins.json").write_text("[]")
    with pytest.raises(DoctorError, match="the whole must be an object"):
        pins.load(root)


def _first(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["targets"][0].update({key: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda d: d["images"]["cuda-13.0"].update(digest="5dc1bca2"),
            "images.cuda-13.0.digest must be text like",
        ),
        (lambda d: d["images"]["cuda-13.0"].update(verified=True), "images.cuda-13.0.verified must be text like"),
        (lambda d: d.update(images=[]), "images must be an object"),
        (lambda d: d.update(targets={}), "targets must be a list"),
        (lambda d: d["targets"].append(d["targets"][0]), "targets must have different names"),
        (lambda d: d["model"].update(revision="main"), "model.revision must be text like"),
        (_first("image", "cuda-14"), "image names 'cuda-14', which is not in images"),
        (_first("python_lock", "../../etc/passwd"), "python_lock must be a path inside the build context"),
        (_first("dockerfile", "/etc/passwd"), "dockerfile must be a path inside the build context"),
        (_first("verified", None), r"targets\[0\].verified must be true or false, not None"),
        (_first("torch", 2.11), r"targets\[0\].torch must be text like .*, not 2.11"),
    ],
)
def test_malformed_pins_are_refused_with_the_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    with pytest.raises(DoctorError, match=said):
        pins.load(context(tmp_path, change))
