"""The tables of cards and drivers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import doctor.catalogue
from doctor.catalogue.gpus import (
    branch_driver,
    capability_tuple,
    cuda_of_driver,
    lookup,
    minimum_driver,
    models,
    version_tuple,
)

TABLES = Path(doctor.catalogue.__file__).parent / "tables"


@pytest.mark.parametrize(
    ("name", "capability", "bandwidth"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", "7.5", 616),
        ("2080ti", "7.5", 616),
        ("2080 Ti", "7.5", 616),
        ("NVIDIA GeForce RTX 2080", "7.5", 448),
        ("3090", "8.6", 936),
        ("RTX 3090 Ti", "8.6", 1008),
        ("NVIDIA GeForce RTX 4090", "8.9", 1008),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9", None),
        ("RTX 4070 Ti SUPER", "8.9", 672),
        ("Tesla T4", "7.5", 320),
        ("NVIDIA L4", "8.9", 300),
        ("NVIDIA L40S", "8.9", 864),
        ("NVIDIA A100-SXM4-80GB", "8.0", 2039),
        ("NVIDIA A100 80GB PCIe", "8.0", 1935),
        ("Tesla V100-SXM2-32GB", "7.0", 900),
        ("NVIDIA H200", "9.0", 4800),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", 960),
        ("Quadro RTX 6000", "7.5", None),
        ("NVIDIA RTX A6000", "8.6", 768),
    ],
)
def test_cards_by_the_names_people_and_drivers_use(name: str, capability: str, bandwidth: float | None) -> None:
    model = lookup(name)
    assert model is not None
    assert (model.capability, model.bandwidth_gbs) == (capability, bandwidth)


@pytest.mark.parametrize("name", [None, "", "Radeon RX 7900", "RTX", "NVIDIA", "GeForce", "\x00", "ti"])
def test_names_that_say_nothing(name: str | None) -> None:
    assert lookup(name) is None


def test_a_22_gb_board_is_on_record() -> None:
    model = lookup("2080 ti")
    assert model is not None
    assert model.vram_gib == (11, 22)


def test_tables_have_source_and_date_and_no_double_rows() -> None:
    for name in ("gpus", "driver_cuda"):
        document = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
        assert "https://" in document["source"]
        assert document["date"].count("-") == 2
    assert len({m.pattern for m in models()}) == len(models())
    assert all(capability_tuple(m.capability) for m in models())
    assert all(lookup(m.pattern) == m for m in models())


@pytest.mark.parametrize(
    ("driver", "windows", "cuda"),
    [
        ("580.159.03", False, "13.0"),
        ("570.86.10", False, "12.8"),
        ("550.54.14", False, "12.4"),
        ("610.43.02", False, "13.3"),
        ("581.57", True, "13.0"),
        ("572.61", True, "12.8"),
        ("390.1", False, None),
        ("garbage", False, None),
        (None, False, None),
    ],
)
def test_cuda_release_of_a_driver(driver: str | None, windows: bool, cuda: str | None) -> None:
    assert cuda_of_driver(driver, windows=windows) == cuda


def test_minimum_drivers() -> None:
    assert minimum_driver("13.0") == minimum_driver("13.2") == "580.65.06"
    assert minimum_driver("12.8") == "525.60.13"
    assert minimum_driver("12.8", windows=True) == "527.41"
    assert minimum_driver("99.0") is None
    assert minimum_driver(None) is None
    assert branch_driver("13.0") == "580"


def test_versions_are_compared_as_numbers() -> None:
    low, high = version_tuple("570.86.10"), version_tuple("570.124.06")
    assert low is not None
    assert high is not None
    assert low < high
    assert version_tuple("x") is None
