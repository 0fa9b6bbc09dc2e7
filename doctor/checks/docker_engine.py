"""Checks of the area container that judge the engine on the host: daemon, toolkit, runtimes, configuration, room.

A machine without docker has no fault, and one whose server runs natively does not need the toolkit. So these
findings are notes unless the machine is evidently set up for GPU containers; a message in a log that somebody
explains keeps the catalogue's severity.
"""

from __future__ import annotations

from doctor.checks.registry import check as register
from doctor.checks.registry import found
from doctor.facts import ContainerFacts
from doctor.finding import Confidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot

GIB = 1 << 30
#: Below the first nothing of use can be pulled or built; the second is a margin of ours, hence a hint only.
DATA_FULL_BYTES = 2 * GIB
DATA_TIGHT_BYTES = 30 * GIB

RESTART = ("sudo", "systemctl", "restart", "docker")
TRY_GPU = "docker run --rm --gpus all ubuntu nvidia-smi -L"


@register("container-toolkit-missing", needs=("container",))
def container_toolkit_missing(s: Snapshot) -> Finding | Skipped | None:
    """The host's GPU works, docker runs, and nothing can hand the one to the other.

    Signals: neither nvidia-ctk, nvidia-container-cli nor the hook on this host, no nvidia runtime in the daemon
    and no CDI device. A note: it only matters to somebody who serves from a container. With --deep the
    daemon's own refusal is evidence.
    """
    name = "container-toolkit-missing"
    refused = _deep(s, "could not select device driver")
    if refused is None and s.container is not None and s.container.toolkit_version == "":
        refused = _deep(s, "failed to discover GPU vendor from CDI")  # Docker 29's words for it
    if refused is not None:
        text = "the daemon started no container with a GPU: it knows no driver for the gpu capability"
        return found(name, Confidence.PROVEN, text, refused.evidence, severity=Severity.DEGRADES)
    c = _daemon(s, name)
    if isinstance(c, Skipped):
        return c
    if c.desktop:
        return Skipped(name, "Docker Desktop brings its own toolkit inside its machine")
    if s.driver is None or s.driver.nvml_status != "ok":
        return Skipped(name, "no working GPU driver here yet, so the way into a container does not matter")
    if c.toolkit_version is None or c.runtimes is None:
        return Skipped(name, "the toolkit or the daemon's runtimes are not known")
    if c.toolkit_version or c.nvidia_hook or _gpu_ways(c):
        return None
    text = "docker runs and the GPU works, without the NVIDIA container toolkit: matters to serve from a container"
    evidence = [s.evidence("container.toolkit_version"), s.evidence("container.runtimes")]
    return found(name, Confidence.PROVEN, text, evidence, severity=Severity.NOTE)


@register("container-runtime-not-registered", needs=("container",))
def container_runtime_not_registered(s: Snapshot) -> Finding | Skipped | None:
    """daemon.json asks for the nvidia runtime and the daemon that answers does not have it.

    Signals: `default-runtime` nvidia without an entry in `runtimes` (the daemon refuses its next start), or an
    entry that the running daemon does not list (no restart since, or another daemon's file). Toolkit installed
    and nothing registered is a note: `--gpus all` goes through the hook, only `runtime: nvidia` is refused.
    """
    name = "container-runtime-not-registered"
    c = _daemon(s, name)
    if isinstance(c, Skipped):
        return c
    if c.runtimes is None:
        return Skipped(name, "the daemon's runtimes are not known")
    if "nvidia" in c.runtimes:
        return None
    evidence = [s.evidence("container.runtimes")]
    if c.daemon_json_default_runtime == "nvidia" and "nvidia" not in (c.daemon_json_runtimes or ()):
        evidence.append(s.evidence("container.daemon_json_default_runtime"))
        text = f"{c.daemon_json_path} makes nvidia the default runtime and defines no such runtime"
        return found(name, Confidence.LIKELY, text, evidence, severity=Severity.DEGRADES, fixes=_register(c))
    if "nvidia" in (c.daemon_json_runtimes or ()):
        evidence.append(s.evidence("container.daemon_json_runtimes"))
        text = f"{c.daemon_json_path} defines the nvidia runtime and the running daemon does not list it"
        restart = Remedy(
            "Restart the daemon, which stops running containers unless live-restore is on",
            commands=(RESTART,),
            risk=Risk.CAUTION,
            verify=("docker info lists the runtime nvidia",),
        )
        return found(name, Confidence.LIKELY, text, evidence, severity=Severity.DEGRADES, fixes=(restart,))
    if not c.toolkit_version or c.cdi_nvidia_devices or c.desktop:
        return None
    evidence.append(s.evidence("container.toolkit_version"))
    text = (
        "the toolkit is installed and docker does not know the nvidia runtime: `runtime: nvidia` would be refused"
    )
    return found(name, Confidence.HINT, text, evidence, severity=Severity.NOTE, fixes=_register(c))


