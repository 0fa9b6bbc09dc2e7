"""What most families read the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from doctor.memory.families.registry import Source
from doctor.memory.fields import MOST_LAYERS, ConfigError
from doctor.memory.quantisation import quantisation_of
from doctor.memory.shape import Layer, ModelShape, Vision, Weight

FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"


@dataclass(frozen=True)
class Basics:
    """Dimensions that every decoder has."""

    hidden: int
    vocabulary: int
    positions: int
    depth: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    tied: bool


def basics(
    source: Source, *, tied: bool = False, ffn: bool = True, depth: int | None = None, head_dim: int | None = None
) -> Basics:
    """Reads the common dimensions; ``tied`` is the family's default for tied matrices, ``depth`` for layers,
    ``head_dim`` for families that do not derive it from the hidden size."""
    text = source.text
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    if text.has("head_dim"):
        head_dim = text.integer("head_dim")
    elif head_dim is None:
        head_dim = text.divides(hidden, heads, "hidden_size is not divisible by num_attention_heads")
    return Basics(
        hidden=hidden,
        vocabulary=text.integer("vocab_size"),
        positions=text.integer("max_position_embeddings"),
        depth=text.integer("num_hidden_layers", default=depth, most=MOST_LAYERS),
        heads=heads,
        kv_heads=text.integer("num_key_value_heads", default=heads),
        head_dim=head_dim,
        ffn=text.integer("intermediate_size", least=0)
        if ffn
        else text.integer("intermediate_size", default=0, least=0),
        tied=text.flag("tie_word_embeddings", default=tied),
    )


def layer_types(source: Source, depth: int, allowed: Iterable[str]) -> tuple[str, ...] | None:
    """The ``layer_types`` list, checked for its length and for kinds this family does not have."""
    kinds = source.text.texts("layer_types")
    if kinds is None:
        return None
    if len(kinds) != depth:
        raise ConfigError(f"{source.name}: layer_types names {len(kinds)} layers, num_hidden_layers is {depth}")
    unknown = sorted(set(kinds) - set(allowed))
    if unknown:
        raise ConfigError(f"{source.name}: layer type {unknown[0]!r} is not known for {source.architecture}")
    return kinds


def assemble(
    source: Source,
    family: str,
    base: Basics,
    layers: Sequence[Layer],
    weights: Iterable[Weight],
    *,
    widest: int,
    draft_layers: Sequence[Layer] = (),
    vision: Vision | None = None,
    rotary_dim: int | None = None,
    rotary_stretch: int = 1,
    notes: tuple[str, ...] = (),
) -> ModelShape:
    """Puts a shape together. ``widest``: activation values of one token that live at once."""
    rotary = base.head_dim if rotary_dim is None else rotary_dim
    return ModelShape(
        name=source.name,
        architecture=source.architecture,
        family=family,
        model_type=source.root.text("model_type", default=""),
        dtype=source.text.text("dtype", "torch_dtype", default="bfloat16"),
        hidden=base.hidden,
        vocabulary=base.vocabulary,
        max_positions=base.positions,
        layers=tuple(layers),
        weights=tuple(weights),
        tied=base.tied,
        draft_layers=tuple(draft_layers),
        quantisation=quantisation_of(source.root, source.text),
        vision=vision,
        widest=widest,
        # cosines and sines of every position, in 16 bits; multimodal rotary tables are stretched
        buffers_bytes=base.positions * rotary_stretch * rotary * 2,
        notes=notes,
    )


def widest_dense(base: Basics, ffn: int | None = None) -> int:
    """Residual, input, gate and up, and their product: what the MLP of one token holds at once."""
    return 2 * base.hidden + 3 * (base.ffn if ffn is None else ffn)
