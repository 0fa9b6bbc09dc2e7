"""One of each action, on a machine that is set up for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from doctor.finding import Risk
from doctor.fix.action import Action
from doctor.fix.actions.add_group_member import AddGroupMember
from doctor.fix.actions.docker_config import DockerConfig
from doctor.fix.actions.install_package import InstallPackage
from doctor.fix.actions.install_python import InstallPython
from doctor.fix.actions.launch_profile import LaunchProfile
from doctor.fix.actions.merge_ini import MergeIni
from doctor.fix.actions.merge_json import MergeJson
from doctor.fix.actions.merge_keyvalue import MergeKeyValue
from doctor.fix.actions.move_aside import MoveAside
from doctor.fix.actions.sysctl import Sysctl
from doctor.fix.actions.update_package_lists import UpdatePackageLists
from doctor.fix.actions.write_file import WriteFile
from doctor.host.access import LocalHost
from tests.fix.machines import World

HOST = LocalHost(env={"PATH": "/usr/bin"})
DAEMON = (
    '{\n  "log-driver": "journald",\n  "features": {"containerd-snapshotter": true},\n  "dns": ["10.0.0.1"]\n}\n'
)


def write_file(w: World) -> Action:
    path = w.put("etc/ld.so.conf.d/old.conf", "old\n", 0o640)
    return WriteFile.plan(
        HOST, path, b"/usr/lib/wsl/lib\n", id="write_file", summary="Write", root=True, after=(("ldconfig",),)
    )


def new_file(w: World) -> Action:
    return WriteFile.plan(HOST, w.path("etc/new/deep/a.conf"), b"x\n", id="new_file", summary="New", root=True)


def own_file(w: World) -> Action:
    path = w.path("home/.config/vllm-doctor/vllm.env")
    return MergeKeyValue.merge(HOST, path, {"CC": "/usr/bin/gcc-12"}, "# head\n", id="own_file", summary="Own")


def merge_keyvalue(w: World) -> Action:
    path = w.put("home/vllm.env", "# mine\nexport A=1\nB=2\n", 0o600)
    return MergeKeyValue.merge(HOST, path, {"A": "3", "C": "4", "B": None}, id="merge_keyvalue", summary="Merge")


def merge_json(w: World) -> Action:
    path = w.put("home/x.json", DAEMON)
    return MergeJson.merge(HOST, path, {"features": {"cdi": True}}, id="merge_json", summary="Merge")


def merge_ini(w: World) -> Action:
    path = w.put("etc/wsl.conf", "[network]\nhostname=x\n\n[user]\ndefault=ann\n")
    return MergeIni.merge(HOST, path, "boot", {"systemd": "true"}, id="merge_ini", summary="Merge", root=True)


def launch_profile(w: World) -> Action:
    path = w.put("home/serve.yaml", "gpu_memory_utilization: 0.92\n")
    return LaunchProfile.merge(
        HOST, path, {"gpu-memory-utilization": "0.88"}, id="launch_profile", summary="Profile"
    )


def docker_config(w: World) -> Action:
    path = w.put("etc/docker/daemon.json", DAEMON, 0o600)
    return DockerConfig.merge(
        HOST,
        path,
        {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}},
        id="docker_config",
        summary="Register",
        risk=Risk.CAUTION,
        root=True,
        runtime="nvidia",
        reload=("reload-docker",),
        restart=("restart-docker",),
    )


def docker_restart(w: World) -> Action:
    w.daemon.takes_reload = False
    return docker_config(w)


def install_package(w: World) -> Action:
    return InstallPackage(id="install_package", summary="Install g++-12", root=True, names=("g++-12",))


def with_lists(w: World) -> Action:
    return UpdatePackageLists(id="lists", summary="Refresh", root=True, helper=True)


def install_python(w: World) -> Action:
    return InstallPython(
        id="install_python",
        summary="Install transformers",
        python="/venv/bin/python",
        specs=("transformers==4.57.0",),
    )


def move_aside(w: World) -> Action:
    path = w.put("home/.cache/flash_qla/lock", "")
    return MoveAside(id="move_aside", summary="Move", path=path)


def move_folder(w: World) -> Action:
    w.put("home/.cache/triton/a/b", "x")
    return MoveAside(id="move_folder", summary="Move", path=w.path("home/.cache/triton"), root=True)


def add_group_member(w: World) -> Action:
    return AddGroupMember(id="add_group_member", summary="Join", root=True, group="docker", user="bob")


def sysctl(w: World) -> Action:
    path = w.path("etc/sysctl.d/60-vllm-doctor.conf")
    return Sysctl(
        id="sysctl",
        summary="Set",
        root=True,
        path=path,
        content=b"vm.overcommit_memory = 1\n",
        key="vm.overcommit_memory",
        value="1",
    )


Make = Callable[[World], Action]
SAMPLES: Mapping[str, Make] = {
    f.__name__: f
    for f in (
        write_file,
        new_file,
        own_file,
        merge_keyvalue,
        merge_json,
        merge_ini,
        launch_profile,
        docker_config,
        docker_restart,
        install_package,
        install_python,
        move_aside,
        move_folder,
        add_group_member,
        sysctl,
    )
}
