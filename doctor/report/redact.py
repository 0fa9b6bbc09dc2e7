"""Takes secrets and names out of everything that is shown or saved.

Redacted: tokens and keys, passwords in URLs, e-mail addresses, the user and host name, home folders,
UUIDs, MAC and public IP addresses. Kept: private and loopback addresses, version numbers.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

from doctor.codec import decode, encode
from doctor.snapshot import Snapshot

_T = TypeVar("_T")

#: Names that say nothing about a person or a machine, or that would tear technical text apart.
_COMMON = frozenset(
    """root user users admin administrator ubuntu debian fedora arch nobody guest default test tests python python3
    vllm torch cuda nvidia docker podman linux windows localhost local host server client worker home data model
    models cache build gpu cpu node app main runner service system desktop laptop workstation pc wsl dev opt usr
    mnt tmp var run lib bin etc doctor engine api core""".split()
)

#: Words in a name that promise a secret. Patterns start at the word itself, so that long lines stay cheap.
_WORD = (
    r"(?:token(?!s|iz|_ids?:\d)|secret|passw(?:or)?d|passphrase|api[_-]?key|apikey|access[_-]?key|private[_-]?key|"
    r"credential|authorization|auth[_-]?key|cookie)"
)
_SENSITIVE = re.compile(rf"(?i)[\w.-]{{0,40}}{_WORD}[\w-]{{0,40}}")

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, replacement, flags in (
        (
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]{0,20000}?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
            "<private-key>",
            0,
        ),
        (
            r"\b(https?|ftp|ssh|socks5h?|redis|postgres(?:ql)?|amqp|git)://[^\s/@'\"]{1,200}@",
            r"\1://<credentials>@",
            re.I,
        ),
        (r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", r"\1 <token>", re.I),
        (r"\b(?:hf_|api_org_)[A-Za-z0-9]{20,}", "<hf-token>", 0),
        (r"\b(?:gh[pousr]_|github_pat_|glpat-)[A-Za-z0-9_-]{16,}", "<git-token>", 0),
        (r"\b(?:sk|pk|rk|nvapi|xox[abpr]|dop_v1|npm|pypi)[-_][A-Za-z0-9_-]{16,}", "<api-key>", 0),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", "<aws-key>", 0),
        (r"\bAIza[A-Za-z0-9_-]{30,}", "<api-key>", 0),
        (r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*", "<jwt>", 0),
        # a name that promises a secret, then its value; quoting and both JSON and shell forms
        (
            rf"(?i)({_WORD}[\w-]{{0,40}}['\"]?\s{{0,4}}[:=]\s{{0,4}})(['\"]?)"
            r"(?!None\b|null\b|true\b|false\b|<)[^\s'\",;)}\]]{3,}\2",
            r"\1<secret>",
            0,
        ),
        (
            r"\b[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,4}\.[A-Za-z]{2,12}\b",
            "<e-mail>",
            0,
        ),
        (r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b|\b(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}\b", "<mac>", 0),
        # the hub hands out signed addresses; who has one can fetch the file
        (
            r"([?&](?:sig|signature|policy|key-pair-id|x-amz-(?:signature|credential|security-token))=)[^&\s'\"<]+",
            r"\1<secret>",
            re.I,
        ),
        (r"(['\"]auth['\"]\s{0,4}:\s{0,4}['\"])[^'\"<]{4,}", r"\1<secret>", 0),  # docker's config.json
        (r"\b(login \S{1,64} password )(?!<)\S+", r"\1<secret>", 0),  # .netrc
        (r"\b(serial(?: number)?\s{0,60}[:=]\s{0,4})\d[\dA-Z]{5,}\b", r"\1<serial>", re.I),  # nvidia-smi -q
        (r"\b((?:ssh|scp|sftp|rsync)\b[^@\n]{0,40}[ /])[A-Za-z_][\w.-]{0,31}@(?=[A-Za-z0-9\[])", r"\1<user>@", 0),
        # the prompt of a shell in a pasted session
        (r"(?<![\w./-])[A-Za-z_][\w.-]{0,31}@[A-Za-z0-9][\w.-]{0,63}(?=:[~/])", "<user>@<host>", 0),
    )
)

#: What would steer a terminal, or hide a secret from the patterns below. Tabs and line ends stay.
_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)?)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)

_FLAG = re.compile(rf"(?i)({_WORD}[\w-]{{0,40}} {{1,4}})(?!-)\S{{3,}}")
_FLAG_BEFORE = re.compile(r"--[\w-]{0,40}\Z")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_IPV4 = re.compile(r"(?<![\w.=-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.-]|\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f]{1,4}(?![\w:])"
    r"|(?<![\w:.])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){1,6}::(?:[0-9A-Fa-f]{1,4})?"
)
# "nvidia-cublas-cu12   12.4.5.8": a version of four parts, not an address
_VERSION_BEFORE = re.compile(
    r"(?i)(?:nvidia|cuda|cudnn|cublas|version|release|lib\w*|cu\d\d|kernel|driver)[\w.+-]*[\s:]+$"
)
_WINDOWS_USERS = r"(?:/mnt/[a-z]/Users/|/Users/|\b[A-Za-z]:(?:\\{1,2}|/)Users(?:\\{1,2}|/))"
_PART = r"[^/\\\s'\":,;<>|]{1,40}"
_HOMES = (
    # Windows allows blanks in the name of a user: they belong to it where the path goes on or is quoted
    re.compile(rf"({_WINDOWS_USERS})({_PART}(?: {_PART}){{1,3}})(?=[/\\'\"])"),
    re.compile(r"(/home/|(?:/run)?/media/(?=[^/\s]+/)|\\{1,2}home\\{1,2}|/Users/|/mnt/[a-z]/Users/|\b[A-Za-z]:(?:\\{1,2}|/)Users(?:\\{1,2}|/))([^/\\\s'\":,;<>|]{1,64})"),
)  # fmt: skip
_FULL_NAME = re.compile(rf"{_WINDOWS_USERS}({_PART}(?: {_PART}){{1,3}})(?=[/\\:;]|$)")


#: Fields that hold a version number, which may have the form of an address.
_VERSIONS = frozenset(
    ("kernel", "version", "os_version", "glibc", "module_version", "nvml_version", "libcuda_version")
)


class Redactor:
    """Replaces secrets in text. The same UUID gets the same placeholder within one redactor."""

    def __init__(self, users: Iterable[str] = (), hosts: Iterable[str] = (), homes: Iterable[str] = ()) -> None:
        self._uuids: dict[str, str] = {}
        self._homes = sorted(
            {h.rstrip("/") for h in homes if h.rstrip("/") not in ("", "/root")}, key=len, reverse=True
        )
        self._names = tuple(
            (_whole(name), placeholder)
            for names, placeholder in ((users, "<user>"), (hosts, "<host>"))
            for name in sorted(set(names), key=len, reverse=True)
            if len(name) >= 3 and name.lower() not in _COMMON
        )

    @classmethod
    def of_this_host(cls) -> Redactor:
        """Knows this machine's host name, this user and the home folder."""
        import getpass
        import os
        import socket

        users = {os.environ.get(v, "") for v in ("USER", "LOGNAME", "SUDO_USER")}
        with contextlib.suppress(KeyError, OSError):  # no entry for this uid, as in many containers
            users.add(getpass.getuser())
        host = socket.gethostname()
        hosts = {host, host.partition(".")[0], os.environ.get("WSL_HOSTNAME", "")}
        for value in os.environ.values():  # under WSL, PATH holds the folders of the Windows user
            users.update(m[1] for m in _FULL_NAME.finditer(value[:100_000]))
        return cls(users, hosts, {os.path.expanduser("~")})

    def text(self, text: str) -> str:
        """``text`` without secrets."""
        if not text:
            return text
        text = _CONTROL.sub("", text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        text = _FLAG.sub(_flag, text)
        for home in self._homes:
            text = re.sub(rf"{re.escape(home)}(?=[/\s'\":,;)\]]|$)", "~", text)
        for pattern in _HOMES:
            text = pattern.sub(r"\1<user>", text)
        for pattern, placeholder in self._names:
            text = pattern.sub(placeholder, text)
        text = _UUID.sub(self._uuid, text)
        text = _IPV4.sub(_address, text)
        return _IPV6.sub(_address, text)

    def arguments(self, argv: Iterable[str]) -> tuple[str, ...]:
        """A command line without secrets, also where ``--api-key`` and its value are two arguments."""
        out: list[str] = []
        secret = False
        for argument in argv:
            out.append("<secret>" if secret and not argument.startswith("-") else self.text(argument))
            secret = argument.startswith("--") and _SENSITIVE.fullmatch(argument[2:]) is not None
        return tuple(out)

    def value_of(self, item: _T) -> _T:
        """A dataclass, tuple, list, dict or string of the same form with every string redacted."""
        return cast(_T, self._copy(item))

    def _copy(self, item: Any) -> Any:
        if isinstance(item, Enum):
            return item
        if isinstance(item, str):
            return self.text(item)
        if isinstance(item, tuple):
            if item and all(isinstance(i, str) for i in item):
                return self.arguments(item)
            return tuple(self._copy(i) for i in item)
        if isinstance(item, list):
            return [self._copy(i) for i in item]
        if isinstance(item, Mapping):
            return {k: self._secret(k, v) if isinstance(v, str) else self._copy(v) for k, v in item.items()}
        if is_dataclass(item) and not isinstance(item, type):
            return replace(item, **{f.name: self._copy(getattr(item, f.name)) for f in fields(item) if f.init})
        return item

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with every string redacted; package versions are left as they are."""
        return decode(Snapshot, self._walk(encode(snapshot), ""))

    def value(self, value: Any) -> Any:
        """Any JSON value with every string redacted."""
        return self._walk(value, "")

    def _walk(self, value: Any, key: str) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            if value and all(isinstance(v, str) for v in value):
                return list(self.arguments(value))
            return [self._walk(v, key) for v in value]
        if isinstance(value, dict):
            if (
                key == "packages"
            ):  # names and versions: nothing personal, and four-part versions look like addresses
                return value
            return {k: self._secret(k, v) if isinstance(v, str) else self._walk(v, k) for k, v in value.items()}
        return value

    def _secret(self, key: str, value: str) -> str:
        if key in _VERSIONS and re.fullmatch(r"\d+(?:\.\d+)*", value):
            return value  # "6.6.87.2" is a kernel, not an address
        if value and _SENSITIVE.fullmatch(key) and not key.endswith("_present"):
            return "<secret>"
        return self.text(value)

    def _uuid(self, match: re.Match[str]) -> str:
        key = match.group().lower()
        return self._uuids.setdefault(key, f"<uuid-{len(self._uuids) + 1}>")


def _flag(match: re.Match[str]) -> str:
    """``--api-key VALUE``: only the value of an option, never the word after a word in prose."""
    before = match.string[max(0, match.start() - 45) : match.start()]
    return f"{match.group(1)}<secret>" if _FLAG_BEFORE.search(before) else match.group()


def _whole(name: str) -> re.Pattern[str]:
    """A name as a word. A longer one also inside a compound (torchinductor_NAME, NAME.local): "max" is one too."""
    if len(name) >= 5:
        return re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])")
    return re.compile(rf"(?:(?<=\btorchinductor_)|(?<![\w.-])){re.escape(name)}(?![\w-])")


def _address(match: re.Match[str]) -> str:
    text = match.group()
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if not address.is_global or _VERSION_BEFORE.search(match.string[max(0, match.start() - 60) : match.start()]):
        return text
    return "<address>"
