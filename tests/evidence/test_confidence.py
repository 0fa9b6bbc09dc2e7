"""How sure an answer is: several starts in one log, contradictions, facts from distant places, first cause."""

from __future__ import annotations

import re
from pathlib import Path

import doctor
from doctor.checks.registry import judge, registered
from doctor.commands.explain import by_place
from doctor.evidence.load import read_evidence
from doctor.evidence.signals import all_signals
from doctor.finding import Finding

START = "(APIServer pid=1) INFO 11-01 10:00:00 [api_server.py:1351] vLLM API server version 0.24.0\n"
NO_GXX = "/bin/sh: 1: g++: not found\n"
SERVES = "(APIServer pid=1) INFO:     Application startup complete.\n"
FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).\n"


def findings(tmp_path: Path, *texts: str) -> dict[str, Finding]:
    paths = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.log"
        path.write_text(text, encoding="utf-8")
        paths.append(str(path))
    judgement = by_place(judge(read_evidence(paths).snapshot, registered()))
    return {f.id: f for f in judgement.findings}


def test_a_failed_start_before_one_that_served_is_less_sure(tmp_path: Path) -> None:
    alone = findings(tmp_path, START + NO_GXX + FAILED)["cxx-compiler-missing"]
    assert alone.confidence.value == "proven"
    mended = findings(tmp_path, START + NO_GXX + FAILED + START + SERVES)["cxx-compiler-missing"]
    assert mended.confidence.value != "proven"
    assert any("Application startup complete" in row.value for row in mended.evidence)


def test_what_happens_to_a_running_server_stays_as_sure(tmp_path: Path) -> None:
    text = START + SERVES + NO_GXX + START + SERVES
    assert findings(tmp_path, text)["cxx-compiler-missing"].confidence.value == "proven"


def test_cuda_that_worked_speaks_against_a_driver_too_old(tmp_path: Path) -> None:
    """In a report where CUDA is available, versions that should not fit are at most a hint."""
    report = (
        "PyTorch version: 2.11.0+cu130\nCUDA used to build PyTorch: 13.0\nIs CUDA available: {}\n"
        "GPU 0: NVIDIA GeForce RTX 3090\nNvidia driver version: 550.54.15\n"
    )
    failed = findings(tmp_path, report.format("False"))["driver-too-old-for-cuda-build"]
    assert failed.confidence.value == "proven"
    worked = findings(tmp_path, report.format("True")).get("driver-too-old-for-cuda-build")
    assert worked is None or worked.confidence.value == "hint"


def test_facts_of_two_files_prove_nothing_together(tmp_path: Path) -> None:
    torch = "PyTorch version: 2.11.0+cu130\nCUDA used to build PyTorch: 13.0\nIs CUDA available: False\n"
    smi = "| NVIDIA-SMI 550.54.15     Driver Version: 550.54.15     CUDA Version: 12.4     |\n"
    found = findings(tmp_path, torch, smi)["driver-too-old-for-cuda-build"]
    assert found.confidence.value == "likely"


def test_texts_that_contradict_each_other_make_it_less_sure(tmp_path: Path) -> None:
    report = (
        "PyTorch version: 2.11.0+cu130\nCUDA used to build PyTorch: 13.0\nIs CUDA available: False\n"
        "Nvidia driver version: 550.54.15\n"
    )
    other = "| NVIDIA-SMI 580.95.05     Driver Version: 580.95.05     CUDA Version: 13.0     |\n"
    found = findings(tmp_path, report, other).get("driver-too-old-for-cuda-build")
    assert found is None or found.confidence.value != "proven"


def test_the_first_cause_stands_first(tmp_path: Path) -> None:
    found = findings(tmp_path, START + TOO_OLD + NO_GXX + FAILED)
    blockers = [f.id for f in found.values() if f.blocks]
    assert blockers[0] == "driver-too-old-for-cuda-build"


def test_a_symptom_is_folded_under_its_cause(tmp_path: Path) -> None:
    text = "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.\n"
    found = findings(tmp_path, text + "RuntimeError: Failed to infer device type\n")
    assert found["driver-library-version-mismatch"].confidence.value == "proven"
    assert "nvidia-driver-missing" not in found


def test_every_signal_is_used_by_a_rule() -> None:
    """A signal that no rule asks for costs time and explains nothing."""
    root = Path(doctor.__file__).parent
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("checks", "evidence", "report", "commands", "catalogue")
        for path in (root / folder).rglob("*.py")
    ]
    sources.append((root / "catalogue/tables/symptoms.json").read_text(encoding="utf-8"))
    named = set(re.findall(r"[\"']([a-z0-9]+\.[a-z0-9-]+)[\"']", "\n".join(sources)))
    unused = sorted({s.name for s in all_signals()} - named)
    assert not [name for name in unused if not name.startswith("kind.")]
