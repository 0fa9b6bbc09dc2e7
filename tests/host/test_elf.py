"""The ELF reader on small, cut and damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.host import elf
from tests import toolchains as tc
from tests.fakes import FakeHost


def test_elf_needed_and_constants(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write("/a.so", tc.elf(needed=("libcudart.so.12", "libc.so.6"), rodata=b"abc\0"))
    assert elf.needed(host, "/a.so") == ("libcudart.so.12", "libc.so.6")
    assert list(elf.constants(host, "/a.so")) == [b"abc\0"]


def test_constants_overlap_so_that_nothing_is_cut(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    text = b"\0sm_75 sm_80 sm_86\0"
    host.write("/a.so", tc.elf(rodata=b"x" * ((1 << 20) - 9) + text))
    assert any(text in piece for piece in elf.constants(host, "/a.so"))


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_truncated_or_corrupt_elf_file_raises_only_its_own_error(tmp_path: Path, cut: int) -> None:
    host = FakeHost(tmp_path)
    whole = tc.elf(needed=("libcudart.so.12",), rodata=b"abc\0")
    for index, data in enumerate((whole[:cut], whole[:cut] + b"\xff" * 40 + whole[cut + 40 :])):
        host.write(f"/{index}.so", data)
        for read in (elf.needed, lambda h, p: list(elf.constants(h, p))):
            try:
                read(host, f"/{index}.so")
            except (elf.NotElf, OSError):
                continue
