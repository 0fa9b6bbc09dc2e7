"""Which image this machine can run: target, base and arguments of a build. Pure: facts in, plan out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from doctor.catalogue.gpus import minimum_driver, version_tuple
from doctor.checks.gpu import serves
from doctor.checks.gpu_common import capability, label, visible
from doctor.checks.registry import found, judge
from doctor.errors import DoctorError
from doctor.facts import GpuFacts, PythonFacts
from doctor.finding import Confidence, Evidence, Finding, Remedy
from doctor.host.cuda_build import known_arches
from doctor.image import pins as pinned
from doctor.image.pins import Pins, Target
from doctor.snapshot import Snapshot

#: The target for Turing cards, and what its kernels are compiled for (TORCH_CUDA_ARCH_LIST=7.5 in its own build).
FORK = "turing-fork"
FORK_ARCHES = ("sm_75",)
TURING = (7, 5)
#: Hex digits of a plan's id.
ID_DIGITS = 12
#: What `check` would say of the machine if the image's Python were the one in use.
_CARD_CAUSES = ("gpu-compute-capability-unsupported", "gpu-dropped-by-cuda13", "gpu-too-new-for-torch-build")
_DRIVER_CAUSE = "driver-too-old-for-cuda-build"
_PINS = "docker/pins.json"


@dataclass(frozen=True)
class Wish:
    """What the command line asks for. ``distribution``: id and release of ``base``, from its os-release."""

    target: str | None = None
    base: str | None = None
    distribution: tuple[str, str] | None = None
    tag: str | None = None
    ignore_hardware: bool = False


@dataclass(frozen=True)
class Choice:
    """One row of what was chosen, and why."""

    what: str
    value: str
    why: str


@dataclass(frozen=True)
class Plan:
    """What would be built. With ``refusals`` it would not run on this machine."""

    target: Target
    base: str
    tag: str
    lock_hash: str
    revision: str
    choices: tuple[Choice, ...]
    refusals: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Names everything that decides the content but the doctor's own revision."""
        text = "\n".join(f"{k}={v}" for k, v in (("target", self.target.name), *self._content().items()))
        return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]

    def _content(self) -> dict[str, str]:
        t = self.target
        return {
            "BASE": self.base,
            "PYTHON": t.python,
            "PYTHON_LOCK": t.python_lock or "",
            "APT_LOCK": t.apt_lock or "",
            "VLLM": t.vllm,
            "TORCH": t.torch,
            "CUDA": t.cuda,
            "LOCK_HASH": self.lock_hash,
        }

    @property
    def arguments(self) -> Mapping[str, str]:
        """The build arguments that a Dockerfile may declare; those without a value are left out."""
        return {k: v for k, v in {**self._content(), "REVISION": self.revision, "PLAN_ID": self.id}.items() if v}


def make(s: Snapshot, pins: Pins, wish: Wish, revision: str) -> Plan:
    """The plan for this machine; DoctorError when the wish itself cannot be met."""
    arch = s.system.arch if s.system else None
    if arch not in (None, "x86_64", "amd64") and not wish.ignore_hardware:
        raise DoctorError(f"the locks are for x86-64, and this machine is {arch}: there is no image for it yet", 2)
    candidates = _candidates(pins, wish)
    judged = [(t, () if wish.ignore_hardware else unsuitable(s, t)) for t in candidates]
    target, refusals = next(((t, r) for t, r in judged if not r), judged[0])
    passed_over = [(t, r) for t, r in judged if r and t is not target]
    image = pins.image(target.image) if target.image else None
    base = wish.base or (image.pinned if image else "")
    has_locks = target.python_lock is not None and target.apt_lock is not None
    lock_hash = pinned.lock_hash(target, pins.root) if has_locks else ""
    tag = wish.tag or (pinned.tag(target, pins.root) if has_locks else _unlocked_tag(target))
    notes = _notes(s, target, wish, refusals)
    notes += [f"{t.name} was passed over: {r[0].summary}" for t, r in passed_over]
    if wish.base is None and image is not None and image.verified is None:
        notes.append("pin not verified: no registry has confirmed the base's digest yet (--verify-pins asks)")
    choices = (
        Choice("target", target.name, _why_target(s, wish, target, refusals)),
        *_hardware(s, target, wish),
        Choice("base", base, _why_base(wish, target)),
        Choice("python", target.python, target.python_lock or "no lock"),
        Choice("vllm", f"{target.vllm}, torch {target.torch}, CUDA {target.cuda}", _PINS),
        Choice(
            "tag", tag, "--tag" if wish.tag else "versions and lock hash" if has_locks else "versions; no lock"
        ),
    )
    return Plan(target, base, tag, lock_hash, revision, choices, refusals, tuple(notes))


