"""Does memory stay where it was: what the server holds after all probes against the end of the warm-up.

The baseline is taken when every shape of request was asked three times (the probe of first requests), because
those load kernels and fill allocators. vLLM takes its pool before it serves, so what grows later is buffers:
a steady server stays within the bound below. A bound passed is advice to look again after a day, not a proof:
allocators keep what they once needed.
"""

from __future__ import annotations

from doctor.smoke import usage
from doctor.smoke.probes import ABSTAIN, ADVISE, PASS, Result, Session, rounded

NAME = "memory"
TITLE = "memory after the probes"
GIB = 1 << 30
#: Growth that needs no word. Measured over all probes with a tiny model on a CPU (vLLM 0.32.0): 10 and 11 MiB.
BOUND_BYTES = GIB // 4


def probe(session: Session) -> Result:
    """Reads once more; nothing is asked of the server."""
    if session.warm is None:
        why = "what the server holds cannot be read" if session.host else "its processes are not known"
        return Result(NAME, ABSTAIN, why, asked=False)
    now = usage.read(session)
    if now is None or now.how != session.warm.how:
        return Result(NAME, ABSTAIN, "what the server holds cannot be read any more", asked=False)
    return judge(session.warm, now, BOUND_BYTES)


def judge(warm: usage.Usage, now: usage.Usage, bound: int) -> Result:
    """``bound`` in bytes."""
    growth = now.used_bytes - warm.used_bytes
    measured = {
        "read": now.how,
        "warm_gib": rounded(warm.used_bytes / GIB),
        "now_gib": rounded(now.used_bytes / GIB),
        "growth_mib": rounded(growth / (1 << 20), 1),
        "free_gib": None if now.free_bytes is None else rounded(now.free_bytes / GIB, 2),
    }
    expected = {"growth_mib": f"up to {bound / (1 << 20):g}"}
    why = f"{now.used_bytes / GIB:.2f} GiB ({now.how}), {growth / (1 << 20):+.0f} MiB since the warm-up"
    if now.free_bytes is not None:
        why += f", {now.free_bytes / GIB:.2f} GiB free"
    if growth > bound:
        why += f": more than {bound / (1 << 20):g} MiB"
        if now.how == usage.CARD:
            why += ", or another process took it"
        return Result(NAME, ADVISE, why, measured, expected)
    return Result(NAME, PASS, why, measured, expected)
