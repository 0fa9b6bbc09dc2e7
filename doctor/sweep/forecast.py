"""What the memory model says of a point before it is started, and how it compares afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from doctor.errors import DoctorError
from doctor.memory.fit import evaluate
from doctor.memory.kv import KvPool, size_pool
from doctor.memory.layout import KvOptions
from doctor.memory.model import Model
from doctor.memory.predict import Card, Prediction
from doctor.memory.refusals import block_refusal
from doctor.memory.settings import Wish
from doctor.memory.start_check import GIB
from doctor.memory.versions import Switches
from doctor.serve.command import CPU_BLOCK_SIZE, CPU_KV_GIB
from doctor.sweep.plan import Point

#: Contexts at the edge are whole multiples of this many tokens.
_EDGE_STEP = 1024


@dataclass(frozen=True)
class Pools:
    """One start's KV pool: likely GiB and tokens, and the range that they lie in."""

    gib: float
    tokens: int
    low_tokens: int
    high_tokens: int


@dataclass(frozen=True)
class Forecast:
    """``fits`` is None when it is within the uncertainty or nothing is predicted; ``why`` says which.

    ``first`` is a start with an empty compile cache, ``later`` every other one (and every start that
    compiles nothing). Both None when nothing is predicted.
    """

    fits: bool | None
    why: str
    block_size: int | None = None
    first: Pools | None = None
    later: Pools | None = None
    dtype: str = ""  # --dtype that this card needs, "" for the model's own

    @property
    def refused(self) -> bool:
        """True when this point is predicted not to start."""
        return self.fits is False


@dataclass(frozen=True)
class Judge:
    """Everything a prediction needs beside the point. ``card`` None: a CPU server with its fixed pool."""

    card: Card | None
    version: Switches
    utilization: float | None
    vision: bool
    eager: bool
    prefix_caching: bool
    kv_cache_dtype: str | None
    env: Mapping[str, str]

    def forecast(self, model: Model | None, point: Point) -> Forecast:
        """Predicts one point. Never raises for a model that cannot be predicted: that is a forecast too."""
        if model is None:
            return Forecast(None, "this model cannot be predicted")
        try:
            return self._on_card(model, point, self.card) if self.card else self._on_cpu(model, point)
        except DoctorError as error:
            return Forecast(None, str(error))

    def edge(self, model: Model | None, draft_tokens: int, batched: int, longest: int) -> int | None:
        """The longest context that is predicted to fit on a first start too; None when nothing is predicted."""
        if model is None:
            return None
        try:
            if self.card is None:
                options = self._cpu_options(longest, draft_tokens, 1, batched)
                limit = size_pool(model.shape, CPU_KV_GIB * GIB, options, self.version).highest_context
            else:
                fit = evaluate(model, self.card, self._wish(longest, draft_tokens, 1, batched), self.version,
                               env=self.env)  # fmt: skip
                limit = fit.first.low.highest_context if fit.first else 0
        except DoctorError:
            return None
        return min(longest, limit if limit < _EDGE_STEP else limit // _EDGE_STEP * _EDGE_STEP)

    def _wish(self, context: int, drafts: int, sequences: int, batched: int) -> Wish:
        return Wish(
            utilization=self.utilization, max_model_len=context, draft_tokens=drafts,
            prefix_caching=self.prefix_caching, max_num_seqs=sequences, max_num_batched_tokens=batched,
            kv_cache_dtype=self.kv_cache_dtype, vision=self.vision, eager=self.eager,
        )  # fmt: skip

    def _on_card(self, model: Model, point: Point, card: Card) -> Forecast:
        wish = self._wish(
            point.max_model_len, point.draft_tokens, point.max_num_seqs, point.max_num_batched_tokens
        )
        fit = evaluate(model, card, wish, self.version, env=self.env)
        first, later = (_pools(p) if p else None for p in (fit.first, fit.later))
        dtype = fit.profile.dtype if fit.profile else ""
        return Forecast(fit.fits, fit.why, fit.pool.block_size, first, later, dtype)

    def _on_cpu(self, model: Model, point: Point) -> Forecast:
        options = self._cpu_options(
            point.max_model_len, point.draft_tokens, point.max_num_seqs, point.max_num_batched_tokens
        )
        pool = size_pool(model.shape, CPU_KV_GIB * GIB, options, self.version)
        why = pool.refusal or block_refusal(pool.layout, options)
        same = Pools(float(CPU_KV_GIB), *(pool.capacity_tokens,) * 3)
        return Forecast(not why, why, pool.block_size, same, same)

    def _cpu_options(self, context: int, drafts: int, sequences: int, batched: int) -> KvOptions:
        return KvOptions(
            max_model_len=context, draft_tokens=drafts, prefix_caching=self.prefix_caching,
            max_num_seqs=sequences, max_num_batched_tokens=batched,
            kv_cache_dtype=self.kv_cache_dtype or "auto", block_size=CPU_BLOCK_SIZE,
        )  # fmt: skip


def _pools(prediction: Prediction) -> Pools:
    def tokens(pool: KvPool) -> int:
        return pool.capacity_tokens

    return Pools(
        prediction.available.likely / GIB,
        tokens(prediction.likely),
        tokens(prediction.low),
        tokens(prediction.high),
    )


def compared(forecast: Forecast, cold: bool | None, kv_tokens: int | None) -> dict[str, Any]:
    """The ``predicted`` part of a row: the forecast of this kind of start, and the difference in percent.

    The difference is measured against predicted: +2 means that the real pool is 2 % larger.
    """
    out: dict[str, Any] = {"fits": forecast.fits, "why": forecast.why, "block_size": forecast.block_size}
    pools = forecast.first if cold else forecast.later
    if pools is None:
        return out
    out |= {
        "start": "first" if cold else "later",
        "kv_gib": round(pools.gib, 3),
        "kv_tokens": pools.tokens,
        "kv_tokens_range": [pools.low_tokens, pools.high_tokens],
    }
    if kv_tokens and pools.tokens:
        out["difference_percent"] = round(100 * (kv_tokens / pools.tokens - 1), 2)
    return out
