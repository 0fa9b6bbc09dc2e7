"""Checks of the area container that judge the inside: is the GPU there, the right libcuda, enough shared memory.

What concerns the engine on the host is in :mod:`doctor.checks.docker_engine`.
"""

from __future__ import annotations

import re
from typing import Literal

from doctor.checks.registry import check as register
from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot

MIB = 1 << 20
#: What docker gives /dev/shm when nothing is asked for (https://docs.docker.com/reference/cli/docker/container/run/).
DOCKER_DEFAULT_SHM = 64 * MIB

COMPOSE_REQUEST = (
    "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}"
)


@register("container-gpu-not-exposed", needs=("system",))
def container_gpu_not_exposed(s: Snapshot) -> Finding | Skipped | None:
    """The container was started without a GPU: no device node of a card, and no driver library.

    Signals: inside a container; no /dev/nvidiaN (under WSL2: no /dev/dxg); libcuda.so.1 not to be loaded.
    The three faces of it, measured in containers without a grant: no NVML library (12); a library from the
    image and an ordinary user (9, DriverNotLoaded); a library from the image and root (999, Unknown, because
    NVML then makes /dev/nvidiactl itself and the device cgroup refuses to open it). So /dev/nvidiactl alone
    is no sign of a grant: only a card's own node is.
    Source: docs.nvidia.com/datacenter/cloud-native/container-toolkit.
    """
    inside = _inside(s, "container-gpu-not-exposed")
    if inside is not True:
        return inside
    if s.inside_image:
        return Skipped("container-gpu-not-exposed", "an image is being built: no GPU is expected")
    if s.driver is None:
        return Skipped("container-gpu-not-exposed", "the driver was not looked at")
    if s.driver.nvml_status == "ok" or s.gpus:
        return None
    granted = _granted(s)
    if granted is None:
        return Skipped("container-gpu-not-exposed", "the device nodes in /dev are not known")
    if granted:
        return None
    evidence = [s.evidence("system.container_kind")]
    if s.driver.device_nodes is not None:
        evidence.append(s.evidence("driver.device_nodes"))
    if s.is_wsl2 and s.wsl is not None:
        evidence.append(s.evidence("wsl.dxg"))
    for fact in ("libcuda", "nvml_status", "nvml_error", "nvidia_smi_exit", "module_loaded", "pci_nvidia"):
        if getattr(s.driver, fact) is not None:
            evidence.append(s.evidence(f"driver.{fact}"))
    return found(
        "container-gpu-not-exposed",
        Confidence.PROVEN if s.driver.libcuda == "" else Confidence.LIKELY,
        _not_exposed_summary(s),
        evidence,
        fixes=_grant_remedies(s),
        excludes=("nvidia-driver-missing: a container never has a driver of its own, the host lends it",),
    )


def _not_exposed_summary(s: Snapshot) -> str:
    driver = s.driver
    assert driver is not None  # noqa: S101  the caller has looked
    node = "/dev/dxg" if s.is_wsl2 else "/dev/nvidia*"
    parts = [f"this container has no {node} of a card"]
    parts.append("no libcuda.so.1" if driver.libcuda == "" else "and its libcuda.so.1 reaches no driver")
    text = f"{parts[0]} and {parts[1]}" if driver.libcuda == "" else " ".join(parts)
    if driver.nvml_status == "Unknown":
        text += "; NVML answers Unknown (999), which is what root sees where the GPU was not granted"
    elif driver.nvml_status == "DriverNotLoaded":
        text += "; the image's own NVML library reaches no driver (9)"
    elif driver.nvml_status == "LibraryNotFound":
        text += "; the NVML library is missing too"
    if not s.is_wsl2 and driver.module_loaded is False:
        text += (
            "; the kernel, which is the host's, runs no nvidia module, so the host has no working driver either"
        )
    elif not s.is_wsl2 and driver.pci_nvidia == ():
        text += "; the PCI bus seen from here shows no NVIDIA card either, so run the doctor on the host as well"
    return text


def _granted(s: Snapshot) -> bool | None:
    """True when a card's node is here, None when that is not known."""
    nodes = s.driver.device_nodes if s.driver else None
    if nodes is not None and any(_is_card(n) for n in nodes):
        return True
    dxg = s.wsl.dxg if s.wsl else None
    if dxg:
        return True
    if s.is_wsl2:
        return None if dxg is None else False
    return None if nodes is None else False


def _is_card(node: str) -> bool:
    return re.fullmatch(r"/dev/nvidia\d+", node) is not None


