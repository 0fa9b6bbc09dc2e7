"""Checks of the area storage on what the probes find."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.facts import StorageFacts
from doctor.finding import Confidence, Severity, Verdict
from doctor.host import network, storage
from doctor.host.examine import Options
from doctor.snapshot import Snapshot
from tests.checks.judging import finding, found, judged, skipped, snapshot
from tests.fakes import FakeHost
from tests.host import linux_hosts
from tests.host.test_storage import DeadMount, lock, model

GIB = 1 << 30


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "resolve", lambda name: "")


class Disk(FakeHost):
    """A host whose file systems have the room a test says, by the top folder of the path."""

    room: dict[str, tuple[int, int]] = {}  # noqa: RUF012  set by each test: free bytes, free inodes
    refuse: tuple[str, ...] = ()
    read_only = False

    def statvfs(self, path: str) -> os.statvfs_result | None:
        free, inodes = self.room.get("/" + path.split("/")[1], (100 * GIB, 1000))
        flag = os.ST_RDONLY if self.read_only else 0
        blocks = free // 4096
        return os.statvfs_result(
            (4096, 4096, 200 * GIB // 4096, blocks, blocks, 100_000, inodes, inodes, flag, 255)
        )

    def access(self, path: str, mode: int) -> bool:
        return not path.startswith(self.refuse) if self.refuse and mode & os.W_OK else super().access(path, mode)


def disk(tmp_path: Path, **settings: object) -> Disk:
    host = Disk(tmp_path, env=linux_hosts.native(tmp_path).env)
    for name, value in settings.items():
        setattr(host, name, value)
    return host


# ---- disk-full


@pytest.mark.parametrize(
    ("free", "inodes", "confidence"),
    [
        (0, 1000, Confidence.PROVEN),
        (15 << 20, 1000, Confidence.PROVEN),
        (GIB, 1000, Confidence.HINT),
        (3 * GIB, 1000, None),
        (50 * GIB, 0, Confidence.PROVEN),
    ],
)
def test_room(tmp_path: Path, free: int, inodes: int, confidence: Confidence | None) -> None:
    result = finding("disk-full", snapshot(disk(tmp_path, room={"/home": (free, inodes)})))
    assert (result.confidence if result else None) == confidence
    if result:
        assert "/home/ana/.cache" in result.summary
        assert ("no inode" in result.summary.lower()) is (inodes == 0)


def test_a_full_tmp_is_named_and_a_read_only_file_system_is_not_full(tmp_path: Path) -> None:
    seen = snapshot(disk(tmp_path / "a", room={"/tmp": (0, 5)}))
    assert "/tmp" in found("disk-full", seen).summary
    assert judged("disk-full", seen).verdict is Verdict.BLOCKED
    image = snapshot(disk(tmp_path / "b", room={"/home": (0, 0), "/tmp": (0, 0)}, read_only=True))
    assert skipped("disk-full", image)


# ---- cache-folder-not-writable


def test_a_cache_of_another_user(tmp_path: Path) -> None:
    cause = "cache-folder-not-writable"
    host = disk(tmp_path, refuse=("/home/ana/.cache/vllm",))
    host.write("/home/ana/.cache/vllm/.keep", "")
    result = found(cause, snapshot(host))
    assert (result.confidence, result.severity) == (Confidence.PROVEN, Severity.BLOCKER)
    assert result.fixes[0].commands == (("sudo", "chown", "-R", "1000", "/home/ana/.cache/vllm"),)
    assert "VLLM_CACHE_ROOT" in result.fixes[1].summary


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    result = found("cache-folder-not-writable", snapshot(disk(tmp_path, refuse=("/home",))))
    assert "cannot be made by this user" in result.summary
    assert "triton cache" in result.summary


def test_a_hub_cache_that_is_only_read_may_be_read_only(tmp_path: Path) -> None:
    cause = "cache-folder-not-writable"
    host = disk(tmp_path, refuse=("/home/ana/.cache/huggingface",))
    host.write("/home/ana/.cache/huggingface/hub/.keep", "")
    assert found(cause, snapshot(host)).severity is Severity.DEGRADES
    assert finding(cause, snapshot(host, Options(model=model(host)))) is None
    assert finding(cause, snapshot(disk(tmp_path / "b"))) is None


# ---- mount-not-answering


def test_a_dead_mount(tmp_path: Path) -> None:
    plain = linux_hosts.native(tmp_path)
    plain.write("/proc/self/mountinfo", linux_hosts.MOUNTS + "90 27 0:77 / /data rw - nfs4 nas:/export rw\n")
    host = DeadMount(tmp_path, env={**plain.env, "HF_HOME": "/data/hf"})
    seen = snapshot(host)
    result = found("mount-not-answering", seen)
    assert "does not answer (nfs4 at /data)" in result.summary
    assert result.confidence is Confidence.LIKELY
    assert finding("disk-full", seen) is None
    assert finding("cache-folder-not-writable", seen) is None
    assert finding("mount-not-answering", snapshot(linux_hosts.native(tmp_path / "b"))) is None


# ---- model-path-invalid, model-files-incomplete


def test_model_paths(tmp_path: Path) -> None:
    cause = "model-path-invalid"
    host = linux_hosts.native(tmp_path)
    gone = found(cause, snapshot(host, Options(model="/models/gone")))
    assert gone.confidence is Confidence.PROVEN
    assert "/models/gone does not exist;" in gone.summary
    host.write("/models/bare/readme.md", "")
    assert "no config.json" in found(cause, snapshot(host, Options(model="/models/bare"))).summary
    assert finding(cause, snapshot(host, Options(model=model(host)))) is None
    assert finding(cause, snapshot(host, Options(model="QuantTrio/Qwen3.5-9B-AWQ"))) is None
    assert skipped(cause, snapshot(host))


def test_a_path_of_the_host_inside_a_container(tmp_path: Path) -> None:
    host = linux_hosts.docker_container(tmp_path)
    assert "in this container" in found("model-path-invalid", snapshot(host, Options(model="/mnt/m"))).summary


def test_incomplete_models(tmp_path: Path) -> None:
    cause = "model-files-incomplete"
    host = linux_hosts.native(tmp_path)
    folder = model(host)
    assert finding(cause, snapshot(host, Options(model=folder))) is None
    host.write(f"{folder}/model-00002-of-00002.safetensors", "version https://git-lfs.github.com/spec/v1\n")
    os.unlink(host._path(f"{folder}/model-00001-of-00002.safetensors"))
    result = found(cause, snapshot(host, Options(model=folder)))
    assert "model-00001-of-00002.safetensors: missing and 1 more" in result.summary
    assert "Git LFS pointer" in result.evidence[1].value
    assert skipped(cause, snapshot(host))


# ---- flashqla-stale-build-lock


def test_locks(tmp_path: Path) -> None:
    cause = "flashqla-stale-build-lock"
    host = linux_hosts.native(tmp_path)
    assert finding(cause, snapshot(host)) is None
    other = lock(host, "/home/ana/.cache/torch_extensions/py311_cu128/exllama/lock")
    assert found(cause, snapshot(host)).confidence is Confidence.LIKELY
    path = lock(host, "/home/ana/.cache/torch_extensions/py311_cu128/flash_qla_legacy_gdn/lock")
    result = found(cause, snapshot(host))
    assert result.confidence is Confidence.PROVEN
    assert path in result.summary
    assert ("mv", "--", path, f"{path}.stale") in result.fixes[0].commands
    assert ("mv", "--", other, f"{other}.stale") in result.fixes[0].commands
    host.write("/.dockerenv", "")
    assert found(cause, snapshot(host)).confidence is Confidence.LIKELY
    host.write("/proc/99/comm", "ninja\n")
    assert finding(cause, snapshot(host)) is None


def test_unknown_is_never_ok(tmp_path: Path) -> None:
    empty = Snapshot(origin="evidence")
    for cause in ("disk-full", "cache-folder-not-writable", "mount-not-answering", "flashqla-stale-build-lock"):
        assert skipped(cause, empty)
        assert skipped(cause, replace(empty, storage=StorageFacts()))


def test_the_deadline_of_places_is_short() -> None:
    assert storage.PLACES_DEADLINE_S <= 1.0
