"""Evidence of the area image: what a container engine answers to pull, build, load and create."""

from __future__ import annotations

from dataclasses import replace

from doctor.checks.evidence.common import (
    HINT,
    LIKELY,
    PROVEN,
    events,
    file_of,
    first,
    near,
    quote,
    rule,
    say,
    together,
)
from doctor.checks.registry import Result
from doctor.finding import Confidence, Finding, Severity
from doctor.snapshot import Event, Snapshot


def _say(
    s: Snapshot,
    cause: str,
    sure: Confidence,
    summary: str,
    event: Event,
    *more: Event | None,
    severity: Severity | None = None,
) -> Finding:
    """A finding; only a hint where the text ends with a pull or build that came to its end."""
    finding = say(cause, sure, summary, event, *more, severity=severity)
    here = [e for e in s.events if e.signal.startswith("image.") and file_of(e) == file_of(event)]
    last = max(here, key=lambda e: e.line or 0)
    done = last if last.signal == "image.finished" else None
    if done is None:
        return finding
    text = f"{summary} (the image was finished all the same)"
    return replace(finding, confidence=HINT, summary=text, evidence=(*finding.evidence, quote(done)))


@rule("image-pull-denied", start=False)
def denied(s: Snapshot) -> Result:
    """The registry answered unauthorized or denied (proven)."""
    event = first(s, "image.pull-denied")
    if event is None:
        return None
    image = event.values.get("image")
    text = f"the registry does not give {image or 'the image'} to this user"
    if image and "/" not in image:
        text += f"; {image} alone means Docker Hub, which has none of that name or hides it"
    return _say(s, "image-pull-denied", PROVEN, text, event)


@rule("image-not-found", start=False)
def not_found(s: Snapshot) -> Result:
    """The registry knows no such tag, digest or repository (proven); the engine has none itself (likely)."""
    event = first(s, "image.not-found")
    if event is None:
        return None
    image = event.values.get("image")
    if "No such image" in event.text or "image not known" in event.text:
        return _say(s, "image-not-found", LIKELY, f"this engine has no image {image}", event)
    return _say(s, "image-not-found", PROVEN, f"the registry has no {image or 'such image'}", event)


@rule("image-pull-rate-limited", start=False)
def rate_limited(s: Snapshot) -> Result:
    """The registry said that the pull limit is used up (proven)."""
    event = first(s, "image.rate-limited")
    if event is None:
        return None
    host = event.values.get("host")
    text = f"{host or 'the registry'} counted too many pulls from this address or user"
    return _say(s, "image-pull-rate-limited", PROVEN, text, event)


@rule("registry-unreachable", start=False)
def unreachable(s: Snapshot) -> Result:
    """The registry's name does not resolve or nothing answers (proven); an error of the server (likely)."""
    event = first(s, "image.registry-unreachable")
    if event is None:
        return None
    host, reason = event.values.get("host", "the registry"), event.values.get("reason", "")
    name = event.values.get("name")
    if name:
        return _say(s, "registry-unreachable", PROVEN, f"the engine cannot resolve {name} ({reason})", event)
    if "5" in reason and ("status" in event.text.lower()):
        return _say(s, "registry-unreachable", LIKELY, f"{host} answers with an error of its own: {reason}", event)
    return _say(s, "registry-unreachable", PROVEN, f"the engine cannot reach {host}: {reason}", event)


@rule("registry-proxy-refused", start=False)
def proxy(s: Snapshot) -> Result:
    """The engine could not go through its proxy (proven)."""
    event = first(s, "image.registry-proxy")
    if event is None:
        return None
    text = f"the engine's proxy does not let it through: {event.values.get('reason', 'refused')}"
    return _say(s, "registry-proxy-refused", PROVEN, text, event)


@rule("registry-certificate-not-trusted", start=False)
def certificate(s: Snapshot) -> Result:
    """The engine refused the registry's certificate (proven)."""
    event = first(s, "image.registry-certificate")
    if event is None:
        return None
    host = event.values.get("host", "the registry")
    text = f"the engine does not trust {host}: {event.values.get('reason', 'x509')}"
    return _say(s, "registry-certificate-not-trusted", PROVEN, text, event)


@rule("image-platform-mismatch", start=False)
def platform(s: Snapshot) -> Result:
    """No image for this processor (proven), a program that cannot run here (likely), a warning alone (a hint)."""
    cause = "image-platform-mismatch"
    event = first(s, "image.no-platform")
    warned = first(s, "image.platform-warning")
    if event:
        wanted = event.values.get("platform")
        text = f"the registry has no image for {wanted or 'this processor'} under that name"
        return _say(s, cause, PROVEN, text, event, warned)
    program = first(s, "image.exec-format")
    if program:
        name = program.values.get("program") or "the image's first program"
        text = f"{name} is not made for this processor, or is no program"
        return _say(s, cause, together(s, program, warned), text, program, warned)
    if warned:
        text = f"the image is for {warned.values.get('platform')}, this machine is not"
        return _say(s, cause, HINT, text, warned)
    return None


