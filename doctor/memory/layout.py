"""How vLLM lays layers out in its one pool of blocks: page sizes, the block rule, groups of layers.

Every layer keeps one page per block. A recurrent layer's page holds the state of one sequence and does
not depend on the number of tokens; vLLM therefore raises the attention block until an attention page is
as large as a state, and pads the state up to it. Layers are then put into groups of equal size that share
the pool: one block id costs ``page * layers of the largest group`` bytes, whichever group takes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from doctor.errors import DoctorError
from doctor.memory.shape import AttentionKind, AttentionLayer, ModelShape, StateLayer
from doctor.memory.versions import Switches

#: Tokens; every GPU attention backend of hybrids takes multiples of it (FlashInfer, FlashAttention, Triton).
ALIGNMENT = 16
#: Tokens; latent attention kernels of hybrids want whole runs of this many.
LATENT_ALIGNMENT = 128


@dataclass(frozen=True)
class KvOptions:
    """What the user asks of vLLM, as far as it changes the pool. ``draft_tokens`` is K, 0 without MTP.

    ``prefix_caching`` None takes the version's default. ``kv_cache_dtype`` is vLLM's name, "auto" for the
    model's own 16 bits. ``checkpoint_blocks``: states kept for prefill checkpoints (0.33, FlashInfer GDN).
    """

    max_model_len: int
    draft_tokens: int = 0
    prefix_caching: bool | None = None
    kv_cache_dtype: str = "auto"
    max_num_seqs: int = 1
    max_num_batched_tokens: int = 2048
    tp: int = 1
    block_size: int | None = None
    alignment: int = ALIGNMENT
    ssm_dtype_bytes: int | None = None
    checkpoint_blocks: int = 0


class UnsupportedOption(DoctorError):
    """vLLM would refuse this option, or its size is not known here."""


# -- bytes of one token in one attention layer -----------------------------------------------------------


@dataclass(frozen=True)
class KvFormat:
    """Bytes that one head stores for one token: ``per_value`` for plain formats, else a packed slot."""

    name: str
    per_value: float = 2.0
    scale_bytes: int = 0  # for each of key and value
    slot: tuple[int, int] | None = None  # key bits and value bits of a packed slot
    group: int = 0


_PLAIN = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0,
          "fp8_inc": 1.0}  # fmt: skip
_SCALED = {"int8_per_token_head": 1.0, "fp8_per_token_head": 1.0}
_TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")

#: Formats that ``--kv-cache-dtype`` takes here.
KV_DTYPES = (*_PLAIN, *_SCALED, "nvfp4", *_TURBOQUANT)


def token_bytes(layer: AttentionLayer, kv_cache_dtype: str, tp: int = 1) -> int:
    """Bytes of one token in one layer on one GPU."""
    if layer.kind is AttentionKind.LATENT:
        if kv_cache_dtype not in _PLAIN:
            raise UnsupportedOption(f"--kv-cache-dtype {kv_cache_dtype} is not known for latent attention")
        return int(layer.head_dim * _PLAIN[kv_cache_dtype])
    heads = max(1, layer.kv_heads // tp)
    value_dim = layer.head_dim if layer.value_dim is None else layer.value_dim
    if kv_cache_dtype in _PLAIN:
        return int(heads * (layer.head_dim + value_dim) * _PLAIN[kv_cache_dtype])
    if kv_cache_dtype in _SCALED:  # one float32 scale for the key and one for the value of each head
        return heads * (layer.head_dim + value_dim + 8)
    if kv_cache_dtype == "nvfp4":  # half a byte a value and one fp8 scale for 16
        return 2 * heads * (layer.head_dim // 2 + layer.head_dim // 16)
    if kv_cache_dtype in _TURBOQUANT:
        return heads * _turboquant_slot(kv_cache_dtype, layer.head_dim)
    raise UnsupportedOption(f"--kv-cache-dtype {kv_cache_dtype!r} is not known; known are {', '.join(KV_DTYPES)}")


def _turboquant_slot(name: str, dim: int) -> int:
    """Key (8 bit plain, or packed with a 2-byte norm) and value (packed, scale and zero), rounded to even."""
    key_bits, value_bits = {
        "turboquant_k8v4": (8, 4), "turboquant_4bit_nc": (4, 4),
        "turboquant_k3v4_nc": (3, 4), "turboquant_3bit_nc": (3, 3),
    }[name]  # fmt: skip
    key = dim if key_bits == 8 else math.ceil(dim * key_bits / 8) + 2
    value = math.ceil(dim * value_bits / 8) + 4
    return (key + value + 1) // 2 * 2


def state_bytes(layer: StateLayer, options: KvOptions) -> int:
    """Bytes of one sequence's state in one recurrent layer on one GPU."""
    tp = options.tp
    # groups that do not divide among the GPUs are replicated so that every head finds its own
    extra = 0 if layer.groups % tp == 0 else tp - layer.groups
    channels = (layer.conv_channels + (layer.groups + extra) * layer.group_width) // tp
    columns = layer.conv_kernel - 1 + (options.draft_tokens if layer.grows_with_drafts else 0)
    each = options.ssm_dtype_bytes or layer.state_bytes
    return channels * columns * 2 + layer.heads // tp * layer.state_per_head * each


