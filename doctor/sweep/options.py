"""What a sweep was asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from doctor.smoke.options import DEFAULT_TIMEOUT_S, REQUEST_S
from doctor.sweep.plan import Values


@dataclass(frozen=True)
class SweepOptions:
    """``models``: the first one is swept, every further one is tried at the edge of what fits.

    ``utilization`` None takes the share that ``fit`` recommends for this card. ``edges``: points that are
    predicted not to fit are started too. ``retry``: points that were refused or died are started again.
    """

    models: tuple[str, ...]
    out: Path
    python: str | None = None
    values: Values = field(default_factory=Values)
    utilization: float | None = None
    edges: bool = False
    retry: bool = False
    images: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    request_s: float = REQUEST_S
    serve_args: tuple[str, ...] = ()
