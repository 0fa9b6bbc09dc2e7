"""Broken environments for real: each container lacks one thing, and the doctor names that thing.

No container here has a GPU, so container-gpu-not-exposed is always found. One blocker stands for it: itself, or
the missing driver of the host where the container's own NVML library says so and the shared kernel confirms it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.containers.harness import answer, finding_ids

Image = Callable[[str, str], str]
Doctor = Callable[..., "subprocess.CompletedProcess[str]"]

COMPILER_CAUSES = {"gxx12-missing", "cxx-compiler-missing", "c-compiler-missing", "python-headers-missing"}
GPU = "container-gpu-not-exposed"
HOST_DRIVER = "nvidia-kernel-module-not-loaded"


def found(document: dict[str, Any], cause: str) -> dict[str, Any]:
    """The finding, listed on its own (not folded below another)."""
    for finding in document["findings"]:
        if finding["id"] == cause:
            return dict(finding)
    raise AssertionError(f"{cause} is not among {finding_ids(document, folded=True)}")


def examine(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The answer, with what must hold for every one of these containers."""
    document = answer(done)
    assert done.returncode == 2, document["findings"]
    assert document["verdict"] == "blocked"
    failed = [p for p in document["snapshot"]["probes"] if p["status"] != "ok"]
    assert failed == []
    crashed = [s for s in document["skipped"] if "the check itself failed" in s["why"]]
    assert crashed == []
    listed = [
        f for f in document["findings"] if f["area"] in ("driver", "container") and f["severity"] == "blocker"
    ]
    assert len(listed) == 1, [f["id"] for f in listed]
    assert GPU in [f["id"] for f in (listed[0], *listed[0].get("symptoms", ()))]
    return document


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_gcc_12_without_gxx_12(image: Image, run_doctor: Doctor, suite: str) -> None:
    document = examine(run_doctor(image(suite, "gcc12"), docker_args=("-e", "CC=gcc-12")))
    finding = found(document, "gxx12-missing")
    assert (finding["severity"], finding["confidence"]) == ("blocker", "proven")
    assert any("cc1plus" in e["fact"] + e["value"] for e in finding["evidence"])
    commands = [c for fix in finding["fixes"] for c in fix["commands"]]
    assert any("g++-12" in c and "apt-get" in c for c in commands), commands


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_installing_gxx_12_clears_it(image: Image, run_doctor: Doctor, suite: str) -> None:
    document = examine(run_doctor(image(suite, "gxx12"), docker_args=("-e", "CC=gcc-12")))
    assert "gxx12-missing" not in finding_ids(document, folded=True)
    assert "gxx12-missing" in document["passed"]


def test_no_compiler_at_all(image: Image, run_doctor: Doctor) -> None:
    document = examine(run_doctor(image("bookworm", "doctor")))
    finding = found(document, "c-compiler-missing")
    assert (finding["severity"], finding["confidence"]) == ("blocker", "proven")
    assert COMPILER_CAUSES & set(finding_ids(document)) == {"c-compiler-missing"} | (
        {"python-headers-missing"} & set(finding_ids(document))
    )


def test_no_python_headers(image: Image, run_doctor: Doctor, tmp_path: Path) -> None:
    document = examine(run_doctor(image("bookworm", "gcc")))
    finding = found(document, "python-headers-missing")
    assert (finding["severity"], finding["confidence"]) == ("degrades", "proven"), "no vLLM there yet"
    assert "python3.11" in json.dumps(finding["evidence"])
    assert COMPILER_CAUSES & set(finding_ids(document, folded=True)) == {"python-headers-missing"}
    metadata = tmp_path / "vllm-0.26.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n", encoding="utf-8")
    mount = ("-v", f"{tmp_path}:/usr/local/lib/python3.11/dist-packages:ro")
    document = examine(run_doctor(image("bookworm", "gcc"), docker_args=mount))
    assert found(document, "python-headers-missing")["severity"] == "blocker"


