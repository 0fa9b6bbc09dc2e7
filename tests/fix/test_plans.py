"""Plans as golden files: for hosts with one thing wrong, and for every handed case.

``VLLM_DOCTOR_WRITE_GOLDEN=1 pytest tests/fix/test_plans.py`` writes them anew; the difference is to be read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from doctor.checks.registry import judge
from doctor.evidence import read_evidence
from doctor.facts import (
    Compiler,
    CompileTrial,
    ContainerFacts,
    DriverFacts,
    GpuFacts,
    Nvcc,
    PythonFacts,
    ServingFacts,
    StorageFacts,
    SystemFacts,
    ToolchainFacts,
    WslFacts,
)
from doctor.fix import plan as planning
from doctor.fix import privilege
from doctor.fix.actions.docker_config import control
from doctor.fix.machine import Machine
from doctor.fix.plan import Plan
from doctor.fix.privilege import Privilege
from doctor.host.access import RunResult
from doctor.snapshot import Snapshot, dumps, loads
from tests.cases.support import handed
from tests.fakes import FakeHost, Reply

GOLDEN = Path(__file__).parent / "golden"
HOME = "/home/ann"
ENV = {"HOME": HOME, "USER": "ann"}
UBUNTU = SystemFacts(
    os_id="ubuntu", os_version="24.04", os_like=("debian",), arch="x86_64", uid=1000, in_container=False,
    systemd=True, ram_total_bytes=34_359_738_368, swap_total_bytes=0, cpu_count=16,
)  # fmt: skip
FEDORA = replace(UBUNTU, os_id="fedora", os_version="43", os_like=())
WSL = WslFacts(version=2, kernel="6.6.87.2-microsoft-standard-WSL2", distro="Ubuntu", dxg=True, lib_dir=True,
               libcuda_in_lib_dir=True, libnvidia_ml_in_lib_dir=True, pin_memory_kernel_ok=True,
               pin_memory_enabled=False, systemd_enabled=True, libcuda_resolved="/usr/lib/wsl/lib/libcuda.so.1",
               library_path="")  # fmt: skip
GCC12 = Compiler("/usr/bin/gcc-12", "gcc-12", "gcc", "12.3.0", 12, False, "", False)
GCC13 = Compiler("/usr/bin/gcc", "gcc", "gcc", "13.3.0", 13, False, "/usr/lib/gcc/13/cc1plus", True)
GXX13 = Compiler("/usr/bin/g++", "g++", "gcc", "13.3.0", 13, True, "/usr/lib/gcc/13/cc1plus", True)
GCC15 = Compiler("/usr/bin/gcc", "gcc", "gcc", "15.2.0", 15, False, "/usr/lib/gcc/15/cc1plus", True)
GXX15 = Compiler("/usr/bin/g++", "g++", "gcc", "15.2.0", 15, True, "/usr/lib/gcc/15/cc1plus", True)
PYTHON = PythonFacts(
    executable="/opt/venv/bin/python", version="3.12.3", base_prefix="/usr", vllm="0.26.0", torch="2.11.0",
    torch_cuda="13.0", transformers="5.0.0", conflicts=(), doctor_clash="",
    packages={"vllm": "0.26.0", "torch": "2.11.0", "transformers": "5.0.0"},
    vllm_requires=("transformers<5,>=4.56",),
)  # fmt: skip
CARD = GpuFacts(0, name="NVIDIA GeForce RTX 2080 Ti", compute_capability="7.5", total_bytes=23_068_672_000,
                free_bytes=19_000_000_000, cuda_total_bytes=23_000_000_000,
                cuda_free_bytes=19_000_000_000)  # fmt: skip
DOCKER = ContainerFacts(docker_client="/usr/bin/docker", daemon_reachable=True, daemon_permission_denied=False,
                        docker_host="unix:///var/run/docker.sock", runtimes=("runc",), toolkit_version="1.18.0",
                        daemon_json_path="/etc/docker/daemon.json", daemon_json_valid=True,
                        cdi_nvidia_devices=())  # fmt: skip
GOOD_DRIVER = DriverFacts(nvml_status="ok", version="580.95.05")


@dataclass(frozen=True)
class Case:
    """A host with one thing wrong. ``files`` are on it; ``apt`` answers ``apt-get -s`` (None: no lists)."""

    cause: str
    snapshot: Snapshot
    files: Mapping[str, str] = field(default_factory=dict)
    apt: str | None = ""
    programs: Mapping[str, Reply] = field(default_factory=dict)
    root: bool = False


def toolchain(**facts: Any) -> ToolchainFacts:
    base: dict[str, Any] = {
        "compilers": (GCC13, GXX13), "default_cc": "/usr/bin/gcc", "default_cxx": "/usr/bin/g++", "nvccs": (),
        "nvcc": "", "python_h": "/usr/include/python3.12/Python.h", "ninja_on_path": True, "cc1plus_on_path": "",
    }  # fmt: skip
    return ToolchainFacts(**{**base, **facts})


def inst(*names: str) -> str:
    return "".join(f"Inst {n} (1.0 Ubuntu:24.04/noble [amd64])\n" for n in names)


NO_HEADERS = toolchain(
    python_h="", python_include="/usr/include/python3.12",
    trials=(CompileTrial("c-python", ("/usr/bin/gcc",), False, 1, "Python.h: No such file or directory"),),
)  # fmt: skip
NVCC = Nvcc(
    "/usr/local/cuda/bin/nvcc", "12.8", "12.8.93", ("CUDA_HOME",), 14, 6, True, True, "/usr/local/cuda", ""
)
LOCK = f"{HOME}/.cache/torch_extensions/py312_cu128/flash_qla_gdr/lock"

HOSTS: dict[str, Case] = {
    "gxx12-missing": Case(
        "gxx12-missing",
        Snapshot(system=UBUNTU, toolchain=toolchain(compilers=(GCC12,), env={"CC": "gcc-12"}, default_cxx="")),
        apt=inst("libstdc++-12-dev", "g++-12"),
    ),
    "gxx12-missing-as-root": Case(
        "gxx12-missing",
        Snapshot(system=replace(UBUNTU, uid=0), toolchain=toolchain(compilers=(GCC12,), env={"CC": "gcc-12"})),
        apt=inst("g++-12"),
        root=True,
    ),
    "gxx12-missing-without-lists": Case(
        "gxx12-missing",
        Snapshot(system=UBUNTU, toolchain=toolchain(compilers=(GCC12,), env={"CC": "gcc-12"})),
        apt=None,
    ),
    "gxx12-missing-apt-would-remove": Case(
        "gxx12-missing",
        Snapshot(system=UBUNTU, toolchain=toolchain(compilers=(GCC12,), env={"CC": "gcc-12"})),
        apt=inst("g++-12") + "Remv g++-13 [13.3.0]\n",
    ),
    "gxx12-missing-with-an-upgrade": Case(
        "gxx12-missing",
        Snapshot(system=UBUNTU, toolchain=toolchain(compilers=(GCC12,), env={"CC": "gcc-12"})),
        apt="Inst gcc-12-base [12.2] (12.3 Ubuntu:24.04 [amd64])\n" + inst("g++-12"),
    ),
    "cxx-compiler-missing": Case(
        "cxx-compiler-missing",
        Snapshot(system=UBUNTU, toolchain=toolchain(compilers=(GCC13,), default_cxx="")),
        apt=inst("g++", "make", "build-essential"),
    ),
    "c-compiler-missing": Case(
        "c-compiler-missing",
        Snapshot(system=UBUNTU, toolchain=toolchain(compilers=(), default_cc="", default_cxx="")),
        apt=inst("gcc", "g++", "build-essential"),
    ),
    "c-compiler-missing-on-fedora": Case(
        "c-compiler-missing",
        Snapshot(system=FEDORA, toolchain=toolchain(compilers=(), default_cc="", default_cxx="")),
    ),
    "python-headers-missing": Case(
        "python-headers-missing",
        Snapshot(system=UBUNTU, toolchain=NO_HEADERS, python=PYTHON),
        apt=inst("libpython3.12-dev", "python3.12-dev"),
    ),
    "gcc-too-new-for-nvcc": Case(
        "gcc-too-new-for-nvcc",
        Snapshot(
            system=UBUNTU,
            gpus=(replace(CARD, compute_capability="8.6"),),
            python=replace(
                PYTHON, flashinfer="0.6.14", packages={**(PYTHON.packages or {}), "flashinfer-python": "0.6.14"}
            ),
            toolchain=toolchain(
                compilers=(
                    GCC15,
                    GXX15,
                    replace(GCC13, path="/usr/bin/gcc-13", name="gcc-13"),
                    replace(GXX13, path="/usr/bin/g++-13", name="g++-13"),
                ),
                nvccs=(NVCC,),
                nvcc=NVCC.path,
                nvcc_host="/usr/bin/gcc",
                nvcc_host_by="PATH",
                cuda_home="/usr/local/cuda",
            ),
        ),
    ),
    "nvcc-missing": Case(
        "nvcc-missing",
        Snapshot(
            system=UBUNTU,
            gpus=(replace(CARD, compute_capability="8.6"),),
            toolchain=toolchain(cuda_home=""),
            python=replace(
                PYTHON, flashinfer="0.6.14", packages={**(PYTHON.packages or {}), "flashinfer-python": "0.6.14"}
            ),
        ),
    ),
    "transformers-too-new-for-vllm": Case("transformers-too-new-for-vllm", Snapshot(system=UBUNTU, python=PYTHON)),
    "pynvml-shim-installed": Case(
        "pynvml-shim-installed",
        Snapshot(system=UBUNTU, python=replace(PYTHON, packages={**(PYTHON.packages or {}), "pynvml": "12.0.0"})),
    ),
    "flashqla-stale-build-lock": Case(
        "flashqla-stale-build-lock",
        Snapshot(system=UBUNTU, storage=StorageFacts(stale_locks=(LOCK,), fresh_locks=())),
        files={LOCK: ""},
    ),
    "mmap-overcommit-refused": Case(
        "mmap-overcommit-refused",
        Snapshot(
            system=replace(UBUNTU, overcommit_memory=2, commit_limit_bytes=8 << 30, committed_bytes=4 << 30),
            storage=StorageFacts(model_largest_file_bytes=9 << 30, model_path="/models/x", model_exists=True),
        ),
    ),
    "docker-daemon-json-invalid": Case(
        "docker-daemon-json-invalid",
        Snapshot(
            system=UBUNTU,
            container=replace(DOCKER, daemon_json_valid=False, daemon_json_error="line 3: a comma too many"),
        ),
        files={"/etc/docker/daemon.json": '{\n  "dns": ["10.0.0.1"],\n}\n', "/run/docker.pid": "812"},
    ),
    "docker-daemon-json-hopeless": Case(
        "docker-daemon-json-invalid",
        Snapshot(
            system=UBUNTU, container=replace(DOCKER, daemon_json_valid=False, daemon_json_error="line 1: no")
        ),
        files={"/etc/docker/daemon.json": "dns: 10.0.0.1\n"},
    ),
    "container-runtime-not-registered": Case(
        "container-runtime-not-registered",
        Snapshot(
            system=UBUNTU, driver=GOOD_DRIVER, container=replace(DOCKER, daemon_json_default_runtime="nvidia")
        ),
        files={"/etc/docker/daemon.json": '{\n  "default-runtime": "nvidia",\n  "log-driver": "journald"\n}\n'},
    ),
    "container-toolkit-missing": Case(
        "container-toolkit-missing",
        Snapshot(system=UBUNTU, driver=GOOD_DRIVER, container=replace(DOCKER, toolkit_version="", nvidia_hook="")),
        programs={"apt-cache": "nvidia-container-toolkit:\n  Installed: (none)\n  Candidate: 1.18.0-1\n"},
        apt=inst("libnvidia-container1", "nvidia-container-toolkit"),
    ),
    "container-toolkit-missing-no-repository": Case(
        "container-toolkit-missing",
        Snapshot(system=UBUNTU, driver=GOOD_DRIVER, container=replace(DOCKER, toolkit_version="", nvidia_hook="")),
        programs={"apt-cache": ""},
    ),
    "docker-socket-permission-denied": Case(
        "docker-socket-permission-denied",
        Snapshot(
            system=UBUNTU,
            container=replace(
                DOCKER,
                daemon_reachable=False,
                daemon_permission_denied=True,
                daemon_error="permission denied",
                docker_socket_group="docker",
            ),
        ),
    ),
    "docker-daemon-unreachable-in-wsl": Case(
        "docker-daemon-unreachable",
        Snapshot(
            system=replace(UBUNTU, systemd=False),
            wsl=replace(WSL, systemd_enabled=False),
            container=replace(DOCKER, daemon_reachable=False, daemon_error="connection refused"),
        ),
        files={"/etc/wsl.conf": "[user]\ndefault=ann\n"},
    ),
    "wsl2-uva-unavailable": Case("wsl2-uva-unavailable", Snapshot(system=UBUNTU, wsl=WSL, python=PYTHON)),
    "wsl2-uva-unavailable-old-kernel": Case(
        "wsl2-uva-unavailable",
        Snapshot(
            system=UBUNTU,
            python=PYTHON,
            wsl=replace(WSL, kernel="4.19.104-microsoft-standard", pin_memory_kernel_ok=False),
        ),
    ),
    "wsl2-expandable-segments": Case(
        "wsl2-expandable-segments",
        Snapshot(
            system=UBUNTU,
            wsl=WSL,
            python=replace(
                PYTHON, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512"}
            ),
        ),
    ),
    "wsl2-libcuda-link-name-missing": Case(
        "wsl2-libcuda-link-name-missing",
        Snapshot(
            system=UBUNTU,
            wsl=WSL,
            toolchain=toolchain(
                trials=(
                    CompileTrial(
                        "link-cuda", ("gcc", "-lcuda"), False, 1, "/usr/bin/ld: cannot find -lcuda: No such file"
                    ),
                )
            ),
        ),
    ),
    "wsl2-libcuda-not-on-loader-path": Case(
        "wsl2-libcuda-not-on-loader-path", Snapshot(system=UBUNTU, wsl=replace(WSL, libcuda_resolved=""))
    ),
    "wsl1-no-gpu": Case(
        "wsl1-no-gpu",
        Snapshot(system=UBUNTU, wsl=replace(WSL, version=1, kernel="4.4.0-19041-Microsoft", dxg=False)),
    ),
    "wsl2-kernel-outdated": Case(
        "wsl2-kernel-outdated",
        Snapshot(system=UBUNTU, wsl=replace(WSL, kernel="5.10.16.3-microsoft-standard-WSL2")),
    ),
    "util-above-free-memory": Case(
        "util-above-free-memory", Snapshot(system=UBUNTU, gpus=(CARD,), driver=GOOD_DRIVER, serving=ServingFacts())
    ),
}


@pytest.fixture(autouse=True)
def debian_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans name programs by their path on this machine; here by Debian's."""
    monkeypatch.setattr(privilege.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")


def made(root: Path, case: Case) -> Plan:
    programs = dict(case.programs)
    if case.apt is None:
        programs["apt-get"] = lambda argv: RunResult(argv, returncode=100, stderr="E: Unable to locate package")
    else:
        programs["apt-get"] = case.apt
    host = FakeHost(root, env=ENV, programs=programs)
    if case.apt is not None:
        host.write("/var/lib/apt/lists/x_Packages", "")
        os.utime(root / "var/lib/apt/lists/x_Packages", (host.time(), host.time()))
    for path, text in case.files.items():
        host.write(path, text)
    seen = loads(dumps(case.snapshot))
    judgement = judge(seen, only=[case.cause])
    assert [f.id for f in judgement.findings] == [case.cause], judgement.skipped
    return planning.make(seen, judgement, host, is_root=case.root, only=[case.cause])


def shown(plan: Plan, is_root: bool = False) -> str:
    machine = Machine(Privilege(is_root, "/usr/bin/sudo"), staging=Path("/state"), env=ENV)
    document = plan.dump(machine)
    document.pop("facts_fingerprint")  # it says only whether something changed, not what
    document.pop("id")
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def compare(name: str, text: str, folder: Path = GOLDEN) -> None:
    path = folder / f"{name}.json"
    if os.environ.get("VLLM_DOCTOR_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden file {path.name}: {text}"
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", HOSTS)
def test_plan_of_a_host(tmp_path: Path, name: str) -> None:
    case = HOSTS[name]
    plan = made(tmp_path, case)
    assert plan.actions, plan.left
    compare(f"hosts/{name}", shown(plan, case.root))


@pytest.mark.parametrize("name", [c.name for c in handed()])
def test_plan_of_a_handed_case(tmp_path: Path, name: str) -> None:
    """What a host that shows the same would get. Nothing of the person's machine but the text is known."""
    path = next(c.path for c in handed() if c.name == name)
    seen = read_evidence([str(path)]).snapshot
    host = FakeHost(tmp_path, env=ENV, programs={"apt-get": inst("example"), "apt-cache": ""})
    plan = planning.make(seen, judge(seen), host, is_root=False)
    if plan.actions:
        compare(f"cases/{name}", shown(plan))
    else:
        assert not (GOLDEN / f"cases/{name}.json").exists()


def test_no_golden_file_is_left_over() -> None:
    known = {f"hosts/{n}.json" for n in HOSTS} | {f"cases/{c.name}.json" for c in handed()}
    assert {str(p.relative_to(GOLDEN)) for p in GOLDEN.rglob("*.json")} <= known


# ------------------------------------------------------------------ the fingerprint


def fingerprint(root: Path, case: Case) -> str:
    root.mkdir()
    return made(root, case).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda c: replace(c, snapshot=replace(c.snapshot, system=replace(UBUNTU, os_version="26.04"))),
        lambda c: replace(c, snapshot=replace(c.snapshot, driver=replace(GOOD_DRIVER, version="590.1"))),
        lambda c: replace(c, files={**c.files, "/etc/docker/daemon.json": '{"default-runtime": "nvidia"}'}),
        lambda c: replace(c, root=True),
    ],
    ids=["distribution", "driver", "file", "root"],
)
def test_the_fingerprint_moves_with_the_facts(tmp_path: Path, change: Callable[[Case], Case]) -> None:
    case = HOSTS["container-runtime-not-registered"]
    assert fingerprint(tmp_path / "a", case) == fingerprint(tmp_path / "b", case)
    assert fingerprint(tmp_path / "c", case) != fingerprint(tmp_path / "d", change(case))


