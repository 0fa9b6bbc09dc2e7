"""Hybrids of recurrent layers and attention: Qwen3.5, Qwen3-Next, Nemotron-H, Granite 4."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.memory.families import parts
from doctor.memory.families.common import FULL, LINEAR, Basics, assemble, basics, layer_types
from doctor.memory.families.registry import Source, family
from doctor.memory.fields import ConfigError, Fields
from doctor.memory.shape import AttentionKind, AttentionLayer, Layer, ModelShape, Part, StateLayer, Vision, Weight

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "auto": 2}


def _state_bytes(source: Source, key: str, default: str) -> int:
    name = source.text.text(key, default=default).removeprefix("torch.")
    if name not in _BYTES:
        raise ConfigError(f"{source.name}: {key} {name!r} is not a known number format")
    return _BYTES[name]


@family(
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM",
)  # fmt: skip
def qwen_delta_net(source: Source) -> ModelShape:
    """Qwen3.5 and its successors, and Qwen3-Next: gated delta nets with full attention every few layers."""
    text, base = source.text, basics(source, ffn=False)
    next_generation = source.architecture.startswith("Qwen3_5")
    multimodal = source.architecture.endswith("ForConditionalGeneration")
    kinds = layer_types(source, base.depth, (FULL, LINEAR)) or _interval(text, base.depth)
    k_heads, v_heads = text.integer("linear_num_key_heads"), text.integer("linear_num_value_heads")
    k_dim, v_dim = text.integer("linear_key_head_dim"), text.integer("linear_value_head_dim")
    kernel = text.integer("linear_conv_kernel_dim")
    state = StateLayer(
        kind="gated delta net",
        conv_channels=2 * k_heads * k_dim + v_heads * v_dim,
        conv_kernel=kernel,
        heads=v_heads,
        state_per_head=v_dim * k_dim,
        # Qwen3.5 names the state's format in config.json; Qwen3-Next keeps the model's
        state_bytes=_state_bytes(source, "mamba_ssm_dtype", "auto") if next_generation else 2,
    )
    full = AttentionLayer(AttentionKind.FULL, base.kv_heads, base.head_dim)
    layers: list[Layer] = [full if kind == FULL else state for kind in kinds]
    root = "model.language_model" if multimodal else "model"
    weights = list(parts.vocabulary(root, "lm_head", base.vocabulary, base.hidden, base.tied))
    for i, kind in enumerate(kinds):
        prefix = f"{root}.layers.{i}"
        if kind == FULL:
            weights += _gated_attention(f"{prefix}.self_attn", base, Part.LANGUAGE)
        else:
            weights += parts.delta_net(
                f"{prefix}.linear_attn", base.hidden, k_heads, v_heads, k_dim, v_dim, kernel
            )
        weights += _feed_forward(source, f"{prefix}.mlp", base, i, Part.LANGUAGE)
        weights.append(parts.other(prefix, 2 * base.hidden))
    weights.append(parts.other(f"{root}.norm", base.hidden))
    drafts = text.integer("mtp_num_hidden_layers", "num_nextn_predict_layers", default=1, least=0, most=64)
    for i in range(drafts):
        weights += _gated_attention(f"mtp.layers.{i}.self_attn", base, Part.DRAFT)
        weights += _feed_forward(source, f"mtp.layers.{i}.mlp", base, base.depth + i, Part.DRAFT)
        weights.append(parts.other(f"mtp.layers.{i}", 2 * base.hidden, Part.DRAFT))
    if drafts:
        weights += parts.linear("mtp.fc", base.hidden, 2 * base.hidden, Part.DRAFT)
        weights.append(parts.other("mtp.norm", 3 * base.hidden, Part.DRAFT))
    vision = None
    if multimodal and (view := source.root.nested("vision_config")):
        vision, tower = _qwen_vision(Fields(f"{source.name} (vision_config)", view), base.hidden)
        weights += tower
    rope = text.nested("rope_parameters") or {}
    share = text.inner("rope_parameters").share("partial_rotary_factor", default=0.25)
    experts = text.integer("num_experts", "num_local_experts", default=0, least=0)
    chosen = text.integer("num_experts_per_tok", default=0, least=0)
    width = chosen * text.integer("moe_intermediate_size", default=0, least=0) if experts else base.ffn
    return assemble(
        source,
        "Qwen3.5 (gated delta net)" if next_generation else "Qwen3-Next",
        base,
        layers,
        weights,
        draft_layers=[full] * drafts,
        vision=vision,
        widest=max(2 * base.hidden + 3 * width, 3 * base.hidden + 3 * state.conv_channels),
        rotary_dim=int(base.head_dim * share),
        rotary_stretch=4 if "mrope_section" in rope else 1,
    )


def _interval(text: Fields, depth: int) -> tuple[str, ...]:
    every = text.integer("full_attention_interval", default=4)
    return tuple(FULL if (i + 1) % every == 0 else LINEAR for i in range(depth))


def _gated_attention(prefix: str, base: Basics, part: Part) -> Iterator[Weight]:
    return parts.attention(prefix, base.hidden, base.heads, base.kv_heads, base.head_dim,
                           gated=True, qk_norm=True, part=part)  # fmt: skip


def _feed_forward(source: Source, prefix: str, base: Basics, index: int, part: Part) -> Iterator[Weight]:
    text = source.text
    count = text.integer("num_experts", "num_local_experts", default=0, least=0)
    step = text.integer("decoder_sparse_step", default=1)
    if not count or index in (text.integers("mlp_only_layers") or ()) or (index + 1) % step:
        return parts.mlp(prefix, base.hidden, base.ffn, part=part)
    return parts.experts(
        prefix, base.hidden, text.integer("moe_intermediate_size"), count, text.integer("num_experts_per_tok"),
        shared_ffn=text.integer("shared_expert_intermediate_size", default=0, least=0),
        shared_gate=True, part=part,
    )  # fmt: skip


def _qwen_vision(view: Fields, hidden: int) -> tuple[Vision, list[Weight]]:
    width, ffn, depth = view.integer("hidden_size"), view.integer("intermediate_size"), view.integer("depth")
    patch = view.integer("patch_size", default=16)
    inputs = (
        view.integer("in_channels", default=3) * view.integer("temporal_patch_size", default=2) * patch * patch
    )
    tower = parts.vision_tower(
        "model.visual", width, ffn, depth, view.integer("out_hidden_size", default=hidden),
        view.integer("spatial_merge_size", default=2), inputs,
        view.integer("num_position_embeddings", default=0, least=0),
    )  # fmt: skip
    return Vision(width, ffn, depth), list(tower)


@family("NemotronHForCausalLM")
def nemotron_h(source: Source) -> ModelShape:
    """Nemotron-H: Mamba 2 (M), attention (*) and plain or expert MLP (- and E) layers in any pattern."""
    text = source.text
    letters = {"mamba": "M", LINEAR: "M", "attention": "*", FULL: "*", "mlp": "-", "moe": "E"}
    named = text.texts("layers_block_type")
    pattern = "".join(letters.get(n, "?") for n in named) if named else text.text("hybrid_override_pattern")
    pattern = pattern.replace("|", "")
    base = basics(source, depth=len(pattern))
    if len(pattern) != base.depth:
        raise ConfigError(
            f"{source.name}: the layer pattern has {len(pattern)} layers, num_hidden_layers is {base.depth}"
        )
    if strange := set(pattern) - set("M*-E"):
        raise ConfigError(f"{source.name}: layer kind {min(strange)!r} is not known for Nemotron-H")
    heads, dim = text.integer("mamba_num_heads"), text.integer("mamba_head_dim")
    groups, size, kernel = text.integer("n_groups"), text.integer("ssm_state_size"), text.integer("conv_kernel")
    state = StateLayer(
        kind="Mamba 2", conv_channels=heads * dim, conv_kernel=kernel, heads=heads, state_per_head=dim * size,
        state_bytes=_state_bytes(source, "mamba_ssm_cache_dtype", "float32"), groups=groups, group_width=2 * size,
        cached_everywhere=True,
    )  # fmt: skip
    full = AttentionLayer(AttentionKind.FULL, base.kv_heads, base.head_dim)
    layers: list[Layer] = []
    weights = list(parts.vocabulary("backbone", "lm_head", base.vocabulary, base.hidden, base.tied))
    for i, letter in enumerate(pattern):
        prefix = f"backbone.layers.{i}.mixer"
        weights.append(parts.other(prefix, base.hidden))
        if letter == "M":
            layers.append(state)
            weights += parts.mamba2(prefix, base.hidden, heads * dim, heads, groups, size, kernel)
        elif letter == "*":
            layers.append(full)
            weights += parts.attention(prefix, base.hidden, base.heads, base.kv_heads, base.head_dim)
        elif letter == "-":
            weights += parts.mlp(prefix, base.hidden, base.ffn, gated=False)
        else:
            weights += parts.experts(
                prefix, base.hidden, text.integer("moe_intermediate_size"), text.integer("n_routed_experts"),
                text.integer("num_experts_per_tok"), gated=False,
                shared_ffn=text.integer("moe_shared_expert_intermediate_size", default=0, least=0),
            )  # fmt: skip
    widest = 2 * base.hidden + max(base.ffn, 2 * (heads * dim + groups * 2 * size))
    return assemble(source, "Nemotron-H", base, layers, weights, widest=widest)


@family("GraniteMoeHybridForCausalLM")
def granite_hybrid(source: Source) -> ModelShape:
    """Granite 4: Mamba 2 and attention layers, each followed by experts and a shared MLP."""
    text, base = source.text, basics(source, tied=True)
    kinds = text.texts("layer_types", "layers_block_type") or ("mamba",) * base.depth
    if len(kinds) != base.depth:
        raise ConfigError(
            f"{source.name}: layer_types names {len(kinds)} layers, num_hidden_layers is {base.depth}"
        )
    inner = text.integer("mamba_expand", default=2) * base.hidden
    heads, size, kernel = (
        text.integer("mamba_n_heads"),
        text.integer("mamba_d_state"),
        text.integer("mamba_d_conv"),
    )
    groups = text.integer("mamba_n_groups", default=1)
    dim = text.divides(inner, heads, "mamba_expand * hidden_size is not divisible by mamba_n_heads")
    state = StateLayer(
        kind="Mamba 2", conv_channels=inner, conv_kernel=kernel, heads=heads, state_per_head=dim * size,
        state_bytes=2, groups=groups, group_width=2 * size, grows_with_drafts=False, cached_everywhere=True,
    )  # fmt: skip
    full = AttentionLayer(AttentionKind.FULL, base.kv_heads, base.head_dim)
    layers: list[Layer] = []
    weights = list(parts.vocabulary("model", "lm_head", base.vocabulary, base.hidden, base.tied))
    count = text.integer("num_local_experts", default=0, least=0)
    shared = text.integer("shared_intermediate_size", default=base.ffn, least=0)
    for i, kind in enumerate(kinds):
        prefix = f"model.layers.{i}"
        if kind in ("attention", FULL):
            layers.append(full)
            weights += parts.attention(
                f"{prefix}.self_attn", base.hidden, base.heads, base.kv_heads, base.head_dim
            )
        elif kind in ("mamba", LINEAR):
            layers.append(state)
            weights += parts.mamba2(f"{prefix}.mamba", base.hidden, inner, heads, groups, size, kernel)
        else:
            raise ConfigError(f"{source.name}: layer type {kind!r} is not known for {source.architecture}")
        if count:
            weights += parts.experts(f"{prefix}.block_sparse_moe", base.hidden, base.ffn, count,
                                     text.integer("num_experts_per_tok"))  # fmt: skip
        if shared:
            weights += parts.mlp(f"{prefix}.shared_mlp", base.hidden, shared)
        weights.append(parts.other(prefix, 2 * base.hidden))
    chosen = text.integer("num_experts_per_tok", default=1) if count else 0
    widest = 2 * base.hidden + max(3 * shared + 3 * chosen * base.ffn, 2 * (inner + groups * 2 * size))
    return assemble(source, "Granite hybrid", base, layers, weights, widest=widest)
