"""Proxy, hub and the serving port. No request leaves the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NetworkFacts:
    """``port_listener`` names the program that listens on the serving port, when it may be known."""

    proxies: Mapping[str, str] = field(default_factory=dict)  # scheme -> host:port, credentials removed
    no_proxy: str | None = None
    hub_endpoint: str | None = None  # HF_ENDPOINT or the default
    hub_resolves: bool | None = None  # name resolution only
    hub_error: str | None = None
    port: int | None = None
    port_given: bool | None = None  # asked for with --port; else the default is looked at
    port_taken: bool | None = None
    port_listener: str | None = None
    port_listener_pid: int | None = None
    port_listener_age_s: float | None = None
    port_listener_is_vllm: bool | None = None
    port_address: str | None = None  # address it listens on, "0.0.0.0:8000"
    sources: Mapping[str, str] = field(default_factory=dict)
