"""Probe: container engines, the GPU's way into a container, and (with --deep) whether one really starts.

The daemon is asked through its own API, never through the client's printed text. Everything that may hang has a
deadline of its own, so that a daemon that accepts and never answers costs one fact and not the probe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from doctor.facts import ContainerFacts
from doctor.host import docker_daemon
from doctor.host.access import Host
from doctor.host.docker_daemon import Answer, Endpoint
from doctor.host.examine import Options

#: Seconds for the whole conversation with the daemon; the probe's own deadline is 4 s.
DAEMON_SECONDS = 2.5
CDI_DIRS = ("/etc/cdi", "/var/run/cdi")  # the specification's defaults
NVIDIA_CDI_KIND = "nvidia.com/gpu"

Fields = dict[str, Any]
T = TypeVar("T")


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """Facts about docker, podman, the NVIDIA container toolkit and CDI."""
    fields: Fields = {"sources": {}}
    place = _part(fields, "endpoint", lambda: docker_daemon.endpoint(host)) or Endpoint("", "nothing")
    _part(fields, "programs", lambda: _programs(host, fields))
    answer = _part(fields, "daemon", lambda: _daemon(host, place, options, fields)) or Answer(error="not asked")
    _part(fields, "daemon_json", lambda: _daemon_json(host, fields))
    _part(fields, "cdi", lambda: _cdi(host, answer, fields))
    _part(fields, "data_root", lambda: _data_root(host, place, fields))
    _part(fields, "dev_char", lambda: _dev_char(host, fields))
    if options.deep:
        from doctor.host.gpu_container import try_one  # only a deep run starts a container

        source = "docker: a container with a GPU request"
        _part(fields, "gpu_container", lambda: _put(fields, source, **try_one(place, host, answer, fields)))
    return {"container": ContainerFacts(**fields)}


def _part(fields: Fields, name: str, part: Callable[[], T]) -> T | None:
    """Runs one part; whatever it trips over costs only its own fields, and ``sources`` says why."""
    try:
        return part()
    except Exception as error:  # noqa: BLE001  a daemon or a file may hold anything
        fields["sources"][f"!{name}"] = f"{type(error).__name__}: {error}"[:200]
        return None


def _put(fields: Fields, source: str, **values: Any) -> None:
    """Stores facts with their common source; a value of None stays unknown and has no source."""
    for name, value in values.items():
        if value is not None:
            fields[name] = value
            fields["sources"][name] = source


def _programs(host: Host, fields: Fields) -> None:
    for name, field in (("docker", "docker_client"), ("podman", "podman")):
        _put(fields, "PATH", **{field: host.which(name) or ""})
    _put(fields, "PATH", nvidia_hook=host.which("nvidia-container-runtime-hook") or "")
    client = fields["docker_client"]
    if client:
        shown = host.run([client, "--version"], timeout=1.0)
        # under WSL without Docker Desktop's integration this is a stub that prints advice and fails
        version = re.search(r"version ([0-9][\w.+~-]*)", shown.stdout) if shown.ok else None
        _put(fields, f"{client} --version", docker_client_version=version.group(1) if version else None)
    ctk = host.which("nvidia-ctk")
    if ctk:
        shown = host.run([ctk, "--version"], timeout=1.0)
        version = re.search(r"version ([0-9][\w.+~-]*)", shown.stdout) if shown.ok else None
        _put(fields, f"{ctk} --version", toolkit_version=version.group(1) if version else "unknown")
    cli = host.which("nvidia-container-cli")
    if cli:
        shown = host.run([cli, "--version"], timeout=1.0)
        version = re.search(r"cli-version: ([0-9][\w.+~-]*)", shown.stdout) if shown.ok else None
        _put(fields, f"{cli} --version", container_cli_version=version.group(1) if version else "unknown")
    if not ctk and not cli and not fields["nvidia_hook"]:
        names = "nvidia-ctk, nvidia-container-cli, nvidia-container-runtime-hook"
        _put(fields, f"PATH: no {names}", toolkit_version="", container_cli_version="")


def _daemon(host: Host, place: Endpoint, options: Options, fields: Fields) -> Answer:
    _put(fields, place.chosen_by, docker_host=place.shown or None, docker_context=place.context)
    path = place.socket_path
    if path == docker_daemon.DEFAULT_SOCKET and not host.exists(path):
        # asking would give the same; said here so that a machine without docker costs nothing
        answer = Answer(error=f"{place.shown}: no such socket", denied=False, reachable=False)
    else:
        answer = docker_daemon.ask(place, host, DAEMON_SECONDS * options.deadline_scale)
    _put(
        fields,
        place.shown or place.chosen_by,
        daemon_reachable=answer.reachable,
        daemon_error=answer.error,
        daemon_permission_denied=answer.denied,
    )
    if answer.denied and path is not None:
        stat = host.stat(path)
        _put(fields, path, docker_socket_group=_group_name(host, stat.st_gid) if stat else None)
    if answer.info is not None:
        _info(answer.info, answer.version or {}, f"{place.shown} /info", fields)
    return answer


def _info(info: Mapping[str, Any], version: Mapping[str, Any], source: str, fields: Fields) -> None:
    def text(key: str) -> str | None:
        value = info.get(key)
        return value if isinstance(value, str) else None

    security = [s for s in _list(info.get("SecurityOptions")) if isinstance(s, str)]
    rootless = any(s.split(",")[0] == "name=rootless" for s in security)
    desktop = text("OperatingSystem") == "Docker Desktop"
    components = [c.get("Name") for c in _list(version.get("Components")) if isinstance(c, dict)]
    runtimes = info.get("Runtimes")
    root = text("DockerRootDir") or ""
    name = "system"
    if "Podman Engine" in components:
        name = "Podman"
    elif desktop:
        name = "Docker Desktop"
    elif rootless:
        name = "rootless"
    elif root.startswith("/var/snap/"):
        name = "snap"
    _put(
        fields,
        source,
        daemon_version=text("ServerVersion"),
        daemon_name=name,
        rootless=rootless,
        desktop=desktop,
        runtimes=tuple(sorted(runtimes)) if isinstance(runtimes, dict) else None,
        default_runtime=text("DefaultRuntime"),
        cgroup_driver=text("CgroupDriver"),
        cgroup_version=text("CgroupVersion"),
        storage_driver=text("Driver"),
        data_root=root or None,
        # the list of CDI folders is empty when CDI is off, and absent in daemons that do not know CDI
        cdi_enabled=bool(_list(info.get("CDISpecDirs"))),
    )


def _daemon_json(host: Host, fields: Fields) -> None:
    path = _daemon_json_path(host, fields)
    if path is None:
        return
    text = host.read(path)
    if text is None:
        if host.exists(path):
            _put(fields, path, daemon_json_path=path, daemon_json_error="not readable for this user")
        else:
            _put(fields, f"{path} (absent)", daemon_json_path=path)
        return
    _put(fields, path, daemon_json_path=path)
    try:
        document = json.loads(text)
        problem = None if isinstance(document, dict) else f"not an object but {type(document).__name__}"
    except (ValueError, RecursionError) as error:
        document, problem = None, str(error)
    _put(fields, path, daemon_json_valid=problem is None, daemon_json_error=problem)
    if isinstance(document, dict):
        runtimes = document.get("runtimes")
        default = document.get("default-runtime")
        _put(
            fields,
            path,
            daemon_json_runtimes=tuple(sorted(runtimes)) if isinstance(runtimes, dict) else (),
            daemon_json_default_runtime=default if isinstance(default, str) else "",
        )


def _daemon_json_path(host: Host, fields: Fields) -> str | None:
    """The file that the answering daemon reads; None when it lies on another file system (Docker Desktop)."""
    home = host.env.get("HOME", "")
    name = fields.get("daemon_name")
    if name == "Podman":
        return None
    if name == "Docker Desktop":
        path = f"{home}/.docker/daemon.json"
        return path if host.exists(path) else None
    if name == "rootless":
        return f"{host.env.get('XDG_CONFIG_HOME') or home + '/.config'}/docker/daemon.json"
    if name == "snap" or (name is None and host.is_dir("/var/snap/docker/current")):
        return "/var/snap/docker/current/config/daemon.json"
    if name is None and not fields.get("docker_client") and not host.exists("/etc/docker/daemon.json"):
        return None
    pid = (host.read("/var/run/docker.pid", 32) or "").strip()
    argv = (host.read(f"/proc/{pid}/cmdline", 1 << 16) or "").split("\0") if pid.isdigit() else []
    for index, word in enumerate(argv):
        if word.startswith("--config-file="):
            return word.partition("=")[2]
        if word == "--config-file" and index + 1 < len(argv):
            return argv[index + 1]
    return "/etc/docker/daemon.json"


def _cdi(host: Host, answer: Answer, fields: Fields) -> None:
    info = answer.info or {}
    named = tuple(d for d in _list(info.get("CDISpecDirs")) if isinstance(d, str))
    dirs = named or CDI_DIRS
    _put(fields, "docker /info" if named else "the CDI specification", cdi_dirs=dirs)
    files: list[str] = []
    devices: list[str] = []
    for folder in dirs:
        for name in host.listdir(folder):
            path = f"{folder}/{name}"
            if name.endswith((".yaml", ".yml", ".json")):
                found = cdi_devices(host.read(path) or "")
                if found is not None:
                    files.append(path)
                    devices += found
    where = ", ".join(files) or ", ".join(dirs)
    _put(fields, where, cdi_files=tuple(files), cdi_nvidia_devices=tuple(dict.fromkeys(devices)))
    discovered = info.get("DiscoveredDevices")
    if isinstance(discovered, list):  # newer daemons say what they resolved themselves
        ids = [d.get("ID") for d in discovered if isinstance(d, dict)]
        mine = tuple(i for i in ids if isinstance(i, str) and i.startswith(f"{NVIDIA_CDI_KIND}="))
        _put(fields, "docker /info", cdi_nvidia_devices=mine)


def cdi_devices(text: str) -> list[str] | None:
    """Devices of an NVIDIA CDI file, such as ``nvidia.com/gpu=0``; None when the file is another vendor's.

    JSON is parsed; of YAML (there is no parser among our dependencies) the two things needed are read by
    their place: ``kind`` at the margin and ``name`` of the items below ``devices``.
    """
    names: list[str] = []
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return None
        kind = document.get("kind")
        names = [str(d["name"]) for d in _list(document.get("devices")) if isinstance(d, dict) and "name" in d]
    else:
        match = re.search(r"""^kind:\s*["']?([^\s"']+)""", text, re.MULTILINE)
        kind = match.group(1) if match else None
        part = re.search(r"^devices:\s*\n((?:[ \t-].*\n?|\n)*)", text, re.MULTILINE)
        if part:
            pattern = r"""^(?:\s{0,4}-\s+|\s{2,6})name:\s*["']?([\w.:-]+)["']?\s*$"""
            names = re.findall(pattern, part.group(1), re.MULTILINE)
    return [f"{kind}={n}" for n in names] if kind == NVIDIA_CDI_KIND else None


def _data_root(host: Host, place: Endpoint, fields: Fields) -> None:
    root = fields.get("data_root")
    if not root or fields.get("desktop") or place.socket_path is None:
        return  # Docker Desktop's folder is inside its own machine
    room = host.statvfs(root)
    if room is not None:
        _put(
            fields,
            f"statvfs {root}",
            data_free_bytes=room.f_bavail * room.f_frsize,
            data_total_bytes=room.f_blocks * room.f_frsize,
        )


def _dev_char(host: Host, fields: Fields) -> None:
    """Links /dev/char/195:*, without which systemd's device rules for a container do not survive a reload."""
    if host.exists("/dev/nvidiactl"):
        links = bool(host.glob("/dev/char/195:*"))
        _put(fields, "/dev/char", dev_char_nvidia_links=links)


def _group_name(host: Host, gid: int) -> str | None:
    for line in (host.read("/etc/group") or "").splitlines():
        parts = line.split(":")
        if len(parts) > 2 and parts[2] == str(gid):
            return parts[0]
    return str(gid)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
