"""The command as a user runs it: answers, exit codes, files, and one line for every misuse."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from doctor.cli import main
from doctor.memory.cards import named_cards
from doctor.memory.fit import evaluate
from doctor.memory.model import open_model
from doctor.memory.settings import Wish
from doctor.memory.versions import switches
from doctor.report.fit_view import print_table
from tests.memory.support import config_path

AWQ = str(config_path("qwen3.5-9b-awq").parent)
PLAIN = str(config_path("qwen3.5-9b"))
CARD = ["--gpu", "2080 ti", "--vram", "22", "--free", "20.81", "--vllm", "0.21.0"]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def fit(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    try:
        code = main(["fit", *arguments])
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    seen = capsys.readouterr()
    return Ran(code, seen.out, seen.err)


def test_an_exact_pool(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, PLAIN, "--available-kv", "7.06", "--max-model-len", "8192", "--vllm", "0.21.0", "--json")
    answer = ran.json
    assert ran.code == 0
    assert (answer["schema_version"], answer["command"], answer["verdict"]) == (1, "fit", "ready")
    kv = answer["fit"]["kv"]
    assert (kv["block_size"], kv["num_blocks"], kv["capacity_tokens"]) == (528, 438, 188_847)
    assert kv["max_concurrency"] == 438 / 19
    assert answer["fit"]["weights_source"] == "shapes"


def test_bytes_are_taken_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    def blocks(size: int) -> int:
        return int(fit(capsys, PLAIN, "--available-kv-bytes", str(size), "--max-model-len", "8K", "--json").json[
            "fit"]["kv"]["num_blocks"])  # fmt: skip

    assert (blocks(17_301_504 * 100), blocks(17_301_504 * 100 - 1)) == (100, 99)


def test_a_card_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, AWQ, *CARD, "--for", "chat", "--json")
    answer = ran.json["fit"]
    assert ran.code == 0
    assert answer["fits"] is True
    assert answer["start_check"] == {"max_utilization": 0.94, "recommended_utilization": 0.92}
    assert answer["overhead_bytes"][0] < answer["overhead_bytes"][1]
    assert answer["available_kv_bytes"][0] < answer["available_kv_bytes"][1]
    assert answer["kv"]["prefix_hit_step_tokens"] == answer["kv"]["block_size"] == 544
    assert answer["settings"]["mtp"] == 2
    assert set(answer["settings"]) - {"argv", "dtype"} <= set(answer["reasons"])
    assert answer["decode_ceiling_tokens_per_s"] == pytest.approx(105.3, abs=0.2)


def test_a_person_sees_the_verdict_first(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, AWQ, *CARD, "--for", "chat")
    assert re.match(r"(✓|ok) FITS  qwen3.5-9b-awq on GeForce RTX 2080 Ti 22 GB, vLLM 0.21.0", ran.out)
    assert "vllm serve" in ran.out
    assert "first start" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 110


def test_speed_is_seen_only_where_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, AWQ, "--gpu", "3090", "--max-model-len", "8K", "--mtp", "2")
    words = " ".join(ran.out.split())
    assert "seen in practice" not in words
    assert "at the 76% of it that were measured on an RTX 2080 Ti" in words


def test_too_large_is_exit_2_and_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, str(config_path("qwen3.5-27b")), "--gpu", "3090")
    assert ran.code == 2
    assert re.search(r"the weights alone exceed the memory asked for by \d+\.\d\d GiB", ran.out)
    assert "no settings for this card make it fit" in ran.out


def test_within_the_uncertainty_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, AWQ, *CARD, "--util", "0.80", "--max-model-len", "200K", "--max-num-seqs", "1",
              "--max-num-batched-tokens", "1024", "--json")  # fmt: skip
    assert ran.code == 1
    assert ran.json["fit"]["fits"] is None


def test_several_models_and_cards(capsys: pytest.CaptureFixture[str]) -> None:
    large = str(config_path("qwen3.5-27b"))
    arguments = [AWQ, large, "--gpu", "2080 ti", "--gpu", "3090", "--max-model-len", "8K", "--vllm", "0.26.0"]
    ran = fit(capsys, *arguments)
    assert ran.code == 0  # one of them fits
    assert "RTX 2080 Ti 11 GB" in ran.out  # sold with 11 and with 22 GB: both are judged
    assert "RTX 2080 Ti 22 GB" in ran.out
    assert ran.out.count("qwen3.5-27b") >= 3
    answer = fit(capsys, *arguments, "--json").json
    assert [f["fits"] for f in answer["fits"]] == [False, True, True, False, False, False]


@pytest.mark.parametrize("width", [60, 40, 100])
def test_a_narrow_terminal_cuts_no_figure(width: int) -> None:
    cards = named_cards("2080 ti", None, None) + named_cards("4090", None, None) + named_cards("H200", None, None)
    model = open_model(PLAIN, {}, lambda _: None)
    fits = [evaluate(model, c, Wish(max_model_len=8192), switches(None)) for c in cards]
    out = Console(file=io.StringIO(), width=width)
    print_table([(model.shape.name, c.name, f) for c, f in zip(cards, fits, strict=True)], out)
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    words = shown.split()
    assert "\u2026" not in shown
    for fit in fits:
        if fit.pool.num_blocks:
            assert f"{fit.pool.capacity_tokens:,}" in words
            assert f"{fit.pool.highest_context:,}" in words
    table = shown.splitlines()[: 1 + 3 * len(cards)]
    assert any("qwen3.5-9b" in line for line in table)
    assert ("left out, the terminal is too narrow:" in " ".join(words)) == (width < 100)
    assert max(map(len, shown.splitlines())) <= width


def test_a_card_of_several_sizes_says_how_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    hint = "--vram GiB chooses one"
    assert hint in fit(capsys, AWQ, "--gpu", "4090", "--max-model-len", "8K").out
    assert hint not in fit(capsys, AWQ, "--gpu", "3090", "--gpu", "T4", "--max-model-len", "8K").out


def test_an_unknown_architecture_does_not_spoil_the_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Mystery"]}')
    ran = fit(capsys, AWQ, str(tmp_path), "--gpu", "3090", "--max-model-len", "8K")
    assert ran.code == 0
    assert "unknown" in ran.out
    assert "architecture 'Mystery' is not known" in ran.out.replace("\n", " ")


# -- what is emitted -------------------------------------------------------------------------------------


def test_emit_serve_is_a_shell_command(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    ran = fit(capsys, AWQ, *CARD, "--for", "chat", "--emit", "serve")
    words = shlex.split(ran.out.replace("\\\n", " "))
    assert words[:2] == ["vllm", "serve"]
    assert Path(words[2]) == Path(AWQ)
    assert json.loads(words[words.index("--speculative-config") + 1])["num_speculative_tokens"] == 2
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert "--language-model-only" in words


def test_emit_env_obeys_the_forks_rules(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, AWQ, *CARD, "--for", "long-context", "--emit", "env")
    lines = [line for line in ran.out.splitlines() if not line.startswith("#")]
    values = dict(line.split("=", 1) for line in lines)
    forbidden = ("MODEL_DIR", "MODE", "PORT", "SERVICE_SCOPE", "GPU_DEVICES", "TP_SIZE",
                 "VLLM_ALLOW_MAMBA_SPEC_FULL_CUDAGRAPH")  # fmt: skip
    assert not set(forbidden) & set(values)
    assert not [k for k in values if k.startswith(("PROFILE", "CHAT_TEMPLATE_", "REASONING_", "TOOL_"))]
    assert "COMPATIBLE_MODES" in values
    assert values["QUANTIZATION"] == "awq_marlin"
    assert "GPU_DEVICES=0 TP_SIZE=1" in ran.out  # said where it is allowed
    assert all(re.fullmatch(r"[A-Z0-9_]+=[A-Za-z0-9_.-]+", line) for line in lines)


def test_emit_compose_publishes_on_loopback_only(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, AWQ, *CARD, "--for", "chat", "--emit", "compose")
    assert '"127.0.0.1:8000:8000"' in ran.out
    assert f'"{AWQ}:/model:ro"' in ran.out
    assert "image: vllm/vllm-openai:v0.21.0" in ran.out
    assert "\t" not in ran.out


def test_emitted_names_are_quoted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "we ird$HOME: 'q\"\nEVIL=1"
    folder.mkdir()
    (folder / "config.json").write_text(Path(AWQ, "config.json").read_text())
    compose = fit(capsys, str(folder), *CARD, "--emit", "compose").out
    assert "we ird$$HOME" in compose  # compose would put a variable's value there
    assert f"source: {json.dumps(str(folder).replace('$', '$$'))}" in compose  # a colon divides there
    profile = fit(capsys, str(folder), *CARD, "--emit", "env").out
    assert not [line for line in profile.splitlines() if line.startswith("EVIL")]
    two = fit(capsys, AWQ, *CARD, "--tp", "2", "--emit", "env").out
    assert "GPU_DEVICES=0,1 TP_SIZE=2" in two


def test_emit_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = fit(capsys, AWQ, *CARD, "--for", "throughput", "--emit", "json").json
    assert answer["settings"]["mtp"] == 0
    assert answer["settings"]["argv"][0] == "vllm"


def test_curve_as_svg(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "curve.svg"
    ran = fit(capsys, AWQ, *CARD, "--for", "chat", "--curve", str(target), "--emit", "json")
    assert ran.json  # stdout stays clean
    root = ElementTree.fromstring(target.read_text())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4  # two panels, with and without MTP
    points = [tuple(map(float, p.split(","))) for p in lines[0].attrib["points"].split()]
    assert points == sorted(points)
    assert all(0 <= x <= 760 and 0 <= y <= 640 for x, y in points)
    assert "card limit" in target.read_text()


def test_curve_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(
        capsys, PLAIN, "--available-kv", "7.06", "--curve", "-", "--vllm", "0.21.0", "--max-model-len", "8192"
    )
    assert re.search(r"8,192\s+188,847\s+23\.05", ran.out)
    assert re.search(r"32,768\s+217,460", ran.out)
    assert re.search(r"262,144\s+does not fit", ran.out)
    assert "MTP 2: up to" in ran.out


# -- calibration -----------------------------------------------------------------------------------------


def test_calibrate_show_and_forget(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "vLLM API server version 0.26.0\n"
        "non-default args: {'gpu_memory_utilization': 0.8, 'max_num_batched_tokens': 1024, 'max_num_seqs': 1}\n"
        "Directly load AOT compilation from path /x\n"
        "Available KV cache memory: 7.06 GiB\n"
        "GPU KV cache size: 163,095 tokens\n"
        "Maximum concurrency for 8,192 tokens per request: 19.91x\n"
    )
    card = ["--gpu", "2080 ti", "--vram", "22"]
    ran = fit(capsys, AWQ, *card, "--calibrate", str(log))
    assert ran.code == 0
    assert "measured" in ran.out
    assert "--forget" in ran.err
    shown = fit(capsys, "--calibrations")
    assert "GiB" in shown.out
    answer = fit(capsys, AWQ, *card, "--vllm", "0.26.0", "--util", "0.8", "--max-model-len", "8K",
                 "--max-num-seqs", "1", "--max-num-batched-tokens", "1024", "--json").json["fit"]  # fmt: skip
    assert answer["later_starts"]["calibrated"]
    assert answer["kv"]["capacity_tokens"] == 163_095
    assert "deleted 1 file" in fit(capsys, "--forget").out
    assert "nothing was learned" in fit(capsys, "--calibrations").out


def test_calibrating_picks_the_size_that_the_log_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = str(Path(__file__).resolve().parents[1] / "evidence/real/0.26.0-plain-warm-healthy.log")
    ran = fit(capsys, AWQ, "--gpu", "H200", "--calibrate", log)
    assert (ran.code, "warm start" in ran.out) == (0, True)
    answer = fit(capsys, AWQ, "--gpu", "H200", "--util", "0.16", "--max-model-len", "8K", "--max-num-seqs", "1",
                 "--max-num-batched-tokens", "1024", "--no-prefix-caching", "--json").json["fit"]  # fmt: skip
    assert answer["later_starts"]["calibrated"]
    ran = fit(capsys, AWQ, "--gpu", "2080 ti", "--calibrate", log)
    assert (ran.code, "its card has 139.8 GiB" in ran.err) == (3, True)


def test_emit_says_on_stderr_what_will_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    ran = fit(capsys, AWQ, *CARD, "--mtp", "2", "--kv-cache-dtype", "fp8", "--prefix-caching",
              "--max-num-batched-tokens", "1024", "--emit", "serve")  # fmt: skip
    assert ran.code == 2
    assert "vLLM will refuse: block size 1072" in ran.err
    assert ran.out.startswith("vllm serve ")


# -- misuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a model"),
        (["/no/such/model", "--gpu", "3090"], "no such folder or file"),
        ([AWQ, "--gpu", "Voodoo 2"], "is not in the table of cards"),
        ([AWQ, "--gpu", "3090", "--util", "1.5"], "between 0 and 1"),
        ([AWQ, "--gpu", "3090", "--util", "high"], "'high' is not between 0 and 1"),
        ([AWQ, "--gpu", "3090", "--max-model-len", "abc"], "'abc' is not a context length: a number of tokens"),
        ([AWQ, "--gpu", "3090", "--max-model-len", "xk"], "'xk' is not a context length"),
        ([AWQ, "--gpu", "3090", "--max-num-seqs", "1.5"], "'1.5' is not a positive whole number"),
        ([AWQ, "--gpu", "3090", "--mtp", "two"], "'two' is not a number of draft tokens (0 to 16)"),
        ([AWQ, "--vram", "large"], "'large' is not a size in GiB"),
        ([AWQ, "--gpu", "3090", "--max-model-len", "-5"], "context length"),
        ([AWQ, "--gpu", "3090", "--mtp", "99"], "draft tokens"),
        ([AWQ, "--gpu", "3090", "--kv-cache-dtype", "fp7"], "invalid choice"),
        ([AWQ, "--gpu", "3090", "--vllm", "newest"], "is not a version"),
        ([AWQ, "--vram", "-3"], "size in GiB"),
        ([AWQ, "--available-kv", "0"], "size in GiB"),
        ([AWQ, "--available-kv", "4", "--emit", "serve"], "--emit needs a card"),
        ([AWQ, "--gpu", "2080 ti", "--emit", "serve"], "--emit needs one model and one card"),
        ([AWQ, "--gpu", "3090", "--gpu", "T4", "--curve", "-"], "--curve needs one model and one card"),
        ([AWQ, "--gpu", "3090", "--calibrate", "/no/such.log"], "cannot read /no/such.log"),
        ([AWQ, "--gpu", "3090", "--curve", "/no/such/folder/x.svg"], "cannot write"),
    ],
)
def test_misuse_is_one_line_and_exit_3(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    ran = fit(capsys, *arguments)
    assert ran.code == 3
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert ran.out == ""


def test_no_card_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doctor.memory.cards.local_cards", list)
    ran = fit(capsys, AWQ)
    assert ran.code == 3
    assert "say which one with --gpu NAME or --vram GiB" in ran.err


def test_it_is_quick_and_without_torch() -> None:
    code = (
        "import sys, time, io, contextlib; started = time.process_time()\n"
        "from doctor.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(sys.argv[1:])\n"
        "bad = {'torch', 'vllm', 'transformers', 'numpy', 'docker'} & set(sys.modules)\n"
        "print(time.process_time() - started, *bad)"
    )
    arguments = ["fit", AWQ, "--gpu", "3090", "--for", "chat", "--json"]
    best = 9.0
    for _ in range(3):  # processor time and the best of three: other work may share the machine
        ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        seconds, *heavy = ran.stdout.split()
        assert heavy == []
        best = min(best, float(seconds))
        if best < 0.3:
            break
        time.sleep(0.2)
    assert best < 0.3
