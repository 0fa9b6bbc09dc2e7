"""Are first requests slow because kernels are compiled then: each shape first against later, and the log.

The time alone proves nothing (a cold cache of anything is slow the first time), and a line of vLLM's JIT
monitor alone proves nothing either (it also appears when a kernel comes from the disk cache). Both together
are the cause. The requests also warm the server up, so what is measured afterwards is steady.
"""

from __future__ import annotations

from doctor.checks.registry import found
from doctor.finding import Confidence, Evidence
from doctor.serve.client import Answer, ServerError
from doctor.smoke import usage
from doctor.smoke.jit import JitLines
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, unusable
from doctor.smoke.probes.prefix_cache import block_size
from doctor.smoke.shapes import SPIKE_S, SPIKE_TIMES, ShapeTimes, shapes, time_shapes

NAME = "first_requests"
TITLE = "first requests of each shape"


def probe(session: Session) -> Result:
    """Times every shape; reads the log's JIT lines where there is a log."""
    lines = JitLines(session.log)
    kernels: list[tuple[str, ...]] = [lines.new()]  # those of the requests before this probe count as first
    wanted = shapes(session, block_size(session, session.metrics()))
    try:
        times = time_shapes(session, wanted, lambda _: kernels.append(lines.new()))
    except ServerError as error:
        return Result(NAME, ABSTAIN, f"no prompt could be made: {error}")
    session.warm = usage.read(session)
    bad = next((t for t in times if t.error), None)
    if bad is not None:
        return unusable(NAME, Answer(error=bad.error), f"{bad.shape.name} of {bad.shape.tokens} tokens failed")
    first = tuple(dict.fromkeys((*kernels[0], *kernels[1])))
    later = tuple(dict.fromkeys(k for p in kernels[2:] for k in p))
    return judge(times, (first, later) if lines.readable else None)


def judge(times: list[ShapeTimes], kernels: tuple[tuple[str, ...], tuple[str, ...]] | None) -> Result:
    """``kernels``: compiled during first and during later requests, None without a log."""
    spikes = [t for t in times if t.spike]
    measured = {
        "shapes": [t.as_json() for t in times],
        "spikes": [t.shape.name for t in spikes],
        "kernels_compiled_first": None if kernels is None else list(kernels[0]),
        "kernels_compiled_later": None if kernels is None else list(kernels[1]),
    }
    expected = {"spikes": [], "spike_is": f"{SPIKE_S:g} s and {SPIKE_TIMES:g} times more than later ones"}
    if not spikes:
        named = f"; {len(kernels[0])} kernels were loaded then" if kernels and kernels[0] else ""
        return Result(
            NAME, PASS, f"no shape of {len(times)} was clearly slower the first time{named}", measured, expected
        )
    worst = max(spikes, key=lambda t: (t.first_s or 0.0) - (t.usual_s or 0.0))
    slow = f"{worst.shape.name}: {worst.first_s:.2f} s the first time, then {worst.usual_s:.2f} s"
    if not kernels or not kernels[0]:
        why = f"{len(spikes)} of {len(times)} shapes were slower the first time ({slow})"
        why += "; no log tells why" if kernels is None else "; the log names no compiled kernel"
        return Result(NAME, ADVISE, why, measured, expected)
    why = f"{slow}; {len(kernels[0])} kernels were compiled during the first requests, {len(kernels[1])} later"
    finding = found(
        "triton-jit-first-request",
        Confidence.PROVEN,
        f"{why[0].upper()}{why[1:]}. `vllm-doctor warmup` after each start takes the wait away from users.",
        [
            Evidence("first_requests.kernels", ", ".join(kernels[0]), "JIT monitor lines of the server's log"),
            *(
                Evidence(f"first_requests.{t.shape.name}", f"{t.first_s:.2f} s, then {t.usual_s:.2f} s", "HTTP")
                for t in spikes
            ),
        ],
    )
    return Result(NAME, ADVISE, why, measured, expected, finding)