def _candidates(pins: Pins, wish: Wish) -> list[Target]:
    """Targets in question, the preferred one first."""
    if wish.target is not None:
        target = pins.target(wish.target)
        if wish.base is None and target.image is None:
            raise DoctorError(f"target {target.name} has no base of a registry: name yours with --base REFERENCE")
        return [target]
    locked = [t for t in pins.targets if t.python_lock is not None and t.apt_lock is not None]
    if wish.base is not None:
        if wish.distribution is None:
            raise DoctorError(
                f"the distribution of {wish.base} is not known (--print asks no engine): --target NAME tells it"
            )
        fitting = [t for t in locked if (t.distribution, t.release) == wish.distribution]
        if not fitting:
            have = ", ".join(f"{t.name} ({t.distribution} {t.release})" for t in locked)
            name = " ".join(wish.distribution).strip()
            raise DoctorError(f"{wish.base} is {name}, for which there is no lock; the targets are {have}")
        return fitting
    ready = [t for t in locked if t.image is not None]
    if not ready:
        raise DoctorError("no target has both a base image and a lock: name a base with --base REFERENCE")
    return ready


def _unlocked_tag(target: Target) -> str:
    return f"vllm-doctor:{target.name}-{target.vllm}-cu{target.cuda.replace('.', '')}"


# ---------------------------------------------------------------- would it run here


def unsuitable(s: Snapshot, target: Target) -> tuple[Finding, ...]:
    """Why this machine could not run the target's image: proven by its driver or cards. Unknown is not why."""
    as_if = replace(s, python=_image_python(target))
    judged = judge(as_if, only=(_DRIVER_CAUSE, *_CARD_CAUSES)).findings
    out = [_for_image(s, target, f) for f in judged if f.id == _DRIVER_CAUSE]
    if not out:
        out += _below_pinned_driver(s, target)
    if s.gpus and not _served(s, target):
        cards = [_for_image(s, target, f) for f in judged if f.id != _DRIVER_CAUSE]
        out += cards or _no_code(s, target)
    return tuple(out)


def _image_python(target: Target) -> PythonFacts:
    local = f"cu{target.cuda.replace('.', '')}"
    return PythonFacts(
        torch=f"{target.torch}+{local}",
        torch_cuda=target.cuda,
        torch_arches=known_arches(target.torch, target.cuda),
        vllm=target.vllm,
        sources={"*": _PINS, "torch_arches": "table torch_arches"},
    )


def arches(target: Target) -> tuple[str, ...]:
    """What the image has code for; empty when that is not on record."""
    return FORK_ARCHES if target.name == FORK else known_arches(target.torch, target.cuda) or ()


def _served(s: Snapshot, target: Target) -> list[GpuFacts]:
    """Cards that the image has code for; a card of unknown capability counts as served."""
    have = arches(target)
    pairs = [(g, capability(g)) for g in visible(s)]
    return [g for g, c in pairs if c is None or not have or serves(have, c)]


def _elsewhere() -> Remedy:
    return Remedy("Or build it for another machine: --ignore-hardware")


def _for_image(s: Snapshot, target: Target, finding: Finding) -> Finding:
    """The finding of ``check`` with the remedies that an image allows: nothing in it can be exchanged."""
    if finding.id == _DRIVER_CAUSE:
        other = Remedy(
            f"There is no image for an older driver: no target older than CUDA {target.cuda} has a lock of its own"
        )
        return replace(finding, fixes=(*finding.fixes[:1], other, _elsewhere()))
    return replace(finding, fixes=_other_card(s, target))


def _other_card(s: Snapshot, target: Target) -> tuple[Remedy, ...]:
    listed = ", ".join(arches(target))
    fork = any(capability(g) == TURING for g in visible(s)) and target.name != FORK
    first = Remedy(f"Use a card that the image has code for ({listed}); no other target has a lock of its own")
    return (*((Remedy(f"Build the fork for Turing cards, unverified: --target {FORK}"),) if fork else ()), first,
            _elsewhere())  # fmt: skip


