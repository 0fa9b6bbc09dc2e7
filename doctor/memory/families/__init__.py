"""Model families: from config.json to layers and weights. One function a family, nothing guessed."""

from doctor.memory.families.registry import Source, builders, family

__all__ = ["Source", "builders", "family"]
