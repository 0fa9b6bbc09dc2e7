"""When the pinned image is the shorter way, over hosts that the probes read; and when nothing is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doctor import catalogue
from doctor.catalogue import table
from doctor.checks import container_way
from doctor.checks.container_way import CAUSE, REPLACED
from doctor.checks.registry import judge
from doctor.facts import ContainerFacts, DriverFacts, GpuFacts, SystemFacts, WslFacts
from doctor.finding import Confidence, Finding, Severity
from doctor.image import pins
from doctor.snapshot import Snapshot, dumps, loads
from tests import toolchains as tc
from tests.checks.machines import AMPERE, SITE, TURING, UBUNTU, snapshot, with_flashinfer

GIB = 1 << 30
SYSTEM = replace(UBUNTU, in_container=False, systemd=True, arch="x86_64", groups=("ann", "sudo"))
DRIVER = DriverFacts(nvml_status="ok", version="580.95.05")
DOCKER = ContainerFacts(
    docker_client="/usr/bin/docker", daemon_reachable=True, daemon_permission_denied=False,
    daemon_version="28.5.1", runtimes=("nvidia", "runc"), toolkit_version="1.18.0", nvidia_hook="",
    cdi_nvidia_devices=(), desktop=False, data_free_bytes=200 * GIB, podman="",
)  # fmt: skip
NO_TOOLKIT = replace(DOCKER, runtimes=("runc",), toolkit_version="", nvidia_hook="")
PODMAN = ContainerFacts(docker_client="", daemon_reachable=False, podman="/usr/bin/podman",
                        toolkit_version="1.18.0", cdi_nvidia_devices=("nvidia.com/gpu=all",))  # fmt: skip
ONLY_GCC = {"/usr/bin/gcc": tc.gcc(cplusplus=False)}


def broken(root: Path) -> Snapshot:
    """No C++ compiler, and a torch that this vLLM was not built against."""
    host = tc.machine(root, compilers=ONLY_GCC)
    tc.add_vllm(host, SITE, "0.26.0", requires=("torch==2.11.0",))
    tc.add_torch(host, SITE, "2.13.0+cu130")
    return machine(snapshot(host, system=SYSTEM, gpus=(AMPERE,)))


def one_repair(root: Path) -> Snapshot:
    host = tc.machine(root, compilers=ONLY_GCC)
    tc.add_vllm(host, SITE, "0.26.0", requires=("torch==2.11.0",))
    tc.add_torch(host, SITE, "2.11.0+cu130")
    return machine(snapshot(host, system=SYSTEM, gpus=(AMPERE,)))


def healthy(root: Path) -> Snapshot:
    host = tc.machine(root, compilers=tc.pair())
    tc.add_vllm(host, SITE, "0.26.0", requires=("torch==2.11.0",))
    tc.add_torch(host, SITE, "2.11.0+cu130")
    return machine(snapshot(host, system=SYSTEM, gpus=(AMPERE,)))


def machine(s: Snapshot, **more: Any) -> Snapshot:
    return replace(s, **{"driver": DRIVER, "container": DOCKER, "wsl": WslFacts(version=0), **more})


def result(s: Snapshot) -> Finding | str | None:
    """The finding, the reason for no judgement, or None; of the saved snapshot, as a colleague would judge it."""
    judgement = judge(loads(dumps(s)), only=[CAUSE])
    if judgement.findings:
        return judgement.findings[0]
    return judgement.skipped[0].why if judgement.skipped else None


def found(s: Snapshot) -> Finding:
    finding = result(s)
    assert isinstance(finding, Finding), finding
    return finding


def test_several_repairs_and_a_container_that_gets_the_card(tmp_path: Path) -> None:
    s = broken(tmp_path)
    finding = found(s)
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.LIKELY)
    wrong = [f.id for f in container_way.repairs(s)]
    assert {"cxx-compiler-missing", "torch-abi-mismatch"} <= set(wrong)
    assert f"{len(wrong)} repairs" in finding.summary
    for words in ("580.95.05", "RTX 3090", "docker gives containers the card", "`vllm-doctor build`"):
        assert words in finding.summary
    assert finding.fixes[-1].commands == (("vllm-doctor", "build"),)
    assert {"repairs", "driver.version", "container.runtimes"} <= {e.fact for e in finding.evidence}


def test_it_changes_no_verdict(tmp_path: Path) -> None:
    for number, make in enumerate((broken, one_repair, healthy)):
        s = make(tmp_path / str(number))
        assert judge(s).verdict is judge(s, skip=[CAUSE]).verdict


@pytest.mark.parametrize(
    ("container", "engine", "step"),
    [
        (NO_TOOLKIT, "docker runs", "install the NVIDIA container toolkit"),
        (replace(DOCKER, runtimes=("runc",)), "toolkit are installed", "register the nvidia runtime"),
        (
            replace(DOCKER, daemon_reachable=False, daemon_permission_denied=True, docker_socket_group="docker"),
            "toolkit are installed",
            "join group docker",
        ),
        (replace(DOCKER, daemon_reachable=False, daemon_error="no such socket"), "installed", "start docker"),
        (replace(PODMAN, cdi_nvidia_devices=()), "podman", "write the CDI specification"),
    ],
    ids=["no toolkit", "not registered", "not in the group", "not started", "podman without CDI"],
)
def test_one_step_away_it_names_the_step(
    tmp_path: Path, container: ContainerFacts, engine: str, step: str
) -> None:
    finding = found(machine(broken(tmp_path), container=container))
    assert engine in finding.summary
    assert f"(first: {step}" in finding.summary
    assert step in finding.fixes[0].summary


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (PODMAN, "podman gives containers the card through CDI"),
        (replace(DOCKER, runtimes=("runc",), cdi_nvidia_devices=("nvidia.com/gpu=all",), cdi_enabled=True), "CDI"),
        (replace(DOCKER, runtimes=("runc",), toolkit_version="", desktop=True), "Docker Desktop"),
        (replace(DOCKER, gpu_container_ok=True), "was started"),
    ],
    ids=["podman", "docker with CDI", "desktop", "tried"],
)
def test_nothing_is_missing(tmp_path: Path, container: ContainerFacts, words: str) -> None:
    finding = found(machine(broken(tmp_path), container=container))
    assert words in finding.summary
    assert "(first:" not in finding.summary
    assert len(finding.fixes) == 1


def test_one_repair_is_made_on_the_host(tmp_path: Path) -> None:
    s = one_repair(tmp_path)
    assert [f.id for f in container_way.repairs(s)] == ["cxx-compiler-missing"]
    assert result(s) is None


@pytest.mark.parametrize("groups", [("ann",), ("ann", "docker")])
def test_one_repair_that_this_user_cannot_make(tmp_path: Path, groups: tuple[str, ...]) -> None:
    s = machine(one_repair(tmp_path), system=replace(SYSTEM, groups=groups))
    assert "cannot become root" in found(s).summary


def test_a_repair_without_a_package_in_the_distribution(tmp_path: Path) -> None:
    host = tc.machine(
        tmp_path, compilers={"/usr/bin/gcc-12": tc.gcc("12.2.0", cplusplus=False)}, env={"CC": "gcc-12"}
    )
    tc.add_vllm(host, SITE, "0.26.0", requires=("torch==2.11.0",))
    tc.add_torch(host, SITE, "2.11.0+cu130")
    fedora = replace(SYSTEM, os_id="fedora", os_version="43", groups=("wheel",))
    s = machine(snapshot(host, system=fedora, gpus=(AMPERE,)))
    assert [f.id for f in container_way.repairs(s)] == ["gxx12-missing"]
    assert "no package for it is known for dnf" in found(s).summary
    debian = machine(snapshot(host, system=SYSTEM, gpus=(AMPERE,)))
    assert result(debian) is None


def test_the_c_library_cannot_be_exchanged(tmp_path: Path) -> None:
    s = machine(healthy(tmp_path), system=replace(SYSTEM, glibc="2.17"))
    assert "glibc-too-old" in [f.id for f in container_way.repairs(s)]
    assert "comes with the distribution" in found(s).summary


@pytest.mark.parametrize(
    "facts",
    [
        {"driver": replace(DRIVER, version="575.51.03")},
        {"driver": DriverFacts(nvml_status="DriverNotLoaded")},
        {"driver": replace(DRIVER, nvml_status="LibRmVersionMismatch")},
        {"gpus": (GpuFacts(0, name="Tesla V100-SXM2-16GB", compute_capability="7.0"),)},
        {"system": replace(SYSTEM, arch="aarch64")},
        {"system": replace(SYSTEM, in_container=True, container_kind="docker")},
        {"inside_image": True},
        {"container": ContainerFacts(docker_client="", daemon_reachable=False, podman="")},
        {"container": replace(DOCKER, gpu_container_ok=False, gpu_container_output="could not select")},
        {"container": replace(DOCKER, data_free_bytes=5 * GIB)},
        {"container": replace(PODMAN, cdi_nvidia_devices=(), toolkit_version="")},
        {"container": NO_TOOLKIT, "system": replace(SYSTEM, groups=("ann",))},
        {"container": NO_TOOLKIT, "system": replace(SYSTEM, os_id="fedora")},
    ],
    ids=["old driver", "no driver", "driver broken", "Volta", "Arm", "container", "image build", "no engine",
         "tried and failed", "no room", "podman, two steps", "no toolkit, no root", "no toolkit, no apt"],
)  # fmt: skip
def test_silent_where_it_does_not_help(tmp_path: Path, facts: dict[str, Any]) -> None:
    s = machine(broken(tmp_path), **facts)
    assert result(s) is None
    assert container_way.repairs(s)  # it is not for want of repairs


def test_silent_on_a_healthy_host(tmp_path: Path) -> None:
    s = healthy(tmp_path)
    assert container_way.repairs(s) == ()
    assert result(s) is None


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"driver": None}, "driver was not looked at"),
        ({"driver": DriverFacts(nvml_status="ok")}, "version is not known"),
        ({"gpus": ()}, "no card was seen"),
        ({"gpus": (GpuFacts(0, name="NVIDIA Something New"),)}, "capability of GPU 0"),
        ({"container": None}, "engines were not looked at"),
        ({"system": replace(SYSTEM, in_container=None)}, "whether this is a container"),
        ({"system": replace(SYSTEM, arch=None)}, "processor is not known"),
        ({"toolchain": None, "python": None}, "were not looked at"),
        ({"origin": "evidence"}, "does not show the whole machine"),
    ],
)
def test_unknown_is_not_judged(tmp_path: Path, facts: dict[str, Any], why: str) -> None:
    answer = result(machine(broken(tmp_path), **facts))
    assert isinstance(answer, str)
    assert why in answer


def test_under_wsl_the_figure_of_windows_counts(tmp_path: Path) -> None:
    wsl = WslFacts(version=2, dxg=True)
    old = machine(broken(tmp_path), wsl=wsl, driver=replace(DRIVER, version="576.02"))
    assert result(old) is None
    # 580.10 is older than Linux's 580.65.06, and of the branch that Windows needs
    assert "580.10" in found(machine(broken(tmp_path), wsl=wsl, driver=replace(DRIVER, version="580.10"))).summary


def test_a_turing_card_is_served(tmp_path: Path) -> None:
    assert "RTX 2080 Ti" in found(machine(broken(tmp_path), gpus=(TURING,))).summary


def test_a_hint_is_no_repair(tmp_path: Path) -> None:
    host = tc.machine(tmp_path, compilers=ONLY_GCC)
    with_flashinfer(host)
    tc.add_dist(host, SITE, "transformers", "5.6.0")
    s = machine(snapshot(host, system=SYSTEM, gpus=(TURING,)))
    sure = {f.id: f.confidence for f in judge(s, only=REPLACED).findings}
    assert sure["nvcc-missing"] is Confidence.HINT
    assert [f.id for f in container_way.repairs(s)] == ["cxx-compiler-missing"]
    assert result(s) is None


def test_the_pinned_target_is_that_of_the_image() -> None:
    row = table("image_target")
    ready = next(t for t in pins.load().targets if t.image and t.python_lock and t.apt_lock)
    assert (row["dockerfile"], row["vllm"], row["torch"], row["cuda"], row["driver"]) == (
        ready.dockerfile,
        ready.vllm,
        ready.torch,
        ready.cuda,
        ready.minimum_driver,
    )


def test_only_known_causes_are_replaced_and_none_of_the_driver() -> None:
    areas = {catalogue.cause(i).area for i in REPLACED}
    assert areas == {"compiler", "host", "python", "gpu"}


@pytest.mark.parametrize("name", ["2080ti-wsl2-22gb.json", "h200-linux.json"])
def test_silent_on_recorded_machines(name: str) -> None:
    folder = Path(__file__).parents[1] / "fixtures" / "snapshots"
    s = loads(json.dumps(json.loads((folder / name).read_text(encoding="utf-8"))))
    assert not isinstance(result(s), Finding)


def test_an_unknown_user_is_not_taken_for_one_without_rights(tmp_path: Path) -> None:
    assert container_way.can_be_root(Snapshot(system=SystemFacts())) is None
    assert container_way.can_be_root(Snapshot(system=SystemFacts(uid=0))) is True
    s = machine(one_repair(tmp_path), system=replace(SYSTEM, groups=None))
    assert result(s) is None
