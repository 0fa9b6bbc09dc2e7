"""Evidence of the area container: docker's and the NVIDIA hook's refusals, and what is missing inside."""

from __future__ import annotations

import re

from doctor.catalogue.gpus import cuda_of_driver
from doctor.checks.evidence.common import (
    HINT,
    LIKELY,
    PROVEN,
    container_sign,
    events,
    first,
    has,
    near,
    ranks,
    rule,
    say,
    together,
    wsl_sign,
)
from doctor.checks.evidence.remedies import install_toolkit, register_runtime, rest, shared_memory
from doctor.checks.registry import Result
from doctor.finding import Severity
from doctor.snapshot import Event, Snapshot

SHM = "/dev/shm"  # noqa: S108  named in messages, never opened


@rule("container-toolkit-missing")
def toolkit(s: Snapshot) -> Result:
    """The daemon has no device driver for GPUs (likely); the toolkit's program is not there either (proven)."""
    cause = "container-toolkit-missing"
    absent = first(s, "container.toolkit-not-found", "container.runtime-binary")
    event = next((e for e in events(s, "container.no-device-driver") if e.values.get("driver") != "cdi"), None)
    if event:
        text = (
            "docker knows no device driver that gives containers a GPU: the NVIDIA container "
            "toolkit is not in place"
        )
        return say(cause, together(s, event, absent), text, event, absent, fixes=install_toolkit(s))
    if absent:
        text = "the NVIDIA container toolkit's program is not there"
        asked = first(s, "container.asked-runtime")
        return say(
            cause,
            PROVEN if absent.signal == "container.runtime-binary" else LIKELY,
            text,
            absent,
            asked,
            fixes=install_toolkit(s),
        )
    return None


@rule("container-runtime-not-registered")
def runtime(s: Snapshot) -> Result:
    """The daemon does not know the runtime "nvidia" (proven)."""
    cause = "container-runtime-not-registered"
    event = first(s, "container.unknown-runtime")
    if event:
        text = f"this docker daemon knows no runtime called {event.values.get('runtime', 'nvidia')}"
        return say(cause, PROVEN, text, event, fixes=register_runtime(s))
    listed = first(s, "container.runtimes-line")
    asked = first(s, "container.asked-runtime")
    if listed and asked and "nvidia" not in listed.text:
        return say(
            cause,
            LIKELY,
            f"docker lists {listed.values['list'].strip()}, and the runtime nvidia is asked for",
            listed,
            asked,
        )
    return None


@rule("container-cdi-device-unknown")
def cdi(s: Snapshot) -> Result:
    """A CDI device was asked for that no specification on the host describes (proven)."""
    event = first(s, "container.cdi-unresolved")
    if event is None:
        event = next((e for e in events(s, "container.no-device-driver") if e.values.get("driver") == "cdi"), None)
    if event is None:
        return _no_vendor(s)
    text = (
        f"no CDI specification on the host describes {event.values.get('device', 'the device that was asked for')}"
    )
    return say("container-cdi-device-unknown", PROVEN, text, event)


def _no_vendor(s: Snapshot) -> Result:
    """Docker 29 turns --gpus into a CDI request: without any specification of a GPU it ends here (proven)."""
    cause = "container-cdi-device-unknown"
    event = first(s, "container.cdi-no-vendor")
    if event is None:
        return None
    absent = first(s, "container.toolkit-not-found", "container.runtime-binary")
    text = "docker found no CDI specification of a GPU: the toolkit is not installed, or has not written one"
    return say(cause, PROVEN, text, event, absent, fixes=(install_toolkit(s)[0], *rest(cause, 0)))


@rule("container-image-requires-newer-driver")
def requirement(s: Snapshot) -> Result:
    """The hook refused the image for a condition on the driver or its CUDA level (proven)."""
    event = first(s, "container.requirement")
    if event is None:
        return None
    condition = event.values["condition"].replace(" ", "")
    have = s.driver.version if s.driver else None
    level = (s.driver.cuda if s.driver else None) or cuda_of_driver(have, windows=bool(s.is_wsl))
    text = f"the image demands {condition}"
    if have:
        text += f"; the host's driver is {have}" + (f" (CUDA {level})" if level else "")
    sure = PROVEN if condition.startswith(("cuda", "driver")) else LIKELY
    return say("container-image-requires-newer-driver", sure, text, event)


@rule("container-gpu-lost-after-daemon-reload")
def gpu_lost(s: Snapshot) -> Result:
    """NVML's unknown error in a container that had worked, or beside a working host or a reload (likely)."""
    cause = "container-gpu-lost-after-daemon-reload"
    event = first(s, "container.gpu-lost", "driver.nvml-unknown")
    if event is None or wsl_sign(s):
        return None
    inside = container_sign(s)
    reload_seen = first(s, "container.daemon-reload")
    host = first(s, "container.on-host") if s.gpus else None
    worked = first(s, "vllm.loaded", "vllm.started")
    if reload_seen or (inside and (host or worked)) or (host and worked):
        text = (
            "the container answers with NVML's unknown error although the GPU works elsewhere: its "
            "device rules were reset"
        )
        return say(cause, LIKELY, text, event, reload_seen, host, worked, inside)
    return say(
        cause,
        HINT,
        "NVML answers with an unknown error, as in a container that lost or never had the GPU",
        event,
        inside,
    )


@rule("container-image-bundles-driver-libs")
def bundled(s: Snapshot) -> Result:
    """The hook could not create a mount target because the image has that driver library (proven)."""
    event = first(s, "container.file-exists")
    if event is None:
        return None
    name = event.values["path"].rsplit("/", 1)[-1].rstrip(":")
    return say("container-image-bundles-driver-libs", PROVEN, f"the image already contains {name}", event)


