"""Asks an image registry which manifest a tag names: HTTP API v2, without login, nothing but manifests.

The digest is that of the bytes received, never what a header says. Proxies and CA bundles are those of the
environment, as for every program that uses Python's own HTTP. No credential is read or sent.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Seconds for one request, from its start to its last byte.
DEADLINE_S = 20.0
#: The distribution specification lets a registry refuse manifests of more than 4 MiB.
LARGEST_MANIFEST_BYTES = 4 << 20
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*\Z")
_TAG = re.compile(r"\w[\w.-]{0,127}\Z", re.ASCII)
_LOOPBACK = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?\Z")
_PIECE = 1 << 16


class WebError(Exception):
    """A request that brought no usable answer; the text says why. ``code``: the HTTP status, if any."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class Reference:
    """``registry/repository:tag`` in parts."""

    registry: str
    repository: str
    tag: str

    @property
    def base(self) -> str:
        """Where the registry's API is. As for Docker, plain HTTP is only for this machine itself."""
        # the name docker.io has a website; the registry is elsewhere
        host = "registry-1.docker.io" if self.registry == "docker.io" else self.registry
        return f"{'http' if _LOOPBACK.match(host) else 'https'}://{host}/v2/{self.repository}"


@dataclass(frozen=True)
class Manifest:
    """What a tag or digest names. ``platforms``: of an index, (platform, digest) of each; else empty."""

    digest: str
    media_type: str
    platforms: tuple[tuple[str, str], ...] = ()


def parse(reference: str) -> Reference:
    """The parts of an image reference with a tag; ValueError when it is none."""
    first, slash, rest = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry = first
    else:
        registry, rest = "docker.io", reference
    repository, _, tag = rest.partition(":")
    if registry == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    if not _REPOSITORY.match(repository) or not _TAG.match(tag):
        raise ValueError(f"{reference!r} is not an image reference with a tag")
    return Reference(registry, repository, tag)


class Registry:
    """One repository of one registry; the token of the first request serves the others."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._token: str | None = None

    def manifest(self, name: str) -> Manifest:
        """The manifest of a tag or digest; WebError says why there is none."""
        url = f"{self._reference.base}/manifests/{name}"
        try:
            media_type, data = self._get(url)
        except _Unauthorised as error:
            self._token = self._fetch_token(error.challenge)
            try:
                media_type, data = self._get(url)
            except _Unauthorised:
                raise WebError(
                    f"{self._reference.registry} wants a login for it; none is used here", 401
                ) from None
        return _manifest(media_type, data, name, self._reference.registry)

    def _get(self, url: str) -> tuple[str, bytes]:
        headers = {"Accept": ", ".join((*INDEXES, *MANIFESTS))}
        return get(url, headers, LARGEST_MANIFEST_BYTES, bearer=self._token)

    def _fetch_token(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        fields = {k.lower(): v for k, v in re.findall(r'(\w+)="([^"]*)"', rest)}
        realm = fields.get("realm", "")
        secure = self._reference.base.startswith("https://")
        if scheme.lower() != "bearer" or not realm.startswith(
            ("https://",) if secure else ("https://", "http://")
        ):
            raise WebError(f"{self._reference.registry} wants a login that this does not know", 401)
        query = {"scope": fields.get("scope") or f"repository:{self._reference.repository}:pull"}
        if fields.get("service"):
            query["service"] = fields["service"]
        address = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}"
        try:
            data = as_json(get(address, {}, 1 << 20)[1])
        except _Unauthorised:
            raise WebError(f"{self._reference.registry} gives out no token without a login", 401) from None
        token = data.get("token") or data.get("access_token") if data is not None else None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise WebError(f"{_host(realm)} does not answer as a token service does")
        return token


def get(url: str, headers: Mapping[str, str], limit: int, bearer: str | None = None) -> tuple[str, bytes]:
    """(content type, body) of a URL within DEADLINE_S seconds; WebError otherwise, also beyond ``limit`` bytes."""
    host = _host(url)
    began = time.monotonic()
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "vllm-doctor", **headers})  # noqa: S310
        if bearer is not None:
            # a redirect may lead to another host, which has no business with the token
            request.add_unredirected_header("Authorization", f"Bearer {bearer}")
        # an opener of its own: the shared one keeps the proxies of its first use
        with urllib.request.build_opener().open(request, timeout=DEADLINE_S) as answer:
            data = _body(answer, limit, began + DEADLINE_S)
            media_type = (answer.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 401:
                raise _Unauthorised(host, error.headers.get("WWW-Authenticate") or "") from None
            raise WebError(_status(error.code, host), error.code) from None
    except http.client.HTTPException as error:  # its text may be whatever the other side sent
        raise WebError(f"{host} does not speak HTTP as expected ({type(error).__name__})") from None
    except (OSError, ValueError) as error:
        raise WebError(_why(error, host)) from None
    if len(data) > limit:
        raise WebError(f"{host} sent more than {limit:,} bytes")
    return media_type, data


def as_json(data: bytes) -> dict[str, Any] | None:
    """The JSON object in these bytes, or None."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _Unauthorised(WebError):
    def __init__(self, host: str, challenge: str) -> None:
        super().__init__(f"{host} wants a login; none is used here", 401)
        self.challenge = challenge


