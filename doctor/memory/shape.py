"""What a model looks like to the memory model: its layers, its weights and how they are quantised."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import cached_property


class Part(str, Enum):
    """Which option decides whether a weight is loaded at all."""

    LANGUAGE = "language"
    VISION = "vision"  # absent with --language-model-only
    DRAFT = "draft"  # absent without speculative decoding (MTP)


class Role(str, Enum):
    """What a weight is for: it decides quantisation, and whether decoding reads it for every token."""

    LINEAR = "linear"  # a projection; quantised unless its module is listed as left alone
    EXPERT = "expert"  # a projection of one routed expert
    EMBEDDING = "embedding"  # looked up, one row a token
    HEAD = "head"  # the output matrix
    OTHER = "other"  # norms, biases, convolutions: never quantised


@dataclass(frozen=True)
class Weight:
    """One module's weights. ``inputs`` is the length of a row, which quantisation groups divide.

    ``read`` is the share that decoding one token reads (8 of 256 experts: 1/32; an embedding: 0).
    ``count`` repeats it, so that 256 experts are one entry.
    """

    module: str
    outputs: int
    inputs: int
    role: Role = Role.LINEAR
    part: Part = Part.LANGUAGE
    count: int = 1
    read: Fraction = Fraction(1)

    @property
    def elements(self) -> int:
        """Number of values."""
        return self.outputs * self.inputs * self.count


class AttentionKind(str, Enum):
    """How far back an attention layer looks, which decides how many tokens it keeps."""

    FULL = "full"
    SLIDING = "sliding"  # the last ``window`` tokens
    CHUNKED = "chunked"  # the current chunk of ``window`` tokens
    LATENT = "latent"  # multi-head latent attention: one compressed vector a token


@dataclass(frozen=True)
class AttentionLayer:
    """A layer that keeps keys and values. ``head_dim`` of a latent layer is the whole stored vector."""

    kind: AttentionKind
    kv_heads: int
    head_dim: int
    window: int | None = None
    value_dim: int | None = None  # None: the same as head_dim


@dataclass(frozen=True)
class StateLayer:
    """A recurrent layer (gated delta net, Mamba 2): a state of fixed size for each sequence.

    The convolution keeps ``conv_kernel - 1`` columns, and one more for every draft token where
    ``grows_with_drafts``. ``groups * group_width`` channels are padded to the number of GPUs.
    """

    kind: str
    conv_channels: int  # without the grouped ones
    conv_kernel: int
    heads: int
    state_per_head: int  # values
    state_bytes: int = 4  # of one value of the state
    groups: int = 0
    group_width: int = 0
    grows_with_drafts: bool = True
    cached_everywhere: bool = False  # supported Mamba cache mode "all" while vLLM had it
    scan_chunk: int = 1  # tokens; mode "all" keeps states at whole chunks of the scan kernels


Layer = AttentionLayer | StateLayer


@dataclass(frozen=True)
class Quantisation:
    """How ``config.json`` says the weights are stored.

    ``bits`` of a quantised value, ``group_size`` values share a scale (0: one for a whole row, -1: one for
    a whole matrix); ``left_alone`` are module name parts (or ``re:`` patterns) that stay at full precision.
    """

    method: str
    bits: int
    group_size: int
    zero_points: bool = False
    scale_bytes: int = 2
    left_alone: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # "Linear", or module patterns that alone are quantised
    quantises_head: bool = False
    embedding_bits: int | None = None


@dataclass(frozen=True)
class Vision:
    """The image encoder, as far as it costs memory."""

    hidden: int
    ffn: int
    depth: int


@dataclass(frozen=True)
class ModelShape:
    """A model as its ``config.json`` describes it. Sizes in elements unless said otherwise.

    ``draft_layers`` are the layers of one built-in draft module (MTP); empty when there is none.
    ``buffers_bytes`` are tables made at load time that no checkpoint holds (rotary caches).
    """

    name: str
    architecture: str
    family: str
    model_type: str
    dtype: str
    hidden: int
    vocabulary: int
    max_positions: int
    layers: tuple[Layer, ...]
    weights: tuple[Weight, ...]
    tied: bool = False
    draft_layers: tuple[Layer, ...] = ()
    quantisation: Quantisation | None = None
    vision: Vision | None = None
    widest: int = 0  # widest activation of one token, summed over what lives at once
    buffers_bytes: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one unquantised value (vLLM serves float32 checkpoints in 16 bits)."""
        return 2

    @cached_property
    def attention(self) -> tuple[AttentionLayer, ...]:
        """The layers with keys and values."""
        return tuple(layer for layer in self.layers if isinstance(layer, AttentionLayer))

    @cached_property
    def states(self) -> tuple[StateLayer, ...]:
        """The recurrent layers."""
        return tuple(layer for layer in self.layers if isinstance(layer, StateLayer))

    @cached_property
    def attention_counts(self) -> dict[AttentionLayer, int]:
        """Distinct attention layers and how many there are of each, in order: laid out hundreds of times."""
        return dict(Counter(self.attention))

    @cached_property
    def state_counts(self) -> dict[StateLayer, int]:
        """The same for recurrent layers."""
        return dict(Counter(self.states))

    @property
    def is_hybrid(self) -> bool:
        """True when recurrent layers share the pool with attention layers."""
        return bool(self.states) and bool(self.attention)

    @property
    def has_mtp(self) -> bool:
        """True when the checkpoint brings its own draft module."""
        return bool(self.draft_layers)
