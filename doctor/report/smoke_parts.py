"""What a report shows of a smoke test, a warm-up and a prediction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from doctor.report.parts import Bars, Table, dicts, number, plain

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


def smoke_parts(answer: Mapping[str, Any]) -> tuple[list[Table], list[Bars]]:
    """Tables and charts of the ``smoke`` and ``warmup`` parts of an answer."""
    tables: list[Table] = []
    bars: list[Bars] = []
    if isinstance(warm := answer.get("warmup"), dict):
        bars += _shape_bars(warm.get("shapes"))
    smoke = answer.get("smoke")
    if not isinstance(smoke, dict):
        return tables, bars
    server = smoke.get("server") or {}
    rows = tuple((label, plain(server[key])) for label, key in _SERVER_FIGURES if server.get(key) is not None)
    tables.append(Table("Server", ("", ""), rows))
    phases = dicts(server.get("phases"))
    if phases:
        tables.append(
            Table("Start", ("phase", "at s"), tuple((str(p.get("phase")), plain(p.get("at_s"))) for p in phases))
        )
    probes = dicts(smoke.get("probes"))
    rows3 = tuple((str(p.get("status")), str(p.get("name")), str(p.get("why"))) for p in probes)
    tables.append(Table("Probes", ("result", "probe", "what was seen"), rows3))
    for one in probes:
        _bars(str(one.get("name")), one.get("measured") or {}, tables, bars)
    tables += _prediction(smoke.get("prediction"), server)
    tables += _ladder(smoke.get("ladder"))
    settings = smoke.get("settings_that_passed") or {}
    if settings:
        shown = tuple(
            (k, plain(v if not isinstance(v, (list, dict)) else json.dumps(v))) for k, v in settings.items()
        )
        tables.append(Table("Settings that passed", ("", ""), shown))
    return tables, bars


def _prediction(known: Any, server: Mapping[str, Any]) -> list[Table]:
    """What was predicted before this start beside what it printed."""
    if not isinstance(known, dict):
        return []
    rows = [("weights (GiB)", _gib(known.get("weights_bytes")), plain(server.get("weights_gib")))]
    for key, start in (("first_start", "first start"), ("later_start", "later starts")):
        one = known.get(key) or {}
        rows.append((f"KV pool (GiB), {start}", _gib(one.get("kv_bytes")), plain(server.get("available_kv_gib"))))
        rows.append((f"KV pool (tokens), {start}", _span(one.get("kv_tokens")), plain(server.get("kv_tokens"))))
    return [Table("Predicted and measured", ("", "predicted", "printed by vLLM"), tuple(rows))]


def _span(value: Any) -> str:
    """[low, likely, high] as "likely (low to high)"."""
    if not isinstance(value, list) or len(value) != 3:
        return "–"
    low, likely, high = map(plain, value)
    return likely if low == high else f"{likely} ({low} to {high})"


def _ladder(ladder: Any) -> list[Table]:
    """Which settings were tried after a failure."""
    if not isinstance(ladder, dict):
        return []
    rows = tuple(
        (
            "pass" if step.get("passed") else "fail",
            ", ".join(map(str, step.get("changes") or ())) + (" (second start)" if step.get("again") else ""),
            plain(step.get("seconds")),
            str(step.get("why") or ""),
        )
        for step in dicts(ladder.get("steps"))
    )
    title = "Ladder: a configuration passed" if ladder.get("passed") else "Ladder: nothing passed"
    return [Table(title, ("result", "changes", "s", "what was seen"), rows)]


def _bars(name: str, measured: Mapping[str, Any], tables: list[Table], bars: list[Bars]) -> None:
    if name == "first_requests":
        bars += _shape_bars(measured.get("shapes"))
    elif name == "prefix_cache" and measured.get("ttft_s"):
        cached = measured.get("cached_tokens") or []
        rows = tuple(
            (f"request {n}" + (f", {cached[n - 1]} cached" if n <= len(cached) else ""), (number(t),))
            for n, t in enumerate(measured["ttft_s"], 1)
        )
        bars.append(Bars("Time to the first token of one repeated prompt", "s", ("seconds",), rows))
    elif name == "mtp_speed" and measured.get("tokens_per_s"):
        rows = tuple((str(k), (number(v),)) for k, v in measured["tokens_per_s"].items())
        bars.append(Bars("Decode speed of one stream", "tokens/s", ("tokens/s",), rows))
    elif name == "concurrency" and measured.get("levels"):
        rows = tuple(
            (f"{plain(one.get('at_once'))} at once", (number(one.get("total_tokens_per_s")),))
            for one in dicts(measured["levels"])
        )
        bars.append(Bars("Decode speed of all requests together", "tokens/s", ("tokens/s",), rows))
    elif name == "correctness" and isinstance(measured.get("servers"), dict):
        servers = [(str(k), v) for k, v in measured["servers"].items() if isinstance(v, dict)]
        tables.append(
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


def _shape_bars(shapes: Any) -> list[Bars]:
    rows = [
        (str(one.get("shape")), (number(one.get("first_s")), number(one.get("usual_s")))) for one in dicts(shapes)
    ]
    title = "First request of each shape against later ones"
    return [Bars(title, "s", ("first", "later"), tuple(rows))] if rows else []


def predicted(answers: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A fit and a smoke test together: what was predicted beside what vLLM printed."""
    fit = next((a["fit"] for a in answers if isinstance(a.get("fit"), dict)), None)
    smoke = next((a["smoke"] for a in answers if isinstance(a.get("smoke"), dict)), None)
    if fit is None or smoke is None:
        return []
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
    return [Table("Predicted and measured", ("", "predicted by fit", "printed by vLLM"), known)]


def _tokens(start: Mapping[str, Any]) -> str:
    return plain((start.get("kv") or {}).get("capacity_tokens"))


def _gib(value: Any) -> str:
    """Bytes, or a range [low, likely, high] of them, in GiB."""
    if isinstance(value, list) and value and all(isinstance(v, (int, float)) for v in value):
        low, high = plain(min(value) / 2**30), plain(max(value) / 2**30)
        return low if low == high else f"{low} to {high}"
    return plain(value / 2**30) if isinstance(value, (int, float)) else "–"
