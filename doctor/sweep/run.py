"""The loop over all points: what is missing is started, every finished point is kept at once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doctor.checks.registry import Judgement
from doctor.finding import order, verdict
from doctor.host import Host
from doctor.smoke.attempt import empty
from doctor.sweep.answer import judge, setup_of
from doctor.sweep.options import SweepOptions
from doctor.sweep.prepare import Item, Prepared, has_vision, left_out
from doctor.sweep.start import start
from doctor.sweep.store import OK, REFUSED, Store

if TYPE_CHECKING:
    from doctor.report.redact import Redactor

#: Seconds of a start and of what is measured then, before anything was measured here. Starts: 60 to 128 s on an
#: H200 (docs/measurements/starts-9b-h200.md), 48 to 77 s for the tiny model on two CPU cores.
USUAL_GPU_S = 150.0
USUAL_CPU_S = 120.0

Say = Callable[[str], None]


@dataclass
class SweepResult:
    """Rows of this plan in its order, what was not run and why, and what else the file holds."""

    prepared: Prepared
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[tuple[Item, str]] = field(default_factory=list)
    resumed: int = 0  # rows that were there before
    notes: list[str] = field(default_factory=list)
    planned: bool = False  # nothing was to be started

    @property
    def judgement(self) -> Judgement:
        """Verdict and findings over all rows; a plan is ready unless something stops it."""
        if self.planned:
            findings = order(self.prepared.findings)
            return Judgement(verdict(findings), findings, (), ())
        skipped = [(item.point.label, why) for item, why in self.skipped]
        return judge(self.rows, skipped, self.prepared.findings)


def run_sweep(options: SweepOptions, prepared: Prepared, host: Host, redactor: Redactor, say: Say) -> SweepResult:
    """Starts every point that has no row yet. On KeyboardInterrupt the rows so far are on the disk."""
    result = SweepResult(prepared, notes=list(prepared.notes))
    if prepared.findings:
        return result
    with Store(options.out) as store:
        result.notes += file_notes(store, prepared)
        done = store.rows.by_key()
        wanted = _wanted(result, done, edges=options.edges)
        vision = {path: has_vision(host, path) for path in {i.point.model for i in wanted}}
        missing = [i for i in wanted if not _finished(done.get(i.key), options.retry)]
        result.resumed = len(wanted) - len(missing)
        logs = options.out / "logs"
        for number, item in enumerate(missing):
            left = estimate_s(missing[number:], done.values(), prepared)
            head = (
                f"{result.resumed + number} of {len(wanted)} done, about {duration(left)} left, {item.point.label}"
            )

            def said(text: str, head: str = head) -> None:
                say(f"{head}: {text}")

            log = logs / f"server-{item.key}.log"
            try:
                row = start(item, prepared, options, empty(log), host, vision=vision[item.point.model], say=said)
                if second_start_may_fit(row):
                    said("refused with an empty compile cache; the second start has more room")
                    first = row["why"]
                    row = start(
                        item, prepared, options, empty(log), host, vision=vision[item.point.model], say=said
                    )
                    row["first_start"] = first
            finally:
                _redact(log, redactor)
            store.append(redactor.value(row))
            done = store.rows.by_key()
    result.rows = [done[i.key] for i in wanted if i.key in done]
    return result


def stored(options: SweepOptions, prepared: Prepared) -> SweepResult:
    """What the file already holds of this plan; nothing is started and nothing written."""
    from doctor.sweep.store import NAME, read

    result = SweepResult(prepared, notes=list(prepared.notes), planned=True)
    done = read(options.out / NAME).by_key()
    result.rows = [done[i.key] for i in _wanted(result, done, edges=options.edges) if i.key in done]
    result.resumed = len(result.rows)
    return result


def _wanted(result: SweepResult, done: Mapping[str, Any], *, edges: bool) -> list[Item]:
    """The points that count; those predicted not to fit and never started are noted as skipped."""
    items = result.prepared.items
    beyond = {i.key for i in left_out(items, edges=edges)} - done.keys()
    result.skipped = [(i, f"predicted not to fit: {i.forecast.why}") for i in items if i.key in beyond]
    return [i for i in items if i.key not in beyond]


def estimate_s(items: Sequence[Item], rows: Iterable[Mapping[str, Any]], prepared: Prepared) -> float:
    """Seconds that these points will take: the median of what points of the same setup took, else the usual."""
    mine = [
        float(r["seconds"])
        for r in rows
        if r.get("outcome") == OK and r.get("seconds") and r.get("setup_id") == prepared.setup.id
    ]
    usual = USUAL_CPU_S if prepared.environment.cpu else USUAL_GPU_S
    return len(items) * (statistics.median(mine) if mine else usual)


def to_start(result: SweepResult) -> list[Item]:
    """The points that the same command would start now."""
    beyond = {item.key for item, _ in result.skipped}
    done = {str(row["key"]) for row in result.rows}
    return [i for i in result.prepared.items if i.key not in beyond | done]


def file_notes(store: Store, prepared: Prepared) -> list[str]:
    """What the user should know of the file that the rows go to."""
    out = []
    held = store.rows
    if held.cut:
        out.append(
            f"{store.path.name}: a half-written last line of {held.cut} bytes was cut; its point runs again"
        )
    if held.unreadable:
        numbers = ", ".join(map(str, held.unreadable[:5]))
        out.append(f"{store.path.name}: line {numbers} is not a row of this command; kept, and not used")
    others: dict[str, int] = {}
    for row in held.by_key().values():
        if row.get("setup_id") != prepared.setup.id:
            setup = setup_of(row)
            title = setup.title if setup else "an unknown setup"
            if setup and setup.title == prepared.setup.title:
                title += " with other options or on another machine"
            others[title] = others.get(title, 0) + 1
    for title, count in others.items():
        out.append(f"{store.path.name} also holds {count} rows of {title}: kept, and not mixed with these")
    return out


def second_start_may_fit(row: Mapping[str, Any]) -> bool:
    """A first start profiles a larger peak than every later one; vLLM keeps what it compiled before it refuses."""
    uncertain = (row.get("predicted") or {}).get("fits") is None
    return row.get("outcome") == REFUSED and row.get("compile") == "cold" and uncertain


def _finished(row: Mapping[str, Any] | None, retry: bool) -> bool:
    return row is not None and not (retry and row.get("outcome") != OK)


def duration(seconds: float) -> str:
    """ "45 s", "12 min" or "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _redact(log: Path, redactor: Redactor) -> None:
    try:
        text = log.read_bytes().decode("utf-8", "replace")
        log.write_text(redactor.text(text), encoding="utf-8")
    except OSError:  # nothing was written, or the disk is full: the row says how it ended
        return


def as_json(result: SweepResult) -> dict[str, Any]:
    """The ``sweep`` part of the answer. ``estimate_s``: seconds that the points not yet started will take."""
    left = to_start(result)
    return {
        "setup": result.prepared.setup.as_json(),
        "points": [
            {
                "key": i.key,
                "label": i.point.label,
                "model": i.point.name,
                "axes": list(i.point.axes),
                "settings": i.point.settings,
                "predicted": asdict(i.forecast),
            }
            for i in result.prepared.items
        ],
        "rows": result.rows,
        "not_started": [{"key": i.key, "label": i.point.label, "why": why} for i, why in result.skipped],
        "resumed": result.resumed,
        "to_start": len(left),
        "estimate_s": round(estimate_s(left, result.rows, result.prepared), 1),
        "notes": result.notes,
    }
