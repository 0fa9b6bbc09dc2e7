"""The settings of a smoke test as a person reads them: each value, where it comes from, and what passed."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from doctor.serve.command import Settings
from doctor.smoke.result import SmokeResult


def settings_table(result: SmokeResult) -> Table | None:
    """What was tried, one value a line; a second column of values when the ladder ended with others."""
    tried = result.settings
    if tried is None:
        return None
    best = result.ladder.best if result.ladder else None
    passed = best.settings if best else None
    before, after = _rows(tried, result), _rows(passed, result) if passed else {}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("setting", no_wrap=True)
    table.add_column("tried" if passed else "value", no_wrap=True)
    if passed:
        table.add_column("passed", no_wrap=True)
    table.add_column("from", overflow="fold", style="dim")
    for name in {**before, **after}:
        now = after.get(name, "-")
        values = [before.get(name, "-"), *([now if now != before.get(name, "-") else ""] if passed else [])]
        table.add_row(name, *values, Text(result.reasons.get(name, "")))
    return table


def _rows(settings: Settings, result: SmokeResult) -> dict[str, str]:
    """Values by the names that their reasons have; those left to vLLM are not there."""
    out = {
        "mtp": str(settings.draft_tokens or "off"),
        "prefix_caching": "on" if settings.prefix_caching else "off",
        "max_model_len": f"{settings.max_model_len:,}",
    }
    if not result.environment.cpu:
        out["gpu_memory_utilization"] = f"{settings.utilization:g}"
    for name, value in (
        ("max_num_seqs", settings.max_num_seqs),
        ("max_num_batched_tokens", settings.max_num_batched_tokens),
        ("dtype", settings.dtype or None),
    ):
        if value is not None:
            out[name] = f"{value:,}" if isinstance(value, int) else value
    if settings.text_only:
        out["language_model_only"] = "on"
    if settings.eager:
        out["eager"] = "on"
    return out


def total(result: SmokeResult) -> str:
    """How long it all took, in words; "" when that is not known."""
    if result.seconds is None:
        return ""
    minutes, seconds = divmod(round(result.seconds), 60)
    return f"the whole test took {f'{minutes} min ' if minutes else ''}{seconds} s"
