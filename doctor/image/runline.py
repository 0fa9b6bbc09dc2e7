"""How an image is run on this host: the GPU request that its engine understands, caches, ports. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.catalogue.gpus import version_tuple
from doctor.facts import ContainerFacts
from doctor.image.engine import Engine
from doctor.snapshot import Snapshot

#: The volume of the caches that a start fills (weights, Triton, torch.compile, FlashInfer).
CACHE = "vllm-doctor-cache"
#: vLLM's processes talk through shared memory; an engine gives 64 MiB. The figure of docker/compose.yaml.
SHM = "4g"
#: What docker/compose.yaml serves with too.
SERVE = ("--max-model-len", "8192")
GPUS = ("--gpus", "all")
CDI = ("--device", "nvidia.com/gpu=all")
#: From here on Docker resolves CDI devices without a switch in its configuration.
CDI_FROM = (28, 2)
_GENERATE = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


@dataclass(frozen=True)
class RunLines:
    """Argument lists to copy, by what they do. ``way``: "gpus" or "cdi"; ``first``: what must be done before."""

    commands: tuple[tuple[str, tuple[str, ...]], ...]
    way: str
    why: str
    first: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def lines(s: Snapshot, engine: Engine, image: str, model: str = "MODEL", *, remote: bool = False) -> RunLines:
    """The lines for this host. ``model``: what is served; ``remote``: nothing is known of the daemon's machine."""
    c = s.container or ContainerFacts()
    first: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    if remote:
        way, why = "gpus", "the usual request; the daemon's machine was not looked at"
    else:
        (way, why, first), notes = _way(s, c, engine), _no_gpu(s)
    run = (_program(engine), "run", "--rm", *(CDI if way == "cdi" else GPUS))
    full = (*run, "--shm-size", SHM, "-v", f"{CACHE}:/cache")
    commands = (
        ("check", (*run, image, "check")),
        ("smoke", (*full, image, "smoke", "--download")),
        ("serve", (*full, "-p", "127.0.0.1:8000:8000", image, "serve", model, *SERVE)),
    )
    return RunLines(commands, way, why, first, notes)


def _program(engine: Engine) -> str:
    """The plain name: which client runs a container does not matter, only which one builds."""
    return engine.kind if engine.path.rpartition("/")[2] == engine.kind else engine.path


def _way(s: Snapshot, c: ContainerFacts, engine: Engine) -> tuple[str, str, tuple[str, ...]]:
    if engine.kind == "podman":
        why = "podman resolves CDI devices"
        if c.cdi_nvidia_devices:
            return "cdi", f"{why}: {_files(c)}", ()
        return "cdi", why, (_missing_specification(),)
    if c.desktop:
        return "gpus", "Docker Desktop brings its own toolkit", ()
    registered = "nvidia" in (c.runtimes or ())
    if registered or c.nvidia_hook:
        what = "the runtime nvidia is registered" if registered else "NVIDIA's hook is installed"
        return "gpus", f"{what}{' (WSL 2)' if s.is_wsl2 else ''}", _rootless(c)
    if c.cdi_nvidia_devices and _resolves_cdi(c):
        return "cdi", f"Docker {c.daemon_version} resolves CDI devices: {_files(c)}", ()
    if c.cdi_nvidia_devices:
        switch = 'Docker does not resolve CDI: set {"features": {"cdi": true}} in daemon.json and restart it'
        return "cdi", f"there is a CDI specification: {_files(c)}", (switch,)
    return "gpus", "the usual request", _no_way_in(c)


def _resolves_cdi(c: ContainerFacts) -> bool:
    return bool(c.cdi_enabled) or (version_tuple(c.daemon_version) or ()) >= CDI_FROM


def _files(c: ContainerFacts) -> str:
    return ", ".join(c.cdi_files or ()) or "found by the daemon itself"


def _no_gpu(s: Snapshot) -> tuple[str, ...]:
    if s.gpus or (s.driver is not None and s.driver.nvml_status == "ok"):
        return ()
    return ("no working GPU here: on this machine the container can only say that no GPU reached it (exit 2)",)


def _missing_specification() -> str:
    return f"no CDI specification describes the GPU yet: install nvidia-container-toolkit, then {_GENERATE}"


def _rootless(c: ContainerFacts) -> tuple[str, ...]:
    if not c.rootless:
        return ()
    return (
        "rootless Docker: the hook cannot set device rules; once: "
        "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
    )


def _no_way_in(c: ContainerFacts) -> tuple[str, ...]:
    refusal = 'the engine would answer `could not select device driver "" with capabilities: [[gpu]]`'
    if c.toolkit_version == "":
        return (
            f"nvidia-container-toolkit is not installed, so {refusal}: install it, then sudo nvidia-ctk runtime "
            "configure --runtime=docker and restart docker (vllm-doctor fix does it where apt has the package)",
        )
    return (
        f"the runtime nvidia is not registered, so {refusal}: sudo nvidia-ctk runtime configure --runtime=docker, "
        "then restart docker (vllm-doctor fix does both)",
    )
