"""Writes a tiny Qwen3.5 with random weights that a vLLM server on a CPU can load in a second.

    python tiny_model.py FOLDER [--mtp-noise X] [--layer-noise X] [--no-mtp] [--seed N]

Architecture name, configuration and tensor names are those of Qwen3.5-9B, with 3 Gated-DeltaNet layers, 1
full-attention layer, a small vision tower and one MTP layer. What decides cache blocks has the 9B's ratios
(8 value heads of the state for each KV head, head sizes 256 and 128), so vLLM derives the same hybrid
blocks: 528 tokens, 544 with two draft tokens, on a block alignment of 16.

The next token is a fixed permutation of the current one, plus a part that depends on the context
(``--layer-noise``): so text is repeatable and never ends by itself. With ``--layer-noise`` of
2 and more and ``--long-memory``, text shows what the state of the layers holds. The MTP head follows the same
permutation, disturbed by ``--mtp-noise``: 4 gives an acceptance near 0.6 at the first position.

Needs numpy and tokenizers, which come with vLLM.
"""

import argparse
import json
import pydoc_data.topics
import struct
from pathlib import Path

import numpy as np

HIDDEN, VOCABULARY, LAYERS = 256, 2048, 4
HEADS, KV_HEADS, HEAD = 4, 1, 256
STATE_KEY_HEADS, STATE_VALUE_HEADS, STATE_HEAD, WINDOW = 4, 8, 128, 4
VISION, VISION_DEPTH, VISION_POSITIONS, MERGE, PATCH = 64, 2, 2304, 2, 16
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <think> </think>"
).split()
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text if part.type == 'text' else "
    "'<|vision_start|><|image_pad|><|vision_end|>' }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


