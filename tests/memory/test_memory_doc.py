"""docs/memory.md is generated; it must say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_the_page_is_up_to_date() -> None:
    root = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location("write_memory_doc", root / "benchmarks/write_memory_doc.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (root / "docs/memory.md").read_text(encoding="utf-8")
    assert written == module.text(), "run python benchmarks/write_memory_doc.py"
    assert "| 0 |" in written
