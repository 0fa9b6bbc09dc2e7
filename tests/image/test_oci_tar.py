"""From what engines print to one OCI archive: hand-made tars, no engine."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
import tracemalloc
from collections.abc import Callable

import pytest

from doctor.errors import DoctorError
from doctor.image import oci_tar
from tests.image.saved_images import TAG, Archive, config, digits, hybrid, layer, legacy, podman, tar

BASE = layer({"etc/os-release": b"ID=debian\n", "usr/bin/true": bytes(range(256)) * 40})
CODE = layer({"opt/venv/bin/vllm": random.Random(1).randbytes(300_000)})
EMPTY = bytes(1024)
LAYERS = (BASE, CODE, EMPTY)


def convert(data: bytes) -> tuple[oci_tar.Converted, bytes]:
    out = io.BytesIO()
    converted = oci_tar.convert(io.BytesIO(data), out, lambda _: None)
    return converted, out.getvalue()


@pytest.mark.parametrize("layout", [legacy, hybrid, podman])
def test_each_engines_layout_becomes_an_archive_in_which_everything_fits(
    layout: Callable[[tuple[bytes, ...]], bytes],
) -> None:
    converted, data = convert(layout(LAYERS))
    archive = Archive(data)
    assert archive.plain == list(LAYERS)
    assert converted.image_id == f"sha256:{digits(config(LAYERS))}"
    assert archive.config_bytes == config(LAYERS)
    assert archive.index["manifests"][0]["digest"] == converted.manifest
    assert archive.index["manifests"][0]["platform"] == {"architecture": "amd64", "os": "linux"}


def test_name_is_there_for_every_reader() -> None:
    converted, data = convert(legacy(LAYERS))
    archive = Archive(data)
    assert converted.names == (TAG,)
    assert archive.docker["RepoTags"] == [TAG]
    assert archive.index["manifests"][0]["annotations"] == {
        "io.containerd.image.name": f"docker.io/library/{TAG}",
        "org.opencontainers.image.ref.name": TAG.partition(":")[2],
    }
    _, data = convert(podman(LAYERS))
    annotations = Archive(data).index["manifests"][0]["annotations"]
    assert annotations["io.containerd.image.name"] == f"localhost/{TAG}"


def test_image_saved_by_its_id_has_no_name() -> None:
    converted, data = convert(legacy(LAYERS, tags=None))
    assert converted.names == ()
    assert "annotations" not in Archive(data).index["manifests"][0]


def test_same_image_gives_the_same_bytes_however_many_cores_help(monkeypatch: pytest.MonkeyPatch) -> None:
    first = convert(hybrid(LAYERS))[1]
    assert convert(hybrid(LAYERS))[1] == first
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert convert(hybrid(LAYERS))[1] == first
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    assert convert(hybrid(LAYERS))[1] == first


def test_layouts_of_one_image_give_the_same_blobs() -> None:
    old, new = (Archive(convert(layout(LAYERS))[1]) for layout in (legacy, hybrid))
    assert old.files == new.files


@pytest.mark.parametrize("size", [512, 4096, 4096 * 3, 4096 * 3 + 512])
def test_layer_of_several_pieces_is_one_gzip_stream(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_tar, "PIECE_BYTES", 4096)
    one = layer({"x": random.Random(2).randbytes(5000)}) + bytes(20_480)
    one = one[:512] + one[512:size]
    archive = Archive(convert(legacy((one,)))[1])
    assert archive.plain == [one]
    assert archive.packed[0][:10] == b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"
    assert archive.packed[0].count(b"\x1f\x8b\x08") == 1


def test_equal_layers_are_stored_once() -> None:
    for layout in (legacy, hybrid, podman):
        archive = Archive(convert(layout((BASE, CODE, BASE)))[1])
        assert archive.plain == [BASE, CODE, BASE]
        assert len([n for n in archive.files if n.startswith("blobs/")]) == 4


def test_equal_layers_stored_twice_are_stored_once() -> None:
    whole = config((BASE, CODE, BASE))
    entry = [{"Config": "c.json", "RepoTags": [TAG], "Layers": ["1.tar", "2.tar", "3.tar"]}]
    members = [("1.tar", BASE), ("2.tar", CODE), ("3.tar", BASE), ("c.json", whole)]
    archive = Archive(convert(tar([*members, ("manifest.json", json.dumps(entry).encode())]))[1])
    assert archive.plain == [BASE, CODE, BASE]
    assert len(archive.files) == 3 + 4


def test_layers_that_are_gzip_already_stay_as_they_are() -> None:
    one = gzip.compress(BASE, 9)
    two = gzip.compress(CODE[:100_000], mtime=5) + gzip.compress(CODE[100_000:], 1)
    archive = Archive(convert(hybrid((one, two), plain=(BASE, CODE)))[1])
    assert archive.packed == [one, two]
    assert archive.plain == [BASE, CODE]


def test_gzip_layer_that_grows_a_thousandfold() -> None:
    zeros = layer({"zeros": bytes(30_000_000)})
    archive = Archive(convert(hybrid((gzip.compress(zeros),), plain=(zeros,)))[1])
    assert archive.plain == [zeros]


def test_layer_beyond_eight_gib_has_one_header_block() -> None:
    block = oci_tar._header("blobs/sha256/" + "a" * 64, 9 << 30)
    assert len(block) == 512
    member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    assert (member.size, member.name) == (9 << 30, "blobs/sha256/" + "a" * 64)


def test_memory_does_not_grow_with_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    data = legacy((layer({"big": bytes(96 << 20)}),))
    stream = io.BytesIO(data)
    tracemalloc.start()
    try:
        with open(os.devnull, "wb") as sink:
            oci_tar.convert(stream, _Counting(sink), lambda _: None)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20


class _Counting:
    """A file that forgets what it is given."""

    def __init__(self, sink: io.BufferedWriter) -> None:
        self._at = 0
        self._end = 0
        self.flush = sink.flush

    def write(self, data: bytes) -> None:
        self._at += len(data)
        self._end = max(self._end, self._at)

    def tell(self) -> int:
        return self._at

    def seek(self, to: int, whence: int = 0) -> None:
        self._at = self._end if whence == os.SEEK_END else to


def _manifest(**changes: object) -> bytes:
    entry = {"Config": "c.json", "RepoTags": [TAG], "Layers": ["1.tar"], **changes}
    return json.dumps([entry]).encode()


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("1.tar", BASE), ("c.json", config((BASE,)))], "manifest.json is missing"),
        ([("manifest.json", b"[")], "manifest.json is not JSON"),
        ([("manifest.json", b"{}")], "manifest.json does not describe one image"),
        ([("manifest.json", b"[{}, {}]")], "manifest.json does not describe one image"),
        ([("1.tar", BASE), ("manifest.json", _manifest())], "c.json is missing"),
        ([("c.json", config((BASE,))), ("manifest.json", _manifest())], "the layer 1.tar is missing"),
        (
            [("1.tar", b"\x28\xb5\x2f\xfd" + BASE), ("c.json", config((BASE,))), ("manifest.json", _manifest())],
            "the layer 1.tar is missing, or neither a plain tar nor gzip",
        ),
        (
            [("1.tar", CODE), ("c.json", config((BASE,))), ("manifest.json", _manifest())],
            "its layers are not those that the image's config names",
        ),
        (
            [("1.tar", BASE), ("c.json", config((BASE, CODE))), ("manifest.json", _manifest())],
            "its layers are not those that the image's config names",
        ),
        (
            [("1.tar", BASE), ("c.json", b"{}"), ("manifest.json", _manifest())],
            "its layers are not those that the image's config names",
        ),
        (
            [("1.tar", gzip.compress(BASE)[:-9]), ("c.json", config((BASE,))), ("manifest.json", _manifest())],
            "a layer is not valid gzip",
        ),
        (
            [("1.tar", gzip.compress(BASE)[:60] + b"xxxx"), ("c.json", config((BASE,)))],
            "a layer is not valid gzip",
        ),
        (
            [("1.tar", BASE), ("c.json", config((BASE,))), ("manifest.json", _manifest(RepoTags=["A B"]))],
            "'A B' is not a name with a tag",
        ),
        ([("1.tar", "2.tar"), ("2.tar", "1.tar"), ("manifest.json", _manifest())], "c.json is missing"),
    ],
)
def test_archive_whose_parts_do_not_fit_is_refused(members: list[tuple[str, bytes | str]], said: str) -> None:
    with pytest.raises(DoctorError) as refused:
        convert(tar(members))
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


def test_stream_that_ends_early_is_refused_wherever_it_ends() -> None:
    whole = legacy(LAYERS)
    last = whole.index(b"repositories")  # what stands behind is not needed
    for end in sorted({0, 1, 511, 512, 700, *random.Random(3).sample(range(last - 512), 60)}):
        with pytest.raises(DoctorError):
            convert(whole[:end])


def test_what_is_no_tar_is_refused() -> None:
    with pytest.raises(DoctorError, match="it is no tar or ends early"):
        convert(b"Error response from daemon: reference does not exist\n" * 100)


def test_stream_is_read_to_its_end_so_that_the_engine_can_finish() -> None:
    stream = io.BytesIO(legacy(LAYERS) + bytes(3_000_000))
    oci_tar.convert(stream, io.BytesIO(), lambda _: None)
    assert stream.read(1) == b""


def test_bytes_that_were_read_are_told() -> None:
    told: list[int] = []
    oci_tar.convert(io.BytesIO(legacy(LAYERS)), io.BytesIO(), told.append)
    assert sum(told) == sum(len(one) for one in LAYERS)
