"""Fixes with commands for the causes that people meet most; the catalogue's own wording follows.

``MODEL`` and ``IMAGE`` stand for the reader's own: a text seldom shows the whole command.
"""

from __future__ import annotations

from doctor import catalogue
from doctor.finding import Remedy, Risk
from doctor.snapshot import Snapshot

_RESTART = ("sudo", "systemctl", "restart", "docker")
_TRY = ("docker", "run", "--rm", "--gpus", "all", "ubuntu", "nvidia-smi", "-L")
_TOOLKIT_PAGE = "docs.nvidia.com/datacenter/cloud-native/container-toolkit"


def rest(cause: str, after: int = 1) -> tuple[Remedy, ...]:
    """The catalogue's remedies from the given one on."""
    return catalogue.cause(cause).remedies[after:]


def install_toolkit(s: Snapshot) -> tuple[Remedy, ...]:
    """NVIDIA's container toolkit: install, register, restart, try."""
    return (
        Remedy(
            f"Install it from NVIDIA's package repository ({_TOOLKIT_PAGE})",
            commands=(("sudo", "apt-get", "install", "nvidia-container-toolkit"),),
        ),
        Remedy(
            "Register it and restart docker, which stops running containers",
            commands=(("sudo", "nvidia-ctk", "runtime", "configure", "--runtime=docker"), _RESTART),
            risk=Risk.CAUTION,
        ),
        Remedy("Then a container must list the card", commands=(_TRY,), risk=Risk.SAFE),
    )


def register_runtime(s: Snapshot) -> tuple[Remedy, ...]:
    """The runtime entry in daemon.json, or a request that needs none."""
    configure = ("sudo", "nvidia-ctk", "runtime", "configure", "--runtime=docker")
    return (
        Remedy(
            "Register the runtime and restart docker, which stops running containers",
            commands=(configure, _RESTART),
            risk=Risk.CAUTION,
            verify=("docker info lists the runtime nvidia",),
        ),
        Remedy(
            "Or leave the runtime out and ask for the GPU", commands=(("docker", "run", "--gpus", "all", "IMAGE"),)
        ),
        *(r for r in rest("container-runtime-not-registered", 0) if "Desktop" in r.summary),
    )


def shared_memory() -> tuple[Remedy, ...]:
    """The host's shared memory for the container, or more of its own."""
    return (
        Remedy(
            "Start the container with the host's shared memory, or with some of its own",
            commands=(
                ("docker", "run", "--gpus", "all", "--ipc=host", "IMAGE"),
                ("docker", "run", "--gpus", "all", "--shm-size=8g", "IMAGE"),
            ),
            risk=Risk.SAFE,
            verify=("in the container: df -h /dev/shm",),
        ),
        Remedy("Compose: ipc: host, or shm_size: 8gb, then docker compose up -d --force-recreate"),
        *rest("shm-too-small"),
    )


def upgrade_vllm(cause: str) -> tuple[Remedy, ...]:
    """A newer vLLM, which brings transformers and torch that fit."""
    return (
        Remedy(
            "Upgrade vLLM, which brings the transformers that fits it",
            commands=(("uv", "pip", "install", "--upgrade", "vllm", "--torch-backend=auto"),),
            risk=Risk.CAUTION,
            verify=("python -c 'import vllm; print(vllm.__version__)'",),
        ),
        *rest(cause),
    )


_RELEASES = "github.com/vllm-project/vllm/releases"
_CU129 = "https://download.pytorch.org/whl/cu129"
#: The first driver that serves CUDA 13, and the first vLLM whose plain wheel asks for it (vllm_wheel_cuda).
_CUDA13_DRIVER, _CUDA13_VLLM = 580, "0.20.0"


def cuda12() -> Remedy:
    """vLLM and torch for CUDA 12: ``--torch-backend`` chooses torch alone, not the wheel of vLLM."""
    return Remedy(
        f"Driver before {_CUDA13_DRIVER}: the +cu129 wheel of vLLM from {_RELEASES} with torch of the same "
        f"release (the plain wheel is a CUDA 13 build since {_CUDA13_VLLM})",
        commands=(("uv", "pip", "install", "VLLM_CU129_WHEEL", "--extra-index-url", _CU129),),
        risk=Risk.CAUTION,
    )


def cuda13() -> Remedy:
    """The plain wheel and its torch, in an environment of their own."""
    return Remedy(
        f"Driver {_CUDA13_DRIVER} or newer: vLLM and torch afresh, both for CUDA 13",
        commands=(
            ("uv", "venv", "--python", "3.12", "vllm-env"),
            ("uv", "pip", "install", "--python", "vllm-env", "vllm", "--torch-backend=cu130"),
        ),
        risk=Risk.CAUTION,
        verify=("python -c 'import vllm._C, torch; print(torch.version.cuda)'",),
    )


def same_release(s: Snapshot) -> tuple[Remedy, ...]:
    """vLLM and torch of one CUDA release that the driver serves."""
    branch = (s.driver.version if s.driver else None) or ""
    known = int(branch.split(".")[0]) if branch[:3].isdigit() else None
    if known is None:
        return (cuda13(), cuda12())
    return (cuda13(),) if known >= _CUDA13_DRIVER else (cuda12(),)


def older_transformers(s: Snapshot) -> tuple[Remedy, ...]:
    """The range that this vLLM asks for, by its metadata; below 5 where the version is not known."""
    version = (s.serving.vllm if s.serving else None) or (s.python.vllm if s.python else None)
    rows = {row["vllm"]: row["transformers"] for row in catalogue.table("vllm_pins")}
    wanted = rows.get((version or "").partition("+")[0]) or "<5"
    if "<5" not in wanted:
        wanted = f"{wanted},<5"
    which = f" ({wanted} for vLLM {version})" if version else ""
    return (
        Remedy(
            f"Install the transformers that this vLLM was made for{which}",
            commands=(("uv", "pip", "install", f"transformers{wanted}"),),
            risk=Risk.CAUTION,
        ),
        *rest("transformers-too-new-for-vllm"),
    )


def pinned_memory(cause: str) -> tuple[Remedy, ...]:
    """Switch pinned memory on under WSL2."""
    return (
        Remedy(
            "Switch pinned memory on for vLLM",
            automatic=True,
            commands=(("env", "VLLM_WSL2_ENABLE_PIN_MEMORY=1", "vllm", "serve", "MODEL"),),
            risk=Risk.SAFE,
        ),
        *rest(cause),
    )
