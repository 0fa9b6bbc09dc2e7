"""What is written where a stream cannot show it."""

from __future__ import annotations

import codecs
import json

import pytest

from doctor import streams


@pytest.fixture(autouse=True)
def _registered() -> None:
    codecs.register_error(streams.ERRORS, streams.plain)


def test_our_signs_have_plain_forms() -> None:
    text = "✓ ready · 1 × 2 … “x” ≥ 3"
    assert text.encode("ascii", streams.ERRORS) == b'ok ready - 1 x 2 ... "x" >= 3'


@pytest.mark.parametrize("text", ["é", "\udcff", "日本", "😀", "a\udc80b"])
def test_everything_else_is_the_escape_that_json_has(text: str) -> None:
    escaped = text.encode("ascii", streams.ERRORS).decode()
    assert json.loads(f'"{escaped}"') == text


def test_only_encoding_is_replaced() -> None:
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", streams.ERRORS)
