"""``--url`` and ``vllm-doctor warmup`` against a running stub server; kernels compiled by first requests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.errors import DoctorError
from doctor.serve.client import Client, NoServerError, ServerError
from doctor.smoke.jit import JitLines
from doctor.smoke.preflight import free_port
from tests.smoke.conftest import STUB
from tests.smoke.test_run import Smoke, ids, probe

ROOT = Path(__file__).parents[2]
Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """``serve("jit", "--speculative-config", "{}")`` starts a stub and returns its URL."""
    running: list[subprocess.Popen[bytes]] = []

    def start(stub: str = "", *arguments: str) -> str:
        port = free_port()
        argv = [sys.executable, "-S", str(STUB), "serve", "m", "--host", "127.0.0.1", "--port", str(port)]
        with (tmp_path / "server.log").open("wb") as log:
            env = {**os.environ, "VLLM_STUB": stub}
            running.append(subprocess.Popen([*argv, *arguments], stdout=log, stderr=log, env=env))
        client = Client(port, "smoke")
        deadline = time.monotonic() + 20
        while not client.healthy() and time.monotonic() < deadline:
            time.sleep(0.05)
        return client.url

    yield start
    for process in running:
        process.kill()
        process.wait(10)


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "doctor", *arguments, "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def test_warmup_shows_first_against_later(serve: Serve, tmp_path: Path) -> None:
    url = serve("jit")
    code, answer = doctor("warmup", "--url", url, "--log", str(tmp_path / "server.log"))
    assert (code, answer["verdict"]) == (0, "ready")
    warm = answer["warmup"]
    assert (warm["url"], warm["model"]) == (url, "smoke")
    spikes = [s for s in warm["shapes"] if s["spike"]]
    assert {"short prompt", "prompt just under a block", "prompt over a block"} <= {s["shape"] for s in spikes}
    assert all(s["first_s"] > 0.5 > max(s["later_s"]) for s in spikes)
    assert "_kernel_540" in warm["kernels"]["first"]
    assert warm["kernels"]["later"] == []
    # before and after: the same command once more finds a warm server
    _, again = doctor("warmup", "--url", url, "--log", str(tmp_path / "server.log"))
    assert again["warmup"]["spikes"] == []
    assert again["warmup"]["kernels"] == {"first": [], "later": []}


def test_warmup_of_a_server_that_fails_is_2(serve: Serve) -> None:
    code, answer = doctor("warmup", "--url", serve("http-500"))
    assert (code, answer["verdict"]) == (2, "blocked")
    assert [f["id"] for f in answer["findings"]] == ["server-gives-no-answer"]
    assert "HTTP 500" in answer["findings"][0]["summary"]


@pytest.mark.parametrize("command", ["warmup", "smoke"])
@pytest.mark.parametrize(
    ("host", "says"),
    [("127.0.0.1", "connection refused"), ("server.invalid", "name"), (f"{'a' * 64}.invalid", "label")],
)
def test_no_server_is_not_taken_for_a_healthy_one(command: str, host: str, says: str) -> None:
    code, answer = doctor(command, "--url", f"http://{host}:{free_port()}")
    assert (code, answer["verdict"]) == (2, "blocked")
    finding = answer["findings"][0]
    assert (finding["id"], finding["title"]) == ("server-not-reachable", "No server answers at this address")
    assert says in finding["summary"]


@pytest.mark.parametrize("then", ["cut", "silent", "garbage"])
def test_a_port_that_takes_the_connection_and_is_no_server(then: str) -> None:
    """docker's proxy takes connections for a container in which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                if then == "garbage":
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                elif then == "silent":
                    done.wait(10)

        done = threading.Event()
        thread = threading.Thread(target=take)
        thread.start()
        client = Client(listener.getsockname()[1], "smoke")
        with pytest.raises(ServerError) as caught:
            client.models(timeout_s=0.3)
        done.set()
        thread.join(10)
    assert isinstance(caught.value, NoServerError) is (then != "garbage")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://user:pw@127.0.0.1:1", "http://127.0.0.1:x", ""])
def test_odd_urls_are_misuse(url: str) -> None:
    with pytest.raises(DoctorError):
        Client.of_url(url)
    assert doctor("warmup", "--url", url)[0] == 3


