"""Caches, model folders, weights that are not whole, build locks, dead mounts."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import pytest

from doctor.facts import Mount, StorageFacts
from doctor.host import storage
from doctor.host.examine import Options
from tests.fakes import FakeHost
from tests.host import linux_hosts

OLD = 1_800_000_000.0 - 3600


def facts(host: FakeHost, **options: str) -> StorageFacts:
    found = storage.probe(host, Options(**options))["storage"]  # type: ignore[arg-type]
    assert isinstance(found, StorageFacts)
    assert not [name for name in found.sources if name.startswith("!")], found.sources
    return found


def place(seen: StorageFacts, role: str) -> Mount:
    return next(m for m in seen.mounts or () if m.role == role)


def safetensors(size: int, cut: int = 0) -> bytes:
    header = json.dumps({"a": {"dtype": "F16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size - cut)


def test_the_defaults(tmp_path: Path) -> None:
    seen = facts(linux_hosts.native(tmp_path))
    assert {m.role: m.path for m in seen.mounts or ()} == {
        "model cache": "/home/ana/.cache/huggingface/hub",
        "vllm cache": "/home/ana/.cache/vllm",
        "triton cache": "/home/ana/.triton/cache",
        "torchinductor cache": "/tmp/torchinductor_ana",
        "torch extensions": "/home/ana/.cache/torch_extensions",
        "flashinfer cache": "/home/ana/.cache/flashinfer",
        "tmp": "/tmp",
    }
    cache = place(seen, "model cache")
    assert (cache.exists, cache.writable, cache.fstype, cache.error) == (False, True, "ext4", None)
    assert (cache.free_bytes or 0) > 0
    assert (seen.hf_token_present, seen.hf_offline, seen.stale_locks) == (False, False, ())


def test_variables_move_the_caches(tmp_path: Path) -> None:
    env = {
        "HF_HOME": "~/hf",
        "VLLM_CACHE_ROOT": "/data/$USER/vllm",
        "TRITON_CACHE_DIR": "/data/triton",
        "TMPDIR": "/data/tmp",
        "XDG_CACHE_HOME": "/data/xdg",
    }
    roles = {m.role: m.path for m in facts(linux_hosts.native(tmp_path, env)).mounts or ()}
    assert roles["model cache"] == "/home/ana/hf/hub"
    assert roles["vllm cache"] == "/data/ana/vllm"
    assert roles["triton cache"] == "/data/triton"
    assert roles["torchinductor cache"] == "/data/tmp/torchinductor_ana"
    assert roles["torch extensions"] == "/data/xdg/torch_extensions"


def test_a_linked_cache_is_judged_where_it_really_lies(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/proc/self/mountinfo", linux_hosts.MOUNTS + "90 27 0:77 / /data rw - xfs /dev/sdb1 rw\n")
    host.write("/data/hub/.keep", "")
    host.link("/home/ana/.cache/huggingface/hub", "/data/hub")
    cache = place(facts(host), "model cache")
    assert (cache.fstype, cache.real_path, cache.exists) == ("xfs", "/data/hub", True)


def test_secrets_are_seen_and_never_kept(tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnop"
    env = {"HF_TOKEN": secret, "HF_ENDPOINT": f"https://ana:{secret}@mirror.example", "HF_HUB_OFFLINE": "1"}
    seen = facts(linux_hosts.native(tmp_path, env))
    assert (seen.hf_token_present, seen.hf_offline) == (True, True)
    assert seen.env == {"HF_ENDPOINT": "https://mirror.example", "HF_HUB_OFFLINE": "1"}
    assert secret not in repr(seen)


def test_a_token_file_is_enough_and_an_empty_one_is_not(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/home/ana/.cache/huggingface/token", "")
    assert facts(host).hf_token_present is False
    host.write("/home/ana/.cache/huggingface/token", "hf_x")
    assert facts(host).hf_token_present is True


def model(host: FakeHost, folder: str = "/models/q") -> str:
    host.write(f"{folder}/config.json", '{"model_type": "qwen3_5"}')
    host.write(f"{folder}/model-00001-of-00002.safetensors", safetensors(4000))
    host.write(f"{folder}/model-00002-of-00002.safetensors", safetensors(2000))
    index = {
        "metadata": {"total_size": 6000},
        "weight_map": {f"w{i}": f"model-0000{i}-of-00002.safetensors" for i in (1, 2)},
    }
    host.write(f"{folder}/model.safetensors.index.json", json.dumps(index))
    return folder


def test_a_whole_model(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    seen = facts(host, model=model(host))
    assert (seen.model_exists, seen.model_has_config, seen.model_type) == (True, True, "qwen3_5")
    assert seen.model_weights_bytes == 6000
    assert 4000 < (seen.model_largest_file_bytes or 0) < 4200
    assert (seen.model_missing_files, seen.model_bad_files) == ((), ())
    assert place(seen, "model").path == "/models/q"


def test_a_relative_path_is_below_the_working_folder(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    model(host, "/home/ana/q")
    assert facts(host, model="q").model_folder == "/home/ana/q"
    assert facts(host, model="~/q").model_folder == "/home/ana/q"


def test_a_missing_folder_and_one_without_config(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    assert facts(host, model="/models/none").model_exists is False
    host.write("/models/bare/readme", "")
    assert facts(host, model="/models/bare").model_has_config is False
    host.write("/models/broken/config.json", '{"model_type": ')
    assert facts(host, model="/models/broken").model_has_config is False


def test_a_folder_without_any_weights(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/models/bare/config.json", '{"model_type": "qwen3_5"}')
    host.write("/models/bare/training_args.bin", "x")
    seen = facts(host, model="/models/bare")
    assert (seen.model_missing_files, seen.model_weights_bytes) == (("every weights file (*.safetensors)",), None)
    host.write("/models/bare/model.tensors", "x")  # for --load-format tensorizer
    assert facts(host, model="/models/bare").model_missing_files is None


def test_a_hub_name_is_looked_for_in_the_cache(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    seen = facts(host, model="QuantTrio/Qwen3.5-9B-AWQ")
    assert (seen.model_is_hub_name, seen.model_exists) == (True, None)
    repository = "/home/ana/.cache/huggingface/hub/models--QuantTrio--Qwen3.5-9B-AWQ"
    commit = "0123456789abcdef0123456789abcdef01234567"
    host.write(f"{repository}/refs/main", commit)
    model(host, f"{repository}/snapshots/{commit}")
    seen = facts(host, model="QuantTrio/Qwen3.5-9B-AWQ")
    assert (seen.model_exists, seen.model_weights_bytes) == (True, 6000)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n", "Git LFS pointer"),
        (b"", "empty"),
        (safetensors(4000, cut=1000), "cut off: "),
        (b"<html>404</html>", "cut off or no safetensors"),
    ],
)
def test_weights_that_are_not_whole(tmp_path: Path, content: bytes, why: str) -> None:
    host = linux_hosts.native(tmp_path)
    folder = model(host)
    host.write(f"{folder}/model-00002-of-00002.safetensors", content)
    bad = facts(host, model=folder).model_bad_files or ()
    assert len(bad) == 1
    assert bad[0].startswith("model-00002-of-00002.safetensors: ")
    assert why in bad[0]


def test_a_shard_that_nobody_has_and_a_link_to_nowhere(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    folder = model(host)
    os.unlink(host._path(f"{folder}/model-00001-of-00002.safetensors"))
    assert facts(host, model=folder).model_missing_files == ("model-00001-of-00002.safetensors",)
    host.link(f"{folder}/model-00001-of-00002.safetensors", "/models/blobs/gone")
    assert facts(host, model=folder).model_missing_files == ("model-00001-of-00002.safetensors",)


def test_one_gguf_file(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/models/q.gguf", b"GGUF" + bytes(96))
    seen = facts(host, model="/models/q.gguf")
    assert (seen.model_weights_bytes, seen.model_has_config) == (100, None)


def lock(host: FakeHost, path: str, when: float = OLD) -> str:
    host.write(path, "")
    os.utime(host._path(path), (when, when))
    return path


def test_a_stale_lock(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    path = lock(host, "/home/ana/.cache/torch_extensions/py311_cu128/flash_qla_legacy_gdn/lock")
    assert facts(host).stale_locks == (path,)


def test_locks_of_the_forks_tree(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    host.write("/srv/fork/PROJECT_RELEASE.env", "FORK_RELEASE=0.1.17\n")
    inside = ".deps/FlashQLA/.torch_extensions_vllm_flashqla_legacy/py311_cu128/flash_qla_legacy_gdn/lock"
    path = lock(host, f"/srv/fork/{inside}")
    assert facts(host).stale_locks == ()
    assert facts(host, python="/srv/fork/.venv/bin/python").stale_locks == (path,)


def test_a_young_lock_or_a_running_compiler_is_not_stale(tmp_path: Path) -> None:
    host = linux_hosts.native(tmp_path)
    path = lock(host, "/home/ana/.cache/torch_extensions/py311_cu128/flash_qla_legacy_gdn/lock", host.time() - 60)
    assert (facts(host).stale_locks, facts(host).fresh_locks) == ((), (path,))
    lock(host, path)
    host.write("/proc/4711/comm", "cicc\n")
    assert (facts(host).stale_locks, facts(host).fresh_locks) == ((), (path,))


class DeadMount(FakeHost):
    """A network mount at /data whose server is gone: every call that touches it blocks."""

    def _block(self, path: str) -> None:
        if path.startswith("/data"):
            time.sleep(30)

    def stat(self, path: str) -> os.stat_result | None:
        self._block(path)
        return super().stat(path)

    def statvfs(self, path: str) -> os.statvfs_result | None:
        self._block(path)
        return super().statvfs(path)

    def exists(self, path: str) -> bool:
        self._block(path)
        return super().exists(path)

    def realpath(self, path: str) -> str:
        self._block(path)
        return super().realpath(path)

    def listdir(self, path: str) -> tuple[str, ...]:
        self._block(path)
        return super().listdir(path)


def test_a_dead_mount_costs_only_itself(tmp_path: Path) -> None:
    plain = linux_hosts.native(tmp_path)
    env = {**plain.env, "HF_HOME": "/data/hf"}
    plain.write("/proc/self/mountinfo", linux_hosts.MOUNTS + "90 27 0:77 / /data rw - nfs4 nas:/export rw\n")
    host = DeadMount(tmp_path, env=env)
    began = time.monotonic()
    seen = storage.probe(host, Options(model="/data/models/q"))["storage"]
    assert time.monotonic() - began < 2.0
    cache = place(seen, "model cache")
    assert (cache.fstype, cache.error) == ("nfs4", "does not answer (nfs4 at /data)")
    assert place(seen, "model").error
    assert place(seen, "vllm cache").error is None
    assert place(seen, "vllm cache").free_bytes
    assert seen.model_path == "/data/models/q"
    assert seen.model_exists is None


class Hidden(FakeHost):
    """A host that hides its processes (/proc mounted with hidepid, or not at all)."""

    def listdir(self, path: str) -> tuple[str, ...]:
        return () if path == "/proc" else super().listdir(path)


def test_no_lock_is_stale_when_builds_cannot_be_seen(tmp_path: Path) -> None:
    host = Hidden(tmp_path, env=linux_hosts.native(tmp_path).env)
    path = lock(host, "/home/ana/.cache/torch_extensions/py311_cu128/flash_qla_legacy_gdn/lock")
    assert (facts(host).stale_locks, facts(host).fresh_locks) == ((), (path,))
