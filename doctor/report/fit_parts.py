"""What a report shows of a ``fit`` answer: does it fit, the pool, the ceiling, settings with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doctor.report.parts import Table, dicts, number, plain

_WORDS = {True: "fits", None: "close: within the uncertainty of the prediction", False: "does not fit"}


def fits(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The judged pairs of model and card in an answer: one, or several."""
    one = answer.get("fit")
    return [one] if isinstance(one, dict) else dicts(answer.get("fits"))


def pair(fit: Mapping[str, Any]) -> str:
    """Model and card, as a heading names them."""
    model, card = part(fit, "model"), part(fit, "gpu")
    name = str(model.get("name") or model.get("given") or "a model")
    return f"{name} on {card['name']}" if card.get("name") else name


def verdict_words(fit: Mapping[str, Any]) -> str:
    """ "does not fit: ..." """
    why = str(fit.get("why") or "")
    known = fit.get("fits")
    word = _WORDS[known] if known is None or isinstance(known, bool) else plain(known)
    return f"{word}: {why}" if why else word


def fit_tables(answer: Mapping[str, Any]) -> list[Table]:
    """One table of figures for each pair, and one of the settings with their reasons."""
    out = []
    for fit in fits(answer):
        out.append(Table(f"Fit: {pair(fit)}", ("", ""), tuple(_figures(fit))))
        settings, reasons = part(fit, "settings"), part(fit, "reasons")
        rows = tuple(
            (k.replace("_", "-"), plain(v), str(reasons.get(k) or "")) for k, v in settings.items() if k != "argv"
        )
        if rows:
            out.append(Table(f"Settings: {pair(fit)}", ("setting", "value", "why"), rows))
    return out


def _figures(fit: Mapping[str, Any]) -> list[tuple[str, str]]:
    kv, check = part(fit, "kv"), part(fit, "start_check")
    rows = [("answer", verdict_words(fit)), ("weights (GiB)", _gib(fit.get("weights_bytes")))]
    rows.append(("memory of the card (GiB)", _gib(part(fit, "gpu").get("total_bytes"))))
    rows.append(("free on it (GiB)", _gib(part(fit, "gpu").get("free_bytes"))))
    rows.append(("gpu-memory-utilization", plain(fit.get("utilization"))))
    rows.append(("highest that passes the start check", plain(check.get("max_utilization"))))
    for key, name in (("first_start", "first start"), ("later_starts", "later starts")):
        one = part(fit, key)
        rows.append((f"KV pool (GiB), {name}", _span(one.get("available_kv_bytes"))))
        rows.append((f"KV pool (tokens), {name}", plain(part(one, "kv").get("capacity_tokens"))))
    rows.append(("KV pool (blocks)", plain(kv.get("num_blocks"))))
    rows.append(("KV pool (tokens)", plain(kv.get("capacity_tokens"))))
    rows.append(("context judged (tokens)", plain(part(fit, "options").get("max_model_len"))))
    rows.append(("longest context in this pool (tokens)", plain(kv.get("highest_context"))))
    rows.append(("requests of full length", plain(kv.get("max_concurrency"))))
    rows.append(("decoding, ceiling (tokens/s)", plain(fit.get("decode_ceiling_tokens_per_s"))))
    full = fit.get("decode_ceiling_full_context_tokens_per_s")
    rows.append(("decoding, ceiling with a full context (tokens/s)", plain(full)))
    warnings = fit.get("warnings")
    if isinstance(warnings, list):
        rows += [("warning", str(w)) for w in warnings]
    return [(name, value) for name, value in rows if value != plain(None)]


def part(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object of an answer; empty for anything else."""
    value = answer.get(key)
    return value if isinstance(value, dict) else {}


def _gib(value: Any) -> str:
    figure = number(value)
    return plain(None) if figure is None else f"{figure / 2**30:.2f}"


def _span(value: Any) -> str:
    """[low, likely, high] in bytes as GiB."""
    if not isinstance(value, list) or len(value) != 3 or any(number(v) is None for v in value):
        return plain(None)
    low, likely, high = (f"{v / 2**30:.2f}" for v in value)
    return likely if low == high else f"{likely} ({low} to {high})"
