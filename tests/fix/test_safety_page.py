"""The safety page names the test that holds each promise; a name that leads nowhere holds nothing."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/safety.md").read_text(encoding="utf-8")


def test_every_test_it_names_exists() -> None:
    folders = (REPOSITORY / "tests/fix", REPOSITORY / "tests/containers")
    sources = "\n".join(p.read_text(encoding="utf-8") for f in folders for p in f.glob("test_*.py"))
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py)", PAGE)) | {"repaired_and_undone"}
    assert len(named) > 30
    for name in named:
        assert re.search(rf"^def {name}\(", sources, re.MULTILINE), name


def test_every_file_it_names_exists() -> None:
    for path in re.findall(r"`(tests/[\w/]+\.py)", PAGE):
        assert (REPOSITORY / path).exists(), path
    for path in re.findall(r"`(hosts/[\w-]+\.json)`", PAGE):
        assert (REPOSITORY / "tests/fix/golden" / path).exists(), path


def test_every_promise_names_what_holds_it() -> None:
    rows = [r for r in PAGE.splitlines() if r.startswith("| ") and not re.match(r"\| (promise|code|\d+) ", r)]
    assert len(rows) > 20
    for row in rows:
        assert re.search(r"test_\w+|golden plan", row.split("|")[2]), row
