"""Evidence of the areas network and storage: the hub, transfers between cards, full disks, damaged files."""

from __future__ import annotations

import re

from doctor.checks.evidence.common import (
    HINT,
    LIKELY,
    PROVEN,
    events,
    file_of,
    first,
    has,
    near,
    ranks,
    rule,
    say,
    together,
    wsl_sign,
)
from doctor.checks.evidence.container import SHM
from doctor.checks.evidence.image import without_room
from doctor.checks.registry import Result
from doctor.snapshot import Event, Snapshot

_HUB = ("huggingface", "hf.co", "hf-mirror", "modelscope", "xethub")


def _about_hub(s: Snapshot, event: Event) -> bool:
    """Whether a network error concerns the model hub."""
    if any(h in event.text or h in event.values.get("host", "") for h in _HUB):
        return True
    return near(s, event, {"network.hub-unreachable", "network.hub-frame"}, before=80, after=80) is not None


@rule("nccl-p2p-hang")
def p2p_hang(s: Snapshot) -> Result:
    """The watchdog's timeout of the first collective on a native host, several ranks, nothing else wrong (proven).

    Without knowing that the host is native it is likely, and so is a failed transfer test.
    """
    cause = "nccl-p2p-hang"
    if wsl_sign(s):
        return None
    timeout = first(s, "network.nccl-timeout")
    others = has(s, "container.shm-nccl", "memory.oom", "driver.xid", "gpu.launch-failure", "gpu.no-kernel-image")
    if timeout:
        initial = timeout.values.get("seq") == "1"
        sure = LIKELY if initial and not others else HINT
        if initial and not others and s.is_wsl is False and ranks(s) > 1:
            sure = together(s, timeout, s.evidence("wsl.version"))
        which = "the first collective" if initial else "a collective"
        return say(cause, sure, f"{which} between {max(ranks(s), 2)} ranks never ended", timeout)
    test = first(s, "network.p2p-test")
    if test:
        plain = "CANNOT Access" in test.text  # so it is with most consumer cards, and NCCL copes
        text = (
            "these cards have no direct access to each other"
            if plain
            else "a direct transfer between two cards failed"
        )
        return say(cause, HINT if plain else LIKELY, text, test)
    waiting = first(s, "vllm.broadcast-wait")
    probe = first(s, "vllm.p2p-probe")
    if waiting and ranks(s) > 1:
        return say(cause, HINT, "workers wait for each other", waiting, probe)
    return None


@rule("hub-name-resolution-failed")
def resolution(s: Snapshot) -> Result:
    """The hub's name does not resolve (proven), a name does not or the hub is out of reach (likely, hints)."""
    cause = "hub-name-resolution-failed"
    for event in events(s, "network.resolution"):
        if near(s, event, ("image.registry-unreachable",), before=0, after=0):
            continue  # a registry's name, which the engine asks for
        host = event.values.get("host", "")
        if any(h in host for h in _HUB):
            return say(cause, PROVEN, f"the name {host} does not resolve", event)
        if _about_hub(s, event):
            return say(
                cause,
                LIKELY,
                "the name of the model hub does not resolve",
                event,
            )
    unreachable = next((e for e in events(s, "network.hub-unreachable") if "offline" not in e.text.lower()), None)
    other = next(
        (
            e
            for e in events(s, "network.resolution")
            if not near(s, e, ("image.registry-unreachable",), before=0, after=0)
        ),
        None,
    )
    if unreachable and not has(s, "network.certificate", "network.proxy"):
        return say(cause, LIKELY, "the model hub cannot be reached", unreachable, other)
    if other:
        return say(
            cause, HINT, f"name resolution fails ({other.values.get('host') or 'the name is not shown'})", other
        )
    return None


