"""A file is opened and read once, whatever it is."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.evidence import read_evidence
from doctor.facts import ContainerFacts, GpuFacts, SystemFacts
from doctor.snapshot import Snapshot, dumps

SAVED = Snapshot(taken_at="2026-11-30T10:00:00Z", system=SystemFacts(os_id="debian", os_name="Debian ü"))
ERROR = b"gcc-12: fatal error: cannot execute 'cc1plus': execvp: No such file or directory\n"


@pytest.mark.parametrize("form", ["plain", "bom", "utf-16", "gzip", "gzip of utf-16", "indented"])
def test_a_saved_snapshot_in_any_packing_is_one(tmp_path: Path, form: str) -> None:
    text = dumps(SAVED)
    if form == "indented":
        text = "\n \n" + json.dumps(json.loads(text), indent=4)
    data = text.encode("utf-16" if "utf-16" in form else "utf-8-sig" if form == "bom" else "utf-8")
    file = tmp_path / "saved.json"
    file.write_bytes(gzip.compress(data) if "gzip" in form else data)
    assert read_evidence([str(file)]).snapshot == SAVED


@pytest.mark.parametrize("content", [ERROR, dumps(SAVED).encode()], ids=["text", "snapshot"])
def test_a_pipe_gives_its_text_once_and_that_is_enough(tmp_path: Path, content: bytes) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(content,), daemon=True)
    writer.start()
    snapshot = read_evidence([str(fifo)]).snapshot
    writer.join(10)
    if content is ERROR:
        assert any("cc1plus" in e.text for e in snapshot.events)
    else:
        assert snapshot == SAVED


REAL = Snapshot(
    container=ContainerFacts(cdi_dirs=("/etc/cdi",), docker_client="/usr/bin/docker"),
    system=SystemFacts(os_id="debian", cgroup_oom_kills=2),
)


@pytest.mark.parametrize("kept", [60, 150, -2])
@pytest.mark.parametrize("form", ["saved", "compact", "answer", "gpus first"])
def test_a_snapshot_that_is_cut_off_is_no_log(tmp_path: Path, kept: int, form: str) -> None:
    text = dumps(replace(REAL, container=None, gpus=(GpuFacts(0),)) if form == "gpus first" else REAL)
    if form == "compact":
        text = json.dumps(json.loads(text), separators=(",", ":"))
    elif form == "answer":
        text = json.dumps({"schema_version": 1, "command": "check", "snapshot": json.loads(text)}, indent=1)
    file = tmp_path / "cut.json"
    file.write_text(text[:kept])
    with pytest.raises(DoctorError, match=r"cut\.json: not a whole snapshot, cut off") as caught:
        read_evidence([str(file)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("record", ['{"container": {"id": "ab"}, "log": "', '{"system": "x", "log": "'])
def test_records_of_a_collector_are_text(tmp_path: Path, record: str) -> None:
    file = tmp_path / "log.json"
    file.write_bytes((record.encode() + ERROR.strip() + b'"}\n') * 2)
    assert read_evidence([str(file)]).snapshot.origin == "evidence"


def test_json_that_is_not_ours_is_text(tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    file.write_bytes(b'{"log": "' + ERROR.strip() + b'"}\n')
    assert read_evidence([str(file)]).snapshot.origin == "evidence"


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(DoctorError, match="/dev/zero is a device without an end"):
        read_evidence(["/dev/zero"])


def test_dev_stdin_is_standard_input() -> None:
    argv = [sys.executable, "-m", "doctor", "explain", "/dev/stdin", "--json"]
    done = subprocess.run(argv, input=ERROR, capture_output=True, timeout=60)
    assert json.loads(done.stdout)["findings"][0]["id"] == "gxx12-missing"