def _no_code(s: Snapshot, target: Target) -> list[Finding]:
    card = visible(s)[0] if visible(s) else None
    if card is None:
        return []
    major, minor = capability(card) or (0, 0)
    what = "fork of vLLM" if target.name == FORK else f"torch {target.torch}"
    text = (
        f"{label(card)} is sm_{major}{minor}; {what} in this image are built for {', '.join(arches(target))} only"
    )
    evidence = [Evidence("gpus[0].compute_capability", f"{major}.{minor}", card.sources.get("*", s.origin))]
    return [
        found("vllm-kernels-missing-for-arch", Confidence.PROVEN, text, evidence, fixes=_other_card(s, target))
    ]


def _below_pinned_driver(s: Snapshot, target: Target) -> list[Finding]:
    """A target may ask for more than the first driver of its CUDA family."""
    have, need = version_tuple(s.driver.version if s.driver else None), version_tuple(needed_driver(s, target))
    if have is None or need is None or have >= need:
        return []
    version = s.driver.version if s.driver else ""
    text = f"target {target.name} needs driver {needed_driver(s, target)} or newer; driver {version} is installed"
    fixes = (Remedy(f"Install driver {needed_driver(s, target)} or newer and restart"), _elsewhere())
    return [found(_DRIVER_CAUSE, Confidence.PROVEN, text, [s.evidence("driver.version")], fixes=fixes)]


def needed_driver(s: Snapshot, target: Target) -> str:
    """The lowest driver for the target; under WSL2 the figure for Windows, whose driver it is."""
    windows = minimum_driver(target.cuda, windows=True) if s.is_wsl else None
    return windows or target.minimum_driver


# ---------------------------------------------------------------- words


def _why_target(s: Snapshot, wish: Wish, target: Target, refusals: tuple[Finding, ...]) -> str:
    if wish.target is not None:
        return "--target"
    if wish.base is not None:
        return f"the base is {target.distribution} {target.release}"
    if wish.ignore_hardware:
        return "the default; this machine's driver and cards were not looked at (--ignore-hardware)"
    if refusals:
        return "the default; it does not fit this machine"
    driver = s.driver.version if s.driver else None
    if driver is None and not s.gpus:
        return "the default: no driver and no card answered here, so nothing could be chosen from hardware"
    return "the first target that this machine's driver and card can run"


def _hardware(s: Snapshot, target: Target, wish: Wish) -> list[Choice]:
    if wish.ignore_hardware:
        return []
    rows = []
    driver = s.driver.version if s.driver else None
    if driver is not None:
        rows.append(Choice("driver", driver, f"CUDA {target.cuda} needs {needed_driver(s, target)} or newer"))
    listed = ", ".join(arches(target)) or "not on record"
    for card in visible(s):
        value = capability(card)
        shown = f"capability {value[0]}.{value[1]}" if value else "capability not known"
        rows.append(Choice("card", f"{card.name or card.index}, {shown}", f"the image has code for {listed}"))
    return rows


def _why_base(wish: Wish, target: Target) -> str:
    if wish.base is not None:
        return "--base"
    return f"pinned by its digest in {_PINS}, {target.distribution} {target.release}"


def _notes(s: Snapshot, target: Target, wish: Wish, refusals: tuple[Finding, ...]) -> list[str]:
    notes = []
    if not target.verified:
        notes.append(f"target {target.name} is unverified: nobody has recorded a run of its image on a card")
    if not target.python_lock:
        notes.append("this target has no lock: two builds of it may differ")
    if wish.ignore_hardware:
        return notes
    served = _served(s, target)
    left = [g for g in visible(s) if g not in served]
    if left and served and not refusals:
        notes.append(f"the image has no code for {', '.join(label(g) for g in left)}; it serves the other cards")
    if any(capability(g) == TURING for g in visible(s)) and target.name != FORK:
        notes.append(f"Turing card: `--target {FORK}` builds the fork made for these cards, unverified")
    status = s.driver.nvml_status if s.driver else None
    if s.driver is not None and s.driver.version is None and status not in (None, "ok", "LibraryNotFound"):
        notes.append(f"the driver does not answer (NVML: {status}), so it was not judged: run vllm-doctor check")
    return notes