def _register(c: ContainerFacts) -> tuple[Remedy, ...]:
    if c.toolkit_version == "":
        first = "Install nvidia-container-toolkit first; or take default-runtime out of the file again"
        return (Remedy(first), Remedy("Then restart docker", commands=(RESTART,), risk=Risk.CAUTION))
    configure = ["sudo", "nvidia-ctk", "runtime", "configure", "--runtime=docker"]
    if c.daemon_json_path:
        configure.append(f"--config={c.daemon_json_path}")
    return (
        Remedy(
            "Look at what would be written, keep a copy of the file, write it, restart docker",
            commands=((*configure, "--dry-run"), tuple(configure), RESTART),
            risk=Risk.CAUTION,
            verify=("docker info lists the runtime nvidia", TRY_GPU),
        ),
        Remedy("Or drop `runtime: nvidia` and ask for the GPU instead: --gpus all"),
    )


@register("container-image-requires-newer-driver", needs=("container",))
def container_image_requires_newer_driver(s: Snapshot) -> Finding | Skipped | None:
    """A real GPU container was refused because the image wants a newer driver. Seen with --deep only."""
    name = "container-image-requires-newer-driver"
    refused = _deep(s, "unsatisfied condition")
    if refused is None:
        return _not_tried(s, name)
    text = "the image that was tried asks for a newer driver than this host has"
    return found(name, Confidence.PROVEN, text, refused.evidence, severity=Severity.DEGRADES)


@register("container-image-bundles-driver-libs", needs=("container",))
def container_image_bundles_driver_libs(s: Snapshot) -> Finding | Skipped | None:
    """A real GPU container was refused: the image has driver libraries of its own. Seen with --deep only."""
    name = "container-image-bundles-driver-libs"
    refused = _deep(s, "file exists")
    if refused is None:
        return _not_tried(s, name)
    text = "the image that was tried has a file where the toolkit mounts a driver library"
    return found(name, Confidence.PROVEN, text, refused.evidence, severity=Severity.DEGRADES)


@register("gpu-container-fails", needs=("container",))
def gpu_container_fails(s: Snapshot) -> Finding | Skipped | None:
    """A real container with a GPU request did not start or saw no card. Needs --deep.

    The daemon's words name the cause when a known one is among them; that cause then takes this finding in.
    """
    name = "gpu-container-fails"
    c = s.container
    assert c is not None  # noqa: S101  needs=
    if c.gpu_container_ok is None:
        return _not_tried(s, name)
    if c.gpu_container_ok:
        return None
    if s.driver is None or s.driver.nvml_status != "ok":
        return Skipped(name, "no working GPU driver here, so no container can have one")
    text = f"a container that asked for the GPU failed: {(c.gpu_container_output or 'no output')[:300]}"
    evidence = [s.evidence("container.gpu_container_output")]
    return found(name, Confidence.PROVEN, text, evidence)


@register("docker-daemon-unreachable", needs=("container",))
def docker_daemon_unreachable(s: Snapshot) -> Finding | Skipped | None:
    """A docker client is installed and its daemon does not answer. A note: no docker is no fault."""
    name = "docker-daemon-unreachable"
    c = s.container
    assert c is not None  # noqa: S101  needs=
    absent = _absent(s, c, name)
    if absent is not None:
        return absent
    if c.daemon_reachable is None:
        return Skipped(name, c.daemon_error or "the daemon was not asked")
    if c.daemon_reachable or c.daemon_permission_denied:
        return None
    evidence = [s.evidence("container.docker_host"), s.evidence("container.daemon_error")]
    if s.is_wsl and (c.docker_client_version is None or "no such socket" in (c.daemon_error or "")):
        start = Remedy("Docker Desktop: turn on Settings > Resources > WSL integration for this distribution")
    elif s.system and s.system.systemd is False:
        start = Remedy("Start the daemon", commands=(("sudo", "service", "docker", "start"),), risk=Risk.CAUTION)
    else:
        start = Remedy("Start the daemon", commands=(("sudo", "systemctl", "start", "docker"),), risk=Risk.CAUTION)
    chosen = c.sources.get("docker_host", "default socket")
    by = "" if chosen == "default socket" else f" (chosen by {chosen})"
    text = f"the docker daemon does not answer: {c.daemon_error}{by}"
    return found(name, Confidence.PROVEN, text, evidence, fixes=(start,))


