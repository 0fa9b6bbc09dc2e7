"""Bytes of any kind -> plain UTF-8, in pieces of bounded size."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma

import pytest

from doctor.evidence import decode
from doctor.evidence.decode import Decoded, chunks, sniff_encoding

TEXT = "erste Zeile äöü\nzweite Zeile\nERROR: CUDA out of memory\n"


def plain(data: bytes) -> tuple[bytes, Decoded]:
    decoded = Decoded()
    return b"".join(chunks(io.BytesIO(data), decoded)), decoded


@pytest.mark.parametrize(
    ("data", "layers"),
    [
        (TEXT.encode(), []),
        (b"\xef\xbb\xbf" + TEXT.encode(), []),
        (b"\xff\xfe" + TEXT.encode("utf-16-le"), ["utf-16-le"]),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), ["utf-16-be"]),
        (TEXT.encode("utf-16-le"), ["utf-16-le"]),
        (TEXT.encode("utf-32"), ["utf-32-le"]),
        (gzip.compress(TEXT.encode()), ["gzip"]),
        (gzip.compress(gzip.compress(TEXT.encode())), ["gzip", "gzip"]),
        (bz2.compress(TEXT.encode()), ["bzip2"]),
        (lzma.compress(TEXT.encode()), ["xz"]),
        (gzip.compress(b"\xff\xfe" + TEXT.encode("utf-16-le")), ["gzip", "utf-16-le"]),
    ],
)
def test_layers_are_undone(data: bytes, layers: list[str]) -> None:
    text, decoded = plain(data)
    assert text.decode() == TEXT
    assert decoded.layers == layers
    assert decoded.damage == []


def test_colours_and_cursor_movements_are_taken_out() -> None:
    text, _ = plain(b"\x1b[1;31mERROR\x1b[0m \x1b]0;title\x07x\x1b[2K\x1b[1Ay\x1bM\n")
    assert text == b"ERROR xy\n"


def test_colour_cut_by_a_block_border_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    data = (b"a" * 13 + b"\x1b[31mred\x1b[0m\n") * 50
    for size in (7, 16, 17, 64):
        monkeypatch.setattr(decode, "CHUNK", size)
        assert plain(data)[0] == (b"a" * 13 + b"red\n") * 50


def test_colour_codes_without_their_escape_are_taken_out() -> None:
    assert plain(b"^[[0;36m(EngineCore pid=1)^[[0m hello\n")[0] == b"(EngineCore pid=1) hello\n"


def test_nulls_are_taken_out() -> None:
    assert plain(b"Out of\0\0 memory\n" + b"\0" * 5000 + b"x\n")[0] == b"Out of memory\nx\n"


def test_damaged_gzip_gives_what_was_readable() -> None:
    packed = gzip.compress(b"line\n" * 100_000)
    text, decoded = plain(packed[: len(packed) // 2])
    assert text.startswith(b"line\nline\n")
    assert "damaged" in decoded.damage[0]
    _, decoded = plain(b"\x1f\x8bnot gzip at all")
    assert "damaged" in decoded.damage[0]


def test_pieces_end_at_line_ends() -> None:
    data = b"0123456789" * 11 + b"\n"
    pieces = list(chunks(io.BytesIO(data * 40_000), Decoded()))
    assert len(pieces) > 3
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(pieces) == data * 40_000


def test_a_file_without_line_ends_comes_in_pieces() -> None:
    pieces = list(chunks(io.BytesIO(b"x" * (5 << 20)), Decoded()))
    assert sum(map(len, pieces)) == 5 << 20
    assert max(map(len, pieces)) <= decode.LONGEST_LINE + decode.CHUNK


def test_binary_is_no_utf_16() -> None:
    assert sniff_encoding(bytes(range(256)) * 4)[0] == "utf-8"
    assert sniff_encoding(b"\0" * 64)[0] == "utf-8"
    assert sniff_encoding(b"")[0] == "utf-8"
