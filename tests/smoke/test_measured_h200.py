"""docs/measurements/smoke-h200.md says what smoke-h200.json holds, and what is derived there follows from it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs/measurements"
DATA: dict[str, Any] = json.loads((FOLDER / "smoke-h200.json").read_text(encoding="utf-8"))
PAGE = (FOLDER / "smoke-h200.md").read_text(encoding="utf-8")
STARTS = ("plain", "mtp", "tiny")
FIGURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "TTFT ms": lambda r: r["ttft_s"] * 1e3,
    "prefill tokens/s": lambda r: r["prompt_tokens"] / r["ttft_s"],
    "decode tokens/s": lambda r: (r["answer_tokens"] - 1) / (r["total_s"] - r["ttft_s"]),
    "request tokens/s": lambda r: r["answer_tokens"] / r["total_s"],
}


def probes(start: str) -> dict[str, dict[str, Any]]:
    return {p["name"]: p for p in DATA["smoke"][start]["probes"]}


def lock_rows() -> Iterator[str]:
    for name, row in DATA["lock"]["already_there_other_version"].items():
        yield f"| {name} | {row['lock']} | {row['here']} |"


def probe_rows() -> Iterator[str]:
    found = [probes(start) for start in STARTS]
    for name in found[0]:
        cells = [f"{p[name]['status']}: {p[name]['why']}" if name in p else "not reached" for p in found]
        yield f"| {name} | {' | '.join(cells)} |"


def prediction_rows() -> Iterator[str]:
    for start in STARTS:
        for row in probes(start)["prediction"]["measured"]["rows"]:
            within = row["low"] <= row["measured"] <= row["high"]
            assert within == row["within"]
            range_ = f"{row['low']:,} / **{row['predicted']:,}** / {row['high']:,}"
            name = f"{row['figure']} {row['unit']}".strip()
            yield f"| {start} | {name} | {range_} | {row['measured']:,} | {'yes' if within else '**no**'} |"


def warmup_rows() -> Iterator[str]:
    for first, second in zip(DATA["warmup"]["first"]["shapes"], DATA["warmup"]["second"]["shapes"], strict=True):
        assert first["shape"] == second["shape"]
        cells = [f"{r['first_s']} / {', '.join(map(str, r['later_s']))}" for r in (first, second)]
        yield f"| {first['shape']} | {first['prompt_tokens']} | {' | '.join(cells)} |"


def bench_rows() -> Iterator[str]:
    for name, figure in FIGURES.items():
        sides = [[figure(r) for r in DATA["bench"]["raw"][side]] for side in ("ours", "vllm_bench")]
        ours, theirs = (statistics.median(side) for side in sides)
        spread = []
        for side in sides:
            low, middle, high = statistics.quantiles(side, n=4, method="inclusive")
            spread.append(f"{(high - low) / 2 / middle:.1%}")
        agrees = "yes" if abs(ours / theirs - 1) <= 0.05 else "no"
        yield f"| {name} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.3f} | {' / '.join(spread)} | {agrees} |"


@pytest.mark.parametrize("rows", [lock_rows, probe_rows, prediction_rows, warmup_rows, bench_rows])
def test_the_tables_follow_from_the_figures(rows: Any) -> None:
    lines = PAGE.splitlines()
    wanted = list(rows())
    assert wanted
    at = lines.index(wanted[0])
    assert lines[at : at + len(wanted)] == wanted
    assert not lines[at + len(wanted)].startswith("|")


@pytest.mark.parametrize("start", ["plain", "mtp"])
def test_the_second_start_holds_what_the_page_says(start: str) -> None:
    measured = probes(start)["second_start"]["measured"]
    first, second = measured["first"], measured["second"]
    gain = second["kv_tokens"] / first["kv_tokens"] - 1
    assert f"{first['kv_tokens']:,} -> {second['kv_tokens']:,} tokens (+{gain:.1%})" in PAGE
    assert f"{first['ready_s']} -> {second['ready_s']} s" in PAGE


def test_the_verdicts_are_those_of_the_day() -> None:
    assert DATA["check"]["verdict"] == "ready"
    assert {s: DATA["smoke"][s]["verdict"] for s in STARTS} == {
        "plain": "ready",
        "mtp": "degraded",
        "tiny": "degraded",
    }
    failed = {(s, n) for s in STARTS for n, p in probes(s).items() if p["status"] == "fail"}
    assert failed == {("tiny", "correctness")}


def test_the_comparison_holds_what_the_page_says() -> None:
    measured = probes("tiny")["correctness"]["measured"]
    wrong = {name: row["wrong"] for name, row in measured["servers"].items() if row["wrong"]}
    assert list(wrong) == ["MTP + prefix caching"]
    assert all("(at once)" in w and f"- {w}" in PAGE.splitlines() for w in wrong["MTP + prefix caching"])
    repeats = DATA["tiny_more"]["repeats"]
    assert [(r["status"], len(r["wrong"]), r["compared"]) for r in repeats] == [("fail", 4, 51), ("pass", 0, 51)]


def test_kernels_compile_in_the_first_warmup_only() -> None:
    first, second = (DATA["warmup"][run]["kernels"] for run in ("first", "second"))
    assert len(first["first"]) == 8
    assert first["later"] == second["first"] == second["later"] == []
    assert all(f"`{kernel}`" in PAGE for kernel in first["first"])
