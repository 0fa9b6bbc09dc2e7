"""Starts one small container with a GPU request, to see it happen. Only ``check --deep`` comes here.

Uses an image that is already on this machine: nothing is pulled. The container has no network, is limited to
one program that ends by itself, carries our label, and is removed whatever happens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from doctor.host import docker_daemon
from doctor.host.access import Host
from doctor.host.docker_daemon import Answer, Endpoint

LABEL = "vllm-doctor.trial"
START_SECONDS = 20.0
#: Repositories whose images are known to run a glibc program that the toolkit mounts; in order of preference.
KNOWN = (
    "nvidia/cuda",
    "vllm/vllm-openai",
    "pytorch/pytorch",
    "ubuntu",
    "debian",
    "rockylinux",
    "fedora",
    "python",
)
#: The toolkit mounts nvidia-smi; what it prints names the cards that the container sees.
COMMAND = ["nvidia-smi", "-L"]


def try_one(place: Endpoint, host: Host, answer: Answer, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Facts ``gpu_container_ok``, ``_output`` and ``_skipped``. Ends within about twice START_SECONDS."""
    if answer.info is None:
        return {"gpu_container_skipped": f"no daemon to ask: {answer.error}"}
    sdk = docker_daemon.load_sdk()
    if isinstance(sdk, str):
        return {"gpu_container_skipped": sdk}
    result = docker_daemon.within(2 * START_SECONDS, lambda: _trial(sdk, place, host, fields))
    return result or {"gpu_container_ok": False, "gpu_container_output": "the daemon did not answer in time"}


def _trial(sdk: Any, place: Endpoint, host: Host, fields: Mapping[str, Any]) -> dict[str, Any]:
    try:
        client = sdk.DockerClient(base_url=docker_daemon.base_url(place, host), timeout=START_SECONDS)
    except Exception as error:  # noqa: BLE001  the SDK raises its own and requests' errors
        return {"gpu_container_skipped": _line(error)}
    try:
        _remove_leftovers(client)
        image = _local_image(client)
        if image is None:
            return {
                "gpu_container_skipped": "no suitable image on this machine and none is pulled unasked; "
                f"get one of {', '.join(KNOWN[:2])} or {KNOWN[3]} first"
            }
        return _start(sdk, client, image, fields)
    except Exception as error:  # noqa: BLE001  see above
        return {"gpu_container_skipped": _line(error)}
    finally:
        client.close()


def _start(sdk: Any, client: Any, image: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("cdi_enabled") and fields.get("cdi_nvidia_devices"):
        wanted = "a CDI request for nvidia.com/gpu=all"
        request = sdk.types.DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])
    else:
        wanted = "--gpus all"
        request = sdk.types.DeviceRequest(count=-1, capabilities=[["gpu"]])
    container = client.containers.create(
        image,
        COMMAND,
        entrypoint=[],
        device_requests=[request],
        environment={"NVIDIA_DRIVER_CAPABILITIES": "utility"},
        labels={LABEL: "1"},
        network_mode="none",
        mem_limit="512m",
    )
    try:
        container.start()
        status = int(container.wait(timeout=START_SECONDS)["StatusCode"])
        output = container.logs(tail=20).decode("utf-8", "replace").strip()
        return {
            "gpu_container_ok": status == 0,
            "gpu_container_output": f"{image} with {wanted}: exit {status}: {output[:1500]}",
        }
    except Exception as error:  # noqa: BLE001  a refusal to start is the result
        return {"gpu_container_ok": False, "gpu_container_output": f"{image} with {wanted}: {_line(error)}"}
    finally:
        # a container that failed to start exists all the same
        with contextlib.suppress(Exception):
            container.remove(force=True)


def _local_image(client: Any) -> str | None:
    """A tag of a known repository, the most preferred one; registries' host names in front are ignored."""
    tags = sorted(tag for image in client.images.list() for tag in image.tags)
    for repository in KNOWN:
        for tag in tags:
            name = tag.rpartition(":")[0]
            if name == repository or name.endswith(f"/{repository}"):
                return str(tag)
    return None


def _remove_leftovers(client: Any) -> None:
    """Containers of an earlier trial that was killed; those still running belong to another doctor."""
    for old in client.containers.list(all=True, filters={"label": LABEL}):
        if old.status in ("created", "exited", "dead"):
            with contextlib.suppress(Exception):
                old.remove()


def _line(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)  # the daemon's own words
    return " ".join(str(explanation or f"{type(error).__name__}: {error}").split())[:600]