def test_the_fingerprint_does_not_move_with_the_minute(tmp_path: Path) -> None:
    case = HOSTS["gxx12-missing"]
    later = replace(UBUNTU, ram_available_bytes=1 << 30, committed_bytes=7)
    moved = replace(case, snapshot=replace(case.snapshot, system=later, taken_at="2027-01-01T00:00:00Z"))
    assert fingerprint(tmp_path / "a", case) == fingerprint(tmp_path / "b", moved)


# ------------------------------------------------------------------ rules of every plan


@pytest.mark.parametrize("name", HOSTS)
def test_no_shell_no_globs_no_placeholders(tmp_path: Path, name: str) -> None:
    plan = made(tmp_path, HOSTS[name])
    machine = Machine(Privilege(False, "/usr/bin/sudo"), staging=Path("/state"), env=ENV)
    for action in plan.actions:
        if action.manual:
            continue
        for command in action.preview(machine).commands:
            words = [w for w in command if w not in ("NEW-FILE", "NAME==VERSION ...")]
            assert not {"sh", "bash", "/bin/sh", "/bin/bash", "-c"} & set(words), command
            assert not any(re.search(r"[*?;|&`$]", w) for w in words), command


def test_a_note_and_a_hint_are_left_alone_unless_asked_for(tmp_path: Path) -> None:
    case = HOSTS["pynvml-shim-installed"]
    host = FakeHost(tmp_path, env=ENV, programs={"apt-get": ""})
    plan = planning.make(case.snapshot, judge(case.snapshot, only=[case.cause]), host, is_root=False)
    assert plan.actions == ()
    assert "only a note" in plan.left[case.cause]


def test_the_daemons_commands_are_this_hosts() -> None:
    assert control(True, None, False)[0] == ("/usr/bin/systemctl", "reload", "docker")


def test_no_shell_in_the_tree() -> None:
    """Nothing in the product runs a string through a shell."""
    for path in (Path(__file__).parents[2] / "doctor").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"shell\s*=\s*True|os\.system\(|os\.popen\(|getoutput\(", text), path


def test_a_folded_finding_can_be_asked_for(tmp_path: Path) -> None:
    case = HOSTS["gxx12-missing"]
    found = judge(case.snapshot, only=[case.cause])
    other = judge(HOSTS["wsl1-no-gpu"].snapshot, only=["wsl1-no-gpu"]).findings[0]
    folded = replace(found, findings=(replace(other, symptoms=found.findings),))
    host = FakeHost(tmp_path, env=ENV, programs={"apt-get": inst("g++-12")})
    plan = planning.make(case.snapshot, folded, host, is_root=False, only=[case.cause])
    assert [a.causes for a in plan.actions if not a.helper] == [(case.cause,)]