@rule("container-gpu-not-exposed")
def not_exposed(s: Snapshot) -> Result:
    """Inside a container libcuda or the device nodes are missing (likely); no platform found is a hint."""
    cause = "container-gpu-not-exposed"
    inside = container_sign(s)
    library = first(s, "driver.libcuda-missing")
    nodes = first(s, "container.device-missing")
    none = first(s, "driver.no-cuda-gpus")
    platform = first(s, "driver.infer-device", "driver.no-platform")
    if inside and library:
        text = "inside the container libcuda.so.1 cannot be loaded: it was started without the GPU"
        return say(cause, together(s, library, inside, nodes), text, library, inside, nodes, platform)
    if inside and (none or platform) and not has(s, "python.cpu-torch"):
        sure = LIKELY if none else HINT
        return say(cause, sure, "the container sees no GPU", none or platform, inside)
    if inside and (lost := first(s, "driver.nvml-not-loaded", "driver.nvml-library", "container.gpu-lost")):
        return say(cause, HINT, "NVML reaches no GPU inside the container", lost, inside)
    if library and platform:
        text = "libcuda.so.1 cannot be loaded and vLLM finds no platform, as in a container without the GPU"
        return say(cause, LIKELY, text, library, platform)
    banner = first(s, "container.no-driver-banner")
    if banner:
        return say(cause, LIKELY, "the image's start script found no driver: the container has no GPU", banner)
    cluster = first(s, "container.kubernetes-no-gpu")
    if cluster:
        return say(cause, LIKELY, "no node of the cluster offers a free GPU to the pod", cluster)
    return None


@rule("libcuda-stub-shadows-driver")
def stub(s: Snapshot) -> Result:
    """CUDA error 34, or libcuda.so.1 in a stubs folder (proven); a stubs folder on the path (a hint)."""
    cause = "libcuda-stub-shadows-driver"
    event = first(s, "container.stub")
    if event:
        return say(cause, PROVEN, "the toolkit's stub for linking is taken for the driver's libcuda", event)
    path = first(s, "container.stub-path")
    if path:
        return say(cause, HINT, "a stubs folder is on LD_LIBRARY_PATH", path)
    return None


@rule("shm-too-small")
def shm(s: Snapshot) -> Result:
    """NCCL or a worker could not create or extend shared memory (proven); its vague forms are likely or hints."""
    cause = "shm-too-small"
    size = next((e for e in events(s, "shell.df") if e.values["mount"] == SHM), None)
    shown = f" ({size.values['size']} in all)" if size else ""
    text = f"{SHM} is too small for what the workers share{shown}"
    for event in events(s, "container.shm-nccl"):
        attach = "attaching" in event.text
        return say(cause, LIKELY if attach else PROVEN, text, event, size, fixes=shared_memory())
    seen = first(s, "container.shm-python")
    if seen:
        return say(cause, PROVEN if "No space" in seen.text else LIKELY, text, seen, size, fixes=shared_memory())
    small = size and size.values["size"] in ("64M", "64.0M", "65536", "64Mi")
    failed = next(
        (e for e in events(s, "network.nccl-error") if "system" in e.values.get("what", "").lower()), None
    )
    if small and (failed or first(s, "host.bus-error")):
        return say(cause, LIKELY, text, failed or first(s, "host.bus-error"), size)
    bus = first(s, "host.bus-error")
    if bus:
        sure = LIKELY if ranks(s) > 1 and container_sign(s) else HINT
        return say(cause, sure, "a bus error, as when shared memory is full", bus, container_sign(s))
    if failed:
        return say(cause, HINT, "NCCL met a system error, as when shared memory is full", failed)
    return None


@rule("docker-daemon-unreachable")
def daemon_down(s: Snapshot) -> Result:
    """The docker client reached no daemon (likely)."""
    event = first(s, "container.daemon-down")
    return (
        say("docker-daemon-unreachable", LIKELY, "the docker client reaches no daemon", event) if event else None
    )


@rule("docker-socket-permission-denied")
def daemon_denied(s: Snapshot) -> Result:
    """The docker client may not use the daemon's socket (proven)."""
    event = first(s, "container.daemon-denied")
    return (
        say("docker-socket-permission-denied", PROVEN, "this user may not talk to the docker daemon", event)
        if event
        else None
    )


@rule("gpu-container-fails")
def hook_failed(s: Snapshot) -> Result:
    """The NVIDIA hook failed for a reason that nothing above explains (likely)."""
    event = first(s, "container.cli-driver-error")
    if event is None or near(s, event, {"container.requirement", "container.file-exists"}, before=4, after=4):
        return None
    text = "the NVIDIA container hook could not reach the driver, so the container did not start"
    return say("gpu-container-fails", LIKELY, text, event, severity=Severity.BLOCKER)


@rule("container-device-rules-refused")
def device_rules(s: Snapshot) -> Result:
    """The hook could not change the devices cgroup (proven when it says why)."""
    event = first(s, "container.device-rules")
    if event is None:
        return None
    if "old" in event.values:
        text = "this toolkit looks for cgroup v1, which is not there; 1.8 and newer know v2"
        return say("container-device-rules-refused", PROVEN, text, event)
    refused = re.search("not permitted|permission denied", event.values["reason"], re.I)
    text = "the hook may not set the device rules of the container (rootless docker, or docker inside LXC?)"
    return say("container-device-rules-refused", PROVEN if refused else LIKELY, text, event)


def platform_event(s: Snapshot) -> Event | None:
    """vLLM's own word that it found no platform."""
    return first(s, "driver.infer-device", "driver.no-platform")
