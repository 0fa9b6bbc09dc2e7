"""From the log of a real start to a calibration: reads the options from the log where it tells them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from doctor.errors import DoctorError
from doctor.memory.calibration import Calibration, Measured, calibrate, read_log
from doctor.memory.model import Model
from doctor.memory.overhead import Compile
from doctor.memory.predict import Card, Start, predict
from doctor.memory.settings import Wish, plain_options
from doctor.memory.start_check import GIB
from doctor.memory.versions import Switches, switches


@dataclass(frozen=True)
class Lesson:
    """What was learned, and one sentence that says it."""

    card: Card
    calibration: Calibration
    summary: str


def learn(text: str, name: str, model: Model, card: Card | None, wish: Wish, version: Switches,
          explicit_version: str | None) -> Lesson:  # fmt: skip
    """Learns from one log. The command line's options win over the log's; a conflict is an error."""
    measured = read_log(text, name)
    if explicit_version is None and measured.vllm:
        version = switches(measured.vllm)
    card = _card(measured, card, name)
    seen = _as_seen(measured, card)
    utilization = wish.utilization or measured.utilization
    if utilization is None:
        raise DoctorError(f"{name}: does not say --gpu-memory-utilization; give it with --util")
    if wish.max_model_len is None and measured.max_model_len is not None:
        wish = replace(wish, max_model_len=measured.max_model_len)
    wish = _from_flags(text, wish)
    eager = wish.eager or bool(measured.eager)
    if eager:
        compiled = Compile.EAGER
    elif measured.cold is None:
        raise DoctorError(f"{name}: does not tell whether the compile cache was cold; give the whole log")
    else:
        compiled = Compile.COLD if measured.cold else Compile.WARM
    options = plain_options(model, wish, version, seen)
    start = Start(utilization, compiled, wish.vision)
    prediction = predict(model.shape, model.weights, seen, start, options, version)
    result = calibrate(measured, prediction, card, model.shape, options, compiled, wish.vision, version)
    was, now = prediction.available.likely / GIB, (prediction.requested_bytes - result.spent_bytes) / GIB
    summary = (
        f"{model.shape.name} on {card.name}, vLLM {version.version}, {compiled.value} start: KV cache "
        f"{now:.3f} GiB measured (+-{result.uncertainty_bytes / GIB:.3f}), {was:.3f} predicted "
        f"({100 * (was - now) / now:+.2f} %)"
    )
    if measured.total_gib is None:
        summary += f"; the log does not name the card's memory, taken as {card.total_bytes / GIB:.2f} GiB"
    return Lesson(card, result, summary)


#: A card's name tells its memory no better than this (GB against GiB, what the driver keeps).
_NAMED_SHARE = 0.06


def _as_seen(measured: Measured, card: Card) -> Card:
    """The card with the memory that the log names: what vLLM asked for was a share of that."""
    if measured.total_gib is None or abs(card.total_bytes / GIB - measured.total_gib) <= 0.006:
        return card  # the log rounds to two decimals, the card may be known to the byte
    return replace(card, total_bytes=int(measured.total_gib * GIB))


def _card(measured: Measured, card: Card | None, name: str) -> Card:
    if card is not None:
        has = card.total_bytes / GIB
        if measured.total_gib is not None and abs(has / measured.total_gib - 1) > _NAMED_SHARE:
            raise DoctorError(
                f"{name}: its card has {measured.total_gib:g} GiB, {card.name} has {has:.2f}; name the log's card"
            )
        return card
    if measured.total_gib is None:
        raise DoctorError("the log does not say how much memory the card has; give --gpu or --vram")
    return Card(f"card with {measured.total_gib:g} GiB", int(measured.total_gib * GIB))


def _from_flags(text: str, wish: Wish) -> Wish:
    """The start's own flags, where the log shows them and the command line does not."""
    import re

    def number(flag: str) -> int | None:
        match = re.search(rf"(?:--{flag.replace('_', '-')}[ =]|'{flag}': |\b{flag}=)(\d+)", text)
        return int(match[1]) if match else None

    if wish.max_num_seqs is None:
        wish = replace(wish, max_num_seqs=number("max_num_seqs"))
    if wish.max_num_batched_tokens is None:
        wish = replace(wish, max_num_batched_tokens=number("max_num_batched_tokens"))
    if wish.draft_tokens is None:
        match = re.search(r"num_spec(?:ulative)?_tokens['\"]?\s*[:=]\s*(\d+)", text)
        wish = replace(wish, draft_tokens=int(match[1]) if match else None)
    if wish.prefix_caching is None:
        on = re.search(r"enable_prefix_caching['\"]?\s*[:=]\s*(True|False)", text)
        wish = replace(wish, prefix_caching=on[1] == "True" if on else None)
    if wish.kv_cache_dtype is None:
        dtype = re.search(r"(?:--kv-cache-dtype[ =]|'kv_cache_dtype': '|\bkv_cache_dtype=)(\w+)", text)
        wish = replace(wish, kv_cache_dtype=dtype[1] if dtype else None)
    return wish
