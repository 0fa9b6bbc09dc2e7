"""Multi-head latent attention: DeepSeek V2 and V3, GLM-4.7-Flash."""

from __future__ import annotations

from doctor.memory.families import parts
from doctor.memory.families.common import assemble, basics
from doctor.memory.families.registry import Source, family
from doctor.memory.shape import AttentionKind, AttentionLayer, ModelShape, Part


@family("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM")
def deepseek(source: Source) -> ModelShape:
    """One compressed vector a token and layer, shared by all heads; dense layers first, then experts."""
    text = source.text
    base = basics(source, head_dim=text.integer("qk_rope_head_dim"))
    rank, rope = text.integer("kv_lora_rank"), text.integer("qk_rope_head_dim")
    nope, value = text.integer("qk_nope_head_dim"), text.integer("v_head_dim")
    q_rank = text.integer("q_lora_rank", default=0, least=0)
    count = text.integer("n_routed_experts", default=0, least=0)
    ffn, chosen = (
        text.integer("moe_intermediate_size", default=base.ffn),
        text.integer("num_experts_per_tok", default=1),
    )
    shared = text.integer("n_shared_experts", default=0, least=0) * ffn
    first, every = (
        text.integer("first_k_dense_replace", default=0, least=0),
        text.integer("moe_layer_freq", default=1),
    )
    kinds = text.texts("mlp_layer_types")
    drafts = text.integer("num_nextn_predict_layers", default=0, least=0, most=64)
    corrected, glm = not source.architecture.startswith("DeepseekV2"), source.architecture.startswith("Glm")
    layer = AttentionLayer(AttentionKind.LATENT, 1, rank + rope, value_dim=0)
    weights = list(parts.vocabulary("model", "lm_head", base.vocabulary, base.hidden, base.tied))
    for i in range(base.depth + drafts):
        prefix, part = f"model.layers.{i}", Part.LANGUAGE if i < base.depth else Part.DRAFT
        weights += parts.latent_attention(f"{prefix}.self_attn", base.hidden, base.heads, q_rank, rank, nope, rope,
                                          value, part)  # fmt: skip
        plain = kinds[i] == "dense" if kinds and i < len(kinds) else i < first or i % every != 0
        if count and not plain:
            weights += parts.experts(
                f"{prefix}.mlp", base.hidden, ffn, count, chosen, shared_ffn=shared, part=part
            )
            if corrected:
                # GLM keeps the router in float32: twice the bytes of the other weights
                router = base.hidden * count + 2 * count if glm else count
                weights.append(parts.other(f"{prefix}.mlp.gate", router, part))
        else:
            weights += parts.mlp(f"{prefix}.mlp", base.hidden, base.ffn, part=part)
        weights.append(parts.other(prefix, 2 * base.hidden + rank + q_rank, part))
        if part is Part.DRAFT:
            weights += parts.linear(f"{prefix}.eh_proj", base.hidden, 2 * base.hidden, part)
            weights.append(parts.other(prefix, 3 * base.hidden, part))
    weights.append(parts.other("model.norm", base.hidden))
    widest = 2 * base.hidden + max(
        3 * base.ffn, chosen * (3 * ffn + base.hidden), base.heads * (2 * nope + rope + value)
    )
    title = "GLM-4.7 Flash (latent attention)" if glm else "DeepSeek (latent attention)"
    return assemble(source, title, base, [layer] * base.depth, weights, draft_layers=[layer] * drafts,
                    widest=widest, rotary_dim=rope)  # fmt: skip
