"""Image encoders that hang beside a language model: only their weights and width matter here."""

from __future__ import annotations

from doctor.memory.families import parts
from doctor.memory.families.registry import Source
from doctor.memory.fields import Fields
from doctor.memory.shape import Part, Role, Vision, Weight


def tower(source: Source, hidden: int) -> tuple[Vision | None, list[Weight]]:
    """The encoder described by ``vision_config``, (None, []) when there is none."""
    data = source.root.nested("vision_config")
    if data is None:
        return None, []
    view = Fields(f"{source.name} (vision_config)", data)
    width = view.integer("hidden_size")
    depth = view.integer("depth", "num_hidden_layers")
    ffn = view.integer("intermediate_size", default=4 * width)
    patch = view.integer("patch_size", default=14)
    if view.has("out_hidden_size"):
        inputs = view.integer("in_channels", "in_chans", default=3) * patch * patch
        inputs *= view.integer("temporal_patch_size", default=2)
        weights = parts.vision_tower(
            "model.visual", width, ffn, depth, view.integer("out_hidden_size"),
            view.integer("spatial_merge_size", default=2), inputs,
            view.integer("num_position_embeddings", default=0, least=0),
        )  # fmt: skip
        return Vision(width, ffn, depth), list(weights)
    # attention of four square projections, an MLP, and a projector into the language model
    block = 4 * width * width + 3 * width * ffn
    return Vision(width, ffn, depth), [
        Weight("vision_tower.blocks", 1, block, Role.OTHER, Part.VISION, depth),
        Weight("multi_modal_projector", hidden, width + hidden, Role.OTHER, Part.VISION),
    ]
