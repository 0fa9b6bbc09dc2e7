"""What the A/B says: which of MTP and prefix caching changes answers by more than rounding.

Greedy answers of one server to one prompt need not be bit-identical: kernels add in another order when a
prompt is computed in other pieces or beside others, and logits are rounded to bfloat16 (steps of 0.0625
between 8 and 16, 0.125 up to 32). How much that moves log-probabilities is measured: the base server, which
neither restores state nor drafts, against itself, repeated and beside other requests. The tolerance is three
times the largest difference seen there, at least one rounding step. Above it lies an error. Below it nothing
can be told, except that a difference appeared where base, prefix caching and MTP alone had none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence, Finding
from doctor.serve.client import NOT_A_NUMBER, Answer
from doctor.smoke.ab import AT_ONCE, COLD, Prompts, Run
from doctor.smoke.probes import ABSTAIN, ADVISE, FAIL, PASS, Result, rounded

NAME = "correctness"
#: One step of bfloat16 logits between 16 and 32, in nats.
LEAST = 0.125
#: Times the largest difference of the base server with itself.
MARGIN = 3.0

#: A base server that differs from itself by more is no base: rounding does not do that.
UNSTABLE = 0.5


@dataclass(frozen=True)
class Gap:
    """How far two answers are apart, up to where their tokens part.

    ``nats`` is the largest difference of a common token's log-probability; at the place where they part, how
    much either answer preferred its own token to the other's (0 where both are equally likely).
    """

    nats: float
    tokens: int
    parts_at: int | None = None


@dataclass
class Compared:
    """One server's answers against the base and against its own cold ones."""

    name: str
    to_base: float = 0.0
    to_itself: float = 0.0
    sequential: float = 0.0  # against its own cold answers, one request at a time
    compared: int = 0
    identical: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For measured figures; differences in nats."""
        return {
            "to_base": rounded(self.to_base, 4),
            "to_itself": rounded(self.to_itself, 4),
            "to_itself_one_at_a_time": rounded(self.sequential, 5),
            "compared": self.compared,
            "same_tokens": self.identical,
            "wrong": self.wrong,
            "lost": self.lost,
        }


def gap(one: Answer, other: Answer) -> Gap | None:
    """None when the answers carry no log-probabilities."""
    if not one.tokens or not other.tokens or not one.top_logprobs or not other.top_logprobs:
        return None if one.text != other.text else Gap(0.0, one.completion_tokens or 0)
    pairs = list(zip(one.tokens, other.tokens, one.top_logprobs, other.top_logprobs, strict=False))
    worst = 0.0
    for place, (x, y, top_x, top_y) in enumerate(pairs):
        if x != y:
            preferred = max(_preference(top_x, x, y), _preference(top_y, y, x))
            return Gap(max(worst, preferred), place, place)
        if x in top_x and x in top_y:
            worst = max(worst, abs(top_x[x] - top_y[x]))
    return Gap(worst, len(pairs))


def _preference(top: Any, own: str, other: str) -> float:
    """By how much an answer preferred its token; at least, when the other is not among the listed."""
    if own not in top:
        return 0.0
    return max(0.0, float(top[own] - top.get(other, min(top.values()))))


def _numeric(answer: Answer) -> bool:
    return not any(NOT_A_NUMBER in top.values() for top in answer.top_logprobs)


def tolerance(base: Run) -> tuple[float, float]:
    """(tolerance, largest difference of the base server with itself) in nats."""
    spread = 0.0
    for name in base.prompts():
        first, *others = base.of(name)
        spread = max([spread, *(g.nats for g in (gap(first, o) for o in others) if g)])
    return max(LEAST, MARGIN * spread), spread


def judge(runs: Sequence[Run], prompts: Prompts) -> Result:
    """``runs`` in the order of :func:`doctor.smoke.ab.configs`: the base first, the chosen settings last."""
    base, *others = runs
    broken = [r for r in runs if r.error]
    measured: dict[str, Any] = {"block": prompts.block, "errors": {r.config.name: r.error for r in broken}}
    if base.error or not others:
        why = f"the base server gave no whole answers ({base.error})" if base.error else "nothing to compare"
        return Result(NAME, ABSTAIN, why, measured, asked=bool(base.error))
    if not all(map(_numeric, base.answers.values())):
        why = "the base server gives log-probabilities that are not numbers, so nothing can be told"
        return Result(NAME, ABSTAIN, why, measured)
    limit, spread = tolerance(base)
    if spread > UNSTABLE:
        why = f"the base server differs from itself by {spread:.2f} nats, so nothing can be told"
        return Result(NAME, ABSTAIN, why, measured | {"base_spread_nats": rounded(spread, 4)})
    recalls = {n: r for n, r in prompts.recall.items() if all(r.recalled(a.text) for a in base.of(n))}
    seen = {r.config.name: _compare(r, base, limit, prompts, set(recalls)) for r in runs}
    measured |= {
        "tolerance_nats": rounded(limit, 4),
        "base_spread_nats": rounded(spread, 4),
        "recalled_by_base": sorted(recalls),
        "servers": {name: c.as_json() for name, c in seen.items()},
        "cached_tokens": {
            r.config.name: {n: [a.cached_tokens for a in r.of(n)] for n in r.prompts()} for r in runs
        },
    }
    expected = {"wrong": [], "lost": [], "difference_nats": f"up to {limit:.3f}"}
    wrong = [name for name, c in seen.items() if c.wrong or c.lost]
    if wrong:
        finding = _finding(wrong, seen, limit, spread)
        return Result(NAME, FAIL, finding.summary.rstrip("."), measured, expected, finding)
    if broken:
        names = ", ".join(f"{r.config.name} ({r.error})" for r in broken)
        return Result(NAME, ABSTAIN, f"not every server gave whole answers: {names}", measured, expected)
    if not any(
        c for r in others if r.config.prefix_caching for a in r.answers.values() for c in [a.cached_tokens]
    ):
        caching = [r for r in others if r.config.prefix_caching]
        if caching:
            return Result(
                NAME, ABSTAIN, "no answer came from the prefix cache, so none tested it", measured, expected
            )
    return _clean(seen, others, limit, spread, measured, expected)


def _clean(
    seen: dict[str, Compared],
    others: list[Run],
    limit: float,
    spread: float,
    measured: dict[str, Any],
    expected: dict[str, Any],
) -> Result:
    worst = max(max(c.to_base, c.to_itself) for c in seen.values())
    count = sum(c.compared for c in seen.values())
    why = f"{count} comparisons of {len(seen)} servers agree within {limit:.3f} nats (largest {worst:.3f}, "
    why += f"base with itself {spread:.3f})"
    last = others[-1].config
    alone = [c for name, c in seen.items() if name != last.name]
    both = seen[last.name]
    usual = max((c.sequential for c in alone), default=0.0)
    if last.draft_tokens and last.prefix_caching and both.sequential > MARGIN * usual:
        why += (
            f"; but one request at a time {last.name} repeats itself only within {both.sequential:.4f}, the other "
            f"servers within {usual:.4f}: too little to tell from rounding for sure"
        )
        return Result(NAME, ADVISE, why, measured, expected)
    return Result(NAME, PASS, why, measured, expected)


def _compare(run: Run, base: Run, limit: float, prompts: Prompts, recalls: set[str]) -> Compared:
    out = Compared(run.config.name)
    for (name, how, _), answer in run.answers.items():
        references = [(base.of(name)[:1], "base")] if run is not base else []
        own = run.of(name)[:1]
        if how != COLD:
            references.append((own, "itself"))
        for reference, whom in references:
            found_gap = gap(reference[0], answer) if reference else None
            if found_gap is None:
                continue
            out.compared += 1
            out.identical += found_gap.parts_at is None
            if whom == "base":
                out.to_base = max(out.to_base, found_gap.nats)
            else:
                out.to_itself = max(out.to_itself, found_gap.nats)
                if how != "at once":
                    out.sequential = max(out.sequential, found_gap.nats)
            if found_gap.nats > limit and run is not base:
                where = "" if found_gap.parts_at is None else f", other token at {found_gap.parts_at}"
                apart = f"{found_gap.nats:.2f} nats" if _numeric(answer) else "log-probabilities are not numbers"
                out.wrong.append(f"{name} ({how}) against {whom}: {apart}{where}")
        if name in recalls and run is not base and not prompts.recall[name].recalled(answer.text):
            out.lost.append(f"{name} ({how})")
    return out


def _finding(wrong: list[str], seen: dict[str, Compared], limit: float, spread: float) -> Finding:
    both = next((n for n in wrong if "+" in n), None)
    single = [n for n in wrong if n != both]
    if not single:
        cause, which = "mtp-prefix-cache-corrupts-output", "MTP together with prefix caching"
    elif "prefix caching" in single and "MTP" not in single:
        cause, which = "prefix-cache-corrupts-output", "prefix caching, also without MTP,"
    elif "MTP" in single and "prefix caching" not in single:
        cause, which = "mtp-corrupts-output", "MTP, also without prefix caching,"
    else:
        cause, which = "output-not-repeatable", "both MTP and prefix caching, each by itself,"
    faults = [f for n in wrong for f in (*seen[n].wrong, *(f"lost: {lost}" for lost in seen[n].lost))]
    worst = max(max(seen[n].to_base, seen[n].to_itself) for n in wrong)
    apart = f"up to {worst:.2f} nats"
    if worst > -NOT_A_NUMBER / 2:
        apart = "more than can be told (log-probabilities that are not numbers)"
    together = all(f"({AT_ONCE})" in f for f in faults)
    return found(
        cause,
        Confidence.PROVEN,
        f"On the same greedy prompts {which} changes answers: {len(faults)} of "
        f"{sum(seen[n].compared for n in wrong)} comparisons differ by {apart}, where the base "
        f"server differs from itself by {spread:.3f} (tolerance {limit:.3f})."
        + (" All of them when several requests were asked at once." if together else ""),
        [
            *(
                Evidence(f"correctness.{name}", _text(c), "greedy answers to the same prompts")
                for name, c in seen.items()
            ),
            *(Evidence("correctness.wrong", f, "greedy answers to the same prompts") for f in faults[:6]),
        ],
    )


def _text(c: Compared) -> str:
    apart = f"to base {c.to_base:.3f}, to itself {c.to_itself:.3f} nats"
    return f"{len(c.wrong)} wrong, {len(c.lost)} lost of {c.compared}; {apart}"
