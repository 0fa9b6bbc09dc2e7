"""Bytes of weights that stay on the GPU, from the checkpoint's own index and headers or from shapes."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.memory.quantisation import stored_bytes
from doctor.memory.shape import ModelShape, Part, Role


@dataclass(frozen=True)
class Weights:
    """Bytes by part. ``embedding`` is the part of ``language`` that decoding looks up, not reads.

    ``source``: "safetensors" (read from files) or "shapes" (computed from config.json).
    ``decode_read`` is what one decoded token reads of the language weights, ``draft_read`` the same
    for one draft token. ``buffers`` are tables made at load time.
    """

    language: int
    vision: int
    draft: int
    embedding: int
    head: int
    decode_read: int
    draft_read: int
    buffers: int
    source: str

    def resident(self, *, vision: bool, draft: bool) -> int:
        """Bytes that vLLM keeps: what "Model loading took" counts, without the allocator's rounding."""
        return self.language + self.buffers + (self.vision if vision else 0) + (self.draft if draft else 0)


def weights_from_shapes(shape: ModelShape) -> Weights:
    """Computed from the dimensions and the quantisation config; nothing is read from weight files."""
    total = dict.fromkeys(Part, 0)
    read = dict.fromkeys(Part, 0.0)
    embedding = head = 0
    for weight in shape.weights:
        size = stored_bytes(weight, shape.quantisation, shape.dtype_bytes)
        total[weight.part] += size
        read[weight.part] += float(size * weight.read)
        if weight.role is Role.EMBEDDING and not shape.tied:
            embedding += size
        if weight.role is Role.HEAD or (weight.role is Role.EMBEDDING and shape.tied):
            head += size
    return Weights(
        language=total[Part.LANGUAGE],
        vision=total[Part.VISION],
        draft=total[Part.DRAFT],
        embedding=embedding,
        head=head,
        decode_read=int(read[Part.LANGUAGE]),
        draft_read=int(read[Part.DRAFT]) + head,
        buffers=shape.buffers_bytes,
        source="shapes",
    )
