"""Checks of the Python environment, from what the probe read on fake hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from doctor.checks.registry import judge, registered
from doctor.facts import DriverFacts, GpuFacts, ServingFacts, WslFacts
from doctor.finding import Confidence, Finding, Severity
from doctor.host import interpreter, python_env
from doctor.host.examine import Options
from doctor.snapshot import Snapshot, dumps, loads
from tests import toolchains as tc
from tests.fakes import FakeHost

SITE = "/opt/venv/lib/python3.12/site-packages"
PINS_026 = ("torch==2.11.0", "transformers>=5.5.3", 'six; extra == "none"')
PINS_032 = ("torch==2.13.0", "transformers<5.20.0,>=5.16.1")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "OWN_PREFIX", "/opt/doctor")
    monkeypatch.setattr(interpreter.sys, "executable", "/opt/doctor/bin/python")


def host_in(root: Path, version: str = "3.12.3", **env: str) -> FakeHost:
    host = FakeHost(root, env={"VIRTUAL_ENV": "/opt/venv", **env})
    tc.add_python(host, version=version)
    return host


def snapshot(host: FakeHost, python: str | None = None, **facts: object) -> Snapshot:
    read = python_env.probe(host, Options(python=python))
    return loads(dumps(Snapshot(**{**read, **facts})))  # type: ignore[arg-type]


def judged(s: Snapshot, cause: str) -> Finding | str | None:
    result = judge(s, only=[cause])
    if result.findings:
        return result.findings[0]
    return result.skipped[0].why if result.skipped else None


def finding(s: Snapshot, cause: str) -> Finding:
    result = judged(s, cause)
    assert isinstance(result, Finding), result
    return result


def consistent(root: Path) -> FakeHost:
    host = host_in(root)
    tc.add_vllm(host, SITE, requires=PINS_026)
    tc.add_torch(host, SITE, "2.11.0+cu130", "nvidia-nccl-cu13==2.28.9")
    tc.add_dist(host, SITE, "transformers", "5.6.0")
    tc.add_dist(host, SITE, "nvidia-nccl-cu13", "2.28.9")
    tc.add_dist(host, SITE, "nvidia-ml-py", "13.580.82")
    tc.add_dist(host, SITE, "flashinfer-python", "0.6.14")
    tc.add_dist(host, SITE, "flashinfer-cubin", "0.6.14")
    tc.add_dist(host, SITE, "flashinfer-jit-cache", "0.6.14+cu130")
    return host


CAUSES = [
    c.id
    for c in registered()
    if c.function.__module__ == "doctor.checks.python_env" and c.id != "deepgemm-not-installed"
]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_consistent_environment_passes(tmp_path: Path, cause: str) -> None:
    assert judged(snapshot(consistent(tmp_path), gpus=(GpuFacts(0),)), cause) is None


@pytest.mark.parametrize("cause", [c for c in CAUSES if c != "vllm-not-installed"])
def test_without_vllm_nothing_is_said_about_its_pins(tmp_path: Path, cause: str) -> None:
    assert judged(snapshot(host_in(tmp_path), gpus=()), cause) is None


@pytest.mark.parametrize("cause", [c for c in CAUSES if c != "vllm-doctor-name-clash"])
def test_an_environment_that_could_not_be_read_is_not_judged(tmp_path: Path, cause: str) -> None:
    host = FakeHost(tmp_path, env={"VIRTUAL_ENV": "/opt/venv"})
    host.program("/opt/venv/bin/python", tc.hangs)
    assert "no answer within 3 s" in str(judged(snapshot(host, gpus=()), cause))


# --- transformers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pins", "installed", "cause"),
    [
        (PINS_032, "5.21.0", "transformers-too-new-for-vllm"),
        (PINS_032, "5.6.0", "transformers-too-old-for-model"),
        (PINS_026, "4.57.1", "transformers-too-old-for-model"),
        (("transformers<5,>=4.56.0",), "5.1.0", "transformers-too-new-for-vllm"),
        (("transformers!=5.0.*,!=5.1.*,>=4.56.0",), "5.1.2", "transformers-too-new-for-vllm"),
    ],
)
def test_transformers_outside_the_range(tmp_path: Path, pins: tuple[str, ...], installed: str, cause: str) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, requires=pins)
    tc.add_dist(host, SITE, "transformers", installed)
    s = snapshot(host)
    f = finding(s, cause)
    assert f.confidence is Confidence.PROVEN
    assert f"transformers {installed} is installed" in f.summary
    assert f.fixes[0].commands[0][:4] == ("/opt/venv/bin/python", "-m", "pip", "install")
    other = {"transformers-too-new-for-vllm", "transformers-too-old-for-model"} - {cause}
    assert judged(s, other.pop()) is None


def test_no_transformers_at_all(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, requires=PINS_026)
    assert "transformers is not installed" in finding(snapshot(host), "transformers-too-old-for-model").summary


def test_a_release_without_requirements_is_judged_by_the_table(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, "0.32.0")
    tc.add_dist(host, SITE, "transformers", "5.21.0")
    assert "table vllm_pins" in finding(snapshot(host), "transformers-too-new-for-vllm").evidence[1].source


def test_an_unknown_build_is_not_judged_by_the_table(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, "0.32.0+cpu")
    tc.add_dist(host, SITE, "transformers", "5.21.0")
    assert judged(snapshot(host), "transformers-too-new-for-vllm") == (
        "what vLLM 0.32.0+cpu asks of transformers is not known"
    )


def test_a_version_that_is_none_is_not_judged(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, requires=PINS_026)
    tc.add_dist(host, SITE, "transformers", "main")
    assert "cannot be compared" in str(judged(snapshot(host), "transformers-too-new-for-vllm"))


# --- torch and CUDA builds ---------------------------------------------------------------------


def test_torch_of_another_version(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, requires=PINS_026)
    tc.add_torch(host, SITE, "2.13.0+cu130")
    f = finding(snapshot(host), "torch-abi-mismatch")
    assert f.confidence is Confidence.PROVEN
    assert f.summary == "vLLM 0.26.0 was built against torch==2.11.0, torch 2.13.0+cu130 is installed"
    assert f.fixes[0].commands[0][-2:] == (
        "torch==2.11.0+cu130",
        "--index-url=https://download.pytorch.org/whl/cu130",
    )


def test_torch_missing_beside_vllm(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, requires=PINS_026)
    assert "torch is not installed" in finding(snapshot(host), "torch-abi-mismatch").summary


def test_a_source_build_may_fit_another_torch(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    folder = tc.add_vllm(host, SITE, requires=PINS_026)
    host.write(f"{folder}/direct_url.json", '{"url": "file:///srv/vllm", "dir_info": {"editable": true}}')
    tc.add_torch(host, SITE, "2.13.0+cu130")
    assert finding(snapshot(host), "torch-abi-mismatch").confidence is Confidence.LIKELY


def test_vllm_and_torch_of_two_cuda_majors(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, requires=PINS_026, cudart="13")
    tc.add_torch(host, SITE, "2.11.0+cu128")
    f = finding(snapshot(host), "vllm-torch-cuda-major-mismatch")
    assert (f.severity, f.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
    assert "libcudart.so.13 and libcudart.so.12 do not mix" in f.summary


def test_two_runtimes_side_by_side_are_a_hint(tmp_path: Path) -> None:
    host = consistent(tmp_path)
    tc.add_dist(host, SITE, "nvidia-cuda-runtime", "13.0.96")
    tc.add_dist(host, SITE, "nvidia-cuda-runtime-cu12", "12.8.90")
    f = finding(snapshot(host), "vllm-torch-cuda-major-mismatch")
    assert (f.severity, f.confidence) == (Severity.NOTE, Confidence.HINT)


def test_nccl_older_than_torch_asks_for(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_torch(host, SITE, "2.11.0+cu130", 'nvidia-nccl-cu13==2.28.9; platform_system == "Linux"')
    tc.add_dist(host, SITE, "nvidia-nccl-cu13", "2.27.5")
    f = finding(snapshot(host), "nccl-library-older-than-torch")
    assert f.confidence is Confidence.PROVEN
    assert "requires nvidia-nccl-cu13 2.28.9, 2.27.5 is installed" in f.summary


def test_a_newer_nccl_is_no_finding(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_torch(host, SITE, "2.11.0+cu130", "nvidia-nccl-cu13==2.28.9")
    tc.add_dist(host, SITE, "nvidia-nccl-cu13", "2.29.1")
    assert judged(snapshot(host), "nccl-library-older-than-torch") is None


CPU_CASES = [
    ({"gpus": (GpuFacts(0, name="NVIDIA GeForce RTX 3090"),)}, "found"),
    ({"gpus": None, "driver": DriverFacts(pci_nvidia=("0000:01:00.0 10de:2204",))}, "found"),
    ({"gpus": (GpuFacts(0),)}, "found"),
    ({"gpus": None, "driver": DriverFacts(pci_nvidia=()), "wsl": WslFacts(version=0)}, "passed"),
    ({"gpus": None, "driver": DriverFacts(pci_nvidia=()), "wsl": WslFacts(version=2)}, "unknown"),
    ({"gpus": None}, "unknown"),
]


@pytest.mark.parametrize(("facts", "expected"), CPU_CASES)
def test_a_cpu_torch(tmp_path: Path, facts: dict[str, object], expected: str) -> None:
    host = host_in(tmp_path)
    tc.add_torch(host, SITE, "2.13.0+cpu")
    result = judged(snapshot(host, **facts), "cpu-only-torch")
    assert {"found": isinstance(result, Finding), "passed": result is None, "unknown": isinstance(result, str)}[
        expected
    ]


def test_a_cpu_vllm_beside_a_cuda_torch(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, "0.32.0+cpu", cudart=None)
    tc.add_torch(host, SITE, "2.13.0+cu130")
    assert "vLLM 0.32.0+cpu" in finding(snapshot(host, gpus=(GpuFacts(0),)), "cpu-only-torch").summary


# --- the rest ----------------------------------------------------------------------------------


def test_pynvml_is_a_note(tmp_path: Path) -> None:
    host = consistent(tmp_path)
    tc.add_dist(host, SITE, "pynvml", "12.0.0")
    f = finding(snapshot(host), "pynvml-shim-installed")
    assert (f.severity, f.confidence) == (Severity.NOTE, Confidence.PROVEN)
    assert f.summary == "pynvml 12.0.0 is installed beside nvidia-ml-py 13.580.82"


def test_another_vllm_doctor_on_path(tmp_path: Path) -> None:
    host = consistent(tmp_path)
    host.write("/usr/bin/vllm-doctor", "#!/x/python\nfrom vllm_doctor.cli import app\n", 0o755)
    f = finding(snapshot(host), "vllm-doctor-name-clash")
    assert "/usr/bin/vllm-doctor belongs to the package vllm_doctor" in f.summary


@pytest.mark.parametrize(
    ("architecture", "package", "found"),
    [
        ("DeepseekV32ForCausalLM", None, True),
        ("DeepseekV32ForCausalLM", "deep-gemm", False),
        ("Qwen3", None, False),
    ],
)
def test_deepgemm_is_a_hint_for_its_model_only(
    tmp_path: Path, architecture: str, package: str | None, found: bool
) -> None:
    host = consistent(tmp_path)
    if package:
        tc.add_dist(host, SITE, package, "2.0.0")
    result = judged(snapshot(host, serving=ServingFacts(architecture=architecture)), "deepgemm-not-installed")
    assert isinstance(result, Finding) is found
    assert not isinstance(result, Finding) or result.confidence is Confidence.HINT


def test_vllm_not_installed_says_where_it_looked(tmp_path: Path) -> None:
    f = finding(snapshot(host_in(tmp_path)), "vllm-not-installed")
    assert (f.severity, f.confidence) == (Severity.NOTE, Confidence.PROVEN)
    assert f.summary == "vLLM is not installed for /opt/venv/bin/python (Python 3.12.3, chosen by: VIRTUAL_ENV)"
    assert "--python ENV" in f.fixes[0].summary
    assert f.fixes[1].commands[0] == ("/opt/venv/bin/python", "-m", "venv", "vllm-env")


def test_a_broken_activated_environment_is_told(tmp_path: Path) -> None:
    """As after an upgrade of the system's Python: the environment's link leads nowhere."""
    host = FakeHost(tmp_path, env={"VIRTUAL_ENV": "/home/x/vllm-env"})
    host.link("/home/x/vllm-env/bin/python", "/usr/bin/python3.11")
    tc.add_python(host, "/usr")
    f = finding(snapshot(host), "vllm-not-installed")
    told = "VIRTUAL_ENV: /home/x/vllm-env has no Python that can be run"
    assert f"the activated environment is broken ({told})" in f.summary
    assert told in [e.value for e in f.evidence]


def test_a_named_environment_without_vllm_blocks(tmp_path: Path) -> None:
    f = finding(snapshot(host_in(tmp_path), python="/opt/venv"), "vllm-not-installed")
    assert (f.severity, f.confidence) == (Severity.BLOCKER, Confidence.PROVEN)
    assert "chosen by: --python" in f.summary


def test_the_doctors_own_environment_is_called_so(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    tc.add_python(host, "/opt/doctor")
    f = finding(snapshot(host), "vllm-not-installed")
    assert "that is the doctor's own environment, and no other was found" in f.summary
    assert f.fixes[1].commands[0][0] == "python3"


def test_a_named_environment_that_does_not_exist_is_not_called_empty(tmp_path: Path) -> None:
    s = snapshot(host_in(tmp_path), python="/nowhere")
    assert judged(s, "vllm-not-installed") == "/nowhere is not a program or a folder"


@pytest.mark.parametrize(
    ("version", "vllm", "severity"), [("3.9.2", True, Severity.BLOCKER), ("3.9.2", False, Severity.NOTE)]
)
def test_python_outside_the_range(tmp_path: Path, version: str, vllm: bool, severity: Severity) -> None:
    host = host_in(tmp_path, version)
    if vllm:
        tc.add_vllm(host, "/opt/venv/lib/python3.9/site-packages")
    f = finding(snapshot(host), "python-version-unsupported")
    assert (f.severity, f.confidence) == (severity, Confidence.PROVEN)
    assert "is Python 3.9.2" in f.summary


def test_other_requirements_that_are_not_met(tmp_path: Path) -> None:
    host = consistent(tmp_path)
    tc.add_vllm(host, SITE, requires=(*PINS_026, "numba==0.65.0", "six"))
    tc.add_dist(host, SITE, "numba", "0.60.0")
    f = finding(snapshot(host), "vllm-requirements-unmet")
    assert (f.severity, f.confidence) == (Severity.DEGRADES, Confidence.LIKELY)
    assert f.summary == "vllm 0.26.0 requires numba==0.65.0, 0.60.0 is installed (and 1 more)"


def test_torch_and_transformers_are_left_to_their_own_checks(tmp_path: Path) -> None:
    host = consistent(tmp_path)
    tc.add_vllm(host, SITE, requires=("torch==2.9.0", "transformers<5"))
    assert judged(snapshot(host), "vllm-requirements-unmet") is None


@pytest.mark.parametrize(("switch", "severity"), [("", Severity.BLOCKER), ("1", Severity.DEGRADES)])
def test_flashinfer_parts_of_two_versions(tmp_path: Path, switch: str, severity: Severity) -> None:
    host = host_in(tmp_path, **({"FLASHINFER_DISABLE_VERSION_CHECK": switch} if switch else {}))
    tc.add_vllm(host, SITE)
    tc.add_dist(host, SITE, "flashinfer-python", "0.6.14")
    tc.add_dist(host, SITE, "flashinfer-cubin", "0.6.13")
    f = finding(snapshot(host), "vllm-requirements-unmet")
    assert f.severity is severity
    assert "flashinfer-cubin 0.6.13 does not match flashinfer-python 0.6.14" in f.summary


def test_one_cause_is_left_where_majors_and_versions_both_differ(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    tc.add_vllm(host, SITE, requires=PINS_026, cudart="13")
    tc.add_torch(host, SITE, "2.9.0+cu128")
    both = judge(snapshot(host), only=["torch-abi-mismatch", "vllm-torch-cuda-major-mismatch"])
    assert [f.id for f in both.findings] == ["vllm-torch-cuda-major-mismatch"]


def test_facts_from_evidence_alone_are_enough(tmp_path: Path) -> None:
    s = snapshot(host_in(tmp_path))
    assert s.python is not None
    python = replace(s.python, vllm="0.26.0", torch="2.13.0", vllm_requires=None, sources={})
    f = finding(Snapshot(origin="evidence", python=python), "torch-abi-mismatch")
    assert "table vllm_pins" in f.evidence[1].source
