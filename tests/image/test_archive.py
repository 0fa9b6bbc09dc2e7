"""--save: with a stand-in for the engine, and with a real daemon that loses the image in between."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import uuid
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.errors import DoctorError
from doctor.image import archive, sbom
from tests.containers.harness import LABEL, Docker, Unavailable
from tests.image.saved_images import TAG, Archive, legacy
from tests.image.test_oci_tar import LAYERS

ENGINE = (sys.executable, str(Path(__file__).with_name("stand_in_saver.py")))
BILL = b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}\n'
Usage = namedtuple("Usage", "total used free")


class StandIn:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "saved.tar").write_bytes(legacy(LAYERS))
        (folder / "sbom").write_bytes(BILL)
        self.plan()

    def plan(self, **changes: Any) -> None:
        (self.folder / "plan.json").write_text(json.dumps({"size": sum(map(len, LAYERS)), **changes}))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def ended(self) -> bool:
        return not Path(f"/proc/{(self.folder / 'pid').read_text()}").exists()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    folder = tmp_path / "engine"
    folder.mkdir()
    monkeypatch.setenv("STAND_IN_ENGINE", str(folder))
    return StandIn(folder)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "image.tar"


def save(file: Path, say: Callable[[str], None] = lambda _: None) -> archive.Saved:
    return archive.save(ENGINE, TAG, file, say)


def names(file: Path) -> list[str]:
    return sorted(p.name for p in file.parent.iterdir())


def test_archive_checksum_and_bill_of_materials_are_written(engine: StandIn, file: Path) -> None:
    said: list[str] = []
    saved = save(file, said.append)
    assert names(file) == ["image.tar", "image.tar.cdx.json", "image.tar.sha256"]
    assert Archive(file.read_bytes()).plain == list(LAYERS)
    checked = subprocess.run(
        ["sha256sum", "-c", "image.tar.sha256"], cwd=file.parent, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout) == (0, "image.tar: OK\n")
    assert saved.sha256 == saved.checksum.read_text().split()[0]
    assert saved.bytes == file.stat().st_size
    assert saved.sbom.read_bytes() == BILL
    assert any("read and compressed" in line for line in said)
    assert "rm --force --volumes 0123abc" in engine.calls


def test_saved_again_it_is_the_same_file(engine: StandIn, file: Path) -> None:
    first = save(file)
    before = file.read_bytes()
    assert save(file) == first
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"cut": 5000, "exit": 1, "error": "write /tmp/x: no space left on device"}, "no space left on device"),
        (
            {"cut": 0, "exit": 1, "error": "Cannot connect to the Docker daemon"},
            "Cannot connect to the Docker daemon",
        ),
        ({"exit": 7}, "failed: exit 7"),
        ({"cut": 5000}, "the engine's archive is not usable"),
        ({"no_image": True}, f"cannot tell the size of {TAG}: Error: No such image: {TAG}"),
    ],
)
def test_failure_leaves_the_old_files_as_they_were(
    engine: StandIn, file: Path, plan: dict[str, Any], said: str
) -> None:
    save(file)
    before = {p.name: p.read_bytes() for p in file.parent.iterdir()}
    engine.plan(**plan)
    with pytest.raises(DoctorError) as failed:
        save(file)
    assert said in str(failed.value)
    assert failed.value.exit_code == 2
    assert {p.name: p.read_bytes() for p in file.parent.iterdir()} == before


def test_image_without_a_bill_of_materials_is_refused_before_it_is_saved(engine: StandIn, file: Path) -> None:
    (engine.folder / "sbom").unlink()
    with pytest.raises(DoctorError, match=r"has no /opt/vllm-doctor/sbom\.cdx\.json: .vllm-doctor build. did not"):
        save(file)
    (engine.folder / "sbom").write_bytes(b'{"bomFormat": "SPDX"}')
    with pytest.raises(DoctorError, match="is not a CycloneDX document"):
        save(file)
    assert [c.split()[0] for c in engine.calls] == ["image", "create", "cp", "rm"] * 2
    assert names(file) == []


def test_room_is_looked_at_first(engine: StandIn, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.plan(size=8 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 5 << 30))
    with pytest.raises(DoctorError) as refused:
        save(file)
    assert str(refused.value) == f"saving {TAG} may need up to 8 GiB in {file.parent}, which has 5 GiB left"
    assert refused.value.exit_code == 2
    assert not [c for c in engine.calls if c.startswith("save")]


def test_copy_that_docker_makes_first_needs_room_too(
    engine: StandIn, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 12 << 30))
    engine.plan(size=8 << 30, root=str(engine.folder))
    with pytest.raises(DoctorError, match="may need up to 16 GiB"):
        save(file)
    engine.plan(size=8 << 30, root=str(engine.folder), status="[[driver-type io.containerd.snapshotter.v1]]")
    save(file)


def test_disk_that_fills_up_meanwhile(engine: StandIn, file: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(DoctorError, match=r"cannot write .*image\.tar: File too large"):
            save(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(file) == []
    assert engine.ended()


def test_interrupt_ends_the_engine_and_leaves_nothing(engine: StandIn, file: Path) -> None:
    engine.plan(cut=3000, sleep=60)

    def say(text: str) -> None:
        if "compressed" in text or "waiting" in text:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        save(file, say)
    assert time.monotonic() - began < 20
    assert names(file) == []
    assert engine.ended()


def test_silent_engine_is_waited_for_aloud_and_given_up(
    engine: StandIn, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "SILENCE_S", 0.5)
    monkeypatch.setattr(archive, "_APART_S", 0.1)
    engine.plan(cut=0, sleep=60)
    said: list[str] = []
    with pytest.raises(DoctorError, match=r"the engine sent nothing for 0\.5 s"):
        save(file, said.append)
    assert "waiting for the engine, which collects the layers first" in said
    assert engine.ended()


def test_rest_of_a_killed_save_is_written_over(engine: StandIn, file: Path) -> None:
    file.with_name(".image.tar.partial").write_bytes(b"x" * 1_000_000)
    save(file)
    assert names(file) == ["image.tar", "image.tar.cdx.json", "image.tar.sha256"]
    Archive(file.read_bytes())


def test_two_saves_to_one_file_do_not_mix(engine: StandIn, file: Path) -> None:
    partial = file.with_name(".image.tar.partial")
    with partial.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"half")
        other.flush()
        with pytest.raises(DoctorError, match=r"another process is writing .*image\.tar"):
            save(file)
        assert partial.read_bytes() == b"half"


def test_place_that_cannot_be_written_is_told_before_anything_is_asked(engine: StandIn, file: Path) -> None:
    os.mkfifo(file.with_name("pipe"))
    for place, said in (
        (file.parent, "it is a folder"),
        (file.parent / "no" / "x.tar", "its folder is missing"),
        (file.with_name("pipe"), "it is not a plain file"),
        (file.with_name("a\nb"), "a checksum file cannot name"),
    ):
        with pytest.raises(DoctorError, match=said):
            save(place)
    assert not (engine.folder / "calls").exists()


def test_engine_that_is_not_there(file: Path) -> None:
    with pytest.raises(DoctorError, match=r"cannot tell the size of .*: No such file or directory"):
        archive.save(("/nowhere/docker",), TAG, file, lambda _: None)


# ------------------------------------------------------------------ a real daemon


@pytest.fixture
def docker(request: pytest.FixtureRequest) -> Iterator[Docker]:
    try:
        found = Docker.find(Path(request.config.cache.mkdir("containers")))
        found.base("bookworm")
    except Unavailable as why:
        pytest.skip(str(why))
    yield found
    found.close()


@pytest.mark.container
@pytest.mark.timeout(600)
def test_image_that_the_daemon_lost_is_loaded_and_runs(
    docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No layer is left when it is loaded: its base is imported for this test alone."""
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    mark = uuid.uuid4().hex[:12]
    base, tag = f"vllm-doctor-test/lost-base:{mark}", f"vllm-doctor-test/lost:{mark}"
    try:
        made = docker("create", "--label", f"{LABEL}={docker.session}", docker.base("bookworm"), "true")
        rootfs = tmp_path / "rootfs.tar"
        assert docker("export", "-o", str(rootfs), made.stdout.strip(), timeout=120).returncode == 0
        with tarfile.open(rootfs, "a") as own:
            own.addfile(tarfile.TarInfo(f"mark-{mark}"))
        assert docker("import", str(rootfs), base, timeout=120).returncode == 0
        rootfs.unlink()
        (tmp_path / "sbom.cdx.json").write_bytes(BILL)
        (tmp_path / "Dockerfile").write_text(
            f"FROM {base}\nCOPY sbom.cdx.json {sbom.EMBEDDED}\n"
            f"RUN useradd --uid 1000 doctor && ln -s /etc/os-release /home/link && echo {mark} >/mark\n"
            'VOLUME /cache\nUSER doctor\nCMD ["sh", "-c", "id -u; cat /mark"]\n'
        )
        built = docker("build", "-q", "-t", tag, str(tmp_path), timeout=300)
        assert built.returncode == 0, built.stderr
        image_id = docker("image", "inspect", "--format", "{{.Id}}", tag).stdout.strip()

        saved = archive.save((docker.client,), tag, tmp_path / "image.tar", lambda _: None)
        again = archive.save((docker.client,), tag, tmp_path / "again.tar", lambda _: None)
        assert saved.sha256 == again.sha256
        assert saved.image_id == image_id
        assert saved.sbom.read_bytes() == BILL
        Archive((tmp_path / "image.tar").read_bytes())

        assert docker("rmi", tag, base).returncode == 0
        assert docker("image", "inspect", image_id).returncode != 0
        loaded = docker("load", "-i", str(tmp_path / "image.tar"), timeout=300)
        assert (loaded.returncode, loaded.stdout.strip()) == (0, f"Loaded image: {tag}"), loaded.stderr
        assert docker("image", "inspect", "--format", "{{.Id}}", tag).stdout.strip() == image_id
        ran = docker.run(tag, docker_args=("--network=none", "--read-only"))
        assert ran.stdout.split() == ["1000", mark], ran.stderr
    finally:
        docker("rmi", "-f", tag, base)


@pytest.mark.container
def test_image_of_somebody_else_has_no_bill_of_materials(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    with pytest.raises(DoctorError, match="did not make it"):
        sbom.of_image((docker.client,), docker.base("bookworm"))
    with pytest.raises(DoctorError, match="No such image"):
        sbom.of_image((docker.client,), "vllm-doctor-test/absent:1")
