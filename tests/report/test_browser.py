"""The page in a real Chromium: nothing loaded, nothing complained of, every plot to be seen, phone and desktop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main
from tests.report import browser, samples

#: Where something is on the page, and what colours it has. WCAG's contrast of text and what lies behind it.
_SCRIPT = """
(() => {
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92
    : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + .05) / (y + .05); };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  const box = e => { const r = e.getBoundingClientRect();
    return {x: r.x, y: r.y + scrollY, width: r.width, height: r.height, right: r.right}; };
  const svgs = [...document.querySelectorAll('svg')];
  const words = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  const texts = [...document.querySelectorAll('main *')].filter(e => words(e) && e.getClientRects().length);
  return {
    overflow: document.documentElement.scrollWidth - innerWidth,
    svgs: svgs.map(s => ({label: s.getAttribute('aria-label'), box: box(s),
      marks: [...s.querySelectorAll('rect,circle,polyline')].map(box),
      texts: [...s.querySelectorAll('text')].map(t => ({text: t.textContent, box: box(t)}))})),
    faint: texts.map(e => { const s = getComputedStyle(e);
      return {text: e.textContent.trim().slice(0, 40),
        contrast: contrast(rgb(e.closest('svg') ? s.fill : s.color), behind(e))}; })
      .filter(t => t.contrast < 4.5),
    texts: texts.length,
    cut: [...document.querySelectorAll('.wide')].filter(w => w.querySelector('.labels')
      && w.scrollWidth > w.clientWidth).map(w => w.textContent.slice(0, 60)),
  };
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a smoke test with every kind of plot, and of a whole sweep."""
    folder = tmp_path_factory.mktemp("page")
    shapes = [
        {"shape": name, "first_s": 2.9, "later_s": [0.1], "usual_s": 0.15}
        for name in ("short prompt", "prompt of two blocks, repeated", "several at once")
    ]
    probes = [
        {"name": "first_requests", "status": "pass", "why": "fine", "measured": {"shapes": shapes}},
        {"name": "prefix_cache", "status": "fail", "why": "544 cached tokens are no multiple of 528",
         "measured": {"ttft_s": [3.3, 0.7, 0.71], "cached_tokens": [0, 544, 544]},
         "expected": {"multiple_of": 528}},
        {"name": "mtp_speed", "status": "advise", "why": "slower", "measured": {"tokens_per_s":
         {"base": 52.0, "prefix caching": 51.5, "MTP": 60.1, "MTP + prefix caching": 59.9}}},
    ]  # fmt: skip
    argv = ["/opt/env/bin/vllm", "serve", "/models/" + "a-long-name-" * 8, "--max-model-len", "8192"]
    smoke: dict[str, Any] = {
        "schema_version": 1, "command": "smoke", "verdict": "blocked", "passed": [], "waived": [],
        "skipped": [{"id": "needle", "why": "x" * 200}],
        "findings": [{
            "id": "prefix-cache-miscounts", "area": "serving", "severity": "blocker", "confidence": "proven",
            "title": "Cached tokens are counted wrongly", "summary": "544 " * 60, "cause": "...",
            "evidence": [{"fact": "log", "value": "y" * 300, "source": "/models/log:1"}],
            "fixes": [{"summary": "Update", "commands": [["pip", "install", "-U", "vllm" + "=" * 90]]}],
        }],
        "smoke": {"server": {"vllm": "0.26.0", "state": "healthy", "model": argv[2].replace("-", "_"),
                             "argv": argv, "env": {}, "phases": [{"phase": "loading", "at_s": 3.5}]},
                  "probes": probes},
    }  # fmt: skip
    (folder / "smoke.json").write_text(json.dumps(smoke))
    (folder / "sweep.jsonl").write_text("".join(json.dumps(r) + "\n" for r in samples.plan()))
    (folder / "server.log").write_text("z" * 500 + "\n</pre><script>document.title = 'run'</script>\n")
    assert main(["report", str(folder / "smoke.json"), str(folder / "sweep.jsonl"), "--out", str(folder)]) == 0
    return folder / "vllm-doctor-report.html"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip(f"no Chromium on PATH ({', '.join(browser.NAMES[:2])}); Debian: chromium-headless-shell")
    one = browser.Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


PLOTS = 4 + 3  # of the sweep; of the smoke test


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_is_whole_and_readable(
    chromium: browser.Browser, page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    chromium.show(page, width, dark=dark)
    seen = chromium.ask(_SCRIPT)
    assert chromium.complaints() == []
    assert chromium.requests() == [page.as_uri()]
    assert chromium.ask("document.title") == "vllm-doctor: blocked"  # no script of a log was run
    assert seen["overflow"] <= 0
    assert seen["faint"] == []
    assert seen["cut"] == []  # only tables of many or long columns scroll
    assert seen["texts"] > 100
    assert len(seen["svgs"]) == PLOTS
    for picture in seen["svgs"]:
        _is_visible(picture, width)
    target = tmp_path / "page.png"
    chromium.screenshot(target)
    assert target.stat().st_size > 50_000


def _is_visible(picture: dict[str, Any], width: int) -> None:
    """Large enough, on the page, with marks in it, and no label cut off or under another."""
    name, box = picture["label"], picture["box"]
    assert box["width"] >= min(300, width - 60), name
    assert box["height"] >= 60, name
    assert box["x"] >= 0, name
    assert box["right"] <= width, name
    assert picture["marks"], name
    for mark in picture["marks"]:
        assert mark["x"] >= box["x"] - 1, name
        assert mark["right"] <= box["right"] + 1, name
    texts = [t for t in picture["texts"] if t["text"]]
    for text in texts:
        assert text["box"]["x"] >= box["x"] - 1, (name, text["text"])
        assert text["box"]["right"] <= box["right"] + 1, (name, text["text"])
        assert max(text["box"]["height"], text["box"]["width"]) >= 9, (name, text["text"])
    for number, one in enumerate(texts):
        for other in texts[number + 1 :]:
            assert not _overlap(one["box"], other["box"]), (name, one["text"], other["text"])


def _overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    across = min(a["right"], b["right"]) - max(a["x"], b["x"])
    down = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
    return across > 1 and down > 3  # boxes of lines above each other touch


def test_what_is_folded_opens_without_a_script(chromium: browser.Browser, page: Path) -> None:
    chromium.show(page, 1280)
    closed = chromium.ask("document.querySelector('details pre').checkVisibility()")
    chromium.ask("document.querySelector('details summary').click()")
    assert closed is False
    assert chromium.ask("document.querySelector('details pre').checkVisibility()") is True


def test_plots_in_files_of_their_own(chromium: browser.Browser, tmp_path: Path) -> None:
    from doctor.report.plot import svg
    from doctor.report.sweep_view import plots

    for plot in plots(samples.plan()):
        target = tmp_path / f"{plot.name}.svg"
        target.write_text(svg(plot))
        chromium.show(target, 1280)
        assert chromium.complaints() == []
        assert chromium.ask("document.querySelectorAll('polyline').length") == len(plot.curves)
        assert chromium.ask("document.documentElement.getBoundingClientRect().width") > 400