class Weights:
    """Named float arrays with random or constant values."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.arrays = {}

    def noise(self, name, *shape, scale=1.0, deviation=None):
        """Normal values; by default each output of the matrix keeps unit variance."""
        deviation = shape[-1] ** -0.5 if deviation is None else deviation
        self.arrays[name] = (self.random.normal(0, deviation, shape) * scale).astype(np.float32)

    def fill(self, name, value, *shape):
        self.arrays[name] = np.full(shape, value, np.float32)

    def save(self, path):
        """safetensors in bfloat16, rounded to nearest even. Returns the bytes of all tensors."""
        header, offset, blobs = {"__metadata__": {"format": "pt"}}, 0, []
        for name, array in sorted(self.arrays.items()):
            bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
            blob = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
            header[name] = {
                "dtype": "BF16",
                "shape": list(array.shape),
                "data_offsets": [offset, offset + len(blob)],
            }
            offset += len(blob)
            blobs.append(blob)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
        return offset


def decoder_tail(weights, prefix, layer_noise):
    """MLP and norms of a layer. RMS norms are stored as an offset from 1."""
    weights.noise(f"{prefix}.mlp.gate_proj.weight", 3 * HIDDEN, HIDDEN)
    weights.noise(f"{prefix}.mlp.up_proj.weight", 3 * HIDDEN, HIDDEN)
    weights.noise(f"{prefix}.mlp.down_proj.weight", HIDDEN, 3 * HIDDEN, scale=layer_noise)
    weights.fill(f"{prefix}.input_layernorm.weight", 0, HIDDEN)
    weights.fill(f"{prefix}.post_attention_layernorm.weight", 0, HIDDEN)


def full_attention(weights, prefix, layer_noise):
    attention = f"{prefix}.self_attn"
    weights.noise(f"{attention}.q_proj.weight", 2 * HEADS * HEAD, HIDDEN)  # queries and the output gate
    weights.noise(f"{attention}.k_proj.weight", KV_HEADS * HEAD, HIDDEN)
    weights.noise(f"{attention}.v_proj.weight", KV_HEADS * HEAD, HIDDEN)
    weights.noise(f"{attention}.o_proj.weight", HIDDEN, HEADS * HEAD, scale=layer_noise)
    weights.fill(f"{attention}.q_norm.weight", 0, HEAD)
    weights.fill(f"{attention}.k_norm.weight", 0, HEAD)
    decoder_tail(weights, prefix, layer_noise)


def gated_delta_net(weights, prefix, layer_noise, long_memory=False):
    attention, values = f"{prefix}.linear_attn", STATE_VALUE_HEADS * STATE_HEAD
    channels = 2 * STATE_KEY_HEADS * STATE_HEAD + values
    weights.noise(f"{attention}.in_proj_qkv.weight", channels, HIDDEN)
    weights.noise(f"{attention}.in_proj_z.weight", values, HIDDEN)
    weights.noise(f"{attention}.in_proj_a.weight", STATE_VALUE_HEADS, HIDDEN)
    weights.noise(f"{attention}.in_proj_b.weight", STATE_VALUE_HEADS, HIDDEN)
    weights.noise(f"{attention}.conv1d.weight", channels, 1, WINDOW)
    weights.noise(f"{attention}.out_proj.weight", HIDDEN, values, scale=layer_noise)
    weights.fill(f"{attention}.norm.weight", 1, STATE_HEAD)
    weights.fill(f"{attention}.dt_bias", 1, STATE_VALUE_HEADS)
    decay = np.log(weights.random.uniform(0.01, 16, STATE_VALUE_HEADS))
    if long_memory:  # a state that lives for thousands of tokens in some heads and for a few in others
        decay = np.log(np.logspace(-4, 0, STATE_VALUE_HEADS))
    weights.arrays[f"{attention}.A_log"] = decay.astype(np.float32)
    decoder_tail(weights, prefix, layer_noise)


def vocabulary(weights, words, special):
    """Embedding and head such that each word is followed by the next of one long cycle of words."""
    embedding = weights.random.normal(0, 1, (VOCABULARY, HIDDEN)).astype(np.float32)
    head = weights.random.normal(0, 0.001, (VOCABULARY, HIDDEN)).astype(np.float32)
    cycle = weights.random.permutation(words)
    for current, following in zip(cycle, np.roll(cycle, -1), strict=True):
        head[following] += 0.12 * embedding[current]
    for token in special:  # a special token is followed by some word, and follows none
        head[weights.random.choice(words)] += 0.12 * embedding[token]
    weights.arrays["model.language_model.embed_tokens.weight"] = embedding
    weights.arrays["lm_head.weight"] = head
    weights.fill("model.language_model.norm.weight", 0, HIDDEN)


def draft_head(weights, mtp_noise, layer_noise):
    """The MTP layer sees [embedding, hidden state]: it passes the embedding on and adds noise of the rest."""
    mixing = weights.random.normal(0, HIDDEN**-0.5, (HIDDEN, HIDDEN)) * mtp_noise
    weights.arrays["mtp.fc.weight"] = np.hstack([np.eye(HIDDEN), mixing]).astype(np.float32)
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        weights.fill(f"mtp.{norm}.weight", 0, HIDDEN)
    full_attention(weights, "mtp.layers.0", layer_noise)


def linear(weights, name, outputs, inputs):
    weights.noise(f"{name}.weight", outputs, inputs)
    weights.fill(f"{name}.bias", 0, outputs)


def layer_norm(weights, name, size):
    weights.fill(f"{name}.weight", 1, size)
    weights.fill(f"{name}.bias", 0, size)


def vision_tower(weights):
    tower, merged = "model.visual", VISION * MERGE**2
    weights.noise(f"{tower}.patch_embed.proj.weight", VISION, 3, 2, PATCH, PATCH, deviation=0.02)
    weights.fill(f"{tower}.patch_embed.proj.bias", 0, VISION)
    weights.noise(f"{tower}.pos_embed.weight", VISION_POSITIONS, VISION, deviation=0.02)
    for block in (f"{tower}.blocks.{number}" for number in range(VISION_DEPTH)):
        linear(weights, f"{block}.attn.qkv", 3 * VISION, VISION)
        linear(weights, f"{block}.attn.proj", VISION, VISION)
        linear(weights, f"{block}.mlp.linear_fc1", 2 * VISION, VISION)
        linear(weights, f"{block}.mlp.linear_fc2", VISION, 2 * VISION)
        layer_norm(weights, f"{block}.norm1", VISION)
        layer_norm(weights, f"{block}.norm2", VISION)
    layer_norm(weights, f"{tower}.merger.norm", VISION)
    linear(weights, f"{tower}.merger.linear_fc1", merged, merged)
    linear(weights, f"{tower}.merger.linear_fc2", HIDDEN, merged)


def configuration(ids, with_mtp):
    kinds = ["full_attention" if n % 4 == 3 else "linear_attention" for n in range(LAYERS)]
    text = {
        "model_type": "qwen3_5_text", "dtype": "bfloat16", "hidden_size": HIDDEN, "intermediate_size": 3 * HIDDEN,
        "num_hidden_layers": LAYERS, "layer_types": kinds, "full_attention_interval": 4, "hidden_act": "silu",
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "attn_output_gate": True,
        "attention_bias": False, "attention_dropout": 0.0, "linear_num_key_heads": STATE_KEY_HEADS,
        "linear_num_value_heads": STATE_VALUE_HEADS, "linear_key_head_dim": STATE_HEAD,
        "linear_value_head_dim": STATE_HEAD, "linear_conv_kernel_dim": WINDOW, "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": int(with_mtp), "mtp_use_dedicated_embeddings": False, "mlp_only_layers": [],
        "vocab_size": VOCABULARY, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "use_cache": True,
        "initializer_range": 0.02, "tie_word_embeddings": False, "eos_token_id": ids["<|endoftext|>"],
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25,
            "mrope_interleaved": True, "mrope_section": [11, 11, 10],
        },
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_5", "hidden_size": VISION, "intermediate_size": 2 * VISION, "depth": VISION_DEPTH,
        "num_heads": 2, "in_channels": 3, "patch_size": PATCH, "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "num_position_embeddings": VISION_POSITIONS, "out_hidden_size": HIDDEN, "hidden_act": "gelu_pytorch_tanh",
        "initializer_range": 0.02, "deepstack_visual_indexes": [],
    }  # fmt: skip
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False, "transformers_version": "4.57.0.dev0",
        "text_config": text, "vision_config": vision,
    }  # fmt: skip


def tokenizer(folder):
    """A byte-level BPE, trained on the texts of Python's own help. Returns (ids by special token, size)."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(list(pydoc_data.topics.topics.values()), trainer)
    made.add_special_tokens(SPECIAL)
    made.save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "bos_token": None, "unk_token": None, "model_max_length": 262144, "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False, "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
        },
    )  # fmt: skip
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return {name: made.token_to_id(name) for name in SPECIAL}, made.get_vocab_size()


