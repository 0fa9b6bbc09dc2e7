"""What the memory model knows of a server of our own: its model, its options, its card."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from doctor.checks.gpu_common import visible
from doctor.errors import DoctorError
from doctor.facts import GpuFacts
from doctor.memory.cards import card_of
from doctor.memory.layout import KvOptions
from doctor.memory.model import Model, open_model
from doctor.memory.predict import Card
from doctor.memory.settings import Wish, plain_options
from doctor.memory.versions import Switches, switches
from doctor.serve.command import CPU_BLOCK_SIZE, Settings, option
from doctor.smoke import profile
from doctor.smoke.probes import Session


@dataclass(frozen=True)
class Outlook:
    """``card`` and ``gpu`` (the same card as the driver tells of it) are None on a CPU or without a driver."""

    model: Model
    version: Switches
    options: KvOptions
    settings: Settings
    card: Card | None = None
    gpu: GpuFacts | None = None


def outlook(session: Session) -> Outlook | str:
    """What is known, or a sentence that says why nothing can be predicted."""
    settings = session.settings
    if settings is None or not session.model_folder:
        return "how this server was started is not known"
    try:
        model = _model(session.model_folder)
        version = switches((session.server.vllm or "").partition("+")[0] or None)
        wish = _wish(settings, session.max_model_len)
        gpu = (
            None if session.cpu or session.host is None else next(iter(visible(profile.look(session.host))), None)
        )
        card = card_of(gpu) if gpu else None
        options = plain_options(model, wish, version, card or Card("", 0))
    except DoctorError as error:
        return str(error)
    block = option(settings.extra, "--block-size")
    if session.cpu or block:
        options = replace(options, block_size=int(block) if block and block.isdigit() else CPU_BLOCK_SIZE)
    return Outlook(model, version, options, settings, card, gpu)


def has_vision(settings: Settings) -> bool:
    """Whether the image encoder of a model that has one is loaded and profiled too."""
    return not settings.text_only and "--language-model-only" not in settings.extra


@lru_cache(maxsize=4)
def _model(folder: str) -> Model:
    return open_model(folder, {}, lambda _: None)


def _wish(settings: Settings, max_model_len: int) -> Wish:
    def number(flag: str) -> int | None:
        text = option(settings.extra, flag)
        return int(text) if text and text.isdigit() else None

    return Wish(
        max_model_len=max_model_len,
        draft_tokens=settings.draft_tokens,
        prefix_caching=settings.prefix_caching,
        max_num_seqs=number("--max-num-seqs") or settings.max_num_seqs,
        max_num_batched_tokens=number("--max-num-batched-tokens") or settings.max_num_batched_tokens,
        kv_cache_dtype=option(settings.extra, "--kv-cache-dtype"),
        tp=number("--tensor-parallel-size") or 1,
        eager=settings.enforce_eager,
    )
