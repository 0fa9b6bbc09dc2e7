"""Which function knows which architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from doctor.memory.fields import Fields
from doctor.memory.shape import ModelShape


@dataclass(frozen=True)
class Source:
    """What a builder gets: the text model's fields (falling back to the whole file's) and the whole file's."""

    name: str
    architecture: str
    text: Fields
    root: Fields


Builder = Callable[[Source], ModelShape]
_BUILDERS: dict[str, Builder] = {}


def family(*architectures: str) -> Callable[[Builder], Builder]:
    """Registers a builder for these ``architectures`` of config.json."""

    def register(builder: Builder) -> Builder:
        for architecture in architectures:
            _BUILDERS[architecture] = builder
        return builder

    return register


def builders() -> dict[str, Builder]:
    """Architecture name to builder, all families loaded."""
    from doctor.memory.families import dense, gemma, hybrid, latent, moe  # noqa: F401  each registers itself

    return _BUILDERS
