"""Containers made to look like WSL: the kernel's files bound over, the GPU device node made, libraries mounted.

Detection only: nothing here behaves like WSL's GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.containers.harness import CODE, REPOSITORY, Docker

WSL2 = "5.15.167.4-microsoft-standard-WSL2"
WSL1 = "4.4.0-19041-Microsoft"
#: Needs CAP_SYS_ADMIN: docker refuses to mount inside /proc, a mount from inside is allowed.
BIND = """
printf '%s\\n' "$RELEASE" > /tmp/osrelease
printf 'Linux version %s (root@f9c826d3017f) (gcc (GCC) 11.2.0) #1 SMP\\n' "$RELEASE" > /tmp/version
mount --bind /tmp/osrelease /proc/sys/kernel/osrelease
mount --bind /tmp/version /proc/version
"""
DXG = "mknod /dev/dxg c 10 126\n"
DISTRIBUTION = ("-e", "WSL_DISTRO_NAME=Ubuntu-24.04", "-e", "WSL_INTEROP=/run/WSL/11_interop")


@pytest.fixture
def libraries(tmp_path: Path) -> Sequence[str]:
    """Arguments that mount a /usr/lib/wsl/lib like WSL's."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libdxcore.so", "nvidia-smi"):
        (folder / name).write_bytes(b"")
    folder.chmod(0o755)
    return ("-v", f"{folder}:/usr/lib/wsl/lib:ro")


Examine = Callable[..., dict[str, Any]]


@pytest.fixture
def examine(docker: Docker, image: Callable[[str, str], str]) -> Examine:
    """``examine(release, *docker_args, before="")``: the doctor's answer inside, with that kernel name."""

    def run(release: str, *docker_args: str, before: str = "", suite: str = "bookworm") -> dict[str, Any]:
        script = f"set -e\n{BIND if release else ''}{before}\nexec vllm-doctor check --json || true"
        args = ("--cap-add=SYS_ADMIN", "--security-opt", "apparmor=unconfined", "-e", f"RELEASE={release}",
                "--network=none", "-v", f"{REPOSITORY / 'doctor'}:{CODE}/doctor:ro", *docker_args)  # fmt: skip
        done = docker.run(image(suite, "doctor"), "sh", "-c", script, docker_args=args)
        assert done.stdout.startswith("{"), done.stderr[-2000:]
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


def ids(answer: dict[str, Any]) -> set[str]:
    return {f["id"] for f in answer["findings"]}


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_wsl2_with_its_gpu(examine: Examine, libraries: Sequence[str], suite: str) -> None:
    cache = "echo /usr/lib/wsl/lib > /etc/ld.so.conf.d/ld.wsl.conf\n"
    answer = examine(WSL2, *libraries, *DISTRIBUTION, before=DXG + cache, suite=suite)
    wsl = answer["snapshot"]["wsl"]
    assert (wsl["version"], wsl["kernel"], wsl["distro"]) == (2, WSL2, "Ubuntu-24.04")
    assert (wsl["dxg"], wsl["lib_dir"], wsl["libcuda_in_lib_dir"]) == (True, True, True)
    assert wsl["linux_driver_packages"] == []
    assert not {i for i in ids(answer) if i.startswith("wsl1")}
    assert "wsl2-windows-without-gpu-support" not in ids(answer)
    assert "wsl2-linux-driver-installed" not in ids(answer)


def test_a_container_of_docker_desktop(examine: Examine) -> None:
    answer = examine(WSL2)
    wsl = answer["snapshot"]["wsl"]
    assert (wsl["version"], wsl.get("distro"), wsl["dxg"]) == (2, "", False)
    assert answer["snapshot"]["system"]["in_container"] is True
    # what a container lacks says nothing of Windows
    assert "wsl2-windows-without-gpu-support" not in ids(answer)


def test_a_library_the_loader_does_not_find(examine: Examine, libraries: Sequence[str]) -> None:
    answer = examine(WSL2, *libraries, *DISTRIBUTION, before=DXG)
    assert answer["snapshot"]["wsl"]["libcuda_resolved"] == ""
    assert "wsl2-libcuda-not-on-loader-path" in ids(answer) | {
        s["id"] for f in answer["findings"] for s in f.get("symptoms", ())
    }


def test_an_old_wsl2_kernel(examine: Examine) -> None:
    answer = examine("5.10.16.3-microsoft-standard-WSL2", before=DXG)
    assert "wsl2-kernel-outdated" in ids(answer)


def test_wsl1(examine: Examine) -> None:
    answer = examine(WSL1, "-e", "WSL_DISTRO_NAME=Ubuntu")
    wsl = answer["snapshot"]["wsl"]
    assert (wsl["version"], wsl["windows_build"], wsl["dxg"]) == (1, 19041, False)
    assert "wsl1-no-gpu" in ids(answer)
    assert answer["verdict"] == "blocked"


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_a_native_container_is_never_called_wsl(examine: Examine, libraries: Sequence[str], suite: str) -> None:
    # the variables, the device and the libraries are all there; the kernel is not WSL's
    answer = examine("", *libraries, *DISTRIBUTION, before=DXG, suite=suite)
    assert answer["snapshot"]["wsl"]["version"] == 0
    assert not {i for i in ids(answer) if i.startswith("wsl")}


def test_driver_packages_inside(examine: Examine) -> None:
    # dpkg's own record of packages, as an installation leaves it
    record = (
        "Package: libnvidia-compute-535\\nStatus: install ok installed\\nVersion: 535.1\\nArchitecture: amd64\\n"
    )
    answer = examine(WSL2, before=f"printf '\\n{record}\\n' >> /var/lib/dpkg/status\n")
    assert answer["snapshot"]["wsl"]["linux_driver_packages"] == ["libnvidia-compute-535"]
    finding = next(f for f in answer["findings"] if f["id"] == "wsl2-linux-driver-installed")
    assert finding["confidence"] == "proven"
