"""The image as a file: `build --save`, then a daemon that never saw it loads and runs it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers import images
from tests.containers.harness import Docker, Unavailable


@pytest.fixture
def other_daemon(docker: Docker) -> Iterator[Docker]:
    """A second daemon with nothing in it. In a network namespace of its own: beside another one it would take the
    bridge away."""
    program, unshare = shutil.which("dockerd"), shutil.which("unshare")
    if program is None or unshare is None or os.geteuid() != 0:
        pytest.skip("a second daemon needs root, dockerd and unshare")
    # a socket's path may have no more than 107 characters
    folder = Path(tempfile.mkdtemp(prefix="dd-", dir="/run"))
    data = Path(tempfile.mkdtemp(prefix="vllm-doctor-test-daemon-", dir="/var/tmp"))
    argv = [unshare, "--net", "--mount", "--propagation", "private", program, "--bridge=none", "--iptables=false"]
    argv += ["--ip-masq=false", "--data-root", str(data), "--exec-root", str(folder / "exec")]
    argv += ["-H", f"unix://{folder}/docker.sock", "--pidfile", str(folder / "pid")]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file, start_new_session=True)
    other = Docker(docker.client, f"unix://{folder}/docker.sock", docker.cache)
    try:
        end = time.monotonic() + 30
        while other("version", timeout=20).returncode != 0:
            if process.poll() is not None or time.monotonic() > end:
                pytest.skip(f"a second daemon does not start here: {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.5)
        yield other
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        for path in (folder, data):
            shutil.rmtree(path, ignore_errors=True)


def test_another_daemon(docker: Docker, other_daemon: Docker, tmp_path: Path) -> None:
    tag = f"{images.NAME}:{uuid.uuid4().hex[:12]}"
    file = tmp_path / "image.tar"
    try:
        images.build(docker, tmp_path / "copy", tag, "bookworm", "--save", str(file))
    except Unavailable as why:
        pytest.skip(str(why))
    built = docker("image", "inspect", "--format", "{{.Id}}", tag).stdout.strip()
    docker("rmi", "-f", tag)
    assert other_daemon("images", "-q").stdout == ""

    digest, name = (tmp_path / "image.tar.sha256").read_text().split()
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
    assert name.lstrip("*") == "image.tar"
    with tarfile.open(file) as archive:
        assert {"oci-layout", "index.json", "manifest.json"} <= set(archive.getnames())

    loaded = other_daemon("load", "--input", str(file), timeout=180)
    assert tag in loaded.stdout, loaded
    assert other_daemon("image", "inspect", "--format", "{{.Id}}", tag).stdout.strip() == built
    done = images.run(other_daemon, tag, "check", "--json", docker_args=("--network", "none"))
    assert done.returncode == 2, done
    assert "container-gpu-not-exposed" in [f["id"] for f in json.loads(done.stdout)["findings"]]
    # the bill of materials beside the file is the one in the image
    inside = images.run(
        other_daemon, tag, "shell", "-c", "cat /opt/vllm-doctor/sbom.cdx.json",
        docker_args=("--network", "none"),
    )  # fmt: skip
    assert json.loads(inside.stdout) == json.loads((tmp_path / "image.tar.cdx.json").read_text())
