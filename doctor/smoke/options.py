"""What a smoke test was asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: vLLM's own default share of the card differs between versions (0.9, later 0.92): the lower one is asked.
DEFAULT_UTILIZATION = 0.9
#: Tokens. Enough for prompts of several hybrid blocks, small enough for a card that is nearly full.
DEFAULT_MAX_MODEL_LEN = 8192
CPU_MAX_MODEL_LEN = 4096
#: Draft tokens when nothing says whether they pay.
DEFAULT_MTP = 2
#: Seconds to /health. A first start compiles for minutes.
DEFAULT_TIMEOUT_S = 900.0
#: Seconds for one request as a whole; the first one may compile kernels.
REQUEST_S = 180.0


class Missing(str):
    """Why a hub model is not here, in one line ("" when it is); ``cause`` is its cause in the catalogue."""

    cause = "model-path-invalid"

    @classmethod
    def because(cls, cause: str, why: str) -> Missing:
        """A text with a cause of its own."""
        text = cls(why)
        text.cause = cause
        return text


#: A model that is here, or of which nothing is known yet.
HERE = Missing()


@dataclass(frozen=True)
class SmokeOptions:
    """``port`` None means a free one; ``mtp``, ``utilization`` and ``max_model_len`` None: chosen for the card."""

    model: str
    python: str | None = None
    mtp: int | None = None
    utilization: float | None = None
    max_model_len: int | None = None
    port: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    request_s: float = REQUEST_S
    out: Path | None = None
    serve_args: tuple[str, ...] = ()
    full: bool = False  # also the servers without MTP, without prefix caching and without both
    url: str | None = None  # a running server instead of one of our own
    ladder: bool | None = None  # other settings after a failure; None: with ``full``
    image: str | None = None  # a container of this image instead of ``python``
    missing: Missing = HERE  # why a hub model is not here, when that is known
