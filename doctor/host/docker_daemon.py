"""One conversation with a Docker daemon, with a deadline. Used by the container probe only.

The daemon that matters is the one the docker client would ask: DOCKER_HOST, else DOCKER_CONTEXT, else the
context chosen in the client's configuration, else the default socket
(https://docs.docker.com/engine/manage-resources/contexts/). A daemon on another machine is named and not asked:
no request leaves this machine, and its facts would not be this host's.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from doctor.host.access import Host

DEFAULT_SOCKET = "/var/run/docker.sock"

T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """Where the client would go. ``chosen_by`` says what decided it; ``context`` is its name, if any."""

    url: str
    chosen_by: str
    context: str | None = None

    @property
    def socket_path(self) -> str | None:
        """The path of a Unix socket, or None for another transport."""
        return self.url[len("unix://") :] if self.url.startswith("unix://") else None

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        head, mark, rest = self.url.partition("://")
        return f"{head}{mark}{rest.rpartition('@')[2]}" if mark else self.url


@dataclass(frozen=True)
class Answer:
    """What came back. ``info`` is the daemon's own /info document; ``error`` one line when there is none."""

    info: Mapping[str, Any] | None = None
    version: Mapping[str, Any] | None = None
    error: str | None = None
    denied: bool | None = None  # the socket refused this user
    reachable: bool | None = None  # None: not asked


def endpoint(host: Host) -> Endpoint:
    """The daemon that the docker client on this host would ask, by the client's own order of precedence."""
    env = host.env
    if env.get("DOCKER_HOST"):
        return Endpoint(_url(env["DOCKER_HOST"]), "DOCKER_HOST")
    folder = env.get("DOCKER_CONFIG") or (env.get("HOME", "") + "/.docker")
    name, chosen_by = env.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    if not name:
        name, chosen_by = str(_object(host.read(f"{folder}/config.json")).get("currentContext") or ""), "context"
    if name and name != "default":
        meta = f"{folder}/contexts/meta/{hashlib.sha256(name.encode()).hexdigest()}/meta.json"
        docker = _object(_object(host.read(meta)).get("Endpoints")).get("docker")
        url = _object(docker).get("Host")
        if isinstance(url, str) and url:
            return Endpoint(_url(url), chosen_by, name)
        return Endpoint("", f"{chosen_by} {name}, which has no docker endpoint in {meta}", name)
    own = f"{env['XDG_RUNTIME_DIR']}/docker.sock" if env.get("XDG_RUNTIME_DIR") else ""
    if own and host.exists(own) and not host.exists(DEFAULT_SOCKET):
        return Endpoint(f"unix://{own}", "the rootless daemon's socket (the client needs DOCKER_HOST for it)")
    return Endpoint(f"unix://{DEFAULT_SOCKET}", "default socket")


def ask(place: Endpoint, host: Host, seconds: float) -> Answer:
    """Asks for /info and /version. Ends within ``seconds`` whatever the daemon does."""
    if not place.url:
        return Answer(error=f"no address: chosen by {place.chosen_by}", reachable=False)
    refusal = _not_here(place)
    if refusal:
        return Answer(error=refusal)
    began = time.monotonic()
    problem = _connect(place, host, min(1.0, seconds))
    if problem is not None:
        return problem
    sdk = load_sdk()
    if isinstance(sdk, str):
        return Answer(error=sdk, denied=False, reachable=None)
    left = max(0.2, seconds - (time.monotonic() - began))
    answer = within(left, lambda: _talk(sdk, place, host, left))
    if answer is None:
        return Answer(
            error=f"accepts connections and does not answer within {seconds:g} s", denied=False, reachable=False
        )
    return answer


def load_sdk() -> Any:
    """The Docker SDK, or one line that says why there is none.

    A folder called ``docker`` in the current directory or on PYTHONPATH becomes an empty namespace package when
    the SDK is not installed, so a successful import alone proves nothing.
    """
    try:
        sdk = importlib.import_module("docker")
    except ImportError as error:
        return f"the docker Python package cannot be imported: {error}"
    if not hasattr(sdk, "DockerClient") or not hasattr(sdk, "APIClient"):
        where = ", ".join(getattr(sdk, "__path__", ())) or "somewhere"
        return f"the docker Python package is not installed (a folder named docker at {where} is not it)"
    return sdk


