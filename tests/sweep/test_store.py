"""The file of rows: nothing finished is lost, a half-written line is cut, two writers are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.sweep.store import FORMAT, NAME, Store, parse, read


def fill(folder: Path, *keys: str) -> bytes:
    with Store(folder) as store:
        for key in keys:
            store.append({"key": key, "label": f"é {key}", "kv_tokens": 188_847})
    return (folder / NAME).read_bytes()


def test_rows_come_back(tmp_path: Path) -> None:
    data = fill(tmp_path / "new" / "folder", "a", "b")
    assert data.count(b"\n") == 2
    assert list(read(tmp_path / "new" / "folder" / NAME).by_key()) == ["a", "b"]
    assert read(tmp_path / "none").rows == []


def test_cut_at_every_byte_of_the_last_line(tmp_path: Path) -> None:
    whole = fill(tmp_path, "a", "b")
    begin = whole.index(b"\n") + 1
    for end in range(begin, len(whole) + 1):
        (tmp_path / NAME).write_bytes(whole[:end])
        with Store(tmp_path) as store:
            kept = list(store.rows.by_key())
            # the whole row without its newline is a row; anything shorter is none
            complete = end >= len(whole) - 1
            assert kept == (["a", "b"] if complete else ["a"])
            assert store.rows.cut == (0 if complete else end - begin)
            store.append({"key": "c"})
        assert list(read(tmp_path / NAME).by_key()) == [*kept, "c"]
        assert all(json.loads(line)["format"] == FORMAT for line in (tmp_path / NAME).read_bytes().splitlines())


def test_lines_that_are_no_rows_are_kept_and_named(tmp_path: Path) -> None:
    whole = fill(tmp_path, "a")
    odd = b'not json\n{"key": "x"}\n\n\0\0\0\n' + b"[" * 100_000 + b"\n"
    (tmp_path / NAME).write_bytes(whole + odd)
    with Store(tmp_path) as store:
        assert list(store.rows.by_key()) == ["a"]
        assert store.rows.unreadable == (2, 3, 5, 6)
        store.append({"key": "b"})
    data = (tmp_path / NAME).read_bytes()
    assert data.startswith(whole + odd)
    assert list(parse(data).by_key()) == ["a", "b"]


def test_the_last_row_of_a_point_counts(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append({"key": "a", "outcome": "died"})
        store.append({"key": "a", "outcome": "ok"})
    assert read(tmp_path / NAME).by_key()["a"]["outcome"] == "ok"


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(DoctorError, match="another sweep"), Store(tmp_path):
        pass
    with Store(tmp_path):  # free again
        pass


def test_a_disk_that_fills_leaves_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fill(tmp_path, "a")
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 20:
            return real(fd, data[:20])
        raise OSError(28, "No space left on device")

    with Store(tmp_path) as store:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(DoctorError, match="No space left"):
            store.append({"key": "b", "label": "x" * 30})
    assert (tmp_path / NAME).read_bytes() == before


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DoctorError, match="cannot write"), Store(tmp_path / "file"):
        pass