# -- pages and groups ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """What one layer keeps for one block. ``blocks`` is how many blocks one full-length request takes."""

    kind: str
    block: int  # tokens; of no meaning for a state
    bytes: int
    blocks: int
    key: tuple[object, ...] = ()  # layers with equal keys can share a group
    layer: AttentionLayer | None = None
    count: int = 1  # layers that are exactly alike


@dataclass(frozen=True)
class Group:
    """Layers that share block ids."""

    kind: str
    layers: int
    block: int
    blocks_per_request: int


@dataclass(frozen=True)
class Layout:
    """The pool's structure for one model and one set of options.

    ``block_size`` is what vLLM logs and what prefix caching counts in; ``bytes_per_block`` what one block
    id costs; ``state_mode`` is "none", "align" or "all" for models with recurrent layers.
    """

    block_size: int
    page_bytes: int
    bytes_per_block: int
    groups: tuple[Group, ...]
    state_mode: str | None
    state_bytes: int
    state_slots: int  # blocks of one sequence's state in each of its groups
    token_bytes: int  # of one attention layer
    kept_token_bytes: int  # of one more token over all full-attention layers

    @property
    def blocks_per_request(self) -> int:
        """Blocks that one request of ``max_model_len`` tokens takes."""
        return sum(group.blocks_per_request for group in self.groups)

    @property
    def padding_layers(self) -> int:
        """Places in groups that no layer fills."""
        widest = max((group.layers for group in self.groups), default=0)
        return sum(widest - group.layers for group in self.groups)


def lay_out(shape: ModelShape, options: KvOptions, version: Switches) -> Layout:
    """The layout vLLM makes. Raises :class:`UnsupportedOption` where vLLM or this model of it refuses."""
    _check(shape, options)
    attention = Counter(shape.attention_counts)
    if options.draft_tokens:
        attention.update(layer for layer in shape.draft_layers if isinstance(layer, AttentionLayer))
    states = shape.states
    caching = (
        options.prefix_caching if options.prefix_caching is not None else default_prefix_caching(shape, version)
    )
    state = max((state_bytes(layer, options) for layer in shape.state_counts), default=0)
    mode = _state_mode(states, caching, version)
    first = shape.attention[0] if shape.attention else None
    per_token = token_bytes(first, options.kv_cache_dtype, options.tp) if first else 0
    block = _block(options, state, per_token, mode, first, states)
    slots = {None: 0, "none": 1, "align": 2, "all": 0}[mode] + options.draft_tokens
    if mode == "align":
        mamba2 = any(layer.kind == "Mamba 2" for layer in states)
        slots += max(options.checkpoint_blocks, version.mamba2_checkpoint_blocks if mamba2 else 0)
    if mode == "all":
        slots += math.ceil(options.max_model_len / block)
    pages = [_attention_page(layer, count, options, block, version) for layer, count in attention.items()]
    widest = max((page.bytes for page in pages), default=0)
    for layer, count in shape.state_counts.items():
        size = state_bytes(layer, options)
        padded = block * per_token if shape.is_hybrid else max(widest, size)
        pages.append(Page("state", block, padded, slots, ("state", padded, slots), count=count))
    groups, bytes_per_block, page_bytes = _group(pages, options, version)
    full = [
        (layer, n) for layer, n in attention.items() if layer.kind in (AttentionKind.FULL, AttentionKind.LATENT)
    ]
    return Layout(
        block_size=block,
        page_bytes=page_bytes,
        bytes_per_block=bytes_per_block,
        groups=groups,
        state_mode=mode,
        state_bytes=state,
        state_slots=slots if states else 0,
        token_bytes=per_token,
        kept_token_bytes=sum(n * token_bytes(layer, options.kv_cache_dtype, options.tp) for layer, n in full),
    )


def default_prefix_caching(shape: ModelShape, version: Switches) -> bool:
    """Whether vLLM turns prefix caching on by itself: always for attention, since 0.26.0 for hybrids."""
    return version.hybrid_prefix_caching if shape.states else True


def _check(shape: ModelShape, options: KvOptions) -> None:
    if options.draft_tokens and not shape.has_mtp:
        raise UnsupportedOption(f"{shape.name} has no MTP head: --mtp is not possible with it")
    if options.tp < 1:
        raise UnsupportedOption(f"--tp {options.tp}: at least 1")
    for layer in shape.attention_counts:
        if layer.kind is not AttentionKind.LATENT and layer.kv_heads % options.tp and options.tp % layer.kv_heads:
            raise UnsupportedOption(f"--tp {options.tp} does not divide {layer.kv_heads} KV heads")
    for state in shape.state_counts:
        if state.heads % options.tp:
            raise UnsupportedOption(f"--tp {options.tp} does not divide {state.heads} heads of a recurrent layer")


