"""Checkpoints whose weights are computed from a shape and a published quantisation recipe."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from doctor.memory.config import read_json, shape_of
from doctor.memory.model import Model
from doctor.memory.weights import weights_from_shapes
from tests.memory.support import GIB, HERE, config_path


@dataclass(frozen=True)
class Recipe:
    """One checkpoint. ``published_bytes`` None: no page states its size; ``tolerance`` is its rounding."""

    id: str
    title: str
    quantised: str
    source: str
    model: Model
    published_text: str
    published_bytes: float | None
    tolerance: float

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the files: every part, without the tables that vLLM makes at load time."""
        w = self.model.weights
        return w.language + w.vision + w.draft


@cache
def recipes() -> dict[str, Recipe]:
    """All of recipes.json, by id."""
    out = {}
    for row in json.loads((HERE / "recipes.json").read_text())["recipes"]:
        config = read_json(config_path(row["config"]))
        if row["quantization_config"]:
            config["quantization_config"] = row["quantization_config"]
        shape = shape_of(config, row["title"])
        published = row["published"]
        unit = {"GB": 10**9, "GiB": GIB}
        out[row["id"]] = Recipe(
            row["id"], row["title"], row["quantised"], row["source"],
            Model(row["title"], shape, weights_from_shapes(shape), "shape and recipe"),
            f"{published['value']:g} {published['unit']}" if published else "",
            published["value"] * unit[published["unit"]] if published else None,
            published["tolerance"] if published else 0.0,
        )  # fmt: skip
    return out
