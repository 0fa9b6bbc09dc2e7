"""vLLM's own figures beside what ``fit`` predicts for this start, and why they differ.

On a card: weights, peak activation, KV pool in GiB, tokens, block, concurrency, from the log. The state of the
torch.compile cache is read there too: the first start with an empty one profiles a larger peak and makes a
smaller pool (9.70 against 11.51 GiB on an H200, the same command, vLLM 0.26.0), so a second start is offered.
On a CPU the pool is given (VLLM_CPU_KVCACHE_SPACE), and what vLLM makes of it is predicted exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from doctor.errors import DoctorError
from doctor.memory.calibration import Measured, read_log
from doctor.memory.kv import KvPool, size_pool
from doctor.memory.overhead import Compile, Span
from doctor.memory.predict import Prediction, Start, predict
from doctor.memory.start_check import GIB
from doctor.serve.command import CPU_KV_GIB, option
from doctor.smoke.outlook import Outlook, has_vision, outlook
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, rounded

NAME = "prediction"
TITLE = "predicted against measured"
_LIMIT = 8 << 20
_PEAK = re.compile(r"(-?\d+(?:\.\d+)?) GiB for peak activation")
#: A second start is worth a word when it is predicted to bring more than this.
WORTH_GIB = 0.25
#: Beyond the predicted range by up to this share the prediction counts as met: the log rounds, blocks are whole.
SLACK = 0.01


@dataclass(frozen=True)
class Row:
    """One figure. ``low`` and ``high`` are the predicted range, equal where it is exact."""

    name: str
    unit: str
    measured: float
    low: float
    predicted: float
    high: float

    @property
    def within(self) -> bool:
        """Whether the measured figure lies in the range, give or take what the log rounds."""
        slack = max(SLACK * abs(self.predicted), 0.02 if self.unit == "GiB" else 0.0)
        return self.low - slack <= self.measured <= self.high + slack

    def as_json(self) -> dict[str, Any]:
        """For measured figures."""
        out = {n: rounded(v) for n, v in vars(self).items() if n not in ("name", "unit")}
        return {"figure": self.name, "unit": self.unit, **out, "within": self.within}


def probe(session: Session) -> Result:
    """Reads the log; nothing is asked of the server."""
    known = outlook(session)
    if isinstance(known, str):
        return Result(NAME, ABSTAIN, known, asked=False)
    if session.log is None:
        return Result(NAME, ABSTAIN, "there is no log", asked=False)
    try:
        text = session.log.read_bytes()[:_LIMIT].decode("utf-8", "replace")
        measured = read_log(text, session.log.name)
        if session.cpu:
            return _judge(_cpu_rows(session, known), known, None, "none")
        if known.card is None:
            return Result(NAME, ABSTAIN, "the driver does not tell of the card", asked=False)
        return _on_card(session, known, measured, text)
    except (OSError, DoctorError) as error:
        return Result(NAME, ABSTAIN, str(error), asked=False)


def _cpu_rows(session: Session, known: Outlook) -> list[Row]:
    pool = size_pool(known.model.shape, CPU_KV_GIB * GIB, known.options, known.version)
    return _pool_rows(session, pool, pool, pool)


def _pool_rows(session: Session, low: KvPool, likely: KvPool, high: KvPool) -> list[Row]:
    seen, rows = session.server, []
    if seen.kv_tokens is not None:
        tokens = (low.capacity_tokens, likely.capacity_tokens, high.capacity_tokens)
        rows.append(Row("KV cache", "tokens", seen.kv_tokens, *tokens))
    if seen.concurrency is not None:
        times = (low.max_concurrency, likely.max_concurrency, high.max_concurrency)
        rows.append(Row("full requests", "", seen.concurrency, *(round(t, 2) for t in times)))
    if seen.block_size is not None:
        rows.append(Row("block", "tokens", seen.block_size, *(likely.block_size,) * 3))
    return rows


def _on_card(session: Session, known: Outlook, measured: Measured, text: str) -> Result:
    assert known.card is not None  # noqa: S101  for the type checker
    eager = known.settings.enforce_eager or bool(measured.eager)
    compiled = Compile.EAGER if eager else Compile.COLD if measured.cold else Compile.WARM
    given = option(known.settings.extra, "--gpu-memory-utilization")
    utilization = measured.utilization or (float(given) if given else known.settings.utilization)

    def predicted(state: Compile) -> Prediction:
        start = Start(utilization, state, has_vision(known.settings))
        assert known.card is not None  # noqa: S101
        shape, weights = known.model.shape, known.model.weights
        return predict(shape, weights, known.card, start, known.options, known.version)

    one = predicted(compiled)
    rows = _card_rows(one, measured, text) + _pool_rows(session, one.low, one.likely, one.high)
    gain = None
    if compiled is Compile.COLD:
        gain = (predicted(Compile.WARM).available.likely - one.available.likely) / GIB
    state = "not told" if measured.cold is None and not eager else compiled.value
    return _judge(rows, known, gain, state)


def _card_rows(one: Prediction, measured: Measured, text: str) -> list[Row]:
    spare, held, peak = one.overhead.rounding, one.weights_bytes, _PEAK.search(text)
    weights = Span(held + spare.low, held + spare.likely, held + spare.high)
    figures = (
        ("weights", measured.weights_gib, weights),
        ("peak activation", float(peak[1]) if peak else None, one.overhead.activation),
        ("KV pool", measured.available_gib, one.available),
    )
    return [
        Row(name, "GiB", seen, span.low / GIB, span.likely / GIB, span.high / GIB)
        for name, seen, span in figures
        if seen is not None
    ]


def _judge(rows: list[Row], known: Outlook, gain_gib: float | None, cache: str) -> Result:
    measured: dict[str, Any] = {
        "rows": [row.as_json() for row in rows],
        "compile_cache": cache,
        "second_start_gain_gib": rounded(gain_gib, 2),
        "second_start_worth": gain_gib is not None and gain_gib > WORTH_GIB,
    }
    expected = {"rows": "within the predicted range"}
    if not rows:
        return Result(NAME, ABSTAIN, "the log has no figure to compare", measured, expected, asked=False)
    outside = [row for row in rows if not row.within]
    why = f"{len(rows) - len(outside)} of {len(rows)} figures as predicted"
    if outside:
        why += ": " + "; ".join(_says(row) for row in outside) + _because(outside, known)
    if measured["second_start_worth"]:
        why += f"; this start compiled ({cache} cache): a second one has about {gain_gib:.1f} GiB more KV cache"
        return Result(NAME, ADVISE, why, measured, expected)
    return Result(NAME, ADVISE if outside else PASS, why, measured, expected)


def _says(row: Row) -> str:
    def number(value: float) -> str:
        return f"{value:,.0f}" if row.unit == "tokens" else f"{value:.2f}"

    span = number(row.low) if row.low == row.high else f"{number(row.low)} to {number(row.high)}"
    unit = f" {row.unit}" if row.unit else ""
    return f"{row.name} {number(row.measured)}{unit}, predicted {span}"


def _because(outside: list[Row], known: Outlook) -> str:
    names = {row.name for row in outside}
    if "block" in names:
        return "; another block than this model and these options have: another attention backend or page size"
    if "weights" in names:
        return "; the weights differ already, so other parts of the checkpoint were loaded than are predicted"
    if "peak activation" in names:
        return "; profiling saw another peak, and the pool is what it leaves"
    if known.version.extrapolated:
        return f"; vLLM {known.version.version} is newer than the versions that were read"
    return "; `vllm-doctor fit --calibrate LOG` takes the difference into account from now on"
