"""A report as one HTML page: no script, nothing loaded from anywhere, light and dark, fit to print."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from doctor.report import plot
from doctor.report.document import Document
from doctor.report.issue import shell
from doctor.report.parts import Bars, Table, plain

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2330;--soft:#5b6475;--line:#d9dee7;--bg:#fff;--card:#f6f7fa;
--ready:#137a3b;--degraded:#9a6200;--unknown:#9a6200;--blocked:#b3261e;--a:#2f6fd6;--b:#9db7e0}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9f0;--soft:#9aa4b6;--line:#323a49;--bg:#12161e;--card:#1a202b;
--ready:#58c98a;--degraded:#e6b450;--unknown:#e6b450;--blocked:#ff8a80;--a:#6ea0ff;--b:#3d5a8c}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1rem 4rem}h1{font-size:1.7rem;margin:0 0 .2rem}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.3rem}
h3{font-size:1.05rem;margin:0 0 .2rem}p{margin:.4rem 0}.soft{color:var(--soft);font-size:.9rem}
.verdict{text-transform:uppercase;font-weight:700;letter-spacing:.04em}
.ready,.pass{color:var(--ready)}.degraded,.advise{color:var(--degraded)}.unknown,.abstain{color:var(--unknown)}
.blocked,.fail,.blocker{color:var(--blocked)}.abstain,.note{color:var(--soft)}
article{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem;margin:.8rem 0}
table{border-collapse:collapse;width:100%;font-size:.92rem}th,td{text-align:left;vertical-align:top;
padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);overflow-wrap:break-word}th{color:var(--soft)}
.labels td:first-child{white-space:nowrap}
pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.7rem;overflow:auto;
font-size:.82rem;line-height:1.45;white-space:pre-wrap;overflow-wrap:anywhere}
code{font-size:.9em;overflow-wrap:anywhere}summary{cursor:pointer}
svg{display:block;width:100%;max-width:35rem;height:auto;font:14px system-ui,sans-serif}
.bars text{fill:var(--ink)}.s0{fill:var(--a)}.s1{fill:var(--b)}
.wide{overflow-x:auto}.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));
gap:0 1.5rem;align-items:start}.many td,.many th{white-space:nowrap}
.labels td{overflow-wrap:anywhere}figure{margin:0 0 1.5rem}
figcaption{font-weight:600;margin-bottom:.4rem}
@media print{main{max-width:none}details>*{display:block}article{break-inside:avoid}}
"""

#: Columns above which cells are kept on one line and the table scrolls.
_COLUMNS = 6
#: Characters up to which the first cells of a table stay on one line.
_LABEL = 24


def render(document: Document) -> str:
    """The whole page."""
    run = ", ".join(document.commands_run)
    verdict, headline = escape(document.verdict), escape(document.headline)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>vllm-doctor: {headline}</title><style>{_STYLE}{plot.STYLE}</style></head><body><main>",
        f'<h1>vllm-doctor: <span class="verdict {verdict}">{headline}</span></h1>',
        f'<p class="soft">vllm-doctor {escape(document.version)}; {escape(run)}; {escape(document.made)}. '
        f"{document.passed} passed, {len(document.skipped)} not judged. Secrets and names are redacted.</p>",
    ]
    spoken = document.headline == document.verdict  # then the first sentence says it again
    summary = " ".join(document.issue.summary[1 if spoken else 0 :])
    parts.append(f"<p>{escape(summary)}</p>" if summary else "")
    if document.machine:
        parts.append(_table(Table("Machine", ("", ""), document.machine)))
    parts.append("<h2>Findings</h2>")
    parts += [_finding(f) for f in document.findings] or ["<p>None.</p>"]
    if document.plots or document.bars:
        parts.append('<h2>Plots</h2><div class="grid">')
        parts += [
            f"<figure><figcaption>{escape(p.title)}</figcaption>{plot.svg(p, inline=True)}</figure>"
            for p in document.plots
        ]
        parts += [*(_bars(b) for b in document.bars), "</div>"]
    parts += [_table(t) for t in document.tables]
    if document.reproduce:
        parts.append(f"<h2>Reproduce</h2>{_pre(chr(10).join(dict.fromkeys(document.reproduce)))}")
    if document.logs:
        parts.append("<h2>Logs</h2>")
        parts += [f"<details><summary>{escape(n)}</summary>{_pre(t)}</details>" for n, t in document.logs]
    if document.skipped:
        rows = "".join(f"<li><code>{escape(i)}</code> {escape(why)}</li>" for i, why in document.skipped)
        parts.append(
            f"<h2>Not judged</h2><details><summary>{len(document.skipped)}</summary><ul>{rows}</ul></details>"
        )
    return "\n".join([*parts, "</main></body></html>"]) + "\n"


