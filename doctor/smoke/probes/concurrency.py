"""What one to four requests at once bring: tokens a second together and each, and the time to the first token.

More sequences share one read of the weights, so the total grows, unless the server takes one at a time
(``--max-num-seqs 1``): then the others wait, which is no fault. Waiting is seen in ``vllm:num_requests_running``
and ``vllm:num_requests_waiting`` (gauges), asked while they run. With ``--full`` only: it takes ten requests.
"""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from doctor.serve import metrics as names
from doctor.serve.client import Answer
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, rounded, unusable
from doctor.smoke.prompts import unique_text

NAME = "concurrency"
TITLE = "one to four requests at once"
MOST = 4
TOKENS = 96
CPU_TOKENS = 32
#: Four at once bring less than this many times one: something is wrong (never said of a CPU).
LEAST_GAIN = 1.2
_POLL_S = 0.05


@dataclass(frozen=True)
class Level:
    """``at_once`` requests: total and median tokens a second, slowest first token, most running and waiting."""

    at_once: int
    total_tokens_per_s: float
    each_tokens_per_s: float | None
    ttft_s: float | None
    running: float | None = None
    waiting: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For measured figures."""
        return {name: rounded(value, 2) for name, value in vars(self).items()}


class Gauges:
    """Asks for running and waiting requests in a thread of its own and keeps the largest."""

    def __init__(self, session: Session) -> None:
        self.running: float | None = None
        self.waiting: float | None = None
        self._session = session
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Gauges:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(15.0)

    def _watch(self) -> None:
        while not self._end.wait(_POLL_S):
            now = self._session.metrics()
            running, waiting = (now.total(n) if now else None for n in (names.RUNNING, names.WAITING))
            if running is not None:
                self.running = max(self.running or 0.0, running)
            if waiting is not None:
                self.waiting = max(self.waiting or 0.0, waiting)


def probe(session: Session) -> Result:
    """Each level once, after the warm-up of the earlier probes."""
    if not session.full:
        return Result(NAME, ABSTAIN, "with --full only", asked=False)
    tokens = CPU_TOKENS if session.cpu else TOKENS
    levels: list[Level] = []
    for count in range(1, MOST + 1):
        with Gauges(session) as gauges, ThreadPoolExecutor(count) as pool:
            began = time.monotonic()
            answers = list(
                pool.map(lambda text: _ask(session, text, tokens), [unique_text() for _ in range(count)])
            )
            seconds = time.monotonic() - began
        bad = next((a for a in answers if not a.ok), None)
        if bad is not None:
            return unusable(NAME, bad, f"one of {count} requests at once failed")
        each = [a.decode_tokens_per_s for a in answers if a.decode_tokens_per_s]
        firsts = [a.ttft_s for a in answers if a.ttft_s is not None]
        levels.append(
            Level(
                count,
                count * tokens / seconds,
                statistics.median(each) if each else None,
                max(firsts, default=None),
                gauges.running,
                gauges.waiting,
            )
        )
    return judge(session, levels)


def judge(session: Session, levels: list[Level]) -> Result:
    """``levels`` in rising order."""
    one, most = levels[0], levels[-1]
    gain = most.total_tokens_per_s / one.total_tokens_per_s
    measured = {"levels": [level.as_json() for level in levels], "gain": rounded(gain, 2)}
    figures = (
        f"{one.total_tokens_per_s:.0f} tokens/s alone, {most.total_tokens_per_s:.0f} together at {most.at_once}"
    )
    figures += f" ({gain:.1f} times)"
    if most.ttft_s is not None:
        figures += f", the slowest first token after {most.ttft_s:.2f} s"
    if most.running == 1 and most.waiting and not session.shared:
        why = f"they queue, one runs at a time (max-num-seqs is 1): {figures}"
        return Result(NAME, PASS, why, measured, {"running": 1})
    expected = {"gain": f"above {LEAST_GAIN:g}"}
    if gain < LEAST_GAIN and not session.cpu:
        return Result(NAME, ADVISE, f"requests at once bring little: {figures}", measured, expected)
    return Result(NAME, PASS, figures, measured, expected)


def _ask(session: Session, text: str, tokens: int) -> Answer:
    return session.client.complete(text, tokens, ignore_eos=True)
