"""Decoders with experts: Mixtral, Qwen MoE, gpt-oss, Llama 4, Phi MoE, GLM-4.5."""

from __future__ import annotations

from doctor.memory.families import parts
from doctor.memory.families.common import CHUNKED, FULL, SLIDING, Basics, assemble, basics, layer_types
from doctor.memory.families.registry import Source, family
from doctor.memory.families.towers import tower
from doctor.memory.fields import ConfigError
from doctor.memory.shape import AttentionKind, AttentionLayer, ModelShape, Part, Weight


def _widest(base: Basics, chosen: int, ffn: int, shared: int = 0) -> int:
    """Residual and input, and for every chosen expert its gate, up, product and output."""
    return 2 * base.hidden + chosen * (3 * ffn + base.hidden) + 3 * shared


@family("MixtralForCausalLM", "PhiMoEForCausalLM")
def mixtral(source: Source) -> ModelShape:
    """Mixtral and Phi-3.5-MoE: experts in every layer."""
    text, base = source.text, basics(source)
    phi = source.architecture.startswith("Phi")
    count, chosen = text.integer("num_local_experts"), text.integer("num_experts_per_tok")
    window = text.integer("sliding_window", default=0, least=0) or None
    kind = AttentionKind.SLIDING if window else AttentionKind.FULL
    bias = phi or text.flag("attention_bias", default=False)  # vLLM's Phi MoE always has biases
    weights = list(parts.vocabulary("model", "lm_head", base.vocabulary, base.hidden, base.tied))
    for i in range(base.depth):
        prefix = f"model.layers.{i}"
        weights += parts.attention(f"{prefix}.self_attn", base.hidden, base.heads, base.kv_heads, base.head_dim,
                                   bias=bias, out_bias=bias)  # fmt: skip
        weights += parts.experts(f"{prefix}.block_sparse_moe", base.hidden, base.ffn, count, chosen)
        weights.append(parts.other(prefix, base.hidden * (4 if phi else 2)))
    weights.append(parts.other("model.norm", base.hidden * (2 if phi else 1)))
    if phi:
        weights.append(parts.other("lm_head", base.vocabulary))
    layers = [AttentionLayer(kind, base.kv_heads, base.head_dim, window)] * base.depth
    title = "Phi-3.5 MoE" if phi else "Mixtral"
    return assemble(source, title, base, layers, weights, widest=_widest(base, chosen, base.ffn))


@family("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration")
def qwen_moe(source: Source) -> ModelShape:
    """Qwen2-MoE with a shared expert, Qwen3-MoE without."""
    text, base = source.text, basics(source)
    old = source.architecture.startswith("Qwen2")
    multimodal = source.architecture.endswith("ForConditionalGeneration")
    count = text.integer("num_experts", "num_local_experts")
    chosen, ffn = text.integer("num_experts_per_tok"), text.integer("moe_intermediate_size")
    shared = text.integer("shared_expert_intermediate_size", least=0) if old else 0
    step, dense_layers = text.integer("decoder_sparse_step", default=1), text.integers("mlp_only_layers") or ()
    root = "model.language_model" if multimodal else "model"
    weights = list(parts.vocabulary(root, "lm_head", base.vocabulary, base.hidden, base.tied))
    for i in range(base.depth):
        prefix = f"{root}.layers.{i}"
        weights += parts.attention(
            f"{prefix}.self_attn", base.hidden, base.heads, base.kv_heads, base.head_dim,
            bias=text.flag("qkv_bias", "attention_bias", default=old), qk_norm=not old,
        )  # fmt: skip
        if i in dense_layers or (i + 1) % step:
            weights += parts.mlp(f"{prefix}.mlp", base.hidden, base.ffn)
        else:
            weights += parts.experts(f"{prefix}.mlp", base.hidden, ffn, count, chosen,
                                     shared_ffn=shared, shared_gate=old)  # fmt: skip
        weights.append(parts.other(prefix, 2 * base.hidden))
    weights.append(parts.other(f"{root}.norm", base.hidden))
    vision, view = tower(source, base.hidden) if multimodal else (None, [])
    layers = [AttentionLayer(AttentionKind.FULL, base.kv_heads, base.head_dim)] * base.depth
    rope = text.nested("rope_parameters") or text.nested("rope_scaling") or {}
    return assemble(
        source, "Qwen2 MoE" if old else "Qwen3 MoE", base, layers, [*weights, *view], vision=vision,
        widest=_widest(base, chosen, ffn, shared), rotary_stretch=4 if "mrope_section" in rope else 1,
    )  # fmt: skip


@family("GptOssForCausalLM")
def gpt_oss(source: Source) -> ModelShape:
    """gpt-oss: every other layer looks back over a short window; experts have biases."""
    text, base = source.text, basics(source)
    count, chosen = text.integer("num_local_experts", "num_experts"), text.integer("num_experts_per_tok")
    window = text.integer("sliding_window")
    kinds = layer_types(source, base.depth, (FULL, SLIDING)) or tuple(
        SLIDING if i % 2 == 0 else FULL for i in range(base.depth)
    )
    layers, weights = [], list(parts.vocabulary("model", "lm_head", base.vocabulary, base.hidden, base.tied))
    for i, kind in enumerate(kinds):
        prefix, slides = f"model.layers.{i}", kind == SLIDING
        attention = AttentionKind.SLIDING if slides else AttentionKind.FULL
        layers.append(AttentionLayer(attention, base.kv_heads, base.head_dim, window if slides else None))
        weights += parts.attention(f"{prefix}.self_attn", base.hidden, base.heads, base.kv_heads, base.head_dim,
                                   bias=True, out_bias=True)  # fmt: skip
        weights += parts.experts(f"{prefix}.mlp", base.hidden, base.ffn, count, chosen, bias=True)
        weights.append(parts.other(prefix, 2 * base.hidden + base.heads + count))
    weights.append(parts.other("model.norm", base.hidden))
    return assemble(source, "gpt-oss", base, layers, weights, widest=_widest(base, chosen, base.ffn))


