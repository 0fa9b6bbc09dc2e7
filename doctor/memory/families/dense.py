"""Decoders whose every layer is attention and one MLP: Llama, Mistral, Qwen2/2.5/3, Phi, GLM, Granite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from doctor.memory.families import parts
from doctor.memory.families.common import FULL, SLIDING, Basics, assemble, basics, layer_types, widest_dense
from doctor.memory.families.registry import Source, family
from doctor.memory.families.towers import tower
from doctor.memory.shape import AttentionKind, AttentionLayer, ModelShape, Part, Weight


@dataclass(frozen=True)
class Traits:
    """What distinguishes one dense family. ``qkv_bias`` etc. are defaults that config.json may override."""

    title: str
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gated: bool = True
    norms: int = 2  # per layer
    norm_bias: bool = False
    tied: bool = False
    window_everywhere: bool = False  # sliding_window applies to all layers whenever it is set
    head_bias: bool = False


def dense(source: Source, traits: Traits) -> ModelShape:
    """A dense decoder with these traits, and its image encoder when it has one."""
    text, base = source.text, basics(source, tied=traits.tied)
    bias = text.flag("attention_bias", "qkv_bias", default=traits.qkv_bias)
    multimodal = source.architecture.endswith("ForConditionalGeneration")
    root = "model.language_model" if multimodal else "model"
    layers, weights = [], list(parts.vocabulary(root, "lm_head", base.vocabulary, base.hidden, base.tied))
    if traits.head_bias:
        weights.append(parts.other("lm_head", base.vocabulary))
    for i, window in enumerate(_windows(source, base, traits)):
        kind = AttentionKind.SLIDING if window else AttentionKind.FULL
        layers.append(AttentionLayer(kind, base.kv_heads, base.head_dim, window))
        weights += _layer(f"{root}.layers.{i}", base, traits, bias, text.flag("mlp_bias", default=traits.mlp_bias))
    weights.append(parts.other(f"{root}.norm", base.hidden * (2 if traits.norm_bias else 1)))
    vision, view = tower(source, base.hidden) if multimodal else (None, [])
    rope = text.nested("rope_parameters") or text.nested("rope_scaling") or {}
    share = text.inner("rope_parameters" if text.has("rope_parameters") else "rope_scaling").share(
        "partial_rotary_factor", default=1.0
    )
    return assemble(
        source, traits.title, base, layers, [*weights, *view], vision=vision, widest=widest_dense(base),
        rotary_dim=int(base.head_dim * share), rotary_stretch=4 if "mrope_section" in rope else 1,
    )  # fmt: skip


def _layer(prefix: str, base: Basics, traits: Traits, bias: bool, mlp_bias: bool) -> Iterator[Weight]:
    yield from parts.attention(
        f"{prefix}.self_attn", base.hidden, base.heads, base.kv_heads, base.head_dim,
        bias=bias, out_bias=traits.out_bias, qk_norm=traits.qk_norm,
    )  # fmt: skip
    yield from parts.mlp(f"{prefix}.mlp", base.hidden, base.ffn, gated=traits.gated, bias=mlp_bias)
    yield parts.other(prefix, traits.norms * base.hidden * (2 if traits.norm_bias else 1), Part.LANGUAGE)


def _windows(source: Source, base: Basics, traits: Traits) -> list[int | None]:
    """The sliding window of each layer, None where it looks back over everything."""
    text = source.text
    window = text.integer("sliding_window", default=0, least=0) or None
    kinds = layer_types(source, base.depth, (FULL, SLIDING))
    if traits.window_everywhere:
        return [window] * base.depth
    if window is None or not text.flag("use_sliding_window", default=False):
        return [None] * base.depth
    if kinds is not None:
        return [window if kind == SLIDING else None for kind in kinds]
    first = text.integer("max_window_layers", default=0, least=0)
    return [window if i >= first else None for i in range(base.depth)]


@family("LlamaForCausalLM")
def llama(source: Source) -> ModelShape:
    """Llama 2 and 3, and the many models that use its architecture name."""
    out = source.text.flag("attention_bias", default=False)
    return dense(source, Traits("Llama", out_bias=out))


@family("MistralForCausalLM", "Mistral3ForConditionalGeneration")
def mistral(source: Source) -> ModelShape:
    """Mistral and Mistral Small."""
    return dense(source, Traits("Mistral", window_everywhere=True))


@family("Qwen2ForCausalLM", "Qwen2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration")
def qwen2(source: Source) -> ModelShape:
    """Qwen2 and Qwen2.5, with and without images."""
    return dense(source, Traits("Qwen2 / Qwen2.5", qkv_bias=True))


@family("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration")
def qwen3(source: Source) -> ModelShape:
    """Qwen3, with and without images."""
    return dense(source, Traits("Qwen3", qk_norm=True))


@family("GraniteForCausalLM")
def granite(source: Source) -> ModelShape:
    """Granite 3, dense."""
    return dense(source, Traits("Granite"))


@family("Phi3ForCausalLM")
def phi3(source: Source) -> ModelShape:
    """Phi-3 and Phi-4."""
    return dense(source, Traits("Phi-3 / Phi-4", window_everywhere=True))


@family("PhiForCausalLM")
def phi(source: Source) -> ModelShape:
    """Phi-1 and Phi-2: one layer norm, biases everywhere, an ungated MLP."""
    return dense(source, Traits("Phi", qkv_bias=True, out_bias=True, mlp_bias=True, gated=False, norms=1,
                                norm_bias=True, head_bias=True))  # fmt: skip


@family("GlmForCausalLM")
def glm(source: Source) -> ModelShape:
    """GLM-4-9B in the transformers format."""
    return dense(source, Traits("GLM-4", qkv_bias=True))


@family("Glm4ForCausalLM")
def glm4(source: Source) -> ModelShape:
    """GLM-4-0414, with norms after each block too."""
    return dense(source, Traits("GLM-4-0414", qkv_bias=True, norms=4))
