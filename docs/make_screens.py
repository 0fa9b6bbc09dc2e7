"""Draws what `vllm-doctor explain` prints for the most frequent causes: docs/explain.md and docs/screens/*.svg.

python docs/make_screens.py    (tests/evidence/test_screens.py fails when they are stale)
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.style import Style
from rich.text import Text

from doctor import catalogue
from doctor.checks.registry import judge, registered
from doctor.commands.explain import by_place
from doctor.evidence.load import read_evidence
from doctor.report.explain_view import print_explanation
from doctor.report.redact import Redactor

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests/cases/files"
WIDTH = 100  # columns
#: (cause, a log that shows it), the most frequent first.
SCREENS = (
    ("driver-too-old-for-cuda-build", "030-driver-too-old-12080-cu130-wheel.log"),
    ("container-runtime-not-registered", "051-docker-unknown-runtime-nvidia.log"),
    ("c-compiler-missing", "023-jit-no-c-compiler.log"),
    ("gxx12-missing", "016-jit-cc1plus-missing-gcc12.log"),
    ("python-headers-missing", "017-jit-python-h-missing.log"),
    ("transformers-too-old-for-model", "062-ver-qwen3_5-not-recognized.log"),
    ("vllm-torch-cuda-major-mismatch", "065-ver-libcudart-13-missing.log"),
    ("gpu-too-new-for-torch-build", "035-arch-5090-sm120-old-torch.log"),
    ("kv-cache-too-small-for-context", "042-mem-kv-max-seq-len-7344.log"),
    ("util-above-free-memory", "007-wsl2-util-095-windows-overhead.log"),
    ("shm-too-small", "060-nccl-shm-64m-docker.log"),
    ("wsl2-uva-unavailable", "001-wsl2-uva-v2-runner.log"),
)

HEAD = """\
# What killed this run: `vllm-doctor explain`

<!-- Made by docs/make_screens.py; do not edit. -->

Give it whatever you have: a server's log of any length, the traceback of an issue, the report of
`vllm collect-env`, nvidia-smi, docker's answer, the output of pip, apt, gcc or dmesg; files, gzip, UTF-16,
several at once, or standard input.

    vllm-doctor explain server.log collect_env.txt
    docker logs vllm 2>&1 | vllm-doctor explain -
    journalctl -u vllm | vllm-doctor explain -
    vllm-doctor explain CAUSE-ID            # the page of one cause

The first lines name the cause and how sure it is: *proven* means that this text alone proves it, *likely*
that little else is left, *a hint* that it was only seen together with the failure. Then what to do, what was
seen and where, and what people try in vain. `-v` adds all evidence and the warnings that are harmless,
`--json` is for programs, and `check --from FILE` judges the same text like a machine. Tokens, names, UUIDs
and public addresses are left out. Exit code: 0 nothing is wrong, 1 degraded or not known, 2 a cause that
stops vLLM, 3 misuse.

[troubleshooting.md](troubleshooting.md) lists all causes by message and by symptom. The most frequent ones
look like this:
"""

_COLUMN, _ROW, _SIZE = 8.4, 19, 14  # pixels of a character, of a line, of the font
_COLOURS = {1: "#f47067", 2: "#6bc46d", 3: "#daaa3f", 4: "#6cb6ff", 6: "#56d4dd"}  # by ANSI number


@contextlib.contextmanager
def pasted(name: str) -> Iterator[str]:
    """The log as the user's ``server.log`` in the current folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(CASES / name, Path(folder, "server.log"))
        os.chdir(folder)
        try:
            yield "server.log"
        finally:
            os.chdir(before)


def shown(name: str) -> Console:
    """What a terminal shows for the log, recorded."""
    out = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, highlight=False,
                  color_system="standard", legacy_windows=False, _environ={})  # fmt: skip
    with pasted(name) as path:
        reading = read_evidence([path])
        out.print(f"$ vllm-doctor explain {path}")
        print_explanation(by_place(judge(reading.snapshot, registered())), reading, Redactor(), out=out)
    return out


def text_of(console: Console) -> list[str]:
    """The lines, without blanks at their ends."""
    return [line.rstrip() for line in console.export_text(clear=False, styles=False).rstrip("\n").split("\n")]


def _marks(style: Style | None) -> str:
    marks = ""
    if style and style.bold:
        marks += ' font-weight="bold"'
    if style and style.dim:
        marks += ' fill-opacity="0.65"'
    if style and style.color and style.color.number in _COLOURS:
        marks += f' fill="{_COLOURS[style.color.number]}"'
    return marks


def svg(console: Console) -> str:
    """A picture of the terminal: text stays text, no font is loaded from anywhere."""
    printed = Text.from_ansi(cast("io.StringIO", console.file).getvalue().rstrip())
    lines = [[(part.text, _marks(part.style)) for part in line.render(console)] for line in printed.split("\n")]
    width, height = int(WIDTH * _COLUMN) + 32, len(lines) * _ROW + 32
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#22272e"/>',
        f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{_SIZE}" fill="#cdd9e5" '
        'xml:space="preserve" style="white-space:pre">',
    ]
    for row, parts in enumerate(lines):
        column, spans = 0, []
        for text, marks in parts:
            kept = text.rstrip() if (text, marks) == parts[-1] else text
            if kept.strip():
                lead = len(kept) - len(kept.lstrip())
                words = html.escape(kept.strip(), quote=False)
                length = len(kept.strip()) * _COLUMN
                spans.append(
                    f'<text x="{16 + (column + lead) * _COLUMN:.1f}" y="{16 + row * _ROW + _SIZE}" '
                    f'textLength="{length:.1f}"{marks}>{words}</text>'
                )
            column += len(text)
        out.extend(spans)
    return "\n".join([*out, "</g>", "</svg>", ""])


def page() -> str:
    """docs/explain.md."""
    out = [HEAD]
    for cause, _ in SCREENS:
        title = catalogue.cause(cause).title
        out += [f"## {title}", "", f"![vllm-doctor explain: {title}](screens/{cause}.svg)", ""]
    return "\n".join(out)


def main() -> int:
    """Writes every picture and the page."""
    folder = ROOT / "docs/screens"
    folder.mkdir(exist_ok=True)
    for cause, name in SCREENS:
        (folder / f"{cause}.svg").write_text(svg(shown(name)), encoding="utf-8")
    (ROOT / "docs/explain.md").write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
