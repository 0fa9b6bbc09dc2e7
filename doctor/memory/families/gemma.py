"""Gemma 2, 3 and 4: most layers look back over a window, some over everything."""

from __future__ import annotations

from fractions import Fraction

from doctor.memory.families import parts
from doctor.memory.families.common import FULL, SLIDING, Basics, assemble, basics, layer_types, widest_dense
from doctor.memory.families.registry import Source, family
from doctor.memory.families.towers import tower
from doctor.memory.fields import ConfigError, Fields
from doctor.memory.shape import AttentionKind, AttentionLayer, ModelShape, Role, Weight


def _kinds(source: Source, base: Basics, every: int) -> tuple[str, ...]:
    named = layer_types(source, base.depth, (FULL, SLIDING))
    if named:
        return named
    pattern = source.text.integer("sliding_window_pattern", "_sliding_window_pattern", default=every)
    return tuple(FULL if (i + 1) % pattern == 0 else SLIDING for i in range(base.depth))


@family("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
def gemma(source: Source) -> ModelShape:
    """Gemma 2 (every other layer slides) and Gemma 3 (five in six)."""
    text, base = source.text, basics(source, tied=True)
    third = source.architecture.startswith("Gemma3")
    window = text.integer("sliding_window")
    multimodal = source.architecture.endswith("ForConditionalGeneration")
    root = "model.language_model" if multimodal else "model"
    layers, weights = [], list(parts.vocabulary(root, "lm_head", base.vocabulary, base.hidden, base.tied))
    for i, kind in enumerate(_kinds(source, base, 6 if third else 2)):
        prefix = f"{root}.layers.{i}"
        slides = kind == SLIDING
        attention = AttentionKind.SLIDING if slides else AttentionKind.FULL
        layers.append(AttentionLayer(attention, base.kv_heads, base.head_dim, window if slides else None))
        weights += parts.attention(f"{prefix}.self_attn", base.hidden, base.heads, base.kv_heads, base.head_dim,
                                   bias=text.flag("attention_bias", default=False), qk_norm=third)  # fmt: skip
        weights += parts.mlp(f"{prefix}.mlp", base.hidden, base.ffn)
        weights.append(parts.other(prefix, 4 * base.hidden))
    weights.append(parts.other(f"{root}.norm", base.hidden))
    vision, view = tower(source, base.hidden) if multimodal else (None, [])
    # Gemma 3 rotates its two kinds of layers differently: two tables
    return assemble(source, "Gemma 3" if third else "Gemma 2", base, layers, [*weights, *view], vision=vision,
                    widest=widest_dense(base), rotary_dim=base.head_dim * (2 if third else 1))  # fmt: skip


@family("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
def gemma4(source: Source) -> ModelShape:
    """Gemma 4: full layers have larger heads, the last layers may share keys and values, optional experts."""
    text, base = source.text, basics(source, tied=True)
    window = text.integer("sliding_window")
    multimodal = source.architecture.endswith("ForConditionalGeneration")
    root = "model.language_model" if multimodal else "model"
    shared_from = base.depth - text.integer("num_kv_shared_layers", default=0, least=0)
    extra = text.integer("hidden_size_per_layer_input", default=0, least=0)
    wide = text.flag("use_double_wide_mlp", default=False)
    layers, weights = [], list(parts.vocabulary(root, "lm_head", base.vocabulary, base.hidden, base.tied))
    for i, kind in enumerate(_kinds(source, base, 6)):
        prefix, slides = f"{root}.layers.{i}", kind == SLIDING
        head_dim, kv_heads = _heads(source, base, i, slides)
        shared = i >= shared_from
        if not shared:
            attention = AttentionKind.SLIDING if slides else AttentionKind.FULL
            layers.append(AttentionLayer(attention, kv_heads, head_dim, window if slides else None))
            weights += parts.attention(
                f"{prefix}.self_attn", base.hidden, base.heads, kv_heads, head_dim, qk_norm=True
            )
        else:  # only a query of its own
            weights += parts.linear(f"{prefix}.self_attn.q_proj", base.heads * head_dim, base.hidden)
            weights += parts.linear(f"{prefix}.self_attn.o_proj", base.hidden, base.heads * head_dim)
            weights.append(parts.other(f"{prefix}.self_attn", head_dim))
        weights += parts.mlp(f"{prefix}.mlp", base.hidden, base.ffn * (2 if wide and shared else 1))
        weights.append(parts.other(prefix, 4 * base.hidden + 1))
        if text.flag("enable_moe_block", default=False):
            weights += parts.experts(f"{prefix}.moe", base.hidden, text.integer("moe_intermediate_size"),
                                     text.integer("num_experts"), text.integer("top_k_experts"))  # fmt: skip
            weights.append(parts.other(f"{prefix}.moe", 4 * base.hidden + text.integer("num_experts")))
        if extra:
            weights += parts.linear(f"{prefix}.per_layer_input_gate", extra, base.hidden)
            weights += parts.linear(f"{prefix}.per_layer_projection", base.hidden, extra)
            weights.append(parts.other(prefix, base.hidden))
    weights.append(parts.other(f"{root}.norm", base.hidden))
    if extra:
        rows = text.integer("vocab_size_per_layer_input", default=base.vocabulary)
        weights.append(Weight(f"{root}.embed_tokens_per_layer", rows, base.depth * extra, Role.EMBEDDING,
                              read=Fraction(0)))  # fmt: skip
        weights += parts.linear(f"{root}.per_layer_model_projection", base.depth * extra, base.hidden)
        weights.append(parts.other(f"{root}.per_layer_projection_norm", extra))
    vision, view = tower(source, base.hidden) if multimodal else (None, [])
    return assemble(source, "Gemma 4", base, layers, [*weights, *view], vision=vision, widest=widest_dense(base))


def _heads(source: Source, base: Basics, index: int, slides: bool) -> tuple[int, int]:
    """Head size and KV heads of one layer, from either way that config.json writes them."""
    text = source.text
    own = text.nested("per_layer_config")
    if own is not None:
        entry = next((v for k, v in own.items() if k.isdigit() and int(k) == index), None)
        if entry is None:
            return base.head_dim, base.kv_heads
        if not isinstance(entry, dict):
            raise ConfigError(f"{source.name}: per_layer_config of layer {index} should be an object")
        fields = Fields(f"{source.name} (per_layer_config {index})", entry)
        return (fields.integer("head_dim", default=base.head_dim),
                fields.integer("num_key_value_heads", default=base.kv_heads))  # fmt: skip
    if slides:
        return base.head_dim, base.kv_heads
    head_dim = text.integer("global_head_dim", default=base.head_dim)
    if text.flag("attention_k_eq_v", default=False):
        return head_dim, text.integer("num_global_key_value_heads", default=base.kv_heads)
    return head_dim, base.kv_heads