def within(seconds: float, function: Callable[[], T]) -> T | None:
    """The function's result, or None when it has not ended in time; it is then left behind in its thread."""
    box: list[T] = []
    thread = threading.Thread(target=lambda: box.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    return box[0] if box else None


def base_url(place: Endpoint, host: Host) -> str:
    """The address for the SDK, with a socket moved below the host's root."""
    path = place.socket_path
    return place.url if path is None else f"unix://{host.local_path(path)}"


def _talk(sdk: Any, place: Endpoint, host: Host, seconds: float) -> Answer | None:
    try:
        api = sdk.APIClient(
            base_url=base_url(place, host),
            # a fixed version spares a request; the requests below carry none, so the daemon's newest fields come
            version=importlib.import_module("docker.constants").DEFAULT_DOCKER_API_VERSION,
            timeout=seconds,
            tls=_tls(host.env),
        )
    except Exception as error:  # noqa: BLE001  the SDK raises its own and requests' and ssl's errors
        return Answer(error=_line(error), denied=False, reachable=False)
    try:
        api.trust_env = False  # a proxy must never stand between this process and a daemon on this machine
        info = _get(api, "/info")
        return Answer(info=info, version=_get(api, "/version"), denied=False, reachable=True)
    except Exception as error:  # noqa: BLE001  see above
        if (
            type(error).__name__ == "ReadTimeout"
        ):  # of requests: no answer, like none within the time of the thread
            return None
        return Answer(error=_line(error), denied=False, reachable=False)
    finally:
        api.close()


def _get(api: Any, path: str) -> Mapping[str, Any]:
    reply = api.get(api.base_url + path, timeout=api.timeout)
    if reply.status_code != 200:
        raise ValueError(f"HTTP {reply.status_code} on {path}: {' '.join(reply.text.split())[:160]}")
    document = json.loads(reply.text)
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not an object")
    return document


def _connect(place: Endpoint, host: Host, seconds: float) -> Answer | None:
    """None when a connection opens; otherwise why not, told by errno and never by a message's wording."""
    path = place.socket_path
    try:
        if path is not None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
                unix.settimeout(seconds)
                unix.connect(host.local_path(path))
        else:
            parts = urlsplit(place.url)
            socket.create_connection((parts.hostname or "", parts.port or 2375), timeout=seconds).close()
    except PermissionError:
        return Answer(error=f"permission denied on {place.shown}", denied=True, reachable=False)
    except (OSError, ValueError, OverflowError) as error:
        number = getattr(error, "errno", None)
        why = {
            errno.ENOENT: "no such socket",
            errno.ECONNREFUSED: "connection refused: no daemon listens",
            errno.ENOTSOCK: "not a socket",
        }.get(number or 0, str(error) or type(error).__name__)
        if isinstance(error, TimeoutError):
            why = "the connection was not accepted in time"
        return Answer(error=f"{place.shown}: {why}", denied=False, reachable=False)
    return None


def _not_here(place: Endpoint) -> str | None:
    """Why a daemon is not asked: it is, or may be, on another machine."""
    scheme = place.url.partition("://")[0]
    if scheme == "unix":
        return None
    if scheme in ("tcp", "http", "https"):
        name = urlsplit(place.url).hostname or ""
        try:
            if name == "localhost" or ipaddress.ip_address(name).is_loopback:
                return None
        except ValueError:
            pass
        return f"not asked: {place.shown} is another machine, whose GPU is not this one's"
    return f"not asked: the transport of {place.shown} leads elsewhere"


def _url(text: str) -> str:
    """The client's own shorthand: an address without a scheme is tcp."""
    return text if "://" in text else f"tcp://{text}"


def _tls(env: Mapping[str, str]) -> Any:
    if not env.get("DOCKER_TLS_VERIFY"):
        return False
    folder = env.get("DOCKER_CERT_PATH") or os.path.join(env.get("HOME", ""), ".docker")
    tls = importlib.import_module("docker.tls")
    pair = (os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem"))
    return tls.TLSConfig(client_cert=pair, ca_cert=os.path.join(folder, "ca.pem"), verify=True)


def _line(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "the answer is not JSON: this is not a Docker daemon"
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _object(value: Any) -> Mapping[str, Any]:
    """A JSON object out of text or a parsed value; empty when it is anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
