"""What the image is built from: ``docker/pins.json``, the lock files, and the tag that follows from both."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError

#: Hex digits of the lock hash in a tag: 48 bits, enough to tell one person's builds apart.
LOCK_HASH_DIGITS = 12
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
#: name[:tag] as the grammar of image references has it (distribution/reference, regexp.go).
_MOST_NAME = 255
_DOMAIN_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_PATH_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE_NAME = re.compile(
    rf"(?P<name>(?:(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?/)?"
    rf"{_PATH_PART}(?:/{_PATH_PART})*)(?::\w[\w.-]{{0,127}})?\Z",
    re.ASCII,
)
_REVISION = re.compile(r"[0-9a-f]{40}\Z")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]*\Z")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")


@dataclass(frozen=True)
class Image:
    """A base image: ``reference`` has registry and tag; ``verified``: the day a registry confirmed the digest."""

    name: str
    reference: str
    digest: str
    verified: str | None

    @property
    def pinned(self) -> str:
        """What a build is given: tag for people, digest for the daemon, which believes the digest."""
        return f"{self.reference}@{self.digest}"


@dataclass(frozen=True)
class Model:
    """A hub model at one commit; ``verified`` as for an image."""

    id: str
    revision: str
    verified: str | None


@dataclass(frozen=True)
class Target:
    """One image that can be built. Paths are relative to the build context; None: there is no such file yet."""

    name: str
    dockerfile: str
    image: str | None
    distribution: str
    release: str
    python: str
    python_lock: str | None
    apt_lock: str | None
    vllm: str
    torch: str
    cuda: str
    minimum_driver: str
    verified: bool


@dataclass(frozen=True)
class Pins:
    """All of ``pins.json``; ``root`` is the build context that its paths start from."""

    root: Path
    source: str
    vllm: str
    images: tuple[Image, ...]
    targets: tuple[Target, ...]
    model: Model | None

    def image(self, name: str) -> Image:
        """The base image of that name."""
        return next(i for i in self.images if i.name == name)

    def target(self, name: str) -> Target:
        """The target of that name; DoctorError, with the names there are, when there is none."""
        for target in self.targets:
            if target.name == name:
                return target
        names = ", ".join(t.name for t in self.targets)
        raise DoctorError(f"no target is called {name!r}; there are {names}")


def docker_folder() -> Path:
    """The folder with Dockerfile, pins and locks: beside the package in a checkout, else where pip puts it."""
    places = [Path(__file__).resolve().parents[2] / "docker"]
    # Debian's Python installs below /usr/local, and `pip install --user` below the home; sys.prefix names neither
    data = (
        sys.prefix,
        sysconfig.get_path("data"),
        sysconfig.get_path("data", sysconfig.get_preferred_scheme("user")),
    )
    places += [Path(place) / "share" / "vllm-env-doctor" / "docker" for place in dict.fromkeys(data)]
    for folder in places:
        if (folder / "pins.json").is_file():
            return folder
    raise DoctorError(f"the files of the image are missing: no pins.json in {places[0]} or {places[1]}; reinstall")


def load(root: Path | None = None) -> Pins:
    """``docker/pins.json`` under ``root``, or of this installation; DoctorError says what is wrong with it."""
    root = root if root is not None else docker_folder().parent
    path = root / "docker" / "pins.json"
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DoctorError(f"{path} is not valid JSON") from None
    return _pins(_Reader(path, "", data), root)


def lock_hash(target: Target, root: Path) -> str:
    """The first twelve hex digits of sha256 over the Python lock followed by the apt lock."""
    if target.python_lock is None or target.apt_lock is None:
        raise DoctorError(f"target {target.name} has no lock files, so its image has no lock hash")
    digest = hashlib.sha256()
    for name in (target.python_lock, target.apt_lock):
        path = root / name
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise DoctorError(f"cannot read the lock {path}: {error.strerror}") from None
    return digest.hexdigest()[:LOCK_HASH_DIGITS]


def valid_name(text: str) -> bool:
    """Whether an engine takes this as the name of a new image: a reference without a digest."""
    matched = _IMAGE_NAME.match(text)
    return matched is not None and len(matched["name"]) <= _MOST_NAME


def tag(target: Target, root: Path) -> str:
    """``vllm-doctor:<vllm>-cu<cuda>-<lockhash>``, such as ``vllm-doctor:0.26.0-cu130-0123456789ab``."""
    cuda = target.cuda.replace(".", "")
    return f"vllm-doctor:{target.vllm.replace('+', '-')}-cu{cuda}-{lock_hash(target, root)}"


class _Reader:
    """One JSON object, and where it stands, for messages."""

    def __init__(self, path: Path, where: str, data: object) -> None:
        self._path = path
        self._where = where
        if not isinstance(data, dict):
            raise self.wrong("", "must be an object")
        self._data: dict[str, Any] = data

    def wrong(self, key: str, why: str) -> DoctorError:
        place = ".".join(p for p in (self._where, key) if p) or "the whole"
        return DoctorError(f"{self._path}: {place} {why}")

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self._data.get(key)
        if not isinstance(value, str) or not value or (pattern and not pattern.match(value)):
            raise self.wrong(key, f"must be text{f' like {pattern.pattern}' if pattern else ''}, not {value!r}")
        return value

    def maybe(self, key: str, pattern: re.Pattern[str] | None = None) -> str | None:
        return None if self._data.get(key) is None else self.text(key, pattern)

    def path(self, key: str) -> str:
        value = self.text(key)
        if value.startswith("/") or ".." in value.split("/"):
            raise self.wrong(key, f"must be a path inside the build context, not {value!r}")
        return value

    def flag(self, key: str) -> bool:
        value = self._data.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {value!r}")
        return value

    def child(self, key: str) -> _Reader:
        return _Reader(self._path, ".".join(p for p in (self._where, key) if p), self._data.get(key))

    def children(self, key: str) -> list[_Reader]:
        value = self._data.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, "must be a list")
        return [_Reader(self._path, f"{key}[{n}]", item) for n, item in enumerate(value)]

    def names(self) -> list[str]:
        return list(self._data)

    def has(self, key: str) -> bool:
        return self._data.get(key) is not None


def _pins(top: _Reader, root: Path) -> Pins:
    found = top.child("images")
    images = tuple(_image(found.child(name), name) for name in found.names())
    targets = tuple(_target(t, images) for t in top.children("targets"))
    names = [t.name for t in targets]
    if len(set(names)) != len(names):
        raise top.wrong("targets", "must have different names")
    model = top.child("model") if top.has("model") else None
    return Pins(
        root=root,
        source=top.text("source"),
        vllm=top.text("vllm", _VERSION),
        images=images,
        targets=targets,
        model=None if model is None else _model(model),
    )


def _model(entry: _Reader) -> Model:
    return Model(entry.text("id"), entry.text("revision", _REVISION), entry.maybe("verified", _DATE))


def _image(entry: _Reader, name: str) -> Image:
    return Image(name, entry.text("reference"), entry.text("digest", _DIGEST), entry.maybe("verified", _DATE))


def _target(entry: _Reader, images: tuple[Image, ...]) -> Target:
    image = entry.maybe("image")
    if image is not None and image not in [i.name for i in images]:
        raise entry.wrong("image", f"names {image!r}, which is not in images")
    return Target(
        name=entry.text("name", _NAME),
        dockerfile=entry.path("dockerfile"),
        image=image,
        distribution=entry.text("distribution", _NAME),
        release=entry.text("release", _VERSION),
        python=entry.text("python", _VERSION),
        python_lock=entry.path("python_lock") if entry.has("python_lock") else None,
        apt_lock=entry.path("apt_lock") if entry.has("apt_lock") else None,
        vllm=entry.text("vllm", _VERSION),
        torch=entry.text("torch", _VERSION),
        cuda=entry.text("cuda", _VERSION),
        minimum_driver=entry.text("minimum_driver", _VERSION),
        verified=entry.flag("verified"),
    )
