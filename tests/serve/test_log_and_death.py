"""Phases and figures of a start, and the cause of an end, from real log lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.serve import death
from doctor.serve.log import LogFollower, plain, split
from doctor.serve.server import Exit

DEATHS = Path(__file__).parents[1] / "smoke" / "deaths"

#: vLLM 0.26.0 with MTP on a GPU, cold compile cache; shortened.
GPU_START = (Path(__file__).parent / "logs" / "gpu-start-0.26.0.log").read_bytes().decode()


def follow(tmp_path: Path, text: str) -> LogFollower:
    path = tmp_path / "server.log"
    path.write_text(text)
    follower = LogFollower(path)
    follower.read()
    return follower


def test_phases_and_figures_of_a_gpu_start(tmp_path: Path) -> None:
    follower = follow(tmp_path, GPU_START)
    seen = [phase for phase, _ in follower.phases]
    assert seen == ["spawning", "loading", "compiling", "profiling KV", "capturing", "warming"]
    facts = follower.facts
    assert (facts.vllm, facts.architecture, facts.max_model_len) == (
        "0.26.0",
        "Qwen3_5ForConditionalGeneration",
        8192,
    )
    assert (facts.block_size, facts.kv_tokens, facts.concurrency) == (544, 143_652, 17.54)
    assert (facts.weights_gib, facts.available_kv_gib) == (10.87, 9.18)
    assert facts.sources["kv_tokens"].startswith("server.log:")


def test_lines_that_arrive_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    follower = LogFollower(path)
    follower.read()  # not there yet
    with path.open("a") as file:
        file.write("GPU KV cache size: 143,6")
        file.flush()
        follower.read()
        assert follower.facts.kv_tokens is None
        file.write("52 tokens\n")
    follower.read()
    assert follower.facts.kv_tokens == 143_652


def test_prefixes_of_all_forms() -> None:
    assert (
        plain("(Worker_TP0 pid=77) ERROR 08-16 09:00:46 [multiproc_executor.py:912] RuntimeError: x")
        == "RuntimeError: x"
    )
    assert plain("ERROR 10-10 09:00:13 worker_base.py:148] y") == "y"
    assert plain("[rank0]: Traceback (most recent call last):") == "Traceback (most recent call last):"
    assert plain("  File") == "  File"
    assert split("(EngineCore pid=2) WARNING 11-30 10:02:11 [a.py:1]   deep") == (
        "EngineCore pid=2",
        "WARNING",
        "  deep",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("align-kernel", "TypeError: 'function' object is not subscriptable"),
        ("out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried"),
        ("utilization", "ValueError: Free memory on device cuda:0"),
        ("port-stolen", "OSError: [Errno 98] Address already in use"),
        ("arguments", "vllm serve: error: unrecognized"),
        ("ninja", "RuntimeError: Ninja build failed. Ninja output:  cc1plus: execvp"),
        ("validation", "ValidationError: 1 validation error for ModelConfig  Value error, The checkpoint"),
    ],
)
def test_the_first_real_exception(name: str, text: str) -> None:
    assert text in death.explain(DEATHS / f"{name}.log", Exit(1)).text


def test_a_warning_with_a_traceback_is_no_cause(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "(W pid=1) WARNING 11-30 10:02:11 [a.py:1] Traceback (most recent call last):\n"
        "(W pid=1) WARNING 11-30 10:02:11 [a.py:1]   File x\n"
        "(W pid=1) WARNING 11-30 10:02:11 [a.py:1] ImportError: survived\n"
        "(W pid=1) ERROR 11-30 10:02:12 [a.py:1] Traceback (most recent call last):\n"
        "(W pid=1) ERROR 11-30 10:02:12 [a.py:1]   File x\n"
        "(W pid=1) ERROR 11-30 10:02:12 [a.py:1] KeyError: 'fatal'\n"
    )
    assert death.explain(path, Exit(1)).text == "KeyError: 'fatal'"


def test_a_bare_assertion_says_where(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "(W pid=1) ERROR 11-30 10:02:12 [a.py:1] Traceback (most recent call last):\n"
        '(W pid=1) ERROR 11-30 10:02:12 [a.py:1]   File "/v/layers/embedding.py", line 428, in weight_loader\n'
        "(W pid=1) ERROR 11-30 10:02:12 [a.py:1]     assert loaded_weight.shape[0] == self.org_vocab_size\n"
        "(W pid=1) ERROR 11-30 10:02:12 [a.py:1]            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "(W pid=1) ERROR 11-30 10:02:12 [a.py:1] AssertionError\n"
    )
    found = death.explain(path, Exit(1))
    assert found.text == "AssertionError at embedding.py:428: assert loaded_weight.shape[0] == self.org_vocab_size"
    assert found.line == 5


def test_interleaved_processes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "(A pid=1) Traceback (most recent call last):\n"
        "(B pid=2) Traceback (most recent call last):\n"
        "(A pid=1)   File x\n"
        "(B pid=2)   File y\n"
        "(B pid=2) ValueError: the root\n"
        "(A pid=1) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert death.explain(path, Exit(1)).text == "ValueError: the root"


def test_signals_and_silence(tmp_path: Path) -> None:
    empty = tmp_path / "log"
    empty.write_text("")
    assert "SIGILL" in death.explain(empty, Exit(-4)).text
    assert "does not fit this CPU" in death.explain(empty, Exit(-4)).text
    assert death.explain(empty, Exit(3)).text == "no output at all (exit code 3)"
    assert death.explain(tmp_path / "none", None).text.startswith("no output at all")