def _grant_remedies(s: Snapshot) -> tuple[Remedy, ...]:
    """Ways to ask for the GPU; first the host's driver where the shared kernel shows that it does not run."""
    ways = _ways_to_ask(s)
    if s.driver is not None and s.driver.module_loaded is False and not s.is_wsl2:
        first = (
            "On the host, first: get its NVIDIA driver to run (this container shares its kernel, which has none)"
        )
        return (Remedy(first, commands=(("vllm-doctor", "check"),), verify=("on the host: nvidia-smi",)), *ways)
    return ways


def _ways_to_ask(s: Snapshot) -> tuple[Remedy, ...]:
    kind = s.system.container_kind if s.system else None
    verify = ("in the new container: nvidia-smi -L names the card", "vllm-doctor check")
    if kind == "kubernetes":
        text = "Ask for the card in the pod: resources.limits nvidia.com/gpu: 1 (needs NVIDIA's device plugin)"
        return (Remedy(text, verify=verify),)
    cdi = Remedy(
        "Or name it as a CDI device (after `nvidia-ctk cdi generate` on the host; Docker 28.2 and later "
        "and podman resolve CDI by themselves)",
        commands=((kind if kind == "podman" else "docker", "run", "--device", "nvidia.com/gpu=all", "IMAGE"),),
        verify=verify,
    )
    if kind == "podman":
        return (cdi,)
    gpus = Remedy(
        "Recreate the container with a GPU request (IMAGE is yours; keep its other options)",
        commands=(("docker", "run", "--gpus", "all", "--ipc=host", "IMAGE"),),
        verify=verify,
    )
    compose = Remedy(
        f"Compose: give the service {COMPOSE_REQUEST}",
        commands=(("docker", "compose", "up", "-d", "--force-recreate"),),
        verify=verify,
    )
    host = Remedy(
        "If the host then answers `could not select device driver`, it lacks the NVIDIA container toolkit: "
        "run the doctor there",
        commands=(("vllm-doctor", "check"),),
    )
    return (gpus, compose, cdi, host)


@register("container-gpu-lost-after-daemon-reload", needs=("system",))
def container_gpu_lost(s: Snapshot) -> Finding | Skipped | None:
    """A running container lost the GPU it had: the card's node is here, and opening it is refused.

    Inside: NVML Unknown (999) with the card's node present. Likely when the node is refused to this process,
    a hint otherwise. On the host: nothing has failed yet, so a note at most: the systemd cgroup driver, a GPU
    that comes in through the hook, and no /dev/char links mean that the next `systemctl daemon-reload` does it.
    Source: NVIDIA container toolkit troubleshooting, "Containers losing access to GPUs".
    """
    name = "container-gpu-lost-after-daemon-reload"
    if s.in_container is None:
        return Skipped(name, "it is not known whether this is a container")
    if not s.in_container:
        return _reload_would_hurt(s)
    if s.driver is None or s.driver.nvml_status is None or s.driver.device_nodes is None:
        return Skipped(name, "NVML's answer or the device nodes are not known")
    cards = [n for n in s.driver.device_nodes if _is_card(n)]
    if s.driver.nvml_status != "Unknown" or not cards:
        return None
    denied = [n for n in cards if n in s.driver.device_nodes_denied]
    evidence = [s.evidence("driver.nvml_status"), s.evidence("driver.device_nodes")]
    if denied:
        evidence.append(s.evidence("driver.device_nodes_denied"))
    return found(
        name,
        Confidence.LIKELY if denied else Confidence.HINT,
        f"{cards[0]} is here but NVML answers Unknown (999)"
        + (f", and opening {denied[0]} is refused" if denied else ""),
        evidence,
    )


def _reload_would_hurt(s: Snapshot) -> Finding | Skipped | None:
    name = "container-gpu-lost-after-daemon-reload"
    c = s.container
    if c is None or not c.daemon_reachable:
        return Skipped(name, "no docker daemon to ask")
    by_hook = "nvidia" in (c.runtimes or ()) or bool(c.nvidia_hook)
    if not by_hook or c.cdi_nvidia_devices or c.cgroup_driver != "systemd":
        return None
    if c.dev_char_nvidia_links is None:
        return Skipped(name, "the links in /dev/char are not known")
    if c.dev_char_nvidia_links:
        return None
    return found(
        name,
        Confidence.HINT,
        "the next `systemctl daemon-reload` can take the GPU from running containers: the cgroup driver is "
        "systemd and /dev/char has no links to the NVIDIA devices",
        [s.evidence("container.cgroup_driver"), s.evidence("container.dev_char_nvidia_links")],
        severity=Severity.NOTE,
        fixes=(
            Remedy(
                "Create the links now, and at each boot with a udev rule",
                commands=(("sudo", "nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all"),),
                risk=Risk.CAUTION,
                verify=("ls -l /dev/char shows links 195:*",),
            ),
        ),
    )


