"""What a report shows, taken from the JSON answers of commands: the form that both HTML and Markdown draw.

An answer is what ``--json`` printed, fresh or from a file. Nothing is judged here; texts are redacted before
they come here (see :mod:`doctor.commands.report`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor import __version__
from doctor.report import sweep_view
from doctor.report.issue import Issue, describe, shell
from doctor.report.machine import machine_rows
from doctor.report.plot import Plot
from doctor.snapshot import Snapshot, SnapshotError, loads
from doctor.sweep.plan import AXES

_VERDICTS = ("blocked", "degraded", "unknown", "ready")
_SERVER_FIGURES = (
    ("vLLM", "vllm"),
    ("model", "model"),
    ("URL", "url"),
    ("state", "state"),
    ("ready after (s)", "ready_s"),
    ("weights (GiB)", "weights_gib"),
    ("KV pool (GiB)", "available_kv_gib"),
    ("KV pool (tokens)", "kv_tokens"),
    ("concurrency", "concurrency"),
    ("block (tokens)", "block_size"),
)


_SWEEP_OPTIONS = (
    ("--context", "max_model_len"),
    ("--mtp", "draft_tokens"),
    ("--sequences", "max_num_seqs"),
    ("--batched", "max_num_batched_tokens"),
)


@dataclass(frozen=True)
class Bars:
    """A small chart: a label, and a value for each of the series; None = not measured."""

    title: str
    unit: str
    series: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]


@dataclass(frozen=True)
class Table:
    """Rows of texts under a heading."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass
class Document:
    """Everything a report shows, in its order. ``logs``: (name, text); ``commands``: shell lines."""

    verdict: str
    commands_run: tuple[str, ...]
    machine: tuple[tuple[str, str], ...] = ()
    findings: list[Mapping[str, Any]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    passed: int = 0
    tables: list[Table] = field(default_factory=list)
    bars: list[Bars] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    logs: list[tuple[str, str]] = field(default_factory=list)
    reproduce: list[str] = field(default_factory=list)
    issue: Issue = field(default_factory=Issue)
    version: str = __version__
    made: str = ""


def build(answers: Sequence[Mapping[str, Any]], logs: Sequence[tuple[str, str]] = (), made: str = "") -> Document:
    """One document from one or several answers."""
    verdicts = [str(a.get("verdict")) for a in answers]
    worst = next((v for v in _VERDICTS if v in verdicts), "unknown")
    out = Document(worst, tuple(str(a.get("command") or "check") for a in answers), logs=list(logs), made=made)
    seen: set[str] = set()
    for answer in answers:
        for item in _dicts(answer.get("findings")):
            if str(item.get("id")) not in seen:
                seen.add(str(item.get("id")))
                out.findings.append(item)
        out.skipped += [(str(s.get("id")), str(s.get("why"))) for s in _dicts(answer.get("skipped"))]
        out.passed += len(answer.get("passed") or ())
        out.machine = out.machine or _machine(answer)
        _smoke(answer, out)
        _warmup(answer, out)
        _sweep(answer, out)
        out.reproduce += _reproduce(answer)
    _predicted(answers, out)
    out.issue = describe(answers, worst, out.findings)
    return out


def plain(value: Any) -> str:
    """A figure or text for a cell."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def _machine(answer: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    snapshot = answer.get("snapshot")
    if not isinstance(snapshot, dict):
        return ()
    try:
        facts = loads(json.dumps(snapshot))
    except SnapshotError:
        return ()
    return (*machine_rows(facts), *_topology(facts))


def _topology(facts: Snapshot) -> list[tuple[str, str]]:
    """How many cards there are and how each is attached: `nvidia-smi topo -m` shows no more of one card."""
    if facts.gpus is None:
        return []
    lines = [f"{len(facts.gpus)} GPU{'' if len(facts.gpus) == 1 else 's'}"]
    for gpu in facts.gpus:
        width = f"x{gpu.pcie_width} of x{gpu.pcie_width_max}" if gpu.pcie_width and gpu.pcie_width_max else ""
        link = (
            f"PCIe generation {gpu.pcie_gen} of {gpu.pcie_gen_max} {width}" if gpu.pcie_gen else "link not known"
        )
        screen = "a display is attached" if gpu.display_active else ""
        lines.append(", ".join(part for part in (f"{gpu.index}: {link.strip()}", screen) if part))
    return [("topology", "\n".join(lines))]


def _smoke(answer: Mapping[str, Any], out: Document) -> None:
    smoke = answer.get("smoke")
    if not isinstance(smoke, dict):
        return
    server = smoke.get("server") or {}
    rows = tuple((label, plain(server[key])) for label, key in _SERVER_FIGURES if server.get(key) is not None)
    out.tables.append(Table("Server", ("", ""), rows))
    phases = _dicts(server.get("phases"))
    if phases:
        out.tables.append(
            Table("Start", ("phase", "at s"), tuple((str(p.get("phase")), plain(p.get("at_s"))) for p in phases))
        )
    probes = _dicts(smoke.get("probes"))
    rows3 = tuple((str(p.get("status")), str(p.get("name")), str(p.get("why"))) for p in probes)
    out.tables.append(Table("Probes", ("result", "probe", "what was seen"), rows3))
    for one in probes:
        _bars(str(one.get("name")), one.get("measured") or {}, out)
    settings = smoke.get("settings_that_passed") or {}
    if settings:
        shown = tuple(
            (k, plain(v if not isinstance(v, (list, dict)) else json.dumps(v))) for k, v in settings.items()
        )
        out.tables.append(Table("Settings that passed", ("", ""), shown))


def _bars(name: str, measured: Mapping[str, Any], out: Document) -> None:
    if name == "first_requests":
        _shape_bars(measured.get("shapes"), out)
    elif name == "prefix_cache" and measured.get("ttft_s"):
        cached = measured.get("cached_tokens") or []
        rows = tuple(
            (f"request {n}" + (f", {cached[n - 1]} cached" if n <= len(cached) else ""), (_number(t),))
            for n, t in enumerate(measured["ttft_s"], 1)
        )
        out.bars.append(Bars("Time to the first token of one repeated prompt", "s", ("seconds",), rows))
    elif name == "mtp_speed" and measured.get("tokens_per_s"):
        rows = tuple((str(k), (_number(v),)) for k, v in measured["tokens_per_s"].items())
        out.bars.append(Bars("Decode speed of one stream", "tokens/s", ("tokens/s",), rows))
    elif name == "correctness" and isinstance(measured.get("servers"), dict):
        servers = [(str(k), v) for k, v in measured["servers"].items() if isinstance(v, dict)]
        out.tables.append(
            Table(
                f"Correctness: differences in nats (tolerance {plain(measured.get('tolerance_nats'))})",
                ("server", "to base", "to itself", "wrong", "lost", "compared"),
                tuple(
                    (
                        k,
                        plain(v.get("to_base")),
                        plain(v.get("to_itself")),
                        plain(len(v.get("wrong") or ())),
                        plain(len(v.get("lost") or ())),
                        plain(v.get("compared")),
                    )
                    for k, v in servers
                ),
            )
        )


def _warmup(answer: Mapping[str, Any], out: Document) -> None:
    warm = answer.get("warmup")
    if isinstance(warm, dict):
        _shape_bars(warm.get("shapes"), out)


def _sweep(answer: Mapping[str, Any], out: Document) -> None:
    sweep = answer.get("sweep")
    if not isinstance(sweep, dict):
        return
    rows = _dicts(sweep.get("rows"))
    setup = sweep.get("setup") or {}
    where = f"vLLM {setup.get('vllm')} on {setup.get('card') or setup.get('cpu') or 'a CPU'}"
    if rows:
        out.tables.append(Table(f"Sweep: {where}", *sweep_view.table(rows)))
    compared = sweep_view.comparison(rows)
    if compared:
        out.tables.append(Table(f"Predicted and measured: {where}", sweep_view.COMPARED, compared))
    out.plots += sweep_view.plots(rows)


def _shape_bars(shapes: Any, out: Document) -> None:
    rows = [
        (str(one.get("shape")), (_number(one.get("first_s")), _number(one.get("usual_s"))))
        for one in _dicts(shapes)
    ]
    if rows:
        out.bars.append(
            Bars("First request of each shape against later ones", "s", ("first", "later"), tuple(rows))
        )


def _predicted(answers: Sequence[Mapping[str, Any]], out: Document) -> None:
    """A fit and a smoke test together: what was predicted beside what vLLM printed."""
    fit = next((a["fit"] for a in answers if isinstance(a.get("fit"), dict)), None)
    smoke = next((a["smoke"] for a in answers if isinstance(a.get("smoke"), dict)), None)
    if fit is None or smoke is None:
        return
    server = smoke.get("server") or {}
    kv, first, later = (fit.get(k) or {} for k in ("kv", "first_start", "later_starts"))
    rows = [
        ("weights (GiB)", _gib(fit.get("weights_bytes")), server.get("weights_gib")),
        ("KV pool (GiB), first start", _gib(first.get("available_kv_bytes")), server.get("available_kv_gib")),
        ("KV pool (GiB), later starts", _gib(later.get("available_kv_bytes")), server.get("available_kv_gib")),
        ("KV pool (tokens), first start", _tokens(first), server.get("kv_tokens")),
        ("KV pool (tokens), later starts", _tokens(later), server.get("kv_tokens")),
        ("block (tokens)", plain(kv.get("block_size")), server.get("block_size")),
    ]
    known = tuple((a, b, plain(c)) for a, b, c in rows if b != "–" and c is not None)
    out.tables.append(Table("Predicted and measured", ("", "predicted by fit", "printed by vLLM"), known))


def _tokens(start: Mapping[str, Any]) -> str:
    return plain((start.get("kv") or {}).get("capacity_tokens"))


def _gib(value: Any) -> str:
    """Bytes, or a range [low, likely, high] of them, in GiB."""
    if isinstance(value, list) and value and all(isinstance(v, (int, float)) for v in value):
        low, high = plain(min(value) / 2**30), plain(max(value) / 2**30)
        return low if low == high else f"{low} to {high}"
    return plain(value / 2**30) if isinstance(value, (int, float)) else "–"


def _reproduce(answer: Mapping[str, Any]) -> list[str]:
    sweep = answer.get("sweep")
    if isinstance(sweep, dict):
        rows = [r for r in _dicts(sweep.get("rows")) if r.get("argv") and isinstance(r.get("settings"), dict)]
        return [_sweep_command(rows, sweep.get("setup") or {})] if rows else []
    smoke = answer.get("smoke")
    if not isinstance(smoke, dict):
        warm = answer.get("warmup")
        if isinstance(warm, dict):
            return [shell(["vllm-doctor", "warmup", "--url", warm.get("url") or "", "--json"])]
        return ["vllm-doctor check --json"] if answer.get("command") in (None, "check") else []
    server = smoke.get("server") or {}
    if server.get("url"):
        return [shell(["vllm-doctor", "smoke", "--url", server["url"], "--json"])]
    if not server.get("argv"):
        return []
    asked = ["vllm-doctor", "smoke", "--url", f"http://127.0.0.1:{server.get('port') or 8000}", "--json"]
    return [shell(server["argv"], server.get("env")), shell(asked)]


def _sweep_command(rows: Sequence[Mapping[str, Any]], setup: Mapping[str, Any]) -> str:
    """The sweep that starts these points again."""
    out = ["vllm-doctor", "sweep"]
    for model in dict.fromkeys(_served(r["argv"]) for r in rows):
        out += ["--model", model]
    axes = {a for r in rows for a in r.get("axes") or ()} - {"edge"}
    out += ["--axes", ",".join(a for a in AXES if a in axes)]
    for option, name in _SWEEP_OPTIONS:
        # the first model's: what a further one adds follows from its edge
        values = sorted({r["settings"].get(name) for r in rows if "edge" not in (r.get("axes") or ())})
        out += [option, ",".join(map(str, values))]
    if setup.get("utilization"):
        out += ["--util", str(setup["utilization"])]
    if setup.get("images"):
        out.append("--images")
    extra = setup.get("serve_args") or []
    return shell([*out, *(["--", *extra] if extra else [])])


def _served(argv: Sequence[Any]) -> str:
    """The model of a `vllm serve` command."""
    words = [str(a) for a in argv]
    return words[words.index("serve") + 1] if "serve" in words[:-1] else "MODEL"


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