@register("docker-socket-permission-denied", needs=("container",))
def docker_socket_permission_denied(s: Snapshot) -> Finding | Skipped | None:
    """The daemon's socket refuses this user. A note, for the same reason."""
    name = "docker-socket-permission-denied"
    c = s.container
    assert c is not None  # noqa: S101  needs=
    absent = _absent(s, c, name)
    if absent is not None:
        return absent
    if c.daemon_permission_denied is None:
        return Skipped(name, c.daemon_error or "the daemon was not asked")
    if not c.daemon_permission_denied:
        return None
    group = c.docker_socket_group or "docker"
    evidence = [s.evidence("container.daemon_error"), s.evidence("container.docker_socket_group")]
    text = f"this user may not open {c.docker_host}: the socket belongs to group {group}"
    if group == "root":
        fixes = (Remedy("Run the command with sudo, or use a rootless daemon of your own"),)
    else:
        fixes = (
            Remedy(
                f'Join the group (sudo usermod -aG {group} "$USER") and log in again. Members can become root '
                "through docker; sudo or a rootless daemon are the other ways",
                verify=("docker version names a server",),
            ),
        )
    return found(name, Confidence.PROVEN, text, evidence, fixes=fixes)


@register("docker-daemon-json-invalid", needs=("container",))
def docker_daemon_json_invalid(s: Snapshot) -> Finding | Skipped | None:
    """The daemon's configuration file is not JSON: its next start is refused."""
    name = "docker-daemon-json-invalid"
    c = s.container
    assert c is not None  # noqa: S101  needs=
    if c.daemon_json_valid is None:
        absent = _absent(s, c, name)
        if absent is not None:
            return absent
        if c.daemon_json_path is None or c.daemon_json_error:
            return Skipped(name, c.daemon_json_error or "it is not known which file the daemon reads")
        return None  # absent, which is fine
    if c.daemon_json_valid:
        return None
    evidence = [s.evidence("container.daemon_json_path"), s.evidence("container.daemon_json_error")]
    text = f"{c.daemon_json_path} is not valid: {c.daemon_json_error}"
    return found(name, Confidence.PROVEN, text, evidence)


@register("docker-data-root-full", needs=("container",))
def docker_data_root_full(s: Snapshot) -> Finding | Skipped | None:
    """The file system that holds docker's images has no room for a vLLM image."""
    name = "docker-data-root-full"
    c = s.container
    assert c is not None  # noqa: S101  needs=
    absent = _absent(s, c, name)
    if absent is not None:
        return absent
    if c.data_free_bytes is None:
        return Skipped(name, "the room below docker's data folder is not known")
    if c.data_free_bytes >= DATA_TIGHT_BYTES:
        return None
    full = c.data_free_bytes < DATA_FULL_BYTES
    text = f"{c.data_root} has {c.data_free_bytes / GIB:.1f} GiB left, " + (
        "too little to pull or build an image" if full else "less than the 30 GiB to have ready for a vLLM image"
    )
    severity = Severity.DEGRADES if full else Severity.NOTE
    evidence = [
        s.evidence("container.data_root"),
        s.evidence("container.data_free_bytes", f"{c.data_free_bytes / GIB:.1f} GiB"),
    ]
    return found(name, Confidence.PROVEN if full else Confidence.HINT, text, evidence, severity=severity)


class _Refusal:
    """The output of a real container start, as evidence."""

    def __init__(self, s: Snapshot) -> None:
        self.evidence = (s.evidence("container.gpu_container_output"),)


def _deep(s: Snapshot, message: str) -> _Refusal | None:
    """The refusal of a --deep trial when it holds the daemon's message."""
    c = s.container
    if c is None or c.gpu_container_ok is not False or message not in (c.gpu_container_output or ""):
        return None
    # without a driver on the host the refusal says nothing that matters yet
    return _Refusal(s) if s.driver is not None and s.driver.nvml_status == "ok" else None


def _not_tried(s: Snapshot, name: str) -> Skipped | None:
    c = s.container
    if c is None or c.gpu_container_ok is None:
        why = c.gpu_container_skipped if c else None
        return Skipped(name, why or "shows only when a GPU container starts: check --deep, or explain its message")
    return None


def _daemon(s: Snapshot, name: str) -> ContainerFacts | Skipped:
    """The facts of a daemon that answered, or why there is nothing to judge."""
    c = s.container
    assert c is not None  # noqa: S101  needs=
    absent = _absent(s, c, name)
    if absent is not None:
        return absent
    if not c.daemon_reachable:
        return Skipped(name, f"the docker daemon was not heard: {c.daemon_error or 'not asked'}")
    return c


def _absent(s: Snapshot, c: ContainerFacts, name: str) -> Skipped | None:
    """Why docker is no subject here: it is not installed, or this is the inside of a container."""
    if c.daemon_reachable or c.daemon_permission_denied:
        return None
    if s.in_container:
        return Skipped(name, "inside a container the host's docker is out of sight")
    if c.docker_client == "" and c.sources.get("docker_host") in (None, "default socket"):
        return Skipped(name, "docker is not installed here, and need not be")
    return None


def _gpu_ways(c: ContainerFacts) -> bool:
    """True when the daemon has some way to hand out a GPU."""
    return "nvidia" in (c.runtimes or ()) or bool(c.cdi_enabled and c.cdi_nvidia_devices)