@family("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
def llama4(source: Source) -> ModelShape:
    """Llama 4: three layers in four attend within a chunk; experts in all or every other layer."""
    text, base = source.text, basics(source)
    count, chosen = text.integer("num_local_experts"), text.integer("num_experts_per_tok")
    chunk = text.integer("attention_chunk_size", default=0, least=0)
    dense_ffn = text.integer("intermediate_size_mlp", default=base.ffn)
    step = text.integer("interleave_moe_layer_step", default=1)
    sparse = text.integers("moe_layers")
    rotated = text.integers("no_rope_layers")
    kinds = layer_types(source, base.depth, (FULL, CHUNKED)) or _llama4_kinds(source, base, rotated)
    multimodal = source.architecture.endswith("ForConditionalGeneration")
    root = "language_model.model" if multimodal else "model"
    head = "language_model.lm_head" if multimodal else "lm_head"
    layers, weights = [], list(parts.vocabulary(root, head, base.vocabulary, base.hidden, base.tied))
    for i, kind in enumerate(kinds):
        prefix = f"{root}.layers.{i}"
        if kind == CHUNKED and chunk:
            layers.append(AttentionLayer(AttentionKind.CHUNKED, base.kv_heads, base.head_dim, chunk))
        else:
            layers.append(AttentionLayer(AttentionKind.FULL, base.kv_heads, base.head_dim))
        weights += parts.attention(f"{prefix}.self_attn", base.hidden, base.heads, base.kv_heads, base.head_dim)
        if i in sparse if sparse is not None else (i + 1) % step == 0:
            weights += parts.experts(f"{prefix}.feed_forward", base.hidden, base.ffn, count, chosen,
                                     shared_ffn=base.ffn)  # fmt: skip
        else:
            weights += parts.mlp(f"{prefix}.feed_forward", base.hidden, dense_ffn)
        weights.append(parts.other(prefix, 2 * base.hidden))
    weights.append(parts.other(f"{root}.norm", base.hidden))
    vision, view = tower(source, base.hidden) if multimodal else (None, [])
    return assemble(source, "Llama 4", base, layers, [*weights, *view], vision=vision,
                    widest=_widest(base, chosen, base.ffn, base.ffn))  # fmt: skip


def _llama4_kinds(source: Source, base: Basics, rotated: tuple[int, ...] | None) -> tuple[str, ...]:
    if rotated is None:
        every = source.text.integer("no_rope_layer_interval", default=4)
        rotated = tuple(int((i + 1) % every != 0) for i in range(base.depth))
    if len(rotated) != base.depth:
        raise ConfigError(f"{source.name}: no_rope_layers names {len(rotated)} layers, expected {base.depth}")
    return tuple(CHUNKED if rotates else FULL for rotates in rotated)


@family("Glm4MoeForCausalLM")
def glm4_moe(source: Source) -> ModelShape:
    """GLM-4.5 and 4.6: a few dense layers, then experts with a shared one; one MTP layer."""
    text, base = source.text, basics(source)
    count, chosen = text.integer("n_routed_experts"), text.integer("num_experts_per_tok")
    ffn, first = text.integer("moe_intermediate_size"), text.integer("first_k_dense_replace", default=0, least=0)
    shared = text.integer("n_shared_experts", default=0, least=0) * ffn
    drafts = text.integer("num_nextn_predict_layers", default=0, least=0, most=64)
    full = AttentionLayer(AttentionKind.FULL, base.kv_heads, base.head_dim)
    weights = list(parts.vocabulary("model", "lm_head", base.vocabulary, base.hidden, base.tied))
    for i in range(base.depth + drafts):
        prefix, part = f"model.layers.{i}", Part.LANGUAGE if i < base.depth else Part.DRAFT
        weights += parts.attention(
            f"{prefix}.self_attn", base.hidden, base.heads, base.kv_heads, base.head_dim, part=part,
            bias=text.flag("attention_bias", default=False), qk_norm=text.flag("use_qk_norm", default=False),
        )  # fmt: skip
        weights += _glm_feed_forward(prefix, base, ffn, count, chosen, shared, i < first, part)
        weights.append(parts.other(prefix, 2 * base.hidden, part))
        if part is Part.DRAFT:
            weights += parts.linear(f"{prefix}.eh_proj", base.hidden, 2 * base.hidden, part)
            weights.append(parts.other(prefix, 3 * base.hidden, part))
    weights.append(parts.other("model.norm", base.hidden))
    share = text.inner("rope_parameters").share("partial_rotary_factor", default=0.5)
    return assemble(
        source, "GLM-4.5 (MoE)", base, [full] * base.depth, weights, draft_layers=[full] * drafts,
        widest=max(2 * base.hidden + 3 * base.ffn, _widest(base, chosen, ffn, shared)),
        rotary_dim=int(base.head_dim * share),
    )  # fmt: skip


def _glm_feed_forward(prefix: str, base: Basics, ffn: int, count: int, chosen: int, shared: int, plain: bool,
                      part: Part) -> list[Weight]:  # fmt: skip
    if plain:
        return list(parts.mlp(f"{prefix}.mlp", base.hidden, base.ffn, part=part))
    return [
        *parts.experts(f"{prefix}.mlp", base.hidden, ffn, count, chosen, shared_ffn=shared, part=part),
        # the router is kept in float32: twice the bytes of the other weights
        parts.other(f"{prefix}.mlp.gate", base.hidden * count + 2 * count, part),
    ]
