"""Check of the area image: is the pinned image the shorter way here, and what is missing for it.

The image brings compiler, CUDA, Python, torch and vLLM that fit; the driver stays the host's. So it replaces
repairs of the first kind and no repair of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from doctor import catalogue
from doctor.catalogue.gpus import minimum_driver, version_tuple
from doctor.checks.gpu import serves
from doctor.checks.gpu_common import capability, label, visible
from doctor.checks.packages import family
from doctor.checks.registry import check, found, judge, registered
from doctor.checks.words import size
from doctor.facts import ContainerFacts
from doctor.finding import Confidence, Evidence, Finding, Remedy, Severity, Skipped
from doctor.snapshot import Snapshot

CAUSE = "image-is-the-shorter-way"
#: What the image replaces. Not the driver, the card, memory, disks, the network: those stay the host's.
REPLACED = frozenset(
    {
        "c-compiler-missing", "cxx-compiler-missing", "gxx12-missing", "python-headers-missing",
        "gcc-too-new-for-nvcc", "glibc-cuda-math-header-conflict", "nvcc-missing", "nvcc-too-old-for-jit",
        "torch-nvcc-cuda-mismatch", "cuda-toolkit-incomplete", "triton-ptxas-too-old-for-gpu", "ninja-missing",
        "glibc-too-old", "libstdcxx-too-old", "vllm-not-installed", "torch-abi-mismatch",
        "vllm-torch-cuda-major-mismatch", "nccl-library-older-than-torch", "cpu-only-torch",
        "python-version-unsupported", "vllm-requirements-unmet", "cuda-libraries-mixed",
        "transformers-too-new-for-vllm", "transformers-too-old-for-model", "gpu-too-new-for-torch-build",
        "torchvision-does-not-fit-torch",
    }
)  # fmt: skip
#: Groups whose members may become root on the usual distributions.
ADMINISTRATORS = frozenset({"sudo", "wheel", "admin", "root"})
_TOOLKIT = ("sudo", "apt-get", "install", "nvidia-container-toolkit")
_GENERATE = ("sudo", "nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml")
#: Fewer repairs than this are made on the host, unless they cannot be made at all.
SEVERAL = 2


@dataclass(frozen=True)
class Step:
    """What must be done once before a container gets the card. ``cause``: the finding whose repair it is."""

    cause: str
    text: str
    commands: tuple[tuple[str, ...], ...] = ()
    root: bool = True


@dataclass(frozen=True)
class Way:
    """The engine that can run the image with a card here; ``step`` is None when nothing is missing."""

    engine: str
    why: str
    step: Step | None = None


def can_be_root(s: Snapshot) -> bool | None:
    """Whether this user can install things here; None when neither user nor groups are known."""
    if s.system is None or s.system.uid is None:
        return None
    if s.system.uid == 0:
        return True
    return None if s.system.groups is None else bool(ADMINISTRATORS & set(s.system.groups))


def repairs(s: Snapshot) -> tuple[Finding, ...]:
    """What is wrong with this host that the image would replace: causes, symptoms folded, hints left out."""
    checks = [c for c in registered() if c.id in REPLACED and c.kind == "facts"]
    return tuple(
        f
        for f in judge(s, checks).findings
        if f.confidence is not Confidence.HINT
        and (f.severity is not Severity.NOTE or f.id == "vllm-not-installed")
    )


def impossible(s: Snapshot, finding: Finding) -> str | None:
    """Why this repair cannot be made here by this user, or None."""
    if finding.id == "glibc-too-old":
        return "the C library comes with the distribution"
    installs = any(c[:1] == ("sudo",) for r in finding.fixes for c in r.commands)
    if installs and can_be_root(s) is False:
        return "this user cannot become root"
    manager = family(s)
    if finding.area == "compiler" and not any(r.commands for r in finding.fixes) and manager not in (None, "apt"):
        return f"no package for it is known for {manager}"
    return None


def fits(s: Snapshot) -> str | Skipped | None:
    """What of driver and cards speaks for the image; None when they speak against it, Skipped when unknown."""
    pinned = catalogue.table("image_target")
    if s.system is None or s.system.arch is None:
        return Skipped(CAUSE, "the processor is not known")
    if s.system.arch not in pinned["machines"]:
        return None
    driver = s.driver
    if driver is None or driver.nvml_status is None:
        return Skipped(CAUSE, "the driver was not looked at")
    if driver.nvml_status != "ok":
        return None  # the driver comes first, and no image brings one
    have = version_tuple(driver.version)
    need = (minimum_driver(pinned["cuda"], windows=True) if s.is_wsl else None) or pinned["driver"]
    if have is None:
        return Skipped(CAUSE, "the driver's version is not known")
    if have < (version_tuple(need) or ()):
        return None
    cards = [(g, capability(g)) for g in visible(s)]
    if not cards:
        return Skipped(CAUSE, "no card was seen")
    arches = _arches(pinned["torch"], pinned["cuda"])
    for gpu, value in cards:
        if value is None:
            return Skipped(CAUSE, f"the compute capability of {label(gpu)} is not known")
        if not serves(arches, value):
            return None
    name = cards[0][0].name or "the card"
    return f"driver {driver.version} and {name} run its CUDA {pinned['cuda']} build of vLLM {pinned['vllm']}"


def _arches(torch: str, cuda: str) -> Sequence[str]:
    minor = ".".join(torch.split(".")[:2])
    rows = catalogue.table("torch_arches")
    return next((tuple(r["arches"]) for r in rows if (r["torch"], r["cuda"]) == (minor, cuda)), ())


def way(s: Snapshot) -> Way | Skipped | None:
    """How a container gets the card here, at most one step away; None when it is further."""
    c = s.container
    if c is None:
        return Skipped(CAUSE, "container engines were not looked at")
    if c.gpu_container_ok is False:
        return None  # it was tried, and failed
    chosen = _docker(s, c) or _podman(c)
    if chosen is None:
        return None
    if chosen.step is not None and chosen.step.root and can_be_root(s) is False:
        return None
    return chosen


def _docker(s: Snapshot, c: ContainerFacts) -> Way | None:
    if not c.daemon_reachable and not c.docker_client:
        return None
    if c.daemon_permission_denied:
        group = c.docker_socket_group or "docker"
        if group == "root" or not (c.nvidia_hook or c.cdi_nvidia_devices or c.toolkit_version):
            return None
        step = Step("docker-socket-permission-denied", f"join group {group} and log in again")
        return Way("docker", "docker and the NVIDIA container toolkit are installed", step)
    if not c.daemon_reachable:
        if not (c.nvidia_hook or c.cdi_nvidia_devices or c.toolkit_version):
            return None
        start = ("sudo", "systemctl", "start", "docker")
        if s.system and s.system.systemd is False:
            start = ("sudo", "service", "docker", "start")
        step = Step("docker-daemon-unreachable", "start docker", (start,))
        return Way("docker", "docker and the NVIDIA container toolkit are installed", step)
    need = _room()
    if c.data_free_bytes is not None and c.data_free_bytes < need:
        return None
    if c.gpu_container_ok:
        return Way("docker", "a container with the card was started")
    if c.desktop:
        return Way("docker", "Docker Desktop brings its own toolkit")
    if "nvidia" in (c.runtimes or ()) or c.nvidia_hook:
        return Way("docker", "docker gives containers the card")
    if c.cdi_nvidia_devices and c.cdi_enabled:
        return Way("docker", "docker gives containers the card through CDI")
    if c.toolkit_version:
        configure = ("sudo", "nvidia-ctk", "runtime", "configure", "--runtime=docker")
        step = Step("container-runtime-not-registered", "register the nvidia runtime", (configure,))
        return Way("docker", "docker and the NVIDIA container toolkit are installed", step)
    if c.toolkit_version == "" and family(s) == "apt":
        step = Step("container-toolkit-missing", "install the NVIDIA container toolkit", (_TOOLKIT,))
        return Way("docker", "docker runs", step)
    return None


def _podman(c: ContainerFacts) -> Way | None:
    if not c.podman:
        return None
    if c.cdi_nvidia_devices:
        return Way("podman", "podman gives containers the card through CDI")
    if c.toolkit_version:
        step = Step("container-cdi-device-unknown", "write the CDI specification", (_GENERATE,))
        return Way("podman", "podman and the NVIDIA container toolkit are installed", step)
    return None


def _room() -> int:
    """Bytes that a build needs in the engine's data folder."""
    name = catalogue.table("image_target")["dockerfile"]
    return int(next(r["room"] for r in catalogue.table("image_build") if r["dockerfile"] == name))