@rule("image-digest-mismatch", start=False)
def digest(s: Snapshot) -> Result:
    """A manifest or layer has other bytes than its digest names (proven)."""
    event = first(s, "image.digest")
    if event is None:
        return None
    short = event.values.get("digest", "")[:19]
    text = (
        f"the registry serves another manifest under the pinned digest {short}"
        if "manifest" in event.values
        else f"a layer arrived with other bytes than its digest {short} names"
    )
    return _say(s, "image-digest-mismatch", PROVEN, text, event)


@rule("package-hash-mismatch", start=False)
def package_hash(s: Snapshot) -> Result:
    """pip or uv refused a file for its hash, or a package without one (proven)."""
    event = first(s, "image.package-hash")
    if event is None:
        return None
    package = event.values.get("package")
    if "unpinned" in event.values:
        text = "a package has no hash or no exact version in the lock"
    else:
        text = f"the file of {package or 'a package'} has another hash than the lock"
    return _say(s, "package-hash-mismatch", PROVEN, text, event)


@rule("apt-version-unavailable", start=False)
def apt_version(s: Snapshot) -> Result:
    """apt has no such version (proven); a file of its list is gone (likely)."""
    cause = "apt-version-unavailable"
    gone = events(s, "image.apt-version")
    if gone:
        names = ", ".join(f"{e.values['package']} {e.values['version']}" for e in gone[:4])
        more = f" and {len(gone) - 4} more" if len(gone) > 4 else ""
        return _say(s, cause, PROVEN, f"the archive no longer has {names}{more}", *gone[:4])
    event = first(s, "image.apt-404")
    if event is None:
        return None
    text = f"the archive no longer has {event.values['package']}, which the package list names"
    return _say(s, cause, LIKELY, text, event)


@rule("buildkit-missing", start=False)
def buildkit(s: Snapshot) -> Result:
    """The builder refused a BuildKit option, or the client lacks its plugin (proven)."""
    option = next((e for e in events(s, "image.no-buildkit") if "option" in e.values), None)
    plugin = next((e for e in events(s, "image.no-buildkit") if "plugin" in e.values), None)
    if option:
        text = f"the old builder ran, which does not know {option.values['option']}"
        return _say(s, "buildkit-missing", PROVEN, text, option, plugin)
    if plugin:
        return _say(s, "buildkit-missing", PROVEN, "docker's client has no buildx plugin", plugin)
    return None


@rule("image-build-killed", start=False)
def build_killed(s: Snapshot) -> Result:
    """A step ended with status 137 (likely), and the kernel's record of a kill is there (proven)."""
    cause = "image-build-killed"
    event = first(s, "image.build-killed")
    if event is None or first(s, "compiler.cc1plus-killed"):
        return None
    record = first(s, "host.oom-kill", "host.oomkilled-state")
    killed = near(s, event, {"host.killed-line"}, before=40, after=4)
    step = event.values.get("step", "").removeprefix("/bin/sh -c ")[:80]
    text = f"a step of the build was killed by signal 9{f': {step}' if step else ''}"
    return _say(s, cause, together(s, event, record), text, event, record or killed)


def without_room(s: Snapshot) -> list[Event]:
    """Where the engine or a step of a build found no room; bare seconds count beside a failed build only."""
    return [
        e
        for e in events(s, "image.no-room")
        if "seconds" not in e.values or near(s, e, {"image.step-failed"}, before=400, after=400)
    ]


@rule("docker-data-root-full", start=False)
def no_room(s: Snapshot) -> Result:
    """The engine itself found no room (proven); a program in a step of a build did (likely)."""
    seen = without_room(s)
    event = next((e for e in seen if not _in_step(e)), None) or next(iter(seen), None)
    if event is None:
        return None
    full = next((e for e in events(s, "shell.df") if int(e.values["percent"]) >= 98), None)
    where = f" at {event.values['path']}" if "path" in event.values else ""
    if _in_step(event):
        text = "a step of the build found no room; its files lie in the engine's data folder"
        return _say(s, "docker-data-root-full", LIKELY, text, event, full, severity=Severity.BLOCKER)
    text = f"the engine found no room for the image's layers{where}"
    return _say(s, "docker-data-root-full", PROVEN, text, event, full, severity=Severity.BLOCKER)


def _in_step(event: Event) -> bool:
    """Whether a program in a step of the build found no room, not the engine itself."""
    return "step" in event.values or "seconds" in event.values


@rule("container-cdi-spec-outdated", start=False)
def cdi_outdated(s: Snapshot) -> Result:
    """The CDI specification names a file of the host that is not there (proven)."""
    event = first(s, "container.cdi-outdated")
    if event is None:
        return None
    text = f"the CDI specification names {event.values['path']}, which this host does not have"
    return say("container-cdi-spec-outdated", PROVEN, text, event)
