"""What engines say of images: nothing is found in builds that went well, and what was got over is only a hint."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from doctor import catalogue
from doctor.checks.registry import Judgement, judge, registered
from doctor.evidence import read_evidence
from doctor.finding import Confidence
from doctor.report.explain_view import print_explanation
from doctor.report.redact import Redactor

BUILDS = Path(__file__).parent / "builds"
IMAGE = [c for c in catalogue.all_causes() if c.area == "image"]
LIMIT = "toomanyrequests: You have reached your pull rate limit.\n"
FINISHED = "#9 exporting to image\n#9 naming to docker.io/library/x:1 done\n#9 DONE 1.0s\n"


def explained(tmp_path: Path, text: str) -> Judgement:
    file = tmp_path / "paste.log"
    file.write_text(text, encoding="utf-8")
    return judge(read_evidence([str(file)]).snapshot, registered())


@pytest.mark.parametrize("name", sorted(p.name for p in BUILDS.glob("*.log")))
def test_nothing_is_found_in_a_build_that_went_well(name: str) -> None:
    judgement = judge(read_evidence([str(BUILDS / name)]).snapshot, registered())
    assert [(f.id, f.confidence.value) for f in judgement.findings] == []


@pytest.mark.parametrize(
    "words",
    [
        "RUN pip install --require-hashes -r python-lock.txt  # else: do not match the hashes\n",
        "COPY tests/no-space-left-on-device.log /logs/\n",
        "a retry helps against toomany requests, exit code 137 and denied access\n",
        "exec format: docker image inspect --format '{{.Os}}/{{.Architecture}}'\n",
        "curl: (60) SSL certificate problem: unable to get local issuer certificate\n",
        "time=\"2026-11-01T10:00:00Z\" level=info msg=\"proxy: none\" registry=registry.example/v2/\n",
        "DEPRECATED: The legacy builder is deprecated and will be removed in a future release.\n"
        "            Install the buildx component to build images with BuildKit:\n",
        "E: The repository 'http://archive.example trixie Release' does not have a Release file.\n",
        "INFO:     127.0.0.1:52414 - \"POST /v1/completions HTTP/1.1\" 401 Unauthorized\n",
        "INFO:     127.0.0.1:52414 - \"POST /v2/rerank HTTP/1.1\" 404 Not Found\n",
    ],
)  # fmt: skip
def test_words_of_a_failure_are_no_failure(tmp_path: Path, words: str) -> None:
    found = {f.id for f in explained(tmp_path, words).findings}
    assert not found & {c.id for c in IMAGE}


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (LIMIT, "image-pull-rate-limited"),
        ("#5 3.042 E: Version '12.2.0-1' for 'gcc-12' was not found\n", "apt-version-unavailable"),
        ("#5 4.1 OSError: [Errno 28] No space left on device\n", "docker-data-root-full"),
    ],
)
def test_what_a_later_try_got_over_is_a_hint(tmp_path: Path, failure: str, cause: str) -> None:
    alone = {f.id: f.confidence for f in explained(tmp_path, failure).findings}
    assert alone[cause] is not Confidence.HINT
    got_over = {f.id: f for f in explained(tmp_path, failure + FINISHED).findings}
    assert got_over[cause].confidence is Confidence.HINT
    assert "naming to" in got_over[cause].evidence[-1].value
    again = {f.id: f.confidence for f in explained(tmp_path, FINISHED + failure).findings}
    assert again[cause] is alone[cause]


def test_a_full_shared_memory_in_a_step_is_not_the_engines_disk(tmp_path: Path) -> None:
    text = "#9 12.5 OSError: [Errno 28] No space left on device: '/dev/shm/x'\n"
    assert "docker-data-root-full" not in {f.id for f in explained(tmp_path, text).findings}


@pytest.mark.parametrize("cause", IMAGE, ids=lambda c: c.id)
def test_every_cause_says_which_commands_to_run(cause: catalogue.Cause) -> None:
    assert any(r.commands for r in cause.remedies)
    assert cause.decisive
    assert cause.sources
    assert cause.wrong_fixes


def test_the_explanation_names_image_and_command(tmp_path: Path) -> None:
    file = tmp_path / "pull.txt"
    file.write_text("Error response from daemon: pull access denied for vllm-doctor, repository does not exist\n")
    reading = read_evidence([str(file)])
    out = Console(file=io.StringIO(), width=100)
    print_explanation(judge(reading.snapshot, registered()), reading, Redactor(), verbose=False, out=out)
    shown = " ".join(out.file.getvalue().split())  # type: ignore[attr-defined]
    assert "does not give vllm-doctor to this user" in shown
    assert "vllm-doctor build" in shown
