"""A report in Markdown, ready to be pasted into an issue: short above, evidence and logs fenced and folded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from doctor.report.document import Document
from doctor.report.issue import shell
from doctor.report.parts import Bars, Table, plain
from doctor.report.plot import Plot


def render(document: Document) -> str:
    """The whole report as GitHub Markdown, under the headings of a maintainers' issue form."""
    issue = document.issue
    made = f", {document.made}" if document.made else ""
    out = ["### Issue Type", "", issue.kind, "", "### Summary", ""]
    out += [" ".join(_text(s) for s in issue.summary), ""]
    out += [
        f"Made by vllm-doctor {_text(document.version)} ({', '.join(document.commands_run)}{made}). Secrets and "
        "names are redacted.",
        "",
    ]
    out += ["### Reproduction Steps", ""]
    steps = list(dict.fromkeys(document.reproduce))
    out += [*_fenced("\n".join(steps), "sh"), ""] if steps else ["See the command below.", ""]
    out += ["### Expected", "", *(f"- {_text(line)}" for line in issue.expected), ""]
    out += ["### Actual", "", *(f"- {_text(line)}" for line in issue.actual), ""]
    out += [line for item in document.findings for line in _finding(item)]
    for table in document.tables:
        out += _table(table)
    for bars in document.bars:
        out += _bars(bars)
    for plot in document.plots:
        out += _plot(plot)
    out += ["### Exact Command / Profile / Model", ""]
    out += [*_fenced("\n".join(issue.commands), "sh"), ""] if issue.commands else ["No server was started.", ""]
    out += _rows(("", ""), issue.profile)
    out += ["### Environment and topology", ""]
    out += _rows(("", ""), document.machine) or [
        "Not known: there is no answer of `check` among the files. `vllm-doctor report --check FILE` adds it.",
        "",
    ]
    if document.logs:
        out += ["### Logs", ""]
    for name, text in document.logs:
        out += [f"<details><summary>{_text(name)}</summary>", "", *_fenced(text, "text"), "", "</details>", ""]
    if document.skipped:
        out += [f"<details><summary>not judged: {len(document.skipped)}</summary>", ""]
        out += [f"- {_text(i)}: {_text(why)}" for i, why in document.skipped] + ["", "</details>", ""]
    return "\n".join(out).rstrip() + "\n"


def _finding(item: Mapping[str, Any]) -> list[str]:
    out = [
        f"#### {_text(item.get('title'))}",
        "",
        f"`{_code(item.get('id'))}`, {_text(item.get('severity'))}, {_text(item.get('confidence'))}",
        "",
        _text(item.get("summary") or item.get("cause")),
        "",
    ]
    rows = [f"{e.get('fact')} = {e.get('value')}  ({e.get('source')})" for e in item.get("evidence") or ()]
    if rows:
        out += [*_fenced("\n".join(rows), "text"), ""]
    for number, fix in enumerate(item.get("fixes") or (), 1):
        out += [f"{number}. {_text(fix.get('summary'))}"]
        commands = [shell(c) for c in fix.get("commands") or ()]
        if commands:
            out += ["", *(f"   {line}" for line in _fenced("\n".join(commands), "sh")), ""]
    symptoms = [str(s.get("title")) for s in item.get("symptoms") or ()]
    if symptoms:
        out += ["", f"Explains: {_text('; '.join(symptoms))}"]
    return [*out, ""]


def _table(table: Table) -> list[str]:
    return [f"#### {_text(table.title)}", "", *_rows(table.head, table.rows)] if table.rows else []


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    shown = head if any(head) else (" ", " ")
    return [_row(shown), "|" + "---|" * len(shown), *(_row(r) for r in rows), ""]


def _plot(plot: Plot) -> list[str]:
    """The figures of a plot: a picture cannot be pasted as text."""
    xs = sorted({x for curve in plot.curves for x, _ in curve.points})
    by = [dict(curve.points) for curve in plot.curves]
    head = (plot.x_label, *(curve.label for curve in plot.curves))
    rows = [(plain(int(x)), *(plain(_whole(values.get(x))) for values in by)) for x in xs]
    return _table(Table(f"{plot.title} ({plot.y_label})", head, tuple(rows)))


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


def _bars(bars: Bars) -> list[str]:
    head = ("", *(f"{s} ({bars.unit})" if s != bars.unit else s for s in bars.series))
    return _table(Table(bars.title, head, tuple((r, *(plain(v) for v in values)) for r, values in bars.rows)))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_text(c).replace("\n", "<br>") for c in cells) + " |"


def _fenced(text: str, language: str) -> list[str]:
    """A fence longer than any in the text, so that no log can end it."""
    longest = max((len(m) for m in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *text.rstrip("\n").splitlines(), fence]


def _code(value: Any) -> str:
    return str(value).replace("`", "'")


def _text(value: Any) -> str:
    """Text that Markdown shows as it is; nobody is mentioned and no issue is linked by accident."""
    text = re.sub(r"([\\`*_\[\]|~])", r"\\\1", str(value)).replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"#(?=\d)", "&#35;", text.replace("@", "&#64;")).strip()