def _driver(document: dict[str, Any]) -> dict[str, Any]:
    return dict(document["snapshot"]["driver"])


def test_no_nvml_library(image: Image, run_doctor: Doctor) -> None:
    document = examine(run_doctor(image("bookworm", "doctor")))
    assert _driver(document)["nvml_status"] == "LibraryNotFound"
    assert "libcuda.so.1" in found(document, GPU)["summary"]
    assert "NVML library is missing" in found(document, GPU)["summary"]


def test_nvml_library_without_driver_as_a_user(image: Image, run_doctor: Doctor) -> None:
    if Path("/sys/module/nvidia").exists():
        pytest.skip("this machine runs an NVIDIA driver, so NVML says something else")
    document = examine(run_doctor(image("bookworm", "nvml"), docker_args=("--user", "1000")))
    assert _driver(document)["nvml_status"] == "DriverNotLoaded"
    assert found(document, HOST_DRIVER)["confidence"] == "proven"
    below = found(document, HOST_DRIVER)["symptoms"]
    assert "no driver (9)" in next(f["summary"] for f in below if f["id"] == GPU)


def test_nvml_library_without_driver_as_root(image: Image, run_doctor: Doctor) -> None:
    document = examine(run_doctor(image("bookworm", "nvml")))
    assert _driver(document)["nvml_status"] == "Unknown"
    assert "Unknown (999)" in found(document, GPU)["summary"]


@pytest.mark.parametrize("recipe", ["doctor", "nvml"])
def test_the_gpu_is_one_blocker_with_the_rest_below_it(image: Image, run_doctor: Doctor, recipe: str) -> None:
    document = examine(run_doctor(image("bookworm", recipe)))
    finding = found(document, GPU)
    assert finding["confidence"] == "proven"
    commands = [c for fix in finding["fixes"] for c in fix["commands"]]
    assert ["docker", "run", "--gpus", "all", "--ipc=host", "IMAGE"] in commands
    assert any("nvidia.com/gpu=all" in c for c in commands)
    assert any("capabilities: [gpu]" in fix["summary"] for fix in finding["fixes"])


@pytest.mark.parametrize(
    "docker_args",
    [
        ("--user", "1000", "-e", "HOME=/tmp"),
        ("--read-only", "--tmpfs", "/tmp", "-e", "HOME=/tmp"),
        ("--network", "none"),
        ("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        (
            "--user",
            "1000",
            "--read-only",
            "--tmpfs",
            "/tmp",
            "-e",
            "HOME=/tmp",
            "--network",
            "none",
            "--cap-drop",
            "ALL",
        ),
        ("--memory", "256m", "--pids-limit", "64"),
    ],
    ids=["non-root", "read-only", "no-network", "no-capabilities", "all-of-them", "tight"],
)
def test_confinement_changes_nothing(image: Image, run_doctor: Doctor, docker_args: tuple[str, ...]) -> None:
    tag = image("bookworm", "gcc12")
    plain = examine(run_doctor(tag))
    confined = examine(run_doctor(tag, docker_args=docker_args))
    blockers = [[f["id"] for f in d["findings"] if f["severity"] == "blocker"] for d in (plain, confined)]
    assert blockers[0] == blockers[1]


@pytest.mark.parametrize("docker_args", [("--read-only",), ("--user", "1000", "--read-only")])
def test_nowhere_to_write_is_no_crash(image: Image, run_doctor: Doctor, docker_args: tuple[str, ...]) -> None:
    document = examine(run_doctor(image("bookworm", "gcc12"), docker_args=docker_args))
    assert "gxx12-missing" in finding_ids(document)
    assert "cache-folder-not-writable" in finding_ids(document)


def test_an_image_build_expects_no_gpu(image: Image, run_doctor: Doctor) -> None:
    document = answer(run_doctor(image("bookworm", "gxx12"), "--inside-image"))
    assert GPU not in finding_ids(document, folded=True)
    assert {"id": GPU, "why": "an image is being built: no GPU is expected"} in document["skipped"]
