"""Plans that offer the pinned image beside repairs by hand, or plan it instead of them; and plans that do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from doctor.checks.registry import judge
from doctor.errors import DoctorError
from doctor.facts import ContainerFacts, DriverFacts, SystemFacts
from doctor.fix import plan as planning
from doctor.fix import privilege
from doctor.fix.machine import Machine
from doctor.fix.plan import Plan
from doctor.fix.privilege import Privilege
from doctor.image import pins
from doctor.report.fix_view import print_plan
from doctor.snapshot import Snapshot, dumps, loads
from tests.fakes import FakeHost
from tests.fix.test_plans import (
    CARD,
    DOCKER,
    ENV,
    FEDORA,
    GCC13,
    GOOD_DRIVER,
    PYTHON,
    UBUNTU,
    compare,
    inst,
    shown,
    toolchain,
)

GOLDEN = Path(__file__).parent / "golden_container"
TAG = "vllm-doctor:0.26.0-cu130-0123456789ab"
WORKS = replace(DOCKER, runtimes=("nvidia", "runc"))
NO_TOOLKIT = replace(DOCKER, toolkit_version="", nvidia_hook="")
PODMAN = ContainerFacts(docker_client="", daemon_reachable=False, podman="/usr/bin/podman",
                        toolkit_version="1.18.0", cdi_nvidia_devices=())  # fmt: skip
ANN = replace(UBUNTU, groups=("ann", "sudo"))
WHEEL = replace(FEDORA, groups=("wheel",))
BOB = replace(UBUNTU, groups=("bob", "docker"))
NO_CXX = toolchain(compilers=(GCC13,), default_cxx="")
NOTHING = toolchain(compilers=(), default_cc="", default_cxx="")


@dataclass(frozen=True)
class Case:
    """A host; ``chosen``: with --container."""

    system: SystemFacts
    container: ContainerFacts | None
    tools: Any = NO_CXX
    chosen: bool = False
    apt_cache: str = ""
    more: dict[str, Any] = field(default_factory=dict)


CASES = {
    "offered-where-the-packages-are-left-to-the-person": Case(WHEEL, WORKS, NOTHING),
    "offered-where-the-user-cannot-become-root": Case(BOB, WORKS),
    "offered-with-a-step-before": Case(WHEEL, PODMAN, NOTHING),
    "chosen-and-nothing-is-missing": Case(ANN, WORKS, chosen=True),
    "chosen-and-the-toolkit-is-installed-first": Case(
        ANN, NO_TOOLKIT, chosen=True, apt_cache="nvidia-container-toolkit:\n  Candidate: 1.18.0-1\n"
    ),
    "chosen-with-podman-without-cdi": Case(ANN, PODMAN, chosen=True),
}


@pytest.fixture(autouse=True)
def fixed_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs by Debian's paths, the image by a tag that does not change with the locks."""
    monkeypatch.setattr(privilege.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    monkeypatch.setattr(pins, "tag", lambda target, root: TAG)


def snapshot(case: Case) -> Snapshot:
    facts: dict[str, Any] = {
        "system": case.system, "toolchain": case.tools, "driver": GOOD_DRIVER, "gpus": (CARD,),
        "container": case.container, "python": replace(PYTHON, transformers="4.57.0", packages={"vllm": "0.26.0"}),
    }  # fmt: skip
    return loads(dumps(Snapshot(**{**facts, **case.more})))


def made(root: Path, case: Case) -> Plan:
    packages = inst("nvidia-container-toolkit") if case.apt_cache else inst("g++", "build-essential")
    host = FakeHost(root, env=ENV, programs={"apt-get": packages, "apt-cache": case.apt_cache})
    host.write("/var/lib/apt/lists/x_Packages", "")
    os.utime(root / "var/lib/apt/lists/x_Packages", (host.time(), host.time()))
    seen = snapshot(case)
    return planning.make(seen, judge(seen), host, is_root=False, container=case.chosen)


def way(plan: Plan) -> list[tuple[str, ...]]:
    """The commands of the container way in a plan; empty when it is not in it."""
    return [c for a in plan.actions if a.id == "manual:image-is-the-shorter-way" for c in a.facts()["commands"]]


@pytest.mark.parametrize("name", CASES)
def test_plan(tmp_path: Path, name: str) -> None:
    compare(name, shown(made(tmp_path, CASES[name])), GOLDEN)


def test_no_golden_file_is_left_over() -> None:
    assert {p.stem for p in GOLDEN.glob("*.json")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_image_is_never_built_by_the_plan(tmp_path: Path, name: str) -> None:
    plan = made(tmp_path, CASES[name])
    assert ["vllm-doctor", "build"] in way(plan)
    assert all(a.manual for a in plan.actions if "image-is-the-shorter-way" in a.id)
    run = next(c for c in way(plan) if c[-1] == "check")
    assert run[:3] == ["podman" if CASES[name].container is PODMAN else "docker", "run", "--rm"]
    assert TAG in run


def test_the_offer_stands_beside_the_repair(tmp_path: Path) -> None:
    plan = made(tmp_path, CASES["offered-where-the-packages-are-left-to-the-person"])
    assert [a.id for a in plan.actions][-2:] == ["manual:c-compiler-missing", "manual:image-is-the-shorter-way"]
    assert plan.actions[-1].summary.startswith("Or leave this host as it is (c-compiler-missing)")


def test_chosen_it_leaves_the_host_alone(tmp_path: Path) -> None:
    case = CASES["chosen-and-the-toolkit-is-installed-first"]
    plan = made(tmp_path, case)
    kinds = [a.kind for a in plan.actions]
    assert kinds == ["install_package", "docker_config", "manual"]
    assert "the image brings it" in plan.left["cxx-compiler-missing"]
    assert {c for a in plan.actions for c in a.causes} == {"container-toolkit-missing", "image-is-the-shorter-way"}
    other = made(tmp_path / "host", replace(case, chosen=False, apt_cache=""))
    assert plan.fingerprint != other.fingerprint
    assert "install_package:build-essential" in [a.id for a in other.actions]


def test_chosen_it_repairs_only_what_the_way_needs(tmp_path: Path) -> None:
    """--gpus goes through the hook; that `runtime: nvidia` would be refused does not matter to the image."""
    hook = replace(DOCKER, runtimes=("runc",), nvidia_hook="/usr/bin/nvidia-container-runtime-hook")
    plan = made(tmp_path, Case(ANN, hook, chosen=True))
    assert [a.id for a in plan.actions] == ["manual:image-is-the-shorter-way"]
    assert plan.left["container-runtime-not-registered"] == "the way into a container does not need it"


@pytest.mark.parametrize(
    "case",
    [
        Case(ANN, WORKS),
        Case(WHEEL, WORKS, more={"driver": replace(GOOD_DRIVER, version="575.51.03")}),
        Case(WHEEL, WORKS, more={"driver": DriverFacts(nvml_status="DriverNotLoaded")}),
        Case(WHEEL, ContainerFacts(docker_client="", daemon_reachable=False, podman="")),
        Case(WHEEL, None),
        Case(replace(FEDORA, groups=("wheel",), in_container=True), WORKS),
        Case(replace(FEDORA, groups=("wheel",), in_container=None), WORKS),
        Case(replace(FEDORA, groups=("fred",)), NO_TOOLKIT),
    ],
    ids=["a repair that is carried out", "old driver", "no driver", "no engine", "engines unknown", "container",
         "perhaps a container", "two steps"],
)  # fmt: skip
def test_not_offered(tmp_path: Path, case: Case) -> None:
    plan = made(tmp_path, case)
    assert plan.actions or plan.left
    assert way(plan) == []


@pytest.mark.parametrize(
    ("more", "container", "words"),
    [
        ({"driver": replace(GOOD_DRIVER, version="575.51.03")}, WORKS, "580"),
        ({"driver": DriverFacts(nvml_status="DriverNotLoaded")}, WORKS, "DriverNotLoaded"),
        ({"driver": None}, WORKS, "driver was not looked at"),
        ({"gpus": (replace(CARD, name="Tesla V100", compute_capability="7.0"),)}, WORKS, "V100"),
        ({"system": replace(ANN, arch="aarch64")}, WORKS, "aarch64"),
        ({"system": replace(ANN, in_container=True)}, WORKS, "container already"),
        ({}, ContainerFacts(docker_client="", daemon_reachable=False, podman=""), "neither docker nor podman"),
    ],
)
def test_it_cannot_be_chosen_where_no_image_runs(
    tmp_path: Path, more: dict[str, Any], container: ContainerFacts, words: str
) -> None:
    with pytest.raises(DoctorError, match=words) as raised:
        made(tmp_path, Case(ANN, container, chosen=True, more=more))
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_asked_for_by_name(tmp_path: Path) -> None:
    tools = toolchain(compilers=(GCC13,), default_cxx="", python_h="")
    seen = snapshot(Case(BOB, WORKS, tools))
    host = FakeHost(tmp_path, env=ENV)
    found = judge(seen, only=["image-is-the-shorter-way"])
    assert [f.id for f in found.findings] == ["image-is-the-shorter-way"], found.skipped
    plan = planning.make(seen, found, host, is_root=False, only=["image-is-the-shorter-way"])
    assert ["vllm-doctor", "build"] in way(plan)
    unasked = planning.make(seen, found, host, is_root=False)
    assert unasked.left["image-is-the-shorter-way"].endswith("`vllm-doctor fix --container` plans it")


def test_a_saved_plan_remembers_the_choice(tmp_path: Path) -> None:
    assert json.loads(shown(made(tmp_path / "a", CASES["chosen-and-nothing-is-missing"])))["container"] is True
    assert "container" not in json.loads(shown(made(tmp_path / "b", CASES["offered-with-a-step-before"])))


def test_the_two_choices_exclude_each_other() -> None:
    argv = [sys.executable, "-m", "doctor", "fix", "--container", "--only", "gxx12-missing"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "vllm-doctor: --container and --only exclude each other\n"


def test_what_is_left_to_the_person_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES["offered-where-the-packages-are-left-to-the-person"]
    plan = made(tmp_path, case)
    hand = tuple(a for a in plan.actions if a.manual)
    machine = Machine(Privilege(False, "/usr/bin/sudo"), staging=Path("/state"), env=ENV)
    for actions, said in (
        (hand[:1], "The doctor can do nothing here itself; 1 step is to be done by hand."),
        (hand[:1] * 2, "The doctor can do nothing here itself; 2 steps are to be done by hand."),
        ((), "Nothing to repair."),
    ):
        print_plan(replace(plan, actions=actions), judge(snapshot(case)), machine)
        assert capsys.readouterr().out.splitlines()[0] == said


def test_a_person_reads_why_and_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES["offered-where-the-packages-are-left-to-the-person"]
    machine = Machine(Privilege(False, "/usr/bin/sudo"), staging=Path("/state"), env=ENV)
    print_plan(made(tmp_path, case), judge(snapshot(case)), machine)
    said = capsys.readouterr().out
    assert (
        "Or leave this host as it is (c-compiler-missing): build the pinned image and run that  [by hand]" in said
    )
    assert "why: The pinned image is the shorter way on this machine [image-is-the-shorter-way]" in said
    assert "$ vllm-doctor build" in said
    assert f"$ docker run --rm --gpus all {TAG} check" in said
