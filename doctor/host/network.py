"""Probe of proxies, the model hub's name and the serving port. No request leaves the machine but DNS's."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from doctor.facts import NetworkFacts
from doctor.host import listeners
from doctor.host.access import Host
from doctor.host.examine import Options
from doctor.host.parts import Bounded, Read, gather

#: Seconds a name server may take; the usual resolver itself waits 5 s before it asks again.
RESOLVE_DEADLINE_S = 2.0
DEFAULT_ENDPOINT = "https://huggingface.co"
#: vLLM's own default for ``--port``.
DEFAULT_PORT = 8000
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """Returns ``{"network": NetworkFacts}``."""
    calls = Bounded(RESOLVE_DEADLINE_S * options.deadline_scale)
    name = _hub_host(host.env)
    asked = name is not None and not _offline(host.env) and not options.inside_image
    if asked:
        calls.start("hub", partial(resolve, name or ""))

    def hub() -> dict[str, Read]:
        return _answer(calls, name or "") if asked else {}

    # the port is looked at while the name server thinks
    values, sources = gather(
        (partial(_proxies, host), partial(_endpoint, host), partial(_port, host, options), hub)
    )
    return {"network": NetworkFacts(**values, sources=sources)}


def resolve(name: str) -> str:
    """One name resolution as every program does it. Returns "" or the error. Tests replace this function."""
    try:
        socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return str(error.strerror or error)
    except (OSError, UnicodeError) as error:
        return str(error)
    return ""


def _answer(calls: Bounded, name: str) -> dict[str, Read]:
    source = f"getaddrinfo {name}"
    try:
        error: str = calls.result("hub")
    except TimeoutError:
        return {"hub_error": Read("the name servers do not answer", source)}
    facts = {"hub_resolves": Read(error == "", source)}
    if error:
        facts["hub_error"] = Read(error[:200], source)
    return facts


def _offline(env: Mapping[str, str]) -> bool:
    return (env.get("HF_HUB_OFFLINE") or env.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def _hub_host(env: Mapping[str, str]) -> str | None:
    try:
        return urlsplit(env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).hostname
    except ValueError:
        return None


def _endpoint(host: Host) -> dict[str, Read]:
    return {
        "hub_endpoint": Read(without_credentials(host.env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT), "HF_ENDPOINT")
    }


def without_credentials(url: str) -> str:
    """A URL or host:port without user and password."""
    return re.sub(r"(^|//)[^/@\s]*@", r"\1", url)[:300]


def _proxies(host: Host) -> dict[str, Read]:
    proxies = {}
    for scheme in ("http", "https", "all"):
        # the lower-case name wins in curl, requests and urllib
        value = host.env.get(f"{scheme}_proxy") or host.env.get(f"{scheme.upper()}_PROXY")
        if value:
            shown = without_credentials(value.strip())
            proxies[scheme] = re.sub(r"^[a-z0-9]+://", "", shown).partition("/")[0]
    no_proxy = host.env.get("no_proxy") or host.env.get("NO_PROXY") or ""
    return {"proxies": Read(proxies, "environment"), "no_proxy": Read(no_proxy[:300], "NO_PROXY")}


def _port(host: Host, options: Options) -> dict[str, Read]:
    port = options.port or DEFAULT_PORT
    source = "--port" if options.port else "default"
    return {
        "port": Read(port, source),
        "port_given": Read(options.port is not None, source),
        **listeners.facts(host, port),
    }