def _manifest(media_type: str, data: bytes, name: str, registry: str) -> Manifest:
    value = as_json(data)
    if value is None or value.get("schemaVersion") != 2:
        # a login page of a company proxy, or the manifests of before 2016
        raise WebError(f"what {registry} sent is not a manifest ({media_type or 'no content type'})")
    media_type = value["mediaType"] if isinstance(value.get("mediaType"), str) else media_type
    if media_type not in (*INDEXES, *MANIFESTS):
        raise WebError(f"{registry} sent a manifest of an unknown kind ({media_type or 'no content type'})")
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if _DIGEST.match(name) and digest != name:
        raise WebError(f"{registry} sent other bytes than the digest asked for")
    return Manifest(digest, media_type, tuple(_platforms(value)) if media_type in INDEXES else ())


def _platforms(index: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    entries = index.get("manifests")
    for entry in entries if isinstance(entries, list) else []:
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(platform, dict) or not isinstance(entry.get("digest"), str):
            continue
        parts = [platform.get(key) for key in ("os", "architecture", "variant")]
        if parts[0] != "unknown":  # attestations are stored as manifests of an unknown platform
            found.append(("/".join(p for p in parts if isinstance(p, str)), entry["digest"]))
    return found


def _body(answer: http.client.HTTPResponse, limit: int, end: float) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size <= limit and (piece := answer.read1(min(_PIECE, limit + 1 - size))):
        pieces.append(piece)
        size += len(piece)
        if time.monotonic() > end:
            raise TimeoutError
    if answer.length and size <= limit:  # read1 does not complain about a connection that closes early
        raise OSError("the connection closed before the end")
    return b"".join(pieces)


def _status(code: int, host: str) -> str:
    known = {
        403: "denies access (403)",
        404: "does not have it (404)",
        407: "cannot be asked: the proxy wants a login (407)",
        429: "allows no more requests from this address for now (429)",
    }
    return f"{host} {known.get(code, f'answered {code}')}"


def _why(error: Exception, host: str) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {host} is not trusted ({reason.verify_message}); SSL_CERT_FILE names a CA bundle"
        )
    if isinstance(reason, TimeoutError):
        return f"no answer from {host} within {DEADLINE_S:g} s"
    if isinstance(reason, socket.gaierror):
        return f"the name {host} does not resolve ({reason.strerror})"
    return f"{host} cannot be reached ({' '.join(str(getattr(reason, 'strerror', None) or reason).split())[:200]})"


def _host(url: str) -> str:
    return url.split("://")[-1].partition("/")[0].rpartition("@")[2]
