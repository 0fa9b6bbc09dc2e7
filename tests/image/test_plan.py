"""Which image a machine can run: recorded machines, and drivers and cards put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.facts import DriverFacts, GpuFacts, SystemFacts, WslFacts
from doctor.finding import Finding
from doctor.image import pins as pinned
from doctor.image.pins import Pins
from doctor.image.plan import Plan, Wish, make
from doctor.snapshot import Snapshot, loads

SNAPSHOTS = Path(__file__).parents[1] / "fixtures" / "snapshots"
PINS = pinned.load()
REVISION = "0" * 40
VOLTA = GpuFacts(0, name="Tesla V100-SXM2-16GB", compute_capability="7.0")
TURING = GpuFacts(0, name="NVIDIA GeForce RTX 2080 Ti", compute_capability="7.5")
AMPERE = GpuFacts(1, name="NVIDIA GeForce RTX 3090", compute_capability="8.6")
PASCAL = GpuFacts(0, name="NVIDIA GeForce GTX 1080", compute_capability="6.1")
FUTURE = GpuFacts(0, name="NVIDIA Card Of Tomorrow", compute_capability="13.0")


def recorded(name: str) -> Snapshot:
    return loads((SNAPSHOTS / name).read_text(encoding="utf-8"))


def machine(
    driver: str | None, *cards: GpuFacts, wsl: bool = False, arch: str = "x86_64", env: str | None = None
) -> Snapshot:
    return Snapshot(
        system=SystemFacts(os_id="ubuntu", os_version="24.04", arch=arch, in_container=False),
        wsl=WslFacts(version=2 if wsl else 0),
        driver=DriverFacts(
            nvml_status="ok" if driver else "LibraryNotFound",
            version=driver,
            env={"CUDA_VISIBLE_DEVICES": env} if env is not None else {},
        ),
        gpus=tuple(cards),
    )


def plan(s: Snapshot, wish: Wish | None = None, pins: Pins = PINS) -> Plan:
    return make(s, pins, wish or Wish(), REVISION)


def refused(p: Plan) -> Finding:
    assert len(p.refusals) == 1, p.refusals
    return p.refusals[0]


def texts(findings: Sequence[Finding]) -> str:
    return " ".join(r.summary for f in findings for r in f.fixes)


def test_a_recorded_machine_gets_the_pinned_image() -> None:
    made = plan(recorded("h200-linux.json"))
    assert (made.target.name, made.refusals) == ("ubuntu24.04", ())
    assert made.base == PINS.image("cuda-13.0").pinned
    assert made.tag == pinned.tag(PINS.target("ubuntu24.04"), PINS.root)
    rows = {c.what: c for c in made.choices}
    assert rows["driver"].value == "580.159.04"
    assert "580.65.06" in rows["driver"].why
    assert "capability 9.0" in rows["card"].value
    assert "sm_90" in rows["card"].why


def test_the_arguments_are_those_of_the_contract() -> None:
    made = plan(machine("580.65.06", AMPERE))
    assert list(made.arguments) == [
        "BASE", "PYTHON", "PYTHON_LOCK", "APT_LOCK", "VLLM", "TORCH", "CUDA", "LOCK_HASH", "REVISION", "PLAN_ID",
    ]  # fmt: skip
    assert made.arguments["LOCK_HASH"] == made.tag.rpartition("-")[2]
    assert made.arguments["REVISION"] == REVISION
    assert made.arguments["PLAN_ID"] == made.id


@pytest.mark.parametrize(("driver", "runs"), [("580.65.06", True), ("580.65.05", False), ("570.172.08", False),
                                              ("590.48.01", True), ("99.0", False)])  # fmt: skip
def test_the_driver_decides(driver: str, runs: bool) -> None:
    made = plan(machine(driver, AMPERE))
    assert bool(made.refusals) is not runs
    if not runs:
        finding = refused(made)
        assert finding.id == "driver-too-old-for-cuda-build"
        assert "580.65.06" in finding.summary
        assert driver in finding.summary
        assert "no target older than CUDA 13.0 has a lock of its own" in texts(made.refusals)
        assert "install torch" not in texts(made.refusals).lower(), "nothing in an image can be exchanged"


def test_under_wsl_the_driver_of_windows_counts() -> None:
    finding = refused(plan(machine("576.02", AMPERE, wsl=True)))
    assert "Windows driver 580" in finding.summary
    assert "Update the NVIDIA driver in Windows" in finding.fixes[0].summary
    assert plan(machine("581.29", AMPERE, wsl=True)).refusals == ()


def test_an_older_line_is_taken_when_it_has_a_lock_of_its_own() -> None:
    older = replace(
        PINS.target("ubuntu24.04"), name="older", image="cuda-12.8", cuda="12.8", minimum_driver="570.26"
    )
    pins = replace(PINS, targets=(*PINS.targets, older))
    made = plan(machine("570.172.08", AMPERE), pins=pins)
    assert (made.target.name, made.refusals) == ("older", ())
    assert any(n.startswith("ubuntu24.04 was passed over: ") and "580.65.06" in n for n in made.notes)
    assert plan(machine("580.65.06", AMPERE), pins=pins).target.name == "ubuntu24.04"
    both = plan(machine("535.54.03", AMPERE), pins=pins)
    assert both.target.name == "ubuntu24.04"
    assert refused(both).id == "driver-too-old-for-cuda-build"


@pytest.mark.parametrize(
    ("card", "cause"),
    [
        (VOLTA, "gpu-dropped-by-cuda13"),
        (PASCAL, "gpu-compute-capability-unsupported"),
        (FUTURE, "gpu-too-new-for-torch-build"),
    ],
)
def test_a_card_without_code_is_refused(card: GpuFacts, cause: str) -> None:
    made = plan(machine("580.159.04", card))
    assert refused(made).id == cause
    assert card.name is not None
    assert card.name in refused(made).summary
    assert "sm_75, sm_80, sm_86, sm_90, sm_100, sm_120" in texts(made.refusals)
    assert "cu126" not in texts(made.refusals)


def test_one_card_with_code_is_enough() -> None:
    made = plan(machine("580.159.04", VOLTA, AMPERE))
    assert made.refusals == ()
    assert any("has no code for GPU 0 (Tesla V100" in n for n in made.notes)
    hidden = plan(machine("580.159.04", VOLTA, AMPERE, env="0"))
    assert refused(hidden).id == "gpu-dropped-by-cuda13"


def test_driver_and_card_are_both_said() -> None:
    made = plan(machine("535.54.03", VOLTA))
    assert [f.id for f in made.refusals] == ["driver-too-old-for-cuda-build", "gpu-dropped-by-cuda13"]


def test_a_turing_card_hears_of_the_fork() -> None:
    made = plan(recorded("2080ti-wsl2-22gb.json"))
    assert (made.target.name, made.refusals) == ("ubuntu24.04", ())
    assert any("--target turing-fork" in n and "unverified" in n for n in made.notes)
    assert not any("turing-fork" in n for n in plan(machine("580.65.06", AMPERE)).notes)


def test_the_fork_is_for_turing_alone() -> None:
    fork = plan(machine("580.65.06", TURING), Wish(target="turing-fork"))
    assert fork.refusals == ()
    assert fork.target.dockerfile == "docker/turing.Dockerfile"
    assert any("unverified" in n for n in fork.notes)
    other = refused(plan(machine("580.65.06", AMPERE), Wish(target="turing-fork")))
    assert other.id == "vllm-kernels-missing-for-arch"
    assert "sm_86" in other.summary
    assert "sm_75 only" in other.summary
    older = refused(plan(machine("550.54.14", TURING), Wish(target="turing-fork")))
    assert older.id == "driver-too-old-for-cuda-build"
    assert "570.26" in older.summary


def test_a_machine_without_a_card_can_build() -> None:
    for s in (machine(None), Snapshot()):
        made = plan(s)
        assert (made.target.name, made.refusals) == ("ubuntu24.04", ())
        assert "nothing could be chosen from hardware" in made.choices[0].why


def test_a_driver_that_does_not_answer_is_said_and_not_judged() -> None:
    s = machine(None)
    made = plan(replace(s, driver=DriverFacts(nvml_status="DriverNotLoaded")))
    assert made.refusals == ()
    assert any("NVML: DriverNotLoaded" in n for n in made.notes)


def test_hardware_can_be_left_out() -> None:
    made = plan(machine("535.54.03", VOLTA), Wish(ignore_hardware=True))
    assert made.refusals == ()
    assert "were not looked at" in made.choices[0].why
    assert not [c for c in made.choices if c.what in ("driver", "card")]
    assert plan(machine("535.54.03", arch="aarch64"), Wish(ignore_hardware=True)).target.name == "ubuntu24.04"


def test_another_processor_is_refused() -> None:
    with pytest.raises(DoctorError, match="x86-64, and this machine is aarch64") as caught:
        plan(machine("580.65.06", AMPERE, arch="aarch64"))
    assert caught.value.exit_code == 2


def test_the_base_decides_by_its_distribution() -> None:
    made = plan(machine(None), Wish(base="local/bookworm:minbase", distribution=("debian", "12")))
    assert (made.target.name, made.base) == ("bookworm", "local/bookworm:minbase")
    assert made.arguments["PYTHON_LOCK"] == "docker/locks/python-3.11.txt"
    assert not any("pin not verified" in n for n in made.notes)
    named = plan(machine(None), Wish(target="trixie", base="mine:1"))
    assert (named.target.name, named.base) == ("trixie", "mine:1")


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Wish(base="mine:1", distribution=("debian", "11")), "mine:1 is debian 11, for which there is no lock"),
        (Wish(base="mine:1", distribution=("debian", "")), "mine:1 is debian, for which there is no lock"),
        (
            Wish(base="mine:1"),
            "the distribution of mine:1 is not known (--print asks no engine): --target NAME tells it",
        ),
        (Wish(target="bookworm"), "target bookworm has no base of a registry"),
        (Wish(target="nonsense"), "no target is called 'nonsense'; there are ubuntu24.04, bookworm"),
    ],
)
def test_a_wish_that_cannot_be_met_is_one_line(wish: Wish, message: str) -> None:
    with pytest.raises(DoctorError) as caught:
        plan(machine(None), wish)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pin_that_nobody_verified_is_said() -> None:
    assert any("pin not verified" in n for n in plan(machine(None)).notes)
    images = tuple(replace(i, verified="2026-12-01") for i in PINS.images)
    assert not any("pin not verified" in n for n in plan(machine(None), pins=replace(PINS, images=images)).notes)


def test_the_id_names_the_content() -> None:
    s = machine(None)
    one = plan(s)
    assert make(s, PINS, Wish(), "another revision").id == one.id
    assert plan(s, Wish(tag="mine:2")).id == one.id
    assert plan(s, Wish(base="mine:1", target="ubuntu24.04")).id != one.id
    assert plan(s, Wish(base=one.base, target="ubuntu24.04")).id == one.id
