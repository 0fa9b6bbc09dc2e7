"""``vllm-doctor fit``: will a model fit, what will vLLM print, and with which settings to start it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.files import write
from doctor.memory.fields import ConfigError
from doctor.memory.fit import Fit, evaluate
from doctor.memory.layout import KV_DTYPES
from doctor.memory.model import Model, open_model
from doctor.memory.predict import Card
from doctor.memory.settings import PURPOSES, Wish
from doctor.memory.start_check import GIB
from doctor.memory.versions import Switches, switches

_EXIT = {True: 0, None: 1, False: 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the contract in docs/architecture.md."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="folder, config.json, or hub name")
    parser.add_argument(
        "--gpu", action="append", default=[], metavar="NAME", help="card (repeatable); default: this machine's"
    )
    parser.add_argument("--vram", type=_gib, metavar="GiB", help="its memory as CUDA sees it")
    parser.add_argument("--free", type=_gib, metavar="GiB", help="memory that is free on it")
    parser.add_argument("--util", type=_fraction, metavar="F", help="--gpu-memory-utilization")
    parser.add_argument("--max-model-len", type=_length, metavar="N", help="context length (32768 or 32K)")
    parser.add_argument("--mtp", type=_count, metavar="K", help="draft tokens of the MTP head, 0 for none")
    parser.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--max-num-seqs", type=_positive, metavar="N")
    parser.add_argument("--max-num-batched-tokens", type=_positive, metavar="N")
    parser.add_argument("--kv-cache-dtype", choices=KV_DTYPES, metavar="TYPE", help=f"{', '.join(KV_DTYPES)}")
    parser.add_argument("--tp", type=_positive, default=1, metavar="N", help="tensor parallel size (default 1)")
    parser.add_argument("--images", action="store_true", help="keep the image encoder (default: text only)")
    parser.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs, no torch.compile")
    parser.add_argument("--vllm", metavar="VERSION", help="vLLM version (default: that of our image)")
    pool = parser.add_mutually_exclusive_group()
    pool.add_argument("--available-kv", type=_gib, metavar="GiB", help="judge exactly this KV pool")
    pool.add_argument("--available-kv-bytes", type=_positive, metavar="N", help="the same in bytes")
    parser.add_argument("--for", dest="purpose", choices=PURPOSES, help="choose settings for this purpose")
    parser.add_argument("--emit", choices=("serve", "env", "compose", "json"), help="print only the settings")
    parser.add_argument(
        "--curve", nargs="?", const="-", metavar="FILE.svg", help="context against KV pool; - for text"
    )
    parser.add_argument(
        "--calibrate", metavar="LOG", help="learn the overhead from a real start's log (- for stdin)"
    )
    parser.add_argument("--calibrations", action="store_true", help="show what was learned on this machine")
    parser.add_argument("--forget", action="store_true", help="delete what was learned")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")


def run(args: argparse.Namespace) -> int:
    """0 fits, 1 within the uncertainty, 2 does not fit. Several: the best of them."""
    if args.calibrations or args.forget:
        return _calibrations(args)
    if not args.models:
        raise DoctorError("give a model: a folder, a config.json or a hub name like Qwen/Qwen3.5-9B")
    if args.emit and not args.purpose:
        args.purpose = "chat"  # what is printed is judged
    version = switches(args.vllm)
    wish = _wish(args)
    available = _available(args)
    cards: Sequence[Card | None] = _cards(args, pool_only=available is not None)
    if args.calibrate:
        return _calibrate(args, cards, wish, version)
    if (args.emit or args.curve) and (len(args.models) > 1 or len(cards) > 1):
        wanted = "--emit" if args.emit else "--curve"
        sold = f"; here: {', '.join(c.name for c in cards if c)}" if len(cards) > 1 else ""
        raise DoctorError(f"{wanted} needs one model and one card (--vram GiB tells sizes apart){sold}")
    rows, errors = _judge(args, cards, wish, version, available)
    fits = [row[2] for row in rows if isinstance(row[2], Fit)]
    if not fits:
        raise errors[0]
    _print(args, rows, fits)
    return min(_EXIT[fit.fits] for fit in fits)


def _judge(args: argparse.Namespace, cards: Sequence[Card | None], wish: Wish, version: Switches,
           available: int | None) -> tuple[list[tuple[str, str, Fit | str]], list[DoctorError]]:  # fmt: skip
    """One row for every model and card; what cannot be read is a row too when there are several."""
    rows: list[tuple[str, str, Fit | str]] = []
    errors: list[DoctorError] = []
    for given in args.models:
        try:
            model = _open(given)
        except ConfigError as error:
            errors.append(error)
            rows.append((given, "", str(error)))
            continue
        for card in cards:
            name = card.name if card else ""
            try:
                fit = evaluate(model, card, wish, version, available_bytes=available, purpose=args.purpose,
                               env=os.environ)  # fmt: skip
                rows.append((model.shape.name, name, fit))
            except DoctorError as error:
                errors.append(error)
                rows.append((model.shape.name, name, str(error)))
    return rows, errors


def _open(given: str) -> Model:
    return open_model(given, os.environ, lambda text: print(text, file=sys.stderr))  # noqa: T201


def _print(args: argparse.Namespace, rows: Sequence[tuple[str, str, Fit | str]], fits: Sequence[Fit]) -> None:
    if args.curve:
        _curve(args, fits[0])
    if args.emit:
        sys.stdout.write(_emit(args, fits[0]))
    elif args.json:
        sys.stdout.write(_json(rows, fits))
    elif args.curve == "-":
        return
    else:
        from doctor.report.fit_view import print_fit, print_table

        if len(rows) > 1:
            print_table(rows)
            if len(args.models) == 1 and len(args.gpu) == 1:
                print("This card is sold with several sizes; --vram GiB chooses one and shows its settings.")  # noqa: T201
        else:
            print_fit(fits[0], purpose=args.purpose)


def _json(rows: Sequence[tuple[str, str, Fit | str]], fits: Sequence[Fit]) -> str:
    from doctor.report.fit_json import fit_object

    best = min(_EXIT[fit.fits] for fit in fits)
    out: dict[str, Any] = {
        "schema_version": 1, "command": "fit", "verdict": ("ready", "unknown", "blocked")[best],
        "findings": [], "passed": [], "skipped": [], "waived": [],
    }  # fmt: skip
    if len(rows) == 1:
        out["fit"] = fit_object(fits[0])
    else:
        out["fits"] = [
            fit_object(result)
            if isinstance(result, Fit)
            else {"fits": False, "model": {"given": name}, "why": result}
            for name, _, result in rows
        ]
    return json.dumps(out, indent=1, ensure_ascii=False) + "\n"


def _emit(args: argparse.Namespace, fit: Fit) -> str:
    from doctor.memory import emit
    from doctor.report.fit_json import fit_object

    if fit.profile is None:
        raise DoctorError("--emit needs a card: give --gpu or --vram instead of --available-kv")
    for warning in fit.profile.warnings:
        print(f"! {warning}", file=sys.stderr)  # noqa: T201
    if fit.fits is False:
        print(f"! does not fit: {fit.why}", file=sys.stderr)  # noqa: T201
    if args.emit == "serve":
        return emit.serve_text(fit.model, fit.profile)
    if args.emit == "env":
        return emit.env_text(fit.model, fit.profile)
    if args.emit == "compose":
        return emit.compose_text(fit.model, fit.profile, f"vllm/vllm-openai:v{fit.version.version}")
    full = fit_object(fit)
    return (
        json.dumps({"settings": full["settings"], "reasons": full["reasons"]}, indent=1, ensure_ascii=False) + "\n"
    )


def _curve(args: argparse.Namespace, fit: Fit) -> None:
    from doctor.report import curve

    lines = curve.lines(fit)
    if args.curve == "-":
        encoding = (sys.stdout.encoding or "").lower()
        sys.stdout.write(curve.text(lines, ascii_only=not encoding.startswith("utf")))
        return
    where = f" on {fit.card.name}" if fit.card else ""
    subtitle = (
        f"vLLM {fit.version.version}, KV cache {fit.options.kv_cache_dtype}, "
        f"{'prefix caching' if fit.pool.prefix_hit_step else 'no prefix caching'}, later starts"
    )
    target = Path(args.curve)
    write(target, curve.svg(lines, f"{fit.model.shape.name}{where}", subtitle))
    print(f"wrote {target}", file=sys.stderr)  # noqa: T201


def _calibrate(args: argparse.Namespace, cards: Sequence[Card | None], wish: Wish, version: Switches) -> int:
    from doctor.memory.learn import learn

    try:
        text = sys.stdin.read() if args.calibrate == "-" else Path(args.calibrate).read_text("utf-8", "replace")
    except OSError as error:
        raise DoctorError(f"cannot read {args.calibrate}: {error.strerror}") from None
    card = _card_of_log(text, args.calibrate, [c for c in cards if c is not None])
    lesson = learn(text, args.calibrate, _open(args.models[0]), card, wish, version, explicit_version=args.vllm)
    from doctor.memory.calibration import save

    path = save(os.environ, lesson.card, lesson.calibration)
    print(lesson.summary)  # noqa: T201
    print(f"kept in {path}; `vllm-doctor fit --forget` deletes it", file=sys.stderr)  # noqa: T201
    return 0


def _card_of_log(text: str, name: str, cards: Sequence[Card]) -> Card | None:
    """Of a card sold with several sizes the one whose size the log names."""
    from doctor.memory.calibration import read_log

    total = read_log(text, name).total_gib
    if len(cards) > 1 and total is None:
        raise DoctorError(f"{name}: does not name the card's memory; give --vram GiB")
    return min(cards, key=lambda c: abs(c.total_bytes / GIB - (total or 0)), default=None)


def _calibrations(args: argparse.Namespace) -> int:
    from doctor.memory import calibration

    if args.forget:
        print(f"deleted {calibration.forget(os.environ)} file(s)")  # noqa: T201
        return 0
    files = calibration.stored(os.environ)
    for path, entries in files:
        print(path)  # noqa: T201
        for entry in entries.values():
            spent, error = entry.spent_bytes / GIB, entry.uncertainty_bytes / GIB
            print(f"  vLLM {entry.vllm}: {spent:.3f} GiB (+-{error:.3f}) beside the KV cache for {entry.key}")  # noqa: T201
    if not files:
        print("nothing was learned on this machine; `vllm-doctor fit MODEL --calibrate LOG` does it")  # noqa: T201
    return 0


def _wish(args: argparse.Namespace) -> Wish:
    return Wish(
        utilization=args.util, max_model_len=args.max_model_len, draft_tokens=args.mtp,
        prefix_caching=args.prefix_caching, max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens, kv_cache_dtype=args.kv_cache_dtype, tp=args.tp,
        vision=args.images, eager=args.enforce_eager,
    )  # fmt: skip


def _available(args: argparse.Namespace) -> int | None:
    if args.available_kv_bytes is not None:
        return int(args.available_kv_bytes)
    return None if args.available_kv is None else int(args.available_kv * GIB)


def _cards(args: argparse.Namespace, pool_only: bool) -> Sequence[Card | None]:
    from doctor.memory.cards import local_cards, named_cards, plain_card

    if args.gpu:
        return [card for name in args.gpu for card in named_cards(name, args.vram, args.free)]
    if args.vram is not None:
        return [plain_card(args.vram, args.free)]
    if pool_only:
        return [None]
    cards = local_cards()
    if not cards and args.calibrate:
        return []  # the log names its card's memory
    if not cards:
        raise DoctorError("no NVIDIA card answers here: say which one with --gpu NAME or --vram GiB")
    return cards[:1]


def _number(text: str) -> float:
    """nan for what is no number, which no range holds."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _gib(text: str) -> float:
    value = _number(text.lower().removesuffix("gib").removesuffix("gb").removesuffix("g"))
    if not 0 < value < 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in GiB")
    return value


def _fraction(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return value


def _length(text: str) -> int:
    lower = text.lower().replace(",", "").replace("_", "")
    value = _number(lower[:-1]) * 1024 if lower.endswith("k") else _whole(lower)
    if not 1 <= value <= 1 << 30:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a context length: a number of tokens such as 32768 or 32K"
        )
    return int(value)


def _whole(text: str) -> int:
    """-1 for what is no whole number, which no range holds."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def _positive(text: str) -> int:
    value = _whole(text)
    if not 1 <= value < 1 << 50:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def _count(text: str) -> int:
    value = _whole(text)
    if not 0 <= value <= 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of draft tokens (0 to 16)")
    return value
