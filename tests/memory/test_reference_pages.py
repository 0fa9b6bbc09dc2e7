"""The pages about one card are generated; they must say what the code says, and their commands must exist."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from doctor.cli import _parser, main
from tests.memory.recipes import Recipe, recipes

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "make_reference_2080ti": "docs/measurements/reference-2080ti.md",
    "make_single_card": "docs/single-card.md",
    "make_fork_report": "docs/fork-report.md",
}
CARD = (
    '--gpu "RTX 2080 Ti" --vram 22 --free 20.81 --vllm 0.21.0 --max-num-seqs 1 --max-num-batched-tokens 1024 '
    "--max-model-len 8K"
)


def page_module(name: str) -> ModuleType:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(f"docs.{name}")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    written = (ROOT / PAGES[name]).read_text(encoding="utf-8")
    assert written == page_module(name).text(), f"run python docs/{name}.py"


def commands(name: str) -> list[list[str]]:
    """Every `vllm-doctor ...` of a page, with its placeholders filled in."""
    text = (ROOT / PAGES[name]).read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    lines = [line.split(" | ")[0] for line in blocks.splitlines() if line.startswith("vllm-doctor ")]
    spans = [line for line in re.findall(r"`(vllm-doctor [a-z][^`]*)`", text) if "..." not in line]
    return [shlex.split(line.replace("CARD", CARD), comments=True)[1:] for line in dict.fromkeys(lines + spans)]


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_the_page_is_one(name: str) -> None:
    found = commands(name)
    assert found
    for argv in found:
        own = argv[: argv.index("--")] if "--" in argv else argv
        args = _parser(own).parse_args(own)
        assert args.command == own[0]


@pytest.mark.parametrize("recipe", [r for r in recipes().values() if r.published_bytes], ids=lambda r: r.id)
def test_computed_weights_are_those_that_were_published(recipe: Recipe) -> None:
    assert recipe.published_bytes is not None
    assert abs(recipe.checkpoint_bytes / recipe.published_bytes - 1) <= recipe.tolerance


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """The placeholders as folders with a config.json."""
    out = {"MODEL": str(ROOT / "tests/memory/configs/qwen3.5-9b-awq")}
    rows = json.loads((ROOT / "tests/memory/recipes.json").read_text(encoding="utf-8"))["recipes"]
    row = next(r for r in rows if r["id"] == "27b-int4")
    config = json.loads((ROOT / f"tests/memory/configs/{row['config']}/config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = row["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return out | {"MODEL27": str(tmp_path)}


def test_the_commands_of_the_reference_give_its_figures(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader who types a `fit` command of the page sees the figure that stands beside it."""
    rows = [
        line.split(" | ")
        for line in (ROOT / PAGES["make_reference_2080ti"]).read_text(encoding="utf-8").splitlines()
        if "--available-kv" in line
    ]
    assert len(rows) >= 4
    for _, _, computed, _, cell in rows:
        words = shlex.split(cell.split("`")[1])[1:]
        main([models.get(word, word) for word in words] + ["--json"])
        kv = json.loads(capsys.readouterr().out)["fit"]["kv"]
        length = int(words[words.index("--max-model-len") + 1])
        logged = f"{kv['blocks_per_request'] * kv['bytes_per_block'] / length / 1024:.2f} KiB"
        figures = (f"{kv['capacity_tokens']:,}", f"{kv['blocks_per_request']} blocks", logged)
        assert any(figure in computed for figure in figures), (words, figures)


def test_the_overview_agrees_with_fit_where_a_real_card_was_reported() -> None:
    """The 9B fits on 22 GB and not on 11; the 27B starts there in 4 bit, but not with its MLPs alone in 4 bit."""
    page = page_module("make_single_card")
    assert page.longest(page.judged("9b-awq", "RTX 2080 Ti", 22, 0)) == "256K"
    assert page.longest(page.judged("9b-awq", "RTX 2080 Ti", 11, 0)) == "weights"
    assert page.judged("27b-int4", "RTX 2080 Ti", 22, 0).later.likely.fits
    assert page.longest(page.judged("27b-awq-mlp", "RTX 2080 Ti", 22, 0)) == "weights"


def test_every_lever_of_the_guide_gives_memory_or_says_what_it_is_for() -> None:
    page = page_module("make_single_card")
    for edge in page.EDGES:
        cells = page.ladder(*edge)
        assert len(cells) == len(page.LEVERS) + 1
        assert not cells[0].endswith("starts")
        assert cells[-1].endswith("starts")
    assert "not on this card" in page.ladder(*page.EDGES[0])  # no fp8 on a 2080 Ti
    assert "not on this card" not in page.ladder(*page.EDGES[1])


def test_links_to_causes_lead_somewhere() -> None:
    anchors = set(re.findall(r'<a id="([^"]+)">', (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")))
    for name in PAGES.values():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert set(re.findall(r"troubleshooting\.md#([\w-]+)", text)) <= anchors


#: Keys that the fork's launcher takes from outside only.
GLOBAL_KEYS = {"MODEL_DIR", "MODE", "PORT", "SERVICE_SCOPE", "GPU_DEVICES", "TP_SIZE"}


def test_the_report_has_the_headings_of_the_fork_and_a_profile_that_it_takes(tmp_path: Path) -> None:
    text = (ROOT / PAGES["make_fork_report"]).read_text(encoding="utf-8")
    issue = text.split("````markdown\n")[1].split("````")[0]
    assert re.findall(r"^### (.+)$", issue, re.MULTILINE) == [
        "Issue Type", "Summary", "Reproduction Steps", "Expected", "Actual", "Exact Command / Profile / Model",
    ]  # fmt: skip
    summary = issue.split("### Summary\n\n")[1].split("\n\n")[0]
    assert 2 <= len(re.findall(r"\.(?:\s|$)", summary)) <= 5
    profile = issue.rsplit("```sh\n", 1)[1].split("```")[0]
    keys = [line.split("=")[0] for line in profile.splitlines() if not line.startswith("#")]
    assert "COMPATIBLE_MODES" in keys
    assert not GLOBAL_KEYS & set(keys)
    assert "GPU_DEVICES=0 TP_SIZE=1" in profile  # in the comment: from outside
    written = tmp_path / "profile.env"
    written.write_text(profile, encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(written)], timeout=10).returncode == 0
    assert "measured on the card" in issue.split("### Actual")[1]


def test_the_commands_for_the_reported_card_judge_as_the_page_does(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was refused is refused, what started is at least possible."""
    text = (ROOT / PAGES["make_reference_2080ti"]).read_text(encoding="utf-8")
    judged = 0
    for line in text.splitlines():
        for span in re.findall(r"`(vllm-doctor fit MODEL CARD --util [^`]+)`", line):
            words = shlex.split(span.replace("CARD", CARD))[1:]
            code = main([models.get(word, word) for word in words] + ["--json"])
            capsys.readouterr()
            assert (code == 2) is ("refused" in line), (span, code)
            judged += 1
    assert judged >= 4
