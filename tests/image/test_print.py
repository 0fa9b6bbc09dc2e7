"""``build --print`` and the other ways that build nothing, as a person or a script meets them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctor import cli
from doctor.commands import build as command
from doctor.image import pins, verify
from doctor.image.builder import PROXIES
from doctor.image.verify import PinResult
from doctor.snapshot import Snapshot
from tests.image.test_build import MACHINE

GOLDEN = Path(__file__).parent / "data" / "print.txt"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """The command on a recorded machine whose PATH is empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, machine: Snapshot = MACHINE) -> tuple[int, str, str]:
        monkeypatch.setattr(command, "_examine", lambda: machine)
        code = cli.main(["build", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def steady(text: str) -> str:
    """Without what differs from checkout to checkout: the locks' hash, the revision, the plan's id."""
    text = re.sub(r"(LOCK_HASH=|PLAN_ID=|-cu130-)[0-9a-f]{12}", r"\1...", text)
    return re.sub(r"REVISION=\S+", "REVISION=...", text)


def test_print(call: Call) -> None:
    code, out, err = call("--print")
    assert (code, err) == (0, "")
    dockerfile = (pins.load().root / "docker/Dockerfile").read_text(encoding="utf-8")
    head, body, tail = out.partition(dockerfile)
    assert (head, body) == ("# docker/Dockerfile\n", dockerfile)
    assert steady(tail) == GOLDEN.read_text(encoding="utf-8")


def test_the_printed_command_is_the_one_that_would_run(call: Call) -> None:
    document = json.loads(call("--print", "--json")[1])["print"]
    assert document["command"][:2] == ["docker", "build"]
    assert document["command"][-1] == "."
    assert document["environment"]["DOCKER_BUILDKIT"] == "1"
    assert document["text"].count("\nFROM ") == 4
    assert set(document) == {"dockerfile", "text", "environment", "command", "context", "notes"}


def test_print_of_an_own_base_needs_its_target(call: Call) -> None:
    code, out, err = call("--print", "--base", "mine:1")
    assert (code, out) == (3, "")
    wanted = "the distribution of mine:1 is not known (--print asks no engine): --target NAME tells it"
    assert err == f"vllm-doctor: {wanted}\n"
    code, out, _ = call("--print", "--base", "mine:1", "--target", "bookworm")
    assert code == 0
    assert "BASE=mine:1" in out


def test_print_says_what_would_be_refused(call: Call) -> None:
    from dataclasses import replace

    from doctor.facts import DriverFacts

    old = replace(MACHINE, driver=DriverFacts(nvml_status="ok", version="570.172.08"))
    code, out, _ = call("--print", machine=old)
    assert code == 0
    assert "# note: torch 2.11.0+cu130 is built for CUDA 13.0 and needs driver 580.65.06 or newer" in out


@pytest.mark.parametrize(
    "name", ["a", "a__b:V1", "localhost:5000/x:1", "REG.io/a/b--c", "[::1]:5000/a", "a" * 255]
)
def test_a_name_that_engines_take(call: Call, name: str) -> None:
    code, out, _ = call("--print", "--tag", name)
    assert code == 0
    assert f"--tag {name} " in out.replace("'", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "nonsense"), "no target is called 'nonsense'"),
        (("--base", ""), "--base needs a value"),
        (("--print", "--verify-pins"), "--print and --verify-pins cannot go together"),
        (("--tag", "A B", "--print"), "--tag 'A B' is no name for an image"),
        (("--tag", "A:1", "--print"), "--tag 'A:1' is no name for an image"),
        (("--tag", "a" * 256), "is no name for an image"),
        (("--tag", "mine:a:b"), "--tag 'mine:a:b' is no name for an image"),
        (("--tag", "mine@sha256:" + "0" * 64), "is no name for an image"),
        (("--engine", "nerdctl"), "docker, podman or the path of one of them"),
        (("--ca", "/nonexistent", "--print"), "not a readable file with certificates"),
        (("--wheels", "/nonexistent", "--print"), "--wheels /nonexistent: No such file"),
    ],
)
def test_misuse_is_one_line(call: Call, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (3, "")
    assert message in err
    assert err.count("\n") == 1


def test_blocked_is_2_and_one_object(call: Call) -> None:
    code, out, _ = call("--json")
    answer: dict[str, Any] = json.loads(out)
    assert (code, answer["command"], answer["verdict"]) == (2, "build", "blocked")
    assert [f["id"] for f in answer["findings"]] == ["container-engine-missing"]
    assert answer["build"]["image"] is None
    code, out, _ = call()
    assert code == 2
    assert "BLOCKED  nothing was built: No container engine on this machine" in out


def result(status: str) -> PinResult:
    return PinResult("cuda-13.0", "image", "docker.io/x:1", "sha256:a", status, None, (), "because", None)


@pytest.mark.parametrize(("status", "code"), [(verify.EQUAL, 0), (verify.UNREACHABLE, 1), (verify.GONE, 2)])
def test_verify_pins(call: Call, monkeypatch: pytest.MonkeyPatch, status: str, code: int) -> None:
    monkeypatch.setattr(verify, "verify", lambda *_: (result(status),))
    ended, out, _ = call("--verify-pins")
    assert ended == code
    assert f"cuda-13.0: {status}" in out
    ended, out, _ = call("--verify-pins", "--json")
    assert (ended, json.loads(out)["pins"][0]["status"]) == (code, status)


def test_update_pins(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from doctor.image import update

    monkeypatch.setattr(verify, "verify", lambda *_: (result(verify.UNREACHABLE),))
    monkeypatch.setattr(update, "diff", lambda *_: "torch 2.11.0 -> 2.13.0\n\n--- a/docker/locks/python-3.11.txt")
    code, out, err = call("--update-pins")
    assert (code, out.splitlines()[0]) == (0, "torch 2.11.0 -> 2.13.0")
    assert "not asked, no answer: cuda-13.0" in err
    monkeypatch.setattr(update, "diff", lambda *_: "")
    assert call("--update-pins")[1] == "Nothing would change.\n"
    assert json.loads(call("--update-pins", "--json")[1])["update"] == ""