def _state_mode(states: Sequence[StateLayer], caching: bool, version: Switches) -> str | None:
    if not states:
        return None
    if not caching:
        return "none"
    return "all" if version.state_mode_all and all(s.cached_everywhere for s in states) else "align"


def _block(options: KvOptions, state: int, per_token: int, mode: str | None, first: AttentionLayer | None,
           states: Sequence[StateLayer]) -> int:  # fmt: skip
    """Tokens of a block: 16, or as many as make an attention page at least as large as a state."""
    block = options.block_size or options.alignment
    if not state or first is None:
        return block
    step = max(block, options.alignment)
    if first.kind is AttentionKind.LATENT:
        step = max(step, LATENT_ALIGNMENT)
    if mode == "all":  # whole chunks of the scan kernels
        chunk = math.lcm(max((layer.scan_chunk for layer in states), default=1), step)
        return max(block, chunk * math.ceil(math.ceil(state / per_token) / chunk))
    return max(block, step * math.ceil(state / (step * per_token)))


def _attention_page(layer: AttentionLayer, count: int, options: KvOptions, block: int, version: Switches) -> Page:
    size = block * token_bytes(layer, options.kv_cache_dtype, options.tp)
    return Page(
        layer.kind.value, block, size, _blocks(layer, options, block, version), _key(layer, size), layer, count
    )


def _key(layer: AttentionLayer, size: int) -> tuple[object, ...]:
    return (layer.kind, layer.kv_heads, layer.head_dim, layer.value_dim, layer.window, size)


def _blocks(layer: AttentionLayer, options: KvOptions, block: int, version: Switches) -> int:
    """Blocks that one request of full length holds in this layer."""
    in_flight = version.in_flight_batches * options.max_num_batched_tokens
    if layer.kind is AttentionKind.SLIDING and layer.window:
        # one more: the window may begin in the middle of a block
        return math.ceil(min(layer.window - 1 + in_flight, options.max_model_len) / block) + 1
    if layer.kind is AttentionKind.CHUNKED and layer.window:
        return math.ceil(min(layer.window + in_flight, options.max_model_len) / block)
    return math.ceil(options.max_model_len / block)


def _group(pages: list[Page], options: KvOptions, version: Switches) -> tuple[tuple[Group, ...], int, int]:
    """Groups, bytes of one block id over all layers, and the page size."""
    kinds = {_uniform_kind(page) for page in pages}
    if len(kinds) == 1:  # every layer needs the same slots: one group, pages may differ in size
        total = sum(page.bytes * page.count for page in pages)
        blocks = max(page.blocks for page in pages)
        members = sum(page.count for page in pages)
        return (Group(pages[0].kind, members, pages[0].block, blocks),), total, max(p.bytes for p in pages)
    return _group_by_page(_unify(pages, options, version))


def _uniform_kind(page: Page) -> object:
    if page.kind in (AttentionKind.FULL.value, AttentionKind.LATENT.value):
        return "full"
    return page.kind, page.blocks, page.key[4] if page.kind != "state" else page.bytes


def _unify(pages: list[Page], options: KvOptions, version: Switches) -> list[Page]:
    """Gives all layers one page size: more tokens a block where that divides evenly, padding elsewhere."""
    largest = max(page.bytes for page in pages)
    unified = []
    for page in pages:
        if page.bytes != largest and page.layer is not None and largest % page.bytes == 0:
            block = page.block * (largest // page.bytes)
            page = replace(page, block=block, blocks=_blocks(page.layer, options, block, version))
        unified.append(replace(page, bytes=largest))
    return unified


def _group_by_page(pages: list[Page]) -> tuple[tuple[Group, ...], int, int]:
    buckets: dict[object, Page] = {}
    for page in pages:
        known = buckets.get(page.key)
        buckets[page.key] = page if known is None else replace(known, count=known.count + page.count)
    sizes = [bucket.count for bucket in buckets.values()]
    smallest, largest = min(sizes), max(sizes)
    # vLLM's heuristic: near-equal counts are padded to the larger instead of splitting in two
    width = largest if largest < smallest * 1.5 else smallest
    groups: list[Group] = []
    for bucket in buckets.values():
        parts = math.ceil(bucket.count / width)
        for i in range(parts):  # layers are dealt out in turn
            members = math.ceil((bucket.count - i) / parts)
            groups.append(Group(bucket.kind, members, bucket.block, bucket.blocks))
    size = pages[0].bytes
    return tuple(groups), size * max(group.layers for group in groups), size