def _finding(item: Mapping[str, Any]) -> str:
    name, severity, confidence = (escape(str(item.get(k)), quote=True) for k in ("id", "severity", "confidence"))
    out = [
        f'<article id="{name}"><h3 class="{severity}">{escape(str(item.get("title")))}</h3>',
        f'<p class="soft"><code>{name}</code>, {severity}, {confidence}</p>',
        f"<p>{escape(str(item.get('summary') or item.get('cause')))}</p>",
    ]
    fixes = item.get("fixes") or ()
    if fixes:
        steps = []
        for fix in fixes:
            commands = "\n".join(shell(c) for c in fix.get("commands") or ())
            steps.append(f"<li>{escape(str(fix.get('summary')))}{_pre(commands) if commands else ''}</li>")
        out.append(f"<ol>{''.join(steps)}</ol>")
    evidence = "\n".join(
        f"{e.get('fact')} = {e.get('value')}  ({e.get('source')})" for e in item.get("evidence") or ()
    )
    if evidence:
        out.append(f"<details><summary>Evidence</summary>{_pre(evidence)}</details>")
    symptoms = "; ".join(str(s.get("title")) for s in item.get("symptoms") or ())
    if symptoms:
        out.append(f'<p class="soft">Explains: {escape(symptoms)}</p>')
    return "".join(out) + "</article>"


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    head = "".join(f"<th>{escape(h)}</th>" for h in table.head) if any(table.head) else ""
    rows = []
    for row in table.rows:
        cells = [f"<td>{escape(c).replace(chr(10), '<br>')}</td>" for c in row]
        if row[0] in ("pass", "advise", "fail", "abstain"):
            cells[0] = f'<td class="{row[0]}">{row[0]}</td>'
        rows.append(f"<tr>{''.join(cells)}</tr>")
    kind = "many" if len(table.rows[0]) > _COLUMNS else ""
    kind = kind or ("labels" if max(len(row[0]) for row in table.rows) <= _LABEL else "")
    body = f"<table class='{kind}'>{f'<tr>{head}</tr>' if head else ''}{''.join(rows)}</table>"
    # a table of many columns scrolls by itself, so that the page does not
    return f'<h2>{escape(table.title)}</h2><div class="wide" tabindex="0">{body}</div>'


def _bars(bars: Bars) -> str:
    """A bar chart as inline SVG: the label above, a bar for each series, its value at the end."""
    values = [v for _, row in bars.rows for v in row if v is not None]
    longest = max(values, default=0.0) or 1.0
    out, top = [], 0
    for label, row in bars.rows:
        out.append(f'<text x="0" y="{top + 14}">{escape(label)}</text>')
        top += 20
        for number, value in enumerate(row):
            if value is None:
                continue
            width = max(1.0, value / longest * 400)
            out.append(f'<rect class="s{number % 2}" x="0" y="{top}" width="{width:.1f}" height="14" rx="2"/>')
            out.append(f'<text x="{width + 8:.1f}" y="{top + 12}">{escape(plain(value))}</text>')
            top += 17
        top += 8
    names = ", ".join(bars.series)
    title = escape(
        f"{bars.title} ({bars.unit}; {names})" if len(bars.series) > 1 else f"{bars.title} ({bars.unit})"
    )
    picture = f'<svg class="bars" viewBox="0 0 480 {top}" role="img" aria-label="{title}">{"".join(out)}</svg>'
    return f"<figure><figcaption>{title}</figcaption>{picture}</figure>"


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