def processors(folder):
    common = {
        "patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "processor_class": "Qwen3VLProcessor",
    }  # fmt: skip
    image = {"image_processor_type": "Qwen2VLImageProcessorFast"}
    image["size"] = {"longest_edge": 16777216, "shortest_edge": 65536}
    video = {"video_processor_type": "Qwen3VLVideoProcessor"}
    video["size"] = {"longest_edge": 25165824, "shortest_edge": 4096}
    write(folder / "preprocessor_config.json", common | image)
    write(folder / "video_preprocessor_config.json", common | video)


def write(path, content):
    path.write_text(json.dumps(content, indent=1))


def make(folder, mtp_noise=4.0, layer_noise=0.3, with_mtp=True, seed=0, long_memory=False):
    """Writes the whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ids, size = tokenizer(folder)
    processors(folder)
    config = configuration(ids, with_mtp)
    write(folder / "config.json", config)
    ends = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    sampling = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    write(folder / "generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[1], **sampling})
    weights = Weights(seed)
    for number, kind in enumerate(config["text_config"]["layer_types"]):
        prefix = f"model.language_model.layers.{number}"
        if kind == "full_attention":
            full_attention(weights, prefix, layer_noise)
        else:
            gated_delta_net(weights, prefix, layer_noise, long_memory)
    vocabulary(weights, [t for t in range(size) if t not in ids.values()], list(ids.values()))
    if with_mtp:
        draft_head(weights, mtp_noise, layer_noise)
    vision_tower(weights)
    total = weights.save(folder / "model.safetensors")
    files = dict.fromkeys(sorted(weights.arrays), "model.safetensors")
    write(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files})
    print(f"{folder}: {len(files)} tensors, {total / 1e6:.1f} MB, {size} of {VOCABULARY} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mtp-noise", type=float, default=4.0)
    parser.add_argument("--layer-noise", type=float, default=0.3)
    parser.add_argument("--long-memory", action="store_true", help="recurrent state that outlives a block")
    parser.add_argument("--no-mtp", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(
        options.folder,
        options.mtp_noise,
        options.layer_noise,
        not options.no_mtp,
        options.seed,
        options.long_memory,
    )