@register("libcuda-stub-shadows-driver", needs=("driver",))
def libcuda_stub(s: Snapshot) -> Finding | Skipped | None:
    """The loader takes the CUDA toolkit's link-time stub for libcuda.so.1.

    Signals: libcuda.so.1 resolves into a folder called stubs, or to a file that is no driver library.
    """
    driver = s.driver
    assert driver is not None  # noqa: S101  needs=
    if driver.libcuda_is_stub is None:
        if driver.libcuda == "":
            return None
        return Skipped("libcuda-stub-shadows-driver", "it is not known which libcuda.so.1 the loader takes")
    if not driver.libcuda_is_stub:
        return None
    evidence = [s.evidence("driver.libcuda"), s.evidence("driver.libcuda_is_stub")]
    path = (s.python.env if s.python else {}).get("LD_LIBRARY_PATH", "")
    stubs = [p for p in path.split(":") if "stubs" in p.split("/")]
    fixes: tuple[Remedy, ...] | None = None
    if stubs:
        source = (s.python.sources.get("env") if s.python else None) or "environment"
        evidence.append(Evidence("LD_LIBRARY_PATH", path, source))
        kept = ":".join(p for p in path.split(":") if p and p not in stubs)
        change = f"export LD_LIBRARY_PATH={kept}" if kept else "unset LD_LIBRARY_PATH"
        fixes = (
            Remedy(
                f"Start the server without {', '.join(stubs)} on LD_LIBRARY_PATH: {change}",
                verify=("vllm-doctor check --only libcuda-stub-shadows-driver",),
            ),
        )
    where = driver.libcuda or "libcuda.so.1"
    text = f"{where} is the toolkit's stub for linking; every CUDA call through it fails with error 34"
    return found("libcuda-stub-shadows-driver", Confidence.PROVEN, text, evidence, fixes=fixes)


@register("shm-too-small", needs=("system",))
def shm_too_small(s: Snapshot) -> Finding | Skipped | None:
    """Shared memory (/dev/shm) has docker's default of 64 MiB, which several workers outgrow.

    It stops vLLM only when more than one worker process runs; one card needs none of it. So: a likely blocker
    when the parallel sizes are known to be above one, a hint that it degrades with several cards in sight, and
    a mere note with one.
    """
    inside = _inside(s, "shm-too-small")
    if inside is not True:
        return inside
    system = s.system
    assert system is not None  # noqa: S101  needs=
    total, free = system.shm_total_bytes, system.shm_free_bytes
    if total is None:
        return Skipped("shm-too-small", "the size of /dev/shm is not known")
    if total > DOCKER_DEFAULT_SHM and (free is None or free > DOCKER_DEFAULT_SHM):
        return None
    workers = _workers(s)
    size = f"shared memory (/dev/shm) holds {total / MIB:.0f} MiB" + (
        f", {free / MIB:.0f} MiB of it free" if free is not None else ""
    )
    evidence = [s.evidence("system.shm_total_bytes", f"{total / MIB:.0f} MiB")]
    fixes = (
        Remedy(
            "Recreate the container with the host's shared memory, or with some of its own",
            commands=(
                ("docker", "run", "--ipc=host", "--gpus", "all", "IMAGE"),
                ("docker", "run", "--shm-size=8g", "--gpus", "all", "IMAGE"),
            ),
            verify=("in the new container: df -h /dev/shm",),
        ),
        Remedy("Compose: ipc: host, or shm_size: 8gb; Kubernetes: an emptyDir of medium Memory on /dev/shm"),
    )
    if workers is not None and workers > 1:
        text = f"{size}, and {workers} worker processes are asked for"
        return found("shm-too-small", Confidence.LIKELY, text, evidence, fixes=fixes)
    if s.gpus is not None and len(s.gpus) > 1:
        text = f"{size}: too little for tensor parallel over the {len(s.gpus)} cards here"
        return found("shm-too-small", Confidence.HINT, text, evidence, severity=Severity.DEGRADES, fixes=fixes)
    text = f"{size}: enough for one card, not for tensor parallel"
    return found("shm-too-small", Confidence.HINT, text, evidence, severity=Severity.NOTE, fixes=fixes)


def _workers(s: Snapshot) -> int | None:
    """Ranks that the known flags or launcher variables ask for; None when nothing says."""
    if s.serving is None:
        return None
    size = s.serving.tensor_parallel
    if size is None:
        text = s.serving.env.get("TP_SIZE", "")
        size = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
    return None if size is None else size * (s.serving.pipeline_parallel or 1)


def _inside(s: Snapshot, name: str) -> Literal[True] | Skipped | None:
    """True inside a container; otherwise what the check answers: nothing to find, or not known."""
    if s.in_container is None:
        return Skipped(name, "it is not known whether this is a container")
    return True if s.in_container else None