@check(CAUSE, needs=("system",))
def image_is_the_shorter_way(s: Snapshot) -> Finding | Skipped | None:
    """The host needs several repairs, or one that cannot be made, and a container with the card is near.

    A note: it changes no verdict. Silent inside a container, with a driver or card that the image cannot use,
    and where the way into a container is longer than the repairs.
    """
    if s.origin != "host":
        return Skipped(CAUSE, "a text does not show the whole machine")
    if s.inside_image or s.in_container:
        return None
    if s.in_container is None:
        return Skipped(CAUSE, "it is not known whether this is a container")
    if s.toolchain is None and s.python is None:
        return Skipped(CAUSE, "compilers and Python of this host were not looked at")
    wrong = repairs(s)
    if not wrong:
        return None
    barred = [why for f in wrong if (why := impossible(s, f))]
    if len(wrong) < SEVERAL and not barred:
        return None
    suits = fits(s)
    if not isinstance(suits, str):
        return suits
    near = way(s)
    if not isinstance(near, Way):
        return near
    return _say(s, wrong, barred, suits, near)


def _say(s: Snapshot, wrong: tuple[Finding, ...], barred: list[str], suits: str, near: Way) -> Finding:
    names = ", ".join(f.id for f in wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    count = f"{len(wrong)} repair{'' if len(wrong) == 1 else 's'}"
    why_not = f", which cannot all be made here ({barred[0]})" if barred else ""
    first = f" (first: {near.step.text})" if near.step else ""
    text = (
        f"this host needs {count}{why_not}: {names}; the pinned image needs none of them: {suits}, "
        f"and {near.why}{first}. `vllm-doctor build` makes it"
    )
    evidence = [
        Evidence("repairs", ", ".join(f.id for f in wrong), "the checks of this host"),
        s.evidence("driver.version"),
        *(s.evidence(f"gpus[{(s.gpus or ()).index(g)}].name") for g in visible(s)),
        *_engine_evidence(s, near),
    ]
    fixes = []
    if near.step is not None:
        fixes.append(Remedy(f"Once: {near.step.text}", commands=near.step.commands))
    fixes.append(
        Remedy(
            f"Build the image (about {size(_room())} of room while it builds); it prints the line to run it here",
            commands=(("vllm-doctor", "build"),),
            verify=("in the container: vllm-doctor check",),
        )
    )
    return found(CAUSE, Confidence.LIKELY, text, evidence, fixes=fixes)


def _engine_evidence(s: Snapshot, near: Way) -> list[Evidence]:
    if near.engine == "podman":
        return [s.evidence("container.podman"), s.evidence("container.cdi_nvidia_devices")]
    names = ("daemon_version", "runtimes", "toolkit_version", "cdi_nvidia_devices")
    return [s.evidence(f"container.{n}") for n in names if getattr(s.container, n) is not None]
