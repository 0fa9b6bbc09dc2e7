"""Lays a vLLM plugin out as an installed distribution."""

from pathlib import Path


def install(name: str, folder: Path) -> Path:
    """Copies ``NAME.py`` of this folder; ``folder`` then belongs on PYTHONPATH."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:register\n")
    (folder / f"{name}.py").write_text((Path(__file__).parent / f"{name}.py").read_text())
    return folder
