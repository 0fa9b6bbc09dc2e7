"""Container engines on this host (or reachable from it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ContainerFacts:
    """Docker client and daemon, GPU runtime, CDI. ``daemon`` is None when nothing could be asked."""

    docker_client: str | None = None  # path of the client ("" = none)
    docker_client_version: str | None = None
    podman: str | None = None  # path ("" = none)
    daemon_reachable: bool | None = None
    daemon_error: str | None = None  # one line
    daemon_permission_denied: bool | None = None
    daemon_version: str | None = None
    daemon_name: str | None = None  # "Docker Desktop", "rootless", "system"
    docker_host: str | None = None  # socket or URL asked (no credentials)
    rootless: bool | None = None
    desktop: bool | None = None
    runtimes: tuple[str, ...] | None = None
    default_runtime: str | None = None
    cdi_enabled: bool | None = None
    cdi_dirs: tuple[str, ...] = ()
    cdi_nvidia_devices: tuple[str, ...] | None = None
    toolkit_version: str | None = None  # nvidia-ctk --version ("" = not installed)
    cgroup_driver: str | None = None
    cgroup_version: str | None = None
    storage_driver: str | None = None
    data_root: str | None = None
    data_free_bytes: int | None = None
    daemon_json_path: str | None = None
    daemon_json_valid: bool | None = None  # None: absent
    daemon_json_runtimes: tuple[str, ...] | None = None
    dev_char_nvidia_links: bool | None = None
    gpu_container_ok: bool | None = None  # --deep only
    gpu_container_output: str | None = None
    gpu_container_skipped: str | None = None  # why a --deep run did not start one
    docker_context: str | None = None  # name of the client's context, when one is chosen
    docker_socket_group: str | None = None  # group that owns the daemon's socket
    nvidia_hook: str | None = None  # path of nvidia-container-runtime-hook, which --gpus needs ("" = none)
    container_cli_version: str | None = None  # nvidia-container-cli --version
    cdi_files: tuple[str, ...] | None = None  # files in the CDI folders that describe NVIDIA devices
    data_total_bytes: int | None = None
    daemon_json_default_runtime: str | None = None
    daemon_json_error: str | None = None  # why it is not valid: line and reason
    sources: Mapping[str, str] = field(default_factory=dict)