@rule("hub-access-denied")
def denied(s: Snapshot) -> Result:
    """The hub says gated, 401 or 403 (proven); a repository it does not find may be private (likely)."""
    cause = "hub-access-denied"
    for event in events(s, "network.hub-denied"):
        lost = near(s, event, {"network.repo-not-found"}, before=4, after=6)
        gated = "gated" in event.text.lower() or "restricted" in event.text or "review" in event.text
        if lost and not gated:
            text = "the hub answers 401: the repository is private, or there is none of that name"
            return say(cause, LIKELY, text, event, lost)
        model = event.values.get("model")
        return say(
            cause,
            PROVEN,
            f"the hub refuses {model or 'the model'} to this process: gated, private or no valid token",
            event,
        )
    seen = first(s, "network.repo-not-found")
    if seen and "url" in seen.values:
        return say(cause, HINT, "the hub finds no such repository, or hides a private one", seen)
    return None


@rule("hub-model-not-cached-offline")
def offline(s: Snapshot) -> Result:
    """Offline mode or no network, and the files are not in the cache (likely)."""
    event = next(
        (
            e
            for e in events(s, "network.hub-unreachable")
            if "offline" in e.text.lower() or "outgoing traffic" in e.text
        ),
        None,
    )
    if event is None or has(s, "network.resolution"):
        return None
    return say(
        "hub-model-not-cached-offline",
        LIKELY,
        "the hub may not be asked (offline), and the files are not in the cache",
        event,
    )


@rule("hub-certificate-not-trusted")
def certificate(s: Snapshot) -> Result:
    """Python refused the certificate of the server it talked to (proven)."""
    event = first(s, "network.certificate")
    return (
        say(
            "hub-certificate-not-trusted",
            PROVEN,
            "a certificate on the way to the server is not trusted here",
            event,
        )
        if event
        else None
    )


@rule("hub-proxy-refused")
def proxy(s: Snapshot) -> Result:
    """The proxy refused the connection (proven)."""
    event = first(s, "network.proxy")
    return say("hub-proxy-refused", PROVEN, "the proxy refused the connection", event) if event else None


_SHM = ("container.shm-nccl", "container.shm-python")


@rule("disk-full", start=False)
def disk_full(s: Snapshot) -> Result:
    """No space left on device, from a write that is not to shared memory (proven); a warning (likely)."""
    cause = "disk-full"
    images = {(file_of(e), e.line) for e in without_room(s)}  # the engine's data folder, which is another cause
    for event in events(s, "storage.no-space"):
        path = event.values.get("path", "")
        shared = path.startswith((SHM, "/psm_", "/torch_")) or re.search("NCCL|psm_|fallocate", event.text)
        if shared or near(s, event, _SHM, before=3, after=3) or (file_of(event), event.line) in images:
            continue
        full = next(
            (e for e in events(s, "shell.df") if int(e.values["percent"]) >= 98 and e.values["mount"] != SHM),
            None,
        )
        where = f" at {path}" if path else ""
        if "Not enough free" in event.text or "quota" in event.text.lower():
            return say(cause, LIKELY, f"there is not enough room{where}", event, full)
        at = f" ({full.values['mount']} is {full.values['percent']} % full)" if full else ""
        # without a path or an error number it could be shared memory after all
        sure = PROVEN if path or re.search(r"error 28|Errno 28|register layer|write ", event.text) else LIKELY
        return say(cause, sure, f"no room was left{where}{at}", event, full)
    return None


@rule("cache-folder-not-writable")
def not_writable(s: Snapshot) -> Result:
    """A write to a cache folder was refused (likely)."""
    event = first(s, "storage.readonly")
    if event is None:
        return None
    return say(
        "cache-folder-not-writable", LIKELY, f"{event.values.get('path', 'a folder')} cannot be written", event
    )


@rule("model-files-incomplete")
def damaged(s: Snapshot) -> Result:
    """safetensors or torch cannot read a weights file (likely cut off by a broken download)."""
    event = first(s, "storage.corrupt")
    if event is None or "Cannot allocate" in event.text:
        return None
    return say(
        "model-files-incomplete",
        LIKELY,
        f"a weights file cannot be read: {event.values.get('reason', 'damaged')}",
        event,
    )
