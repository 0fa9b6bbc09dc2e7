"""A real server that is killed, stalls, runs out of memory or loses its port, and Ctrl+C at every phase.

Always a verdict or the exit code of an interruption, and nothing left: no process, temporary folder, or shared
memory. Most are run by name: CI has the signals around the start.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.server.faults import Doctor, listen

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

Start = Callable[..., Doctor]


@pytest.fixture
def start(vllm_env: Path, tiny_model: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a smoke test; whatever a failed test leaves is ended."""
    started: list[Doctor] = []

    def run(*options: str, **more: Any) -> Doctor:
        started.append(Doctor(tmp_path, vllm_env, tiny_model, options, **more))
        return started[-1]

    yield run
    for doctor in started:
        doctor.kill()


def finding(answer: dict[str, Any]) -> str:
    assert len(answer["findings"]) == 1, answer["findings"]
    return str(answer["findings"][0]["id"])


def summary(answer: dict[str, Any]) -> str:
    return str(answer["findings"][0]["summary"])


# ---- killed


@pytest.mark.long
@pytest.mark.parametrize("who", ["APIServer", "EngineCore"])
def test_killed_while_loading(start: Start, who: str) -> None:
    doctor = start()
    doctor.pid_of("EngineCore")
    os.kill(doctor.pid_of(who), signal.SIGKILL)
    code, answer = doctor.answer()
    assert (code, answer["verdict"], finding(answer)) == (2, "blocked", "server-died-while-loading")
    if who == "APIServer":
        assert "SIGKILL: usually the kernel's out-of-memory killer" in summary(answer)


@pytest.mark.long
@pytest.mark.parametrize("who", ["APIServer", "EngineCore"])
def test_killed_in_the_middle_of_an_answer(start: Start, who: str) -> None:
    doctor = start()
    doctor.phase("first requests of each shape")
    time.sleep(1.0)  # a request of many seconds runs
    os.kill(doctor.pid_of(who), signal.SIGKILL)
    code, answer = doctor.answer()
    assert (code, answer["verdict"], finding(answer)) == (2, "blocked", "server-died-on-request")
    assert answer["smoke"]["server"]["state"] == "healthy"
    probes = {p["name"]: p for p in answer["smoke"]["probes"]}
    assert probes["liveness"]["status"] == "pass"
    assert probes["first_requests"]["status"] == "fail"
    assert probes["consistency"]["why"] == "the server died before"
    assert answer["smoke"]["settings_that_passed"] == {}


# ---- stalled


@pytest.mark.long
def test_stalled_while_loading(start: Start) -> None:
    doctor = start("--timeout", "60")
    os.kill(doctor.pid_of("EngineCore"), signal.SIGSTOP)
    code, answer = doctor.answer()
    assert (code, answer["verdict"], finding(answer)) == (2, "blocked", "server-never-healthy")
    assert "Not ready after 60 s: it stopped in the phase " in summary(answer)
    assert "its log is silent for " in summary(answer)


@pytest.mark.long
def test_stalled_in_a_request(start: Start) -> None:
    doctor = start("--request-timeout", "20")
    doctor.phase("first requests of each shape")
    os.kill(doctor.pid_of("EngineCore"), signal.SIGSTOP)
    code, answer = doctor.answer()
    assert (code, answer["verdict"], finding(answer)) == (2, "blocked", "server-gives-no-answer")
    assert "no whole answer within 20 s" in summary(answer)


# ---- out of memory


@pytest.mark.long
def test_out_of_memory(start: Start) -> None:
    # a worker has 0.9 GB of its own and allocates 1 GiB of KV cache
    limit = 1_500_000_000
    doctor = start(before=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
    code, answer = doctor.answer()
    assert (code, answer["verdict"]) == (2, "blocked")
    assert "can't allocate memory" in summary(answer), answer["findings"]


@pytest.mark.long
def test_ended_by_the_out_of_memory_killer(start: Start) -> None:
    group = Path("/sys/fs/cgroup/memory/vllm-doctor-test")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("1900000000")
    except OSError as error:
        pytest.skip(f"no memory group can be made here: {error}")
    try:
        doctor = start(before=lambda: (group / "tasks").write_text(str(os.getpid())) and None)
        code, answer = doctor.answer()
        # the kernel counts each process that it has killed
        assert "oom_kill 0" not in (group / "memory.oom_control").read_text()
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
    assert (code, answer["verdict"]) == (2, "blocked")
    assert finding(answer) in ("server-died-while-loading", "server-died-on-request")


# ---- port


@pytest.mark.long
def test_port_stolen_between_choice_and_bind(start: Start) -> None:
    doctor = start()
    with listen(doctor.port()):
        code, answer = doctor.answer()
    assert (code, answer["verdict"]) == (2, "blocked")
    assert "ddress already in use" in summary(answer)
    assert finding(answer) == "port-in-use"


class Impostor(BaseHTTPRequestHandler):
    """Says that it is healthy, and nothing else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.long
def test_a_stranger_that_answers_on_the_port_is_not_taken_for_the_server(start: Start) -> None:
    doctor = start()
    with HTTPServer(("127.0.0.1", doctor.port()), Impostor) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        code, answer = doctor.answer()
        stranger.shutdown()
    assert (code, answer["verdict"], finding(answer)) == (2, "blocked", "port-in-use")
    assert answer["smoke"]["server"]["state"] == "died"


# ---- stopped by the user

#: What the progress says when the signal is sent.
PHASES = (
    "spawning",
    "loading",
    "warming",
    "answers requests",
    "first requests of each shape",
    "MTP drafts",
    "stopping",
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("wait_s", [0.5, 1.0])
def test_stopped_around_the_start(start: Start, number: int, wait_s: float) -> None:
    doctor = start(keep_log=False)
    doctor.until(lambda: list(doctor.temp.glob("vllm-doctor-*")), "the folder of the log")
    time.sleep(wait_s - 0.5)
    doctor.send(number)
    doctor.interrupted()


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_at_every_phase(start: Start, phase: str) -> None:
    # a server that is to be stopped early has not been ready in time
    doctor = start(*(("--timeout", "5") if phase == "stopping" else ()), keep_log=False)
    doctor.phase(phase)
    doctor.send(signal.SIGINT)
    doctor.interrupted()


@pytest.mark.long
def test_ctrl_c_twice_while_stopping(start: Start) -> None:
    doctor = start(keep_log=False)
    doctor.phase("MTP drafts")
    doctor.send(signal.SIGINT)
    time.sleep(0.3)
    doctor.send(signal.SIGINT)
    doctor.interrupted(20)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_stopped_by_others_in_a_request(start: Start, number: int) -> None:
    doctor = start(keep_log=False)
    doctor.phase("first requests of each shape")
    doctor.send(number)
    doctor.interrupted()


@pytest.mark.long
@pytest.mark.parametrize("phase", ["correctness: asking the chosen settings", "base: loading", "base: asking"])
def test_ctrl_c_between_the_servers_of_the_comparison(start: Start, phase: str) -> None:
    doctor = start("--full", keep_log=False)
    doctor.phase(phase)
    doctor.send(signal.SIGINT)
    doctor.interrupted()
