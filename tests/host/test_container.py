"""The container probe against real sockets: daemons that answer, refuse, hang and talk nonsense."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

from doctor.facts import ContainerFacts
from doctor.host import docker_daemon
from doctor.host.access import RunResult
from doctor.host.container import cdi_devices, probe
from doctor.host.examine import Options
from tests.fakes import FakeHost
from tests.host.fake_docker import INFO, daemon, docker, json_reply

SOCKET = "/d.sock"
HERE = {"DOCKER_HOST": f"unix://{SOCKET}", "HOME": "/home/u"}

NVIDIA_CDI = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    hookName: createContainer
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-00000000-0000-0000-0000-000000000000
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""


def facts(host: FakeHost, **options: object) -> ContainerFacts:
    found = probe(host, Options(**options))  # type: ignore[arg-type]
    assert set(found) == {"container"}
    return found["container"]  # type: ignore[no-any-return]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, env=HERE)


def test_a_machine_without_docker(tmp_path: Path) -> None:
    c = facts(FakeHost(tmp_path, env={"HOME": "/home/u"}))
    assert (c.docker_client, c.podman, c.toolkit_version, c.nvidia_hook) == ("", "", "", "")
    assert c.daemon_reachable is False
    assert c.daemon_permission_denied is False
    assert c.daemon_error == "unix:///var/run/docker.sock: no such socket"
    assert c.runtimes is None
    assert c.daemon_json_path is None
    assert c.sources["docker_host"] == "default socket"


def test_a_daemon_that_answers(host: FakeHost, tmp_path: Path) -> None:
    host.program("/usr/bin/docker", "Docker version 28.2.2, build e6534b4\n")
    host.write("/var/lib/docker/x", "")
    with docker(tmp_path / "d.sock"):
        c = facts(host)
    assert c.daemon_reachable is True
    assert c.daemon_error is None
    assert c.daemon_name == "system"
    assert c.daemon_version == "20.10.24+dfsg1"
    assert c.docker_client_version == "28.2.2"
    assert c.runtimes == ("io.containerd.runc.v2", "io.containerd.runtime.v1.linux", "runc")
    assert (c.default_runtime, c.cgroup_driver, c.cgroup_version) == ("runc", "cgroupfs", "1")
    assert c.storage_driver == "overlay2"
    assert (c.rootless, c.desktop, c.cdi_enabled) == (False, False, False)
    assert c.data_root == "/var/lib/docker"
    assert c.data_free_bytes is not None
    assert c.data_total_bytes is not None
    assert 0 < c.data_free_bytes <= c.data_total_bytes
    assert c.sources["runtimes"] == "unix:///d.sock /info"


def test_a_daemon_that_accepts_and_never_answers_costs_its_own_facts_only(host: FakeHost, tmp_path: Path) -> None:
    host.write("/etc/cdi/nvidia.yaml", NVIDIA_CDI)
    began = time.monotonic()
    with daemon(tmp_path / "d.sock", None):
        c = facts(host, deadline_scale=0.2)
        assert time.monotonic() - began < 2.0
    assert c.daemon_reachable is False
    assert c.daemon_error == "accepts connections and does not answer within 0.5 s"
    assert c.cdi_files == ("/etc/cdi/nvidia.yaml",)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (b"\x00\xff garbage\n", "Error"),
        (b"", "Error"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n<html></h", "not JSON"),
        (json_reply(["not", "an", "object"]), "not an object"),
        (json_reply({"message": "driver failed: no space left on device"}, "500 X"), "no space left on device"),
        (json_reply({"message": "authorization denied by plugin"}, "403 X"), "HTTP 403"),
    ],
)
def test_a_daemon_that_talks_nonsense(host: FakeHost, tmp_path: Path, reply: bytes, says: str) -> None:
    with daemon(tmp_path / "d.sock", reply):
        c = facts(host)
    assert c.daemon_reachable is False
    assert c.daemon_error is not None
    assert says in c.daemon_error
    assert "\n" not in c.daemon_error
    assert c.runtimes is None


def test_fields_of_an_unexpected_type_stay_unknown(host: FakeHost, tmp_path: Path) -> None:
    with docker(tmp_path / "d.sock", Runtimes=[], SecurityOptions=None, DockerRootDir=7, CgroupDriver={}):
        c = facts(host)
    assert c.daemon_reachable is True
    assert (c.runtimes, c.data_root, c.cgroup_driver) == (None, None, None)


def test_a_socket_without_a_daemon_and_one_that_is_none(host: FakeHost, tmp_path: Path) -> None:
    with docker(tmp_path / "d.sock"):
        pass
    assert "connection refused" in (facts(host).daemon_error or "")
    (tmp_path / "d.sock").unlink()
    assert "no such socket" in (facts(host).daemon_error or "")


def test_a_dead_port_on_this_machine(tmp_path: Path) -> None:
    c = facts(FakeHost(tmp_path, env={"DOCKER_HOST": "tcp://127.0.0.1:1"}))
    assert c.daemon_reachable is False
    assert c.daemon_permission_denied is False
    assert "connection refused" in (c.daemon_error or "")


@pytest.mark.parametrize("url", ["tcp://10.1.2.3:2375", "ssh://me@gpu-box", "10.1.2.3:2375", "npipe:////./pipe/x"])
def test_a_daemon_on_another_machine_is_never_asked(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.create_connection", lambda *a, **k: pytest.fail("a request left this machine"))
    c = facts(FakeHost(tmp_path, env={"DOCKER_HOST": url}))
    assert c.daemon_reachable is None
    assert (c.daemon_error or "").startswith("not asked")
    assert "me@" not in str(c)


def test_a_port_out_of_range_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    c = facts(FakeHost(tmp_path, env={"DOCKER_HOST": "tcp://127.0.0.1:99999999"}))
    assert c.daemon_reachable is False
    assert c.daemon_error


@pytest.mark.skipif(os.geteuid() == 0, reason="root opens every socket")
def test_a_socket_that_refuses_this_user(host: FakeHost, tmp_path: Path) -> None:
    with docker(tmp_path / "d.sock"):
        (tmp_path / "d.sock").chmod(0)
        c = facts(host)
    assert c.daemon_permission_denied is True


def test_permission_denied_names_the_group_of_the_socket(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gid = tmp_path.stat().st_gid
    host.write("/etc/group", f"root:x:77777:\ndocker:x:{gid}:u\n")

    def refuse(self: object, path: str) -> None:
        raise PermissionError(13, "Permission denied")

    with docker(tmp_path / "d.sock"):
        monkeypatch.setattr("socket.socket.connect", refuse)
        c = facts(host)
    assert c.daemon_permission_denied is True
    assert c.daemon_reachable is False
    assert c.daemon_error == "permission denied on unix:///d.sock"
    assert c.docker_socket_group == "docker"


def test_without_the_sdk_a_fact_and_no_crash(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with docker(tmp_path / "d.sock"):
        c = facts(host)
    assert c.daemon_reachable is None
    assert "cannot be imported" in (c.daemon_error or "")


def test_a_folder_called_docker_is_not_the_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").mkdir()
    for name in [n for n in sys.modules if n == "docker" or n.startswith("docker.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = docker_daemon.load_sdk()
    monkeypatch.delitem(sys.modules, "docker", raising=False)
    assert isinstance(found, str)
    assert "a folder named docker" in found


@pytest.mark.parametrize(
    ("info", "name", "path"),
    [
        ({}, "system", "/etc/docker/daemon.json"),
        ({"SecurityOptions": ["name=rootless"]}, "rootless", "/home/u/.config/docker/daemon.json"),
        ({"DockerRootDir": "/var/snap/docker/common/var-lib-docker"}, "snap",
         "/var/snap/docker/current/config/daemon.json"),
        ({"OperatingSystem": "Docker Desktop"}, "Docker Desktop", None),
        ({"_version": {"Components": [{"Name": "Podman Engine"}]}}, "Podman", None),
    ],
)  # fmt: skip
def test_the_kind_of_daemon_decides_which_file_it_reads(
    host: FakeHost, tmp_path: Path, info: dict[str, object], name: str, path: str | None
) -> None:
    with docker(tmp_path / "d.sock", **info):
        c = facts(host)
    assert c.daemon_name == name
    assert c.daemon_json_path == path
    assert c.daemon_json_valid is None


def test_a_daemon_started_with_another_file(host: FakeHost, tmp_path: Path) -> None:
    host.write("/var/run/docker.pid", "812\n")
    host.write("/proc/812/cmdline", "/usr/bin/dockerd\0-H\0fd://\0--config-file\0/srv/dockerd.json\0")
    host.write("/srv/dockerd.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    with docker(tmp_path / "d.sock"):
        c = facts(host)
    assert c.daemon_json_path == "/srv/dockerd.json"
    assert c.daemon_json_runtimes == ("nvidia",)


@pytest.mark.parametrize(
    ("text", "valid", "runtimes", "default"),
    [
        ('{"default-runtime": "nvidia"}', True, (), "nvidia"),
        ('{"runtimes": {"nvidia": {"path": "x"}, "kata": {}}}', True, ("kata", "nvidia"), ""),
        ('{"a": 1,}', False, None, None),
        ("", False, None, None),
        ("[]", False, None, None),
    ],
)
def test_daemon_json(
    host: FakeHost, text: str, valid: bool, runtimes: tuple[str, ...] | None, default: str | None
) -> None:
    host.program("/usr/bin/docker", "Docker version 20.10.24+dfsg1, build 297e128\n")
    host.write("/etc/docker/daemon.json", text)
    c = facts(host)
    assert c.daemon_json_valid is valid
    assert (c.daemon_json_error is None) is valid
    assert c.daemon_json_runtimes == runtimes
    assert c.daemon_json_default_runtime == default


def test_cdi_of_new_daemons_and_of_files(host: FakeHost, tmp_path: Path) -> None:
    host.write("/etc/cdi/nvidia.yaml", NVIDIA_CDI)
    host.write("/etc/cdi/other.json", json.dumps({"kind": "vendor.com/nic", "devices": [{"name": "a"}]}))
    with docker(tmp_path / "d.sock", CDISpecDirs=["/etc/cdi", "/var/run/cdi"]):
        c = facts(host)
    assert c.cdi_enabled is True
    assert c.cdi_files == ("/etc/cdi/nvidia.yaml",)
    assert c.cdi_nvidia_devices == (
        "nvidia.com/gpu=0", "nvidia.com/gpu=GPU-00000000-0000-0000-0000-000000000000", "nvidia.com/gpu=all",
    )  # fmt: skip
    found = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}, {"Source": "cdi", "ID": "vendor.com/nic=a"}]
    with docker(tmp_path / "e.sock", CDISpecDirs=["/etc/cdi"], DiscoveredDevices=found):
        c = facts(FakeHost(tmp_path, env={"DOCKER_HOST": "unix:///e.sock"}))
    assert c.cdi_nvidia_devices == ("nvidia.com/gpu=0",)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (NVIDIA_CDI, 3),
        (json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "all"}]}), 2),
        ("kind: nvidia.com/gpu\ndevices:\n  - name: gpu0\n    containerEdits: {}\n", 1),
        ("kind: vendor.com/nic\ndevices:\n- name: a\n", None),
        ("{", None),
        ("{}", None),
        ("devices: [\n", None),
        ("", None),
    ],
)
def test_cdi_files(text: str, devices: int | None) -> None:
    found = cdi_devices(text)
    assert (None if found is None else len(found)) == devices


def test_the_toolkit(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, env={"HOME": "/home/u"})
    host.program("/usr/bin/nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.12.0\ncommit: 62bd0154\n")
    host.program("/usr/bin/nvidia-container-cli", "cli-version: 1.13.5\nlib-version: 1.13.5\n")
    host.program("/usr/bin/nvidia-container-runtime-hook")
    c = facts(host)
    assert c.toolkit_version == "1.12.0"
    assert c.container_cli_version == "1.13.5"
    assert c.nvidia_hook == "/usr/bin/nvidia-container-runtime-hook"


def test_the_client_that_is_only_a_stub_under_wsl(tmp_path: Path) -> None:
    says = "The command 'docker' could not be found in this WSL 2 distro.\n"
    host = FakeHost(tmp_path, env={"HOME": "/home/u"})
    host.program("/usr/bin/docker", RunResult(("docker",), returncode=1, stdout=says))
    c = facts(host)
    assert c.docker_client == "/usr/bin/docker"
    assert c.docker_client_version is None


def test_links_in_dev_char_matter_only_with_a_device(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    assert facts(host).dev_char_nvidia_links is None
    host.write("/dev/nvidiactl", "")
    assert facts(host).dev_char_nvidia_links is False
    host.write("/dev/char/195:255", "")
    assert facts(host).dev_char_nvidia_links is True


def _context(host: FakeHost, name: str, url: str) -> None:
    folder = hashlib.sha256(name.encode()).hexdigest()
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": url, "SkipTLSVerify": False}}}
    host.write(f"/home/u/.docker/contexts/meta/{folder}/meta.json", json.dumps(meta))


def test_the_clients_order_of_precedence(tmp_path: Path) -> None:
    base = {"HOME": "/home/u"}
    host = FakeHost(tmp_path, env=base)
    assert docker_daemon.endpoint(host).url == "unix:///var/run/docker.sock"
    host.write("/home/u/.docker/config.json", '{"currentContext": "desktop-linux"}')
    _context(host, "desktop-linux", "unix:///home/u/.docker/desktop/docker.sock")
    _context(host, "rootless", "unix:///run/user/1000/docker.sock")
    place = docker_daemon.endpoint(host)
    assert (place.url, place.context) == ("unix:///home/u/.docker/desktop/docker.sock", "desktop-linux")
    place = docker_daemon.endpoint(FakeHost(tmp_path, env={**base, "DOCKER_CONTEXT": "rootless"}))
    assert place.url == "unix:///run/user/1000/docker.sock"
    place = docker_daemon.endpoint(FakeHost(tmp_path, env={**base, "DOCKER_CONTEXT": "default"}))
    assert place.url == "unix:///var/run/docker.sock"
    both = {**base, "DOCKER_CONTEXT": "rootless", "DOCKER_HOST": "127.0.0.1:2375"}
    assert docker_daemon.endpoint(FakeHost(tmp_path, env=both)).url == "tcp://127.0.0.1:2375"
    lost = facts(FakeHost(tmp_path, env={**base, "DOCKER_CONTEXT": "gone"}))
    assert lost.daemon_reachable is False
    assert "gone" in (lost.daemon_error or "")


def test_the_rootless_socket_is_taken_when_there_is_no_other(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, env={"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/u"})
    host.write("/run/u/docker.sock", "")
    assert docker_daemon.endpoint(host).url == "unix:///run/u/docker.sock"


def test_a_deep_run_without_a_daemon_says_so(host: FakeHost) -> None:
    c = facts(host, deep=True)
    assert c.gpu_container_ok is None
    assert "no daemon to ask" in (c.gpu_container_skipped or "")


def test_a_deep_run_pulls_nothing(host: FakeHost, tmp_path: Path) -> None:
    replies = {
        "/info": json_reply(dict(INFO)),
        "/version": json_reply({"ApiVersion": "1.41"}),
        "/v1.41/images/json?only_ids=0&all=0": json_reply([]),
        "/v1.41/containers/json?limit=-1&all=1&size=0&trunc_cmd=0&filters=%7B%22label%22%3A+%5B%22vllm-doctor.trial"
        "%22%5D%7D": json_reply([]),
    }
    with daemon(tmp_path / "d.sock", replies):
        c = facts(host, deep=True)
    assert c.gpu_container_ok is None
    assert "none is pulled unasked" in (c.gpu_container_skipped or "")
