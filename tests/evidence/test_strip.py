"""Prefixes come off in any combination; what is no prefix stays."""

from __future__ import annotations

import pytest

from doctor.evidence.strip import LONGEST, strip

MESSAGE = "RuntimeError: UVA is not available"

PREFIXES = [
    "",
    "ERROR 07-02 09:00:28 [core.py:1349] ",
    "INFO 06-06 09:00:08 api_server.py:177] ",
    "(EngineCore pid=51) ERROR 07-02 09:00:28 [core.py:1349] ",
    "(EngineCore_DP0 pid=1094) ",
    "(VllmWorker rank=1 pid=88) WARNING 02-11 10:00:01 [interface.py:376] ",
    "(Worker_TP0 pid=77) ",
    "(Worker pid=1) (Worker_TP1 pid=1) ERROR 03-05 09:56:09 [multiproc_executor.py:880] ",
    "(RayWorkerWrapper pid=626, ip=10.244.1.107) INFO 04-20 16:47:24 [x.py:206] ",
    "vllm-1  | ",
    "qwen_server-1 | (APIServer pid=1) ",
    "2026-05-01T20:48:42.107123456Z ",
    "2026-05-01 20:48:54,458 ",
    "2026-05-01 20:48:54.458 | (APIServer pid=1) INFO 05-01 18:48:54 [vllm.py:840] ",
    "2026-05-01T20:48:42.1+02:00 stderr F ",
    "Nov 16 12:04:53 box vllm[300]: ",
    "Nov  6 02:04:53 box systemd-run[1]: (EngineCore pid=2) ",
    "[ 1341.702118] ",
    "<3>[   12.345678] ",
    "[Sun Mar 24 23:54:53 2024] ",
    "[pod/vllm-0/server] ",
    "[rank0]: ",
    "[rank1]:[E310 11:10:00.1 ProcessGroupNCCL.cpp:616] ",
    "host:2143:2561 [1] ",
    "> ",
    "> > (APIServer pid=1) ",
    "  \t",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_is_taken_off(prefix: str) -> None:
    line = strip(prefix + MESSAGE, 7)
    assert line.text.strip() == MESSAGE
    assert line.number == 7
    assert line.prefixed is bool(prefix.strip())


def test_parts_of_the_prefix_are_told() -> None:
    line = strip("(EngineCore pid=51) ERROR 07-02 09:00:28 [core.py:1349] boom")
    assert (line.level, line.module, line.process) == ("ERROR", "core.py:1349", "EngineCore pid=51")


@pytest.mark.parametrize(
    "text",
    [
        "| NVIDIA-SMI 535.171.04   Driver Version: 535.171.04   CUDA Version: 12.2 |",
        '  File "/opt/v/x.py", line 5, in <module>',
        "PS> docker compose up",
        "ValueError: (a | b) is wrong",
        "",
    ],
)
def test_what_is_no_prefix_stays(text: str) -> None:
    assert strip(text).text == text


def test_indentation_of_a_traceback_stays() -> None:
    assert strip("ERROR 07-02 09:00:28 [core.py:1]   File x").text == "  File x"


def test_last_state_of_a_redrawn_line_is_what_counts() -> None:
    assert strip("10%|#  |\r50%|## |\r\n").text == "50%|## |"


def test_docker_json() -> None:
    assert strip('{"log":"(APIServer pid=1) boom\\n","stream":"stderr","time":"x"}').text == "boom"
    assert strip('{"log": broken').text == '{"log": broken'


def test_very_long_line_is_cut() -> None:
    assert len(strip("x" * 1_000_000).text) == LONGEST
