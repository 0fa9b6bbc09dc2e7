"""docs/explain.md and its pictures show what the program prints today."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE: dict[str, Any] = runpy.run_path(str(ROOT / "docs/make_screens.py"))


def words(picture: str) -> str:
    """The text of a picture, blanks folded: where a line is broken depends on the version of rich."""
    return " ".join(" ".join(html.unescape(t) for t in re.findall(r"<text[^>]*>([^<]*)</text>", picture)).split())


@pytest.mark.parametrize(("cause", "log"), MAKE["SCREENS"])
def test_picture_is_what_explain_prints(cause: str, log: str) -> None:
    stored = (ROOT / f"docs/screens/{cause}.svg").read_text(encoding="utf-8")
    printed = " ".join(" ".join(MAKE["text_of"](MAKE["shown"](log))).split())
    assert words(stored) == printed, "run python docs/make_screens.py"
    assert f"[{cause}, " in words(stored)


def test_page_is_fresh_and_every_picture_is_shown() -> None:
    page = (ROOT / "docs/explain.md").read_text(encoding="utf-8")
    assert page == MAKE["page"](), "run python docs/make_screens.py"
    pictures = {path.stem for path in (ROOT / "docs/screens").glob("*.svg")}
    assert pictures == {cause for cause, _ in MAKE["SCREENS"]}


def test_the_readme_shows_what_explain_prints() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sample = re.search(r"^    \$ vllm-doctor explain serve\.log\n((?:    .*\n|\n)+)", readme, re.M)
    assert sample
    printed = " ".join(MAKE["text_of"](MAKE["shown"]("016-jit-cc1plus-missing-gcc12.log"))).replace(
        "server.log", "serve.log"
    )
    assert " ".join(sample[1].split()) == " ".join(printed.split()).partition("serve.log ")[2]
