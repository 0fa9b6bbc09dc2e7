"""Where models and caches live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mount:
    """A place that matters. ``role``: "model cache", "vllm cache", "triton cache", "tmp", "model", "docker"."""

    role: str
    path: str
    exists: bool | None = None
    writable: bool | None = None
    fstype: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    inodes_free: int | None = None
    read_only: bool | None = None  # the file system is mounted read-only
    real_path: str | None = None  # with links resolved, when that differs
    error: str | None = None  # a dead mount answers with a time-out


@dataclass(frozen=True)
class StorageFacts:
    """Model and cache folders, and build locks left behind."""

    mounts: tuple[Mount, ...] | None = None
    model_path: str | None = None  # as asked for with --model
    model_exists: bool | None = None
    model_has_config: bool | None = None
    model_type: str | None = None
    model_largest_file_bytes: int | None = None
    model_weights_bytes: int | None = None
    model_is_hub_name: bool | None = None  # an "owner/name", not a folder
    model_folder: str | None = None  # the folder looked at: as given, or its snapshot in the hub cache
    model_missing_files: tuple[str, ...] | None = None  # shards that the index names and nobody has
    model_bad_files: tuple[str, ...] | None = None  # "name: why" of weights files that cannot be whole
    stale_locks: tuple[str, ...] | None = None  # build lock files older than some minutes with no build running
    fresh_locks: tuple[str, ...] | None = None  # lock files that may belong to a running build
    hf_home: str | None = None
    hf_token_present: bool | None = None  # never its value
    hf_offline: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # HF_* names and values, secrets never
    sources: Mapping[str, str] = field(default_factory=dict)
