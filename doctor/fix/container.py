"""The container way in a plan: offered beside host repairs that are left to the person, or chosen instead of them.

Nothing here builds or runs anything: ``vllm-doctor build`` does, and what it makes is not undone with a repair.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from doctor.checks import container_way
from doctor.checks.container_way import CAUSE, REPLACED, Way
from doctor.errors import DoctorError
from doctor.finding import Finding, Severity
from doctor.fix.action import Action
from doctor.fix.actions.manual import Manual
from doctor.fix.draft import Draft
from doctor.fix.errors import ActionError
from doctor.snapshot import Snapshot

if TYPE_CHECKING:
    from doctor.image.pins import Pins, Target

#: Causes of the container engine whose repair brings a card into a container.
ENGINE = frozenset(
    {
        "container-toolkit-missing", "container-runtime-not-registered", "container-device-rules-refused",
        "docker-daemon-json-invalid", "docker-daemon-unreachable", "docker-data-root-full",
        "docker-socket-permission-denied", "gpu-container-fails",
    }
)  # fmt: skip
REPLACED_BY_IMAGE = "the image brings it; without --container it is repaired on the host"


def open_way(s: Snapshot) -> Way | None:
    """How a container gets the card here, when driver and card suit the image and at most one step is missing."""
    if s.in_container is not False or not isinstance(container_way.fits(s), str):
        return None
    near = container_way.way(s)
    return near if isinstance(near, Way) else None


def must_be_possible(s: Snapshot) -> None:
    """DoctorError with the reason when no image could run on this host, whatever is repaired."""
    if s.in_container:
        raise DoctorError("--container: this is a container already; run vllm-doctor fix on the host", 2)
    suits = container_way.fits(s)
    if not isinstance(suits, str):
        why = suits.why if suits is not None else _against(s)
        raise DoctorError(f"--container: {why}. Nothing was changed.", 2)
    c = s.container
    if c is None or not (c.docker_client or c.daemon_reachable or c.podman):
        raise DoctorError("--container: neither docker nor podman is here; install one first", 2)


def _against(s: Snapshot) -> str:
    """Why driver, card or processor cannot run the image."""
    from doctor.image import pins
    from doctor.image.plan import unsuitable

    arch = s.system.arch if s.system else None
    refused = unsuitable(s, _target(pins.load()))
    if refused:
        return refused[0].summary
    if s.driver is not None and s.driver.nvml_status != "ok":
        return f"the driver does not answer (NVML: {s.driver.nvml_status}), and no image brings one"
    return f"there is no image for this machine ({arch})"


def wanted(s: Snapshot, finding: Finding) -> str | None:
    """None when the finding is to be repaired on the container way, else why it is left alone."""
    if finding.id in REPLACED:
        return REPLACED_BY_IMAGE
    if finding.id not in ENGINE:
        return "not of the container way (--container)"
    near = container_way.way(s)
    needed = near.step.cause if isinstance(near, Way) and near.step is not None else None
    if isinstance(near, Way) and finding.severity is Severity.NOTE and needed != finding.id:
        return "the way into a container does not need it"
    return None


def by_hand(s: Snapshot, planned: Iterable[Finding], actions: Iterable[Action]) -> tuple[str, ...]:
    """Host repairs of a plan that the image would replace, and that are left to the person or impossible."""
    automatic = {c for a in actions if not a.manual and not a.helper for c in a.causes}
    return tuple(
        f.id
        for f in planned
        if f.id in REPLACED and (f.id not in automatic or container_way.impossible(s, f) is not None)
    )


def step(
    s: Snapshot, near: Way | None, *, instead_of: tuple[str, ...] = (), planned: Iterable[Finding] = ()
) -> Manual:
    """The step by hand: what is missing once, the build, the line that tries the image.

    ``instead_of``: host repairs that it would replace. ``planned``: findings that have a step of their own.
    """
    if instead_of:
        text = f"Or leave this host as it is ({', '.join(instead_of)}): build the pinned image and run that"
    else:
        text = "Build the pinned image and run that; this host's compilers and Python stay as they are"
    first = near.step if near is not None else None
    if first is not None and first.cause in {f.id for f in planned}:
        first = None
    if first is not None:
        text += f". Once before: {first.text}"
    kind = near.engine if near is not None else _engine(s)
    return Manual(
        id=f"manual:{CAUSE}",
        summary=text,
        causes=(CAUSE,),
        commands=(*(first.commands if first else ()), ("vllm-doctor", "build"), _check_line(s, kind)),
        verify_with=("the container's check ends with READY; the build prints the line that serves",),
    )


def recipe(draft: Draft, finding: Finding) -> None:
    """The note itself, when it is asked for by name."""
    near = open_way(draft.snapshot)
    if near is None:
        raise ActionError("the way into a container is not open any more")
    draft.add(step(draft.snapshot, near))


def _engine(s: Snapshot) -> str:
    c = s.container
    return "docker" if c is None or c.docker_client or c.daemon_reachable or not c.podman else "podman"


def _check_line(s: Snapshot, kind: str) -> tuple[str, ...]:
    """The line that lets the image examine itself and its card; the build prints those that serve."""
    from doctor.image.engine import Engine
    from doctor.image.runline import lines

    return dict(lines(s, Engine(kind, kind, "", ""), _image(), "MODEL").commands)["check"]


def _image() -> str:
    """The tag that the build will give; IMAGE when the files that decide it are not here."""
    from doctor.image import pins

    try:
        pinned = pins.load()
        return pins.tag(_target(pinned), pinned.root)
    except DoctorError:
        return "IMAGE"


def _target(pinned: Pins) -> Target:
    """What a build on a machine with a registry chooses."""
    ready = [t for t in pinned.targets if t.image and t.python_lock and t.apt_lock]
    if not ready:
        raise DoctorError("docker/pins.json has no target with a base and locks")
    return ready[0]
