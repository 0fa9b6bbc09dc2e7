"""Recipes for docker: its configuration, the NVIDIA runtime, its group."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any

from doctor.finding import Finding, Risk
from doctor.fix.actions import apt
from doctor.fix.actions.add_group_member import AddGroupMember
from doctor.fix.actions.docker_config import DockerConfig, control
from doctor.fix.actions.merge_ini import MergeIni
from doctor.fix.actions.merge_json import repaired
from doctor.fix.actions.write_file import read_original
from doctor.fix.draft import Draft
from doctor.fix.errors import ActionError
from doctor.fix.recipes.remedies import from_remedies

DAEMON_JSON = "/etc/docker/daemon.json"
NVIDIA_RUNTIME: Mapping[str, Any] = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}
TOOLKIT = "nvidia-container-toolkit"
TOOLKIT_DOCS = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"


def _daemon(draft: Draft) -> dict[str, Any]:
    """How this host's daemon is told, for the action."""
    container, system = draft.snapshot.container, draft.snapshot.system
    pid = (draft.host.read("/run/docker.pid") or draft.host.read("/var/run/docker.pid") or "").strip()
    reload, restart = control(system.systemd if system else None, pid, draft.host.exists("/etc/init.d/docker"))
    client = ["docker"]
    if container is not None and (container.docker_host or "").startswith("unix://"):
        client += ["-H", str(container.docker_host)]
    return {"reload": reload, "restart": restart, "client": tuple(client), "root": not draft.is_root}


def _path(draft: Draft) -> str:
    container = draft.snapshot.container
    return (container.daemon_json_path if container else None) or DAEMON_JSON


def _own(draft: Draft, path: str) -> bool:
    """True for a rootless daemon's file, which belongs to the user."""
    home = draft.host.env.get("HOME", "")
    return bool(home) and posixpath.normpath(path).startswith(home.rstrip("/") + "/")


def broken_daemon_json(draft: Draft, finding: Finding) -> None:
    """Takes out what is no JSON (comments, a comma too many); anything else is for the person."""
    path = _path(draft)
    original = read_original(draft.host, path)
    content = repaired(original) if original is not None else None
    if content is None:
        why = draft.snapshot.container.daemon_json_error if draft.snapshot.container else None
        draft.manual(finding, f"Correct {path} by hand ({why}): its settings cannot be guessed")
        return
    settings = _daemon(draft)
    settings["root"] = settings["root"] and not _own(draft, path)
    draft.add(
        DockerConfig(
            id=f"docker_config:{path}",
            summary=f"Make {path} valid JSON again, every setting kept",
            causes=(finding.id,),
            risk=Risk.CAUTION,
            path=path,
            original=original,
            content=content,
            **settings,
        )
    )


def register_runtime(draft: Draft, finding: Finding) -> None:
    """Merges the nvidia runtime into daemon.json. nvidia-ctk would write the file in place and drop other keys."""
    container = draft.snapshot.container
    if container is None or "nvidia" in (container.daemon_json_runtimes or ()) or not container.toolkit_version:
        first = finding.fixes[0]
        draft.manual(finding, first.summary, first.commands)
        return
    _merge_runtime(draft, finding)


def _merge_runtime(draft: Draft, finding: Finding, depends: tuple[str, ...] = ()) -> None:
    path = _path(draft)
    settings = _daemon(draft)
    settings["root"] = settings["root"] and not _own(draft, path)
    draft.add(
        DockerConfig.merge(
            draft.host,
            path,
            NVIDIA_RUNTIME,
            id=f"docker_config:{path}",
            summary=f"Register the nvidia runtime in {path}, every other key kept",
            causes=(finding.id,),
            risk=Risk.CAUTION,
            depends_on=depends,
            runtime="nvidia",
            **settings,
        )
    )


def install_toolkit(draft: Draft, finding: Finding) -> None:
    """Installs the toolkit where apt knows it already; NVIDIA's repository is never added unasked."""
    known = draft.host.run(("apt-cache", "policy", TOOLKIT), timeout=10.0)
    if not known.ok or "Candidate: (none)" in known.stdout or "Candidate:" not in known.stdout:
        text = f"Set up NVIDIA's package repository, then run vllm-doctor fix again: {TOOLKIT_DOCS}"
        draft.manual(finding, text)
        return
    before = len(draft.found)
    draft.packages(finding, "Install the NVIDIA container toolkit", (TOOLKIT,))
    installs = [a.id for a in draft.found[before:] if a.kind == "install_package"]
    if installs:
        _merge_runtime(draft, finding, tuple(installs))


def join_group(draft: Draft, finding: Finding) -> None:
    """Joins the socket's group. Its members can become root through docker, so this is never safe."""
    container = draft.snapshot.container
    group = (container.docker_socket_group if container else None) or ""
    user = draft.host.env.get("USER") or draft.host.env.get("LOGNAME") or ""
    if group in ("", "root") or not user or draft.is_root or not apt.NAME.fullmatch(group):
        raise ActionError("which group or user is meant is not known, or joining it does not help")
    draft.add(
        AddGroupMember(
            id=f"add_group_member:{group}:{user}",
            summary=f"Add {user} to group {group}, whose members can become root through docker",
            causes=(finding.id,),
            risk=Risk.CAUTION,
            root=True,
            needs=("log out and in again",),
            group=group,
            user=user,
        )
    )


def unreachable(draft: Draft, finding: Finding) -> None:
    """Under WSL2 without systemd nothing starts the daemon: switch systemd on in /etc/wsl.conf."""
    s = draft.snapshot
    docker = s.container is not None and s.container.docker_client
    if not (s.is_wsl2 and s.wsl and s.wsl.systemd_enabled is False and docker):
        from_remedies(draft, finding)
        return
    draft.add(
        MergeIni.merge(
            draft.host,
            "/etc/wsl.conf",
            "boot",
            {"systemd": "true"},
            id="merge_ini:/etc/wsl.conf",
            summary="Switch on systemd in /etc/wsl.conf, so that the docker service starts with the distribution",
            causes=(finding.id,),
            risk=Risk.CAUTION,
            root=not draft.is_root,
            needs=("in Windows: wsl --shutdown, then open the distribution again",),
        )
    )


RECIPES: dict[str, Callable[[Draft, Finding], None]] = {
    "docker-daemon-json-invalid": broken_daemon_json,
    "container-runtime-not-registered": register_runtime,
    "container-toolkit-missing": install_toolkit,
    "docker-socket-permission-denied": join_group,
    "docker-daemon-unreachable": unreachable,
}
