"""benchmarks/pp_tg.py against the stub server: what it counts, and that a cache hit is not hidden."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor.serve.client import Client
from doctor.smoke.preflight import free_port
from tests.smoke.conftest import STUB

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    port = free_port()
    argv = [sys.executable, "-S", str(STUB), "serve", "m", "--host", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, "VLLM_STUB": getattr(request, "param", "")}
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env) as process:
        client = Client(port, "smoke")
        deadline = time.monotonic() + 30
        while not client.healthy() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield client.url
        process.kill()


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "benchmarks/pp_tg.py", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=90)


@pytest.mark.parametrize("url", ["never-cached"], indirect=True)
def test_three_runs_and_their_median(url: str) -> None:
    done = measured(url, "--prompt", "64", "--generate", "8")
    assert done.returncode == 0, done.stderr
    prefill = re.search(r"^\| PP64 \| ([\d.]+) \| ([\d.]+), ([\d.]+), ([\d.]+) \|$", done.stdout, re.MULTILINE)
    assert prefill
    assert float(prefill[1]) == sorted(map(float, prefill.groups()[1:]))[1]
    assert re.search(r"^\| TG8 \| [\d.]+ \| [\d.]+, [\d.]+, [\d.]+ \|$", done.stdout, re.MULTILINE)
    assert "model smoke, one warm-up" in done.stdout
    assert "cached tokens [0, 0, 0]" in done.stdout


@pytest.mark.parametrize("url", [""], indirect=True)
def test_a_server_that_takes_no_salt_is_told(url: str) -> None:
    """The stub knows no cache salt: a prompt of several blocks hits from the second run on."""
    done = measured(url, "--prompt", "4096", "--generate", "4")
    assert done.returncode == 1
    assert "cached tokens [0" not in done.stdout


def test_nobody_there() -> None:
    done = measured(f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 2
    assert done.stderr.startswith("pp_tg: ")
    assert len(done.stderr.splitlines()) == 1
