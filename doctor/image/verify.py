"""Do the pins still name what a registry serves? Asks and tells; a pin is changed by people only."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from doctor.host.parts import Bounded
from doctor.image import registry_client
from doctor.image.pins import Image, Model, Pins
from doctor.image.registry_client import WebError

#: Seconds for all pins together; they are asked side by side, and one may need four requests.
DEADLINE_S = 60.0
EQUAL, PLATFORM, MOVED, GONE, UNREACHABLE = "equal", "platform", "moved", "gone", "not reachable"


@dataclass(frozen=True)
class PinResult:
    """What was asked about one pin.

    ``status``: "equal"; "platform" (the pin is one platform of the index that the tag names); "moved" (the tag
    names something else, the pin is still served); "gone" (the pin is not served any more); "not reachable".
    ``found`` is what the tag names now, ``reason`` a sentence, ``verified`` the day on record, None: never.
    """

    name: str
    kind: str  # "image" or "model"
    reference: str
    pinned: str
    status: str
    found: str | None
    platforms: tuple[str, ...]
    reason: str
    verified: str | None


def verify(pins: Pins, env: Mapping[str, str], say: Callable[[str], None]) -> tuple[PinResult, ...]:
    """Asks for every pin. ``env`` gives the hub's address; ``say`` is told what is asked."""
    calls = Bounded(DEADLINE_S)
    results: list[PinResult] = []
    for image in pins.images:
        say(f"asking for {image.reference}")
        calls.start(image.name, partial(_image, image))
    if pins.model is not None:
        say(f"asking for {pins.model.id}")
        calls.start("model", partial(_model, pins.model, env))
    for image in pins.images:
        results.append(_answer(calls, image.name, _blank(image)))
    if pins.model is not None:
        results.append(_answer(calls, "model", _blank(pins.model)))
    return tuple(results)


def exit_code(results: Iterable[PinResult]) -> int:
    """0: every pin is what it was; 1: one moved or could not be asked; 2: one is gone, a build would fail."""
    worst = {EQUAL: 0, PLATFORM: 0, MOVED: 1, UNREACHABLE: 1, GONE: 2}
    return max((worst[r.status] for r in results), default=0)


def lines(results: Iterable[PinResult]) -> tuple[str, ...]:
    """Plain text, one block a pin, then which pins have never been verified."""
    out: list[str] = []
    never: list[str] = []
    for result in results:
        out += [f"{result.name}: {result.status}", f"  {result.reference}", f"  pinned   {result.pinned}"]
        if result.found and result.found != result.pinned:
            out.append(f"  now      {result.found}")
        if result.platforms:
            out.append(f"  platforms {', '.join(result.platforms)}")
        out.append(f"  {result.reason}")
        if result.verified is None:
            never.append(result.name)
    if never:
        out += [
            f"no verification on record: {', '.join(never)}",
            'a pin that is equal is recorded by its "verified" in docker/pins.json (a date); nothing was changed',
        ]
    return tuple(out)


def _blank(pin: Image | Model) -> dict[str, Any]:
    if isinstance(pin, Image):
        own = {"name": pin.name, "kind": "image", "reference": pin.reference, "pinned": pin.digest}
    else:
        own = {"name": "model", "kind": "model", "reference": pin.id, "pinned": pin.revision}
    return {**own, "verified": pin.verified}


def _answer(calls: Bounded, name: str, blank: dict[str, Any]) -> PinResult:
    try:
        status, found, platforms, reason = calls.result(name)
    except (WebError, ValueError) as error:
        status, found, platforms, reason = UNREACHABLE, None, (), str(error)
    except TimeoutError:
        status, found, platforms, reason = UNREACHABLE, None, (), f"no answer within {DEADLINE_S:g} s"
    return PinResult(**blank, status=status, found=found, platforms=platforms, reason=reason)


_Answer = tuple[str, str | None, tuple[str, ...], str]


def _image(image: Image) -> _Answer:
    reference = registry_client.parse(image.reference)
    registry = registry_client.Registry(reference)
    try:
        now = registry.manifest(reference.tag)
    except WebError as error:
        if error.code != 404:
            raise
        return _moved(registry, image.digest, None, (), "the tag does not exist any more")
    platforms = tuple(name for name, _ in now.platforms)
    if now.digest == image.digest:
        return EQUAL, now.digest, platforms, "the tag names the pinned digest"
    own = [name for name, digest in now.platforms if digest == image.digest]
    if own:
        reason = f"the pin is the manifest for {own[0]} in the index that the tag names"
        return PLATFORM, now.digest, platforms, reason
    return _moved(registry, image.digest, now.digest, platforms, "the tag names another digest now")


def _moved(
    registry: registry_client.Registry, pinned: str, found: str | None, platforms: tuple[str, ...], what: str
) -> _Answer:
    try:
        registry.manifest(pinned)
    except WebError as error:
        if error.code == 404:
            return GONE, found, platforms, f"{what}, and the pinned digest is not served any more"
        return MOVED, found, platforms, f"{what}; whether the pinned one is still served is not known ({error})"
    return MOVED, found, platforms, f"{what}; the pinned digest is still served"


def _model(model: Model, env: Mapping[str, str]) -> _Answer:
    if env.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise WebError("HF_HUB_OFFLINE forbids to ask the hub")
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise WebError("HF_ENDPOINT is not an http address")
    address = f"{endpoint}/api/models/{urllib.parse.quote(model.id)}"
    now = _revision(address)
    if now == model.revision:
        return EQUAL, now, (), "the newest revision is the pinned one"
    try:
        served = _revision(f"{address}/revision/{model.revision}")
    except WebError as error:
        if error.code != 404:
            raise
        served = ""
    if served != model.revision:
        return GONE, now, (), "the hub does not have the pinned revision any more"
    return MOVED, now, (), "there is a newer revision; the pinned one is still served"


def _revision(address: str) -> str:
    data = registry_client.as_json(registry_client.get(address, {}, 64 << 20)[1])
    sha = data.get("sha") if data is not None else None
    if not isinstance(sha, str):
        raise WebError(f"{address} does not answer as a hub does")
    return sha
