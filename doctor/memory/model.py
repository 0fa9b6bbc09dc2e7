"""A model as the user names it: a folder, a ``config.json``, or a hub id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from doctor.memory.checkpoint import weights_of
from doctor.memory.config import read_json, shape_of
from doctor.memory.fields import ConfigError
from doctor.memory.shape import ModelShape
from doctor.memory.weights import Weights


@dataclass(frozen=True)
class Model:
    """``given`` as typed; ``origin`` is where its files came from, in words.

    ``folder`` is the local folder that vLLM would be given, None for a hub model.
    """

    given: str
    shape: ModelShape
    weights: Weights
    origin: str
    folder: Path | None = None

    @property
    def served(self) -> str:
        """What ``vllm serve`` is given: the folder of a local model, the name of a hub model."""
        return str(self.folder) if self.folder else self.given


def open_model(given: str, env: Mapping[str, str], say: Callable[[str], None]) -> Model:
    """Finds and reads a model. Raises :class:`ConfigError` with one line."""
    if not given.strip():
        raise ConfigError("the model's name is empty")
    shown = repr(given)[1:-1]  # one line, whatever it holds
    shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
    try:
        path = Path(given).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
        has_config = is_folder and (path / "config.json").exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{shown}: {getattr(error, 'strerror', None) or 'not a name that a file can have'}"
        ) from None
    if is_folder:
        if not has_config:
            raise ConfigError(f"{shown}: a folder without config.json{_instead(path)}")
        return _open(given, path / "config.json", path, str(path), path.resolve())
    if exists:
        # a config.json alone: its folder may hold the index and weights too
        folder = path.parent if path.name == "config.json" else None
        return _open(given, path, folder, str(path), path.parent.resolve())
    from doctor.memory.hub import HUB_ID, fetch  # urllib is slow to import and seldom needed

    if HUB_ID.match(given):
        fetched = fetch(given, env, say)
        return _open(given, fetched.folder / "config.json", fetched.folder, fetched.origin)
    raise ConfigError(f"{shown}: no such folder or file, and not a hub name like Qwen/Qwen3.5-9B")


def _instead(folder: Path) -> str:
    """What lies there that the user may have meant."""
    try:
        if any(folder.glob("*.gguf")):
            return "; GGUF files carry no config.json, give the original model's"
        below = sorted(p.parent.name for p in folder.glob("*/config.json"))
    except OSError:
        return ""
    return f"; {below[0]!r} below it has one" if below else ""


def _open(given: str, config: Path, folder: Path | None, origin: str, local: Path | None = None) -> Model:
    name = Path(given).name if Path(given).name != "config.json" else Path(given).resolve().parent.name
    shape = shape_of(read_json(config), name or given)
    return Model(given, shape, weights_of(shape, folder), origin, local)
