"""The command line as a user meets it: streams, exit codes, one-line errors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doctor.cli import main
from doctor.facts import DriverFacts, GpuFacts, SystemFacts, WslFacts
from doctor.snapshot import Snapshot, dumps

DOCTOR = [sys.executable, "-m", "doctor"]
CONFIGS = Path(__file__).parent / "memory" / "configs"


def run(*args: str, stdin: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DOCTOR, *args], capture_output=True, text=True, timeout=60, input=stdin, cwd=cwd)


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    """A saved snapshot with a card that works."""
    snapshot = Snapshot(
        system=SystemFacts(os_id="ubuntu", os_name="Ubuntu 24.04", in_container=False),
        wsl=WslFacts(version=0),
        driver=DriverFacts(nvml_status="ok", version="580.95.05", cuda="13.0", module_version="580.95.05"),
        gpus=(
            GpuFacts(
                0,
                name="NVIDIA GeForce RTX 3090",
                compute_capability="8.6",
                total_bytes=25769803776,
                cuda_total_bytes=25310000000,
                cuda_free_bytes=25000000000,
                processes=(),
            ),
        ),
    )
    path = tmp_path / "healthy.json"
    path.write_text(dumps(snapshot))
    return str(path)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = run("--help")
    assert result.returncode == 0
    for word in ("check", "smoke", "exit codes"):
        assert word in result.stdout
    assert run().stdout == result.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["chekc"], "invalid choice"),
        (["check", "--no-such-option"], "unrecognized arguments"),
        (["check", "--only", "no-such-check"], "no check is called 'no-such-check'"),
        (["check", "--from", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
        (["check", "--from", "/tmp"], "/tmp is a folder; name the files to read"),
        (["check", "--port", "many"], "invalid int value"),
    ],
)
def test_misuse_is_one_line_and_exit_3(args: list[str], says: str) -> None:
    result = run(*args)
    assert result.returncode == 3
    assert says in one_line(result)
    assert result.stdout == ""


def test_a_broken_snapshot_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema_version": 1, "gpus": [{"index": "x"}]}')
    result = run("check", "--from", str(bad))
    assert result.returncode == 3
    assert "$.gpus[0].index" in one_line(result)


def test_a_snapshot_that_cannot_be_written_is_one_line(healthy: str) -> None:
    result = run("check", "--from", healthy, "--save", "/no/such/folder/x.json")
    assert result.returncode == 3
    assert "cannot write /no/such/folder/x.json" in one_line(result)


def test_json_is_one_object_on_stdout_and_nothing_else(healthy: str) -> None:
    result = run("check", "--from", healthy, "--json")
    answer = json.loads(result.stdout)
    assert answer["command"] == "check"
    assert answer["verdict"] in ("ready", "degraded")
    assert result.returncode == {"ready": 0, "degraded": 1}[answer["verdict"]]
    assert result.stderr == ""


def test_stdin_save_and_replay_agree(healthy: str, tmp_path: Path) -> None:
    first = json.loads(run("check", "--from", healthy, "--json", "--save", str(tmp_path / "copy.json")).stdout)
    again = json.loads(run("check", "--from", "-", "--json", stdin=(tmp_path / "copy.json").read_text()).stdout)
    assert first == again


def test_skip_is_recorded_as_waived_and_list_lists(healthy: str) -> None:
    ids = [c["id"] for c in json.loads(run("check", "--list", "--json").stdout)["checks"]]
    assert len(ids) > 40
    answer = json.loads(run("check", "--from", healthy, "--json", "--skip", ids[0]).stdout)
    assert answer["waived"] == [ids[0]]
    only = json.loads(run("check", "--from", healthy, "--json", "--only", ids[0]).stdout)
    assert len(only["findings"]) + len(only["passed"]) + len(only["skipped"]) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "--only vllm-not-installed",
            "could not be judged: vllm-not-installed (no python facts)",
        ),
        (
            "--only driver-too-old-for-cuda-build --only vllm-not-installed",
            "could not be judged: driver-too-old-for-cuda-build (no python facts); "
            "vllm-not-installed (no python facts)",
        ),
        (
            "--only nvidia-driver-missing --only vllm-not-installed",
            "could not be judged: vllm-not-installed (no python facts)",
        ),
        (
            "--only nvidia-driver-missing --skip nvidia-driver-missing",
            "nothing was judged: --skip waives nvidia-driver-missing",
        ),
        (
            "--only kv-cache-too-small-for-context",
            "could not be judged: kv-cache-too-small-for-context (it judges a log or another text, "
            "and there is none)",
        ),
    ],
)
def test_a_chosen_check_that_cannot_judge_is_unknown(options: str, says: str, healthy: str) -> None:
    result = run("check", "--from", healthy, *options.split())
    assert " ".join(result.stdout.split()).startswith(f"? UNKNOWN {says}")
    assert result.returncode == 1
    answer = json.loads(run("check", "--from", healthy, "--json", *options.split()).stdout)
    assert answer["verdict"] == "unknown"
    named = {o for o in options.split() if not o.startswith("--")}
    assert {s["id"] for s in answer["skipped"]} | set(answer["waived"]) | set(answer["passed"]) == named


def test_a_chosen_check_that_passed_is_ready(healthy: str) -> None:
    chosen = run("check", "--from", healthy, "--only", "nvidia-driver-missing")
    assert "1 chosen check found nothing that stops vLLM" in chosen.stdout
    assert chosen.returncode == 0
    waived = run("check", "--from", healthy, *"--only nvidia-driver-missing --only port-in-use".split(),
                 "--skip", "port-in-use")  # fmt: skip
    assert waived.returncode == 0


def test_strict_makes_anything_but_ready_exit_2(tmp_path: Path) -> None:
    empty = tmp_path / "unknown.json"
    empty.write_text(dumps(Snapshot(system=SystemFacts(os_id="debian"))))
    assert run("check", "--from", str(empty)).returncode == 1
    assert run("check", "--from", str(empty), "--strict").returncode == 2


@pytest.mark.parametrize(
    "args",
    [
        "check --from {healthy}",
        "check --from {healthy} -v --json",
        "check --list",
        "check --help",
        "--version",
        "",
        "explain {log}",
        "explain {log} --json",
        "fix",
        "fit {model} --gpu 3090",
        "smoke --url http://127.0.0.1:1",
        "warmup --url http://127.0.0.1:1",
        "history",
    ],
)
def test_a_reader_that_has_gone_is_no_failure(args: str, healthy: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("gcc-12: fatal error: cannot execute 'cc1plus': execvp: No such file or directory\n")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        argv = args.format(healthy=healthy, log=log, model=CONFIGS / "qwen3.5-35b-a3b").split()
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        done = subprocess.run([*DOCTOR, *argv], stdout=writer, stderr=subprocess.PIPE, timeout=60, env=environment)
    finally:
        os.close(writer)
    assert b"Traceback" not in done.stderr
    assert b"ignored" not in done.stderr  # Python met the error after the end
    assert done.returncode == 0, done.stderr


def test_interrupt_is_130_and_one_line(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # reading it waits for ever
    process = subprocess.Popen(
        [*DOCTOR, "check", "--from", str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(OSError):  # there is no reader yet
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    os.close(writer)
    assert process.returncode == 130
    assert stderr.decode() == "vllm-doctor: interrupted\n"


def test_a_bug_of_the_doctor_is_exit_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python's own status for an uncaught exception is 1, which means "degraded" here."""

    def registered() -> None:
        raise KeyError("oops")

    monkeypatch.setattr("doctor.commands.check.registered", registered)
    assert main(["check", "--list"]) == 3
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.splitlines()[-1] == "vllm-doctor: the doctor itself failed: KeyError: 'oops'"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--port", "0"], "--port 0 is no port: 1 to 65535"),
        (["--port", "70000"], "--port 70000 is no port: 1 to 65535"),
        (["--python", ""], "--python needs a value, it is empty"),
        (["--model", " "], "--model needs a value, it is empty"),
        (["--save", ""], "--save needs a value, it is empty"),
    ],
)
def test_values_that_mean_nothing_are_misuse(args: list[str], says: str, healthy: str) -> None:
    result = run("check", "--from", healthy, *args)
    assert result.returncode == 3
    assert one_line(result) == f"vllm-doctor: {says}\n"


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A shell script in which "$@" is the doctor."""
    return subprocess.run(
        ["/bin/sh", "-c", script, "sh", *DOCTOR],
        capture_output=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("options", ["", "--json", "-v"])
def test_closed_streams_keep_the_verdict(healthy: str, options: str) -> None:
    expected = run("check", "--from", healthy).returncode
    for closed in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        done = shell(f'exec "$@" check --from {healthy} {options} {closed}')
        assert done.returncode == expected, closed
        assert done.stderr == b"", closed
        assert bool(done.stdout) is (">&- " not in f"{closed} ".replace("2>&-", "")), closed


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("options", ["", "--json"])
def test_a_full_disk_is_one_line(healthy: str, options: str) -> None:
    done = shell(f'exec "$@" check --from {healthy} {options} >/dev/full')
    assert done.returncode == 3
    assert done.stderr == b"vllm-doctor: the answer cannot be written: No space left on device\n"


def test_save_never_replaces_what_is_no_file(healthy: str, tmp_path: Path) -> None:
    """--save /dev/stdout, run by root, must not make a plain file of a device."""
    link = tmp_path / "out"
    link.symlink_to("/dev/stdout")
    done = run("check", "--from", healthy, "--save", str(link), "--only", "port-in-use")
    assert link.is_symlink()
    assert '"kind": "vllm-doctor-snapshot"' in done.stdout
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE, text=True)
    run("check", "--from", healthy, "--save", str(fifo))
    assert json.loads(reader.communicate(timeout=30)[0])["schema_version"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "healthy.json", "out"]


def test_a_terminal_without_utf8_gets_plain_signs(healthy: str) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "POSIX"}
    done = shell(f'"$@" check --from {healthy} -v', **ascii_only)
    assert done.stderr == b""
    assert b" - capability 8.6 - " in done.stdout
    done.stdout.decode("ascii")
    utf8 = shell(f'"$@" check --from {healthy} --json')
    again = shell(f'"$@" check --from {healthy} --json', **ascii_only)
    assert json.loads(again.stdout)["verdict"] == json.loads(utf8.stdout)["verdict"]


def test_names_that_are_no_utf8_stay_valid_json(tmp_path: Path) -> None:
    saved = tmp_path / "odd.json"
    saved.write_text('{"schema_version": 1, "system": {"os_name": "caf\\u00e9 \\udcff", "os_id": "x"}}')
    for environment in ({"PYTHONIOENCODING": "utf-8"}, {"PYTHONIOENCODING": "ascii"}):
        done = shell(f'"$@" check --from {saved} --json --save {tmp_path}/copy.json', **environment)
        assert done.returncode == 1, done.stderr
        for text in (done.stdout.decode("utf-8"), (tmp_path / "copy.json").read_text(encoding="utf-8")):
            document = json.loads(text)
            assert document.get("snapshot", document)["system"]["os_name"] == "caf\u00e9 \udcff"
        assert shell(f'"$@" check --from {saved} -v', **environment).returncode == 1


def test_a_snapshot_cannot_steer_the_terminal(tmp_path: Path) -> None:
    saved = tmp_path / "odd.json"
    name = "\x1b[2J\x1b]0;title\x07[red]Debian[/red][/nope]\x9b31m"
    saved.write_text(dumps(Snapshot(system=SystemFacts(os_name=name, os_id=name, kernel=name))))
    for options in ([], ["-v"], ["--json"]):
        done = run("check", "--from", str(saved), *options)
        assert done.returncode == 1, done.stderr
        assert not {"\x1b", "\x07", "\x9b"} & set(done.stdout)
        assert "[red]Debian[/red][/nope]" in done.stdout
