"""``vllm-doctor sweep`` on the stub server: rows, resuming after a kill, edges, refusals, other setups."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from doctor.cli import main
from doctor.host import LocalHost
from doctor.memory.cards import named_cards
from doctor.memory.predict import Card
from doctor.memory.settings import recommended
from doctor.memory.start_check import GIB
from doctor.memory.versions import switches
from doctor.report.sweep_view import print_plan
from doctor.sweep.options import SweepOptions
from doctor.sweep.plan import Values
from doctor.sweep.prepare import prepare
from doctor.sweep.run import stored
from tests.smoke.conftest import make_environment
from tests.sweep.conftest import CONFIG, ROOT, SMALL, command, make_model, rows, sweep

POINTS = 6  # of SMALL: two contexts and two sequences, with and without drafts, the base shared


def running(pids: Path) -> list[int]:
    """Servers of a run that are still there."""
    if not pids.exists():
        return []
    return [p for p in map(int, pids.read_text().split()) if Path(f"/proc/{p}/cmdline").exists()]


def gone(pids: Path, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while running(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(pids)


def test_every_point_is_one_row(environment: Path, model: Path, tmp_path: Path) -> None:
    out, pids = tmp_path / "out", tmp_path / "pids"
    code, answer, said = sweep(environment, model, out, *SMALL, VLLM_STUB_PIDS=str(pids))
    assert (code, answer["verdict"]) == (0, "ready"), answer["findings"]
    assert gone(pids)
    found = rows(out)
    assert len({r["key"] for r in found}) == len(found) == POINTS
    assert [r["key"] for r in found] == [p["key"] for p in answer["sweep"]["points"]]
    assert answer["sweep"]["rows"] == found
    by = {(r["settings"]["max_model_len"], r["settings"]["draft_tokens"], r["settings"]["max_num_seqs"]): r
          for r in found}  # fmt: skip
    assert sorted(by) == [(1024, 0, 1), (1024, 0, 2), (1024, 2, 1), (1024, 2, 2), (4096, 0, 1), (4096, 2, 1)]
    one = by[4096, 2, 1]
    assert (one["outcome"], one["kv_tokens"], one["block_size"], one["concurrency"]) == ("ok", 328_704, 544, 40.12)
    assert one["cached_tokens"] == [0, 544, 544]
    assert one["acceptance_per_position"] == {"0": 0.6667, "1": 0.3333}
    assert one["mean_acceptance_length"] == 2.0
    assert one["decode_tokens_per_s"] > 0 < one["prefill_tokens_per_s"]
    assert one["prefill_prompt_tokens"] == 512  # as the probe does on a CPU
    assert one["ready_s"] <= one["seconds"] < 30
    assert one["predicted"]["fits"] is True
    assert one["predicted"]["difference_percent"] == pytest.approx(
        100 * (328_704 / one["predicted"]["kv_tokens"] - 1), abs=0.01
    )
    arguments = one["argv"]
    assert arguments[arguments.index("--max-num-seqs") + 1] == "1"
    assert arguments[arguments.index("--max-num-batched-tokens") + 1] == "2048"
    assert by[4096, 0, 1]["acceptance_per_position"] is None
    assert by[1024, 2, 2]["together_tokens_per_s"] > 0
    assert f"{POINTS - 1} of {POINTS} done, about" in said
    assert not [s for s in said.splitlines() if not s.startswith("[")]


def test_table_and_plots(environment: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep(environment, model, out, *SMALL)
    table = (out / "sweep.md").read_text()
    assert table.count("| Tiny-9B | ") == POINTS
    assert "328,704" in table
    assert "![KV pool against context length](pool.svg)" in table
    pool = ElementTree.parse(out / "pool.svg").getroot()
    lines = pool.findall("{http://www.w3.org/2000/svg}polyline")
    # with and without drafts, each beside its prediction
    assert [bool(line.get("stroke-dasharray")) for line in lines] == [False, True, False, True]
    texts = [t.text for t in pool.iter("{http://www.w3.org/2000/svg}text")]
    assert {"without MTP", "without MTP, predicted", "MTP 2", "MTP 2, predicted", "1K", "4K"} <= set(texts)
    speed = ElementTree.parse(out / "speed.svg").getroot()
    assert len(speed.findall("{http://www.w3.org/2000/svg}circle")) == 4


@pytest.mark.parametrize("finished", [0, 1, 3])
def test_killed_and_resumed(environment: Path, model: Path, tmp_path: Path, finished: int) -> None:
    out, pids = tmp_path / "out", tmp_path / "pids"
    env = {**os.environ, "VLLM_STUB": "children", "VLLM_STUB_PIDS": str(pids)}
    process = subprocess.Popen(
        command(environment, model, out, *SMALL), cwd=ROOT, env=env, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    file, deadline = out / "sweep.jsonl", time.monotonic() + 60
    # in the middle of a point: its server runs, and the rows before it are there
    while time.monotonic() < deadline:
        before = file.read_bytes() if file.exists() else b""
        if before.count(b"\n") == finished and running(pids):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    assert gone(pids), "a server outlived the doctor"
    kept = file.read_bytes()
    assert kept.count(b"\n") >= finished
    with file.open("ab") as half:  # as if the kill had come while a row was written
        half.write(b'{"format": "vllm-doctor-sweep/1", "key": "abc", "kv_to')
    code, answer, _ = sweep(environment, model, out, *SMALL)
    assert code == 0
    assert answer["sweep"]["resumed"] == kept.count(b"\n")
    assert any("a half-written last line of 54 bytes was cut" in n for n in answer["sweep"]["notes"])
    assert file.read_bytes().startswith(kept)  # nothing that was finished has changed
    found = rows(out)
    assert len({r["key"] for r in found}) == len(found) == POINTS


def test_a_changed_plan_adds_only_what_is_missing(environment: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    axes = ("--axes", "context,mtp")
    sweep(environment, model, out, "--context", "1K", *axes)
    first = (out / "sweep.jsonl").read_bytes()
    assert first.count(b"\n") == 2
    code, answer, _ = sweep(environment, model, out, "--context", "1K,2K", *axes)
    assert (code, answer["sweep"]["resumed"], len(answer["sweep"]["rows"])) == (0, 2, 4)
    assert (out / "sweep.jsonl").read_bytes().startswith(first)
    code, answer, said = sweep(environment, model, out, "--context", "1K,2K", *axes)
    assert (code, answer["sweep"]["resumed"], len(rows(out))) == (0, 4, 4)
    assert (answer["sweep"]["to_start"], answer["sweep"]["estimate_s"]) == (0, 0)
    assert "warming" not in said


def test_rows_of_another_version_or_checkpoint_are_not_mixed(
    environment: Path, model: Path, tmp_path: Path
) -> None:
    out, plan = tmp_path / "out", ("--context", "1K", "--axes", "context", "--mtp", "0")
    sweep(environment, model, out, *plan)
    other = make_environment(tmp_path / "newer", "0.33.0+cpu")
    code, answer, _ = sweep(other, model, out, *plan)
    assert (code, answer["sweep"]["resumed"], len(answer["sweep"]["rows"])) == (0, 0, 1)
    assert answer["sweep"]["rows"][0]["setup"]["vllm"] == "0.33.0+cpu"
    assert [n for n in answer["sweep"]["notes"] if "also holds 1 rows of vLLM 0.32.0+cpu on" in n]
    assert (out / "sweep.md").read_text().count("| Tiny-9B | ") == 1
    (tmp_path / "second").mkdir()
    replaced = make_model(tmp_path / "second" / "Tiny-9B", size=4)
    code, answer, _ = sweep(environment, replaced, out, *plan)
    assert (answer["sweep"]["resumed"], len(answer["sweep"]["rows"]), len(rows(out))) == (0, 1, 3)


def test_what_is_predicted_not_to_fit_is_started_only_when_asked(
    environment: Path, model: Path, tmp_path: Path
) -> None:
    out, plan = tmp_path / "out", ("--context", "1K,128K", "--axes", "context", "--mtp", "2")
    code, answer, _ = sweep(environment, model, out, *plan)
    assert (code, answer["verdict"]) == (0, "ready")
    assert len(rows(out)) == 1
    (left,) = answer["sweep"]["not_started"]
    assert "predicted not to fit: one request of 131,072 tokens needs" in left["why"]
    assert [s["id"] for s in answer["skipped"]] == [left["label"]]
    # refused, as predicted: the point is measured by that, and the verdict stays
    code, answer, _ = sweep(environment, model, out, *plan, "--edges", stub="die:utilization")
    assert (code, answer["verdict"]) == (0, "ready")
    refused = rows(out)[1]
    assert (refused["outcome"], refused["cause"]) == ("refused", "util-above-free-memory")
    assert [(f["id"], f["severity"]) for f in answer["findings"]] == [("util-above-free-memory", "note")]


@pytest.mark.parametrize(
    ("stub", "outcome", "cause"),
    [
        ("die:utilization", "refused", "util-above-free-memory"),
        ("die:nothing", "died", "server-died-while-loading"),
        ("kill-self", "died", "server-died-while-loading"),
        ("hang:loading", "died", "server-never-healthy"),
        ("dies-on-request", "died", "server-died-on-request"),
    ],
)
def test_a_point_that_fails_is_a_row_too(
    environment: Path, model: Path, tmp_path: Path, stub: str, outcome: str, cause: str
) -> None:
    out, pids = tmp_path / "out", tmp_path / "pids"
    plan = ("--context", "1K", "--axes", "context", "--mtp", "0", "--timeout", "3", "--request-timeout", "5")
    code, answer, _ = sweep(environment, model, out, *plan, stub=stub, VLLM_STUB_PIDS=str(pids))
    assert (code, answer["verdict"]) == (2, "blocked")
    (row,) = rows(out)
    assert (row["outcome"], row["cause"]) == (outcome, cause)
    assert row["why"]
    assert [f["id"] for f in answer["findings"]] == [cause]
    assert (out / row["log"]).read_text()
    assert gone(pids)


def test_finished_is_finished_until_retry_is_asked_for(environment: Path, model: Path, tmp_path: Path) -> None:
    out, plan = tmp_path / "out", ("--context", "1K", "--axes", "context", "--mtp", "0")
    sweep(environment, model, out, *plan, stub="die:nothing")
    code, _, _ = sweep(environment, model, out, *plan)
    assert (code, len(rows(out))) == (2, 1)
    # the last row of a point counts
    code, answer, _ = sweep(environment, model, out, *plan, "--retry")
    assert (code, answer["verdict"], len(rows(out)), len(answer["sweep"]["rows"])) == (0, "ready", 2, 1)


def test_one_failed_point_among_others_costs_and_does_not_block(
    environment: Path, model: Path, tmp_path: Path
) -> None:
    out, plan = tmp_path / "out", ("--context", "1K,2K", "--axes", "context", "--mtp", "0")
    sweep(environment, model, out, "--context", "1K", *plan[2:])
    code, answer, _ = sweep(environment, model, out, *plan, stub="die:utilization")
    assert (code, answer["verdict"]) == (1, "degraded")
    assert [(f["id"], f["severity"]) for f in answer["findings"]] == [("util-above-free-memory", "degrades")]
    assert "2K" in answer["findings"][0]["summary"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(environment: Path, model: Path, tmp_path: Path, number: int) -> None:
    out, pids = tmp_path / "out", tmp_path / "pids"
    sweep(environment, model, out, "--context", "1K", "--axes", "context", "--mtp", "0")
    env = {**os.environ, "VLLM_STUB": "hang:loading children", "VLLM_STUB_PIDS": str(pids)}
    process = subprocess.Popen(
        command(environment, model, out, "--context", "1K,4K", "--axes", "context,mtp"), cwd=ROOT, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not running(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "1 of 4 points are kept in" in said
    assert "Traceback" not in said
    assert gone(pids)
    assert len(rows(out)) == 1
    assert (out / "sweep.md").read_text().count("| Tiny-9B | ") == 1


def test_a_plan_starts_nothing_and_writes_nothing(
    environment: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    argv = command(environment, model, out, "--plan")[3:]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert not out.exists()
    assert "plan for vLLM 0.32.0+cpu on" in shown
    assert "does not fit, not" in shown
    assert "starts, about" in shown
    assert main([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["command"], answer["verdict"], answer["sweep"]["rows"]) == ("sweep", "ready", [])
    assert len(answer["sweep"]["points"]) == 21
    predicted = {p["label"]: p["predicted"]["fits"] for p in answer["sweep"]["points"]}
    assert set(predicted.values()) == {True, False}
    fits = sum(predicted.values())
    assert (answer["sweep"]["to_start"], answer["sweep"]["estimate_s"]) == (fits, 120.0 * fits)


def test_a_plan_for_a_card_that_is_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["sweep", "--plan", "--model", str(CONFIG), "--gpu", "RTX 2080 Ti", "--vram", "22", "--util", "0.8"]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "GeForce RTX 2080 Ti 22 GB" in shown
    assert "--max-model-len 107520" in shown
    assert main([a for a in argv if a != "--plan"]) == 3
    assert "--gpu and --vram go with --plan" in capsys.readouterr().err


@pytest.mark.parametrize("card", [None, Card("NVIDIA GeForce RTX 3090", 24 * GIB, None, (8, 6), 936e9)])
def test_a_plan_without_vllm_says_what_it_assumes(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    card: Card | None,
) -> None:
    empty = tmp_path / "empty"
    (empty / "bin").mkdir(parents=True)
    (empty / "bin/python").symlink_to(sys.executable)
    monkeypatch.setattr("doctor.smoke.profile.card_in", lambda _: card)
    argv = ["sweep", "--model", str(model), "--python", str(empty), "--out", str(tmp_path / "out"), "--plan"]
    assert main(argv) == 0
    words = " ".join(capsys.readouterr().out.split())
    version = switches(None).version
    assert f"has no vLLM; {version}, the version of the image, is assumed" in words
    assert "starts, about" in words
    if card is None:
        assert f"plan for vLLM {version}+cpu on " in words
        assert "no NVIDIA card answers here; a server on the CPU with its 1 GiB of KV cache is assumed" in words
    else:
        assert f"plan for vLLM {version} on {card.name}: Tiny-9B" in words
        assert "no NVIDIA card answers" not in words


@pytest.mark.parametrize("width", [60, 48, 30])
def test_a_narrow_terminal_cuts_no_figure_of_a_plan(tmp_path: Path, width: int) -> None:
    options = SweepOptions(models=(str(CONFIG),), out=tmp_path / "out", values=Values(), utilization=0.8)
    prepared = prepare(options, LocalHost(), Card("RTX 2080 Ti", 22 * GIB, None, (7, 5), 616e9), lambda _: None)
    out = Console(file=io.StringIO(), width=width)
    print_plan(stored(options, prepared), "", edges=False, out=out)
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert "\u2026" not in shown
    words = shown.split()
    for item in prepared.items:
        assert f"{item.point.max_model_len:,}" in words
        assert f"{item.point.max_num_batched_tokens:,}" in words
        if "later" not in shown.rpartition("left out")[2]:
            assert item.forecast.later is not None
            assert f"{item.forecast.later.tokens:,}" in words
    assert "left out, the terminal is too narrow: model" in " ".join(words)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--model is missing"),
        (("--model", "M", "--axes", "contxt"), "'contxt' is not one of context, sequences, batched, mtp"),
        (("--model", "M", "--context", "8K,x"), "'x' is not a whole number"),
        (("--model", "M", "--context", "8"), "--context 8 is out of range"),
        (("--model", "M", "--util", "2"), "--util 2"),
        (("--model", "M", "--", "--max-model-len", "5"), "--max-model-len cannot be given after --"),
        (("--model", "M", "--", "--port", "5"), "--port cannot be given after --"),
    ],
)
def test_misuse_is_one_line(
    environment: Path, model: Path, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    argv = [str(model) if o == "M" else o for o in options]
    where = ["--python", str(environment), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command(environment, model, tmp_path)[:4], *where, *argv], cwd=ROOT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_nothing_secret_is_kept(environment: Path, tmp_path: Path) -> None:
    secret = "hf_" + "aB3" * 12
    home = tmp_path / "home" / "petramuster"
    home.mkdir(parents=True)
    out = tmp_path / "out"
    plan = ("--context", "1K", "--axes", "context", "--mtp", "0", "--", "--hf-token", secret)
    for size, stub in ((2, ""), (4, "die:nothing")):
        sweep(environment, make_model(home / f"m{size}", size), out, *plan, stub=stub, HOME=str(home),
              VLLM_STUB_SAYS=f"loading {home}/m with {secret} for petra.muster@example.org")  # fmt: skip
    assert [r["outcome"] for r in rows(out)] == ["ok", "died"]
    kept = {p: p.read_text() for p in out.rglob("*") if p.is_file()}
    assert sum(p.suffix == ".log" for p in kept) == 2
    assert "<hf-token>" in "".join(kept.values())
    for path, text in kept.items():
        assert not [s for s in (secret, str(home), "petra.muster@") if s in text], path


#: As vLLM 0.26.0 prints them on a card (gpu_worker.py, decorators.py); the stub's own lines follow.
CARD_LINES = """\
INFO 11-30 09:50:08 [gpu_model_runner.py:4700] Model loading took 10.40 GiB memory and 3.1 seconds
INFO 11-30 09:50:09 [decorators.py:305] Directly load AOT compilation from path /c/torch_aot_compile/model
INFO 11-30 09:50:10 [gpu_worker.py:440] Available KV cache memory: 7.06 GiB
INFO 11-30 09:50:11 [gpu_worker.py:640] Free memory on device (21.1/21.99 GiB) on startup. Desired GPU memory \
utilization is (0.8, 17.59 GiB). Actual usage is 10.4 GiB for weight, 0.16 GiB for peak activation, 0.23 GiB for \
non-torch memory, and 0.06 GiB for CUDAGraph memory."""


def on_a_card(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, lines: str, stub: str, *options: str
) -> dict[str, Any]:
    """The only row of a sweep with a GPU build of vLLM, on a machine that is said to have a card."""
    environment = make_environment(folder / "gpu", "0.26.0")
    monkeypatch.setattr("doctor.sweep.prepare._own_card", lambda _: named_cards("RTX 2080 Ti", 22, None)[0])
    monkeypatch.setenv("VLLM_STUB", stub)
    monkeypatch.setenv("VLLM_STUB_SAYS", lines)
    monkeypatch.setattr("doctor.serve.interrupt.like_ctrl_c", lambda: None)
    main([*command(environment, model, folder / "out", *options)[3:]])
    (row,) = rows(folder / "out")
    return row


def test_on_a_card(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ("--context", "8K", "--axes", "context", "--mtp", "2", "--util", "0.8")
    row = on_a_card(tmp_path, model, monkeypatch, CARD_LINES, "", *plan)
    assert (row["compile"], row["peak_activation_gib"], row["weights_gib"], row["kv_gib"]) == (
        "warm",
        0.16,
        10.4,
        7.06,
    )
    assert (row["predicted"]["start"], row["setup"]["utilization"]) == ("later", 0.8)
    assert row["setup"]["card"] == "GeForce RTX 2080 Ti 22 GB"
    for part in (["--gpu-memory-utilization", "0.8"], ["--language-model-only"], ["--max-num-seqs", "1"]):
        at = row["argv"].index(part[0])
        assert row["argv"][at : at + len(part)] == part
    assert "--enforce-eager" not in row["argv"]


def test_refused_with_an_empty_compile_cache_is_started_once_more(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = CARD_LINES.replace("Directly load AOT compilation from path", "saved AOT compiled function to")
    edge = ("--context", "128K", "--axes", "context", "--mtp", "2", "--util", "0.8")
    config = make_heavy(model)
    row = on_a_card(tmp_path, config, monkeypatch, cold, "die:utilization", *edge)
    assert row["predicted"]["fits"] is None  # within the uncertainty
    assert (row["outcome"], row["compile"]) == ("refused", "cold")
    assert row["first_start"] == row["why"]
    certain = ("--context", "8K", *edge[2:])
    (tmp_path / "second").mkdir()
    row = on_a_card(tmp_path / "second", config, monkeypatch, cold, "die:utilization", *certain)
    assert (row["outcome"], "first_start" in row) == ("refused", False)


def test_a_resumed_sweep_keeps_its_share_of_memory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--context", "8K", "--axes", "context", "--mtp", "2")
    first = on_a_card(tmp_path, model, monkeypatch, CARD_LINES, "", *plan)
    # a browser was opened meanwhile: less is free, and less would be recommended
    fuller = replace(named_cards("RTX 2080 Ti", 22, None)[0], free_bytes=18 << 30)
    monkeypatch.setattr("doctor.sweep.prepare._own_card", lambda _: fuller)
    argv = [*command(tmp_path / "gpu", model, tmp_path / "out", *plan, "--json")[3:]]
    assert recommended(fuller) < first["setup"]["utilization"]
    capsys.readouterr()
    main(argv)
    part = json.loads(capsys.readouterr().out)["sweep"]
    assert (part["resumed"], len(part["rows"]), part["not_started"]) == (1, 1, [])
    assert any(" as in the rows that are there; now " in note for note in part["notes"])
    assert len(rows(tmp_path / "out")) == 1
    main([*argv, "--util", "0.7"])
    assert [r["setup"]["utilization"] for r in rows(tmp_path / "out")] == [first["setup"]["utilization"], 0.7]


def make_heavy(model: Path) -> Path:
    """Weights under a name that tells nothing of their size: then it follows from the configuration."""
    (model / "model.safetensors").rename(model / "weights.safetensors")
    return model


def test_a_model_that_is_not_there(environment: Path, tmp_path: Path) -> None:
    code, answer, _ = sweep(environment, tmp_path / "none", tmp_path / "out", *SMALL)
    assert (code, answer["verdict"]) == (2, "blocked")
    assert [f["id"] for f in answer["findings"]] == ["model-path-invalid"]
    assert not (tmp_path / "out").exists()