def test_urls() -> None:
    assert Client.of_url("localhost:8000").url == "http://localhost:8000"
    assert Client.of_url("http://127.0.0.1:8000/v1/").url == "http://127.0.0.1:8000"
    assert Client.of_url("https://[::1]/proxy/v1").url == "https://[::1]:443/proxy"


def test_smoke_asks_a_running_server(serve: Serve) -> None:
    url = serve("", "--speculative-config", "{}")
    code, answer = doctor("smoke", "--url", url)
    assert (code, answer["verdict"]) == (0, "ready"), answer["findings"]
    server = answer["smoke"]["server"]
    assert (server["url"], server["block_size"], server["model"]) == (url, 544, "smoke")
    status = {p["name"]: p["status"] for p in answer["smoke"]["probes"]}
    assert {k: status[k] for k in ("liveness", "prefix_cache", "speculative", "consistency")} == dict.fromkeys(
        ("liveness", "prefix_cache", "speculative", "consistency"), "pass"
    )


def test_what_needs_other_servers_leaves_the_verdict_of_a_running_one(serve: Serve) -> None:
    code, answer = doctor("smoke", "--full", "--url", serve("", "--speculative-config", "{}"))
    assert (code, answer["verdict"]) == (0, "ready"), answer["skipped"]
    probes = {p["name"]: p for p in answer["smoke"]["probes"]}
    assert probes["correctness"]["status"] == "abstain"
    assert probes["correctness"]["why"].endswith("--url has only one")
    assert probes["concurrency"]["status"] == "pass"  # one server is enough for it


def test_smoke_of_a_running_server_sees_its_faults(serve: Serve) -> None:
    assert [f["id"] for f in doctor("smoke", "--url", serve("never-cached"))[1]["findings"]] == [
        "prefix-cache-not-hitting"
    ]
    code, answer = doctor("smoke", "--url", serve("dies-on-request"))
    assert (code, answer["findings"][0]["id"]) == (2, "server-gives-no-answer")


def test_a_server_without_counters_is_not_judged_by_them(serve: Serve) -> None:
    code, answer = doctor("smoke", "--url", serve("garbage-metrics"))
    assert (code, answer["verdict"]) == (1, "unknown")
    assert {s["id"] for s in answer["skipped"]} >= {"prefix_cache", "speculative"}


def test_the_served_name_is_asked_and_can_be_chosen(serve: Serve) -> None:
    url = serve()
    assert doctor("warmup", "--url", url, "--model", "smoke")[0] == 0
    code, answer = doctor("warmup", "--url", url, "--model", "other")
    assert code == 2
    assert "it serves smoke, not other" in answer["findings"][0]["summary"]


def test_options_of_a_start_cannot_go_with_url() -> None:
    code, answer = doctor("smoke", "--url", "http://127.0.0.1:1", "--port", "8000")
    assert code == 3
    assert "--port cannot go with --url" in answer["error"]


def test_kernels_compiled_by_first_requests(smoke: Smoke) -> None:
    result = smoke("jit")
    assert ids(result) == ["triton-jit-first-request"]
    found = result.judgement.findings[0]
    assert "_kernel_540" in found.evidence[0].value
    assert probe(result, "first_requests").measured["kernels_compiled_later"] == []


@pytest.mark.parametrize(("stub", "status"), [("jit-loaded", "pass"), ("slow-first", "advise")])
def test_lines_or_time_alone_prove_nothing(smoke: Smoke, stub: str, status: str) -> None:
    result = smoke(stub)
    assert ids(result) == []
    assert probe(result, "first_requests").status == status


def test_jit_lines_of_both_versions(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "(EngineCore pid=1) WARNING 11-30 10:50:50 [jit_monitor.py:103] Triton kernel JIT compilation during "
        "inference: _zero_kv_blocks_kernel. This causes a latency spike; consider extending warmup.\n"
        "WARNING [jit_monitor.py:131] CuTeDSL JIT compilation during inference: gdn.prefill (sm_90). This causes\n"
        "INFO ordinary line\n"
        "half a line: JIT compilation during inference: cut"
    )
    lines = JitLines(log)
    assert lines.new() == ("_zero_kv_blocks_kernel", "gdn.prefill")
    assert lines.active
    with log.open("a") as file:
        file.write("_off. This\n")
    assert lines.new() == ("cut_off",)
    assert lines.new() == ()
    assert not JitLines(tmp_path / "none").readable
