"""Everything a sweep knows before its first start: environment, card, models, points, predictions."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from doctor.errors import DoctorError
from doctor.finding import Finding
from doctor.host import Host
from doctor.memory.fields import ConfigError
from doctor.memory.model import Model, open_model
from doctor.memory.predict import Card
from doctor.memory.settings import recommended
from doctor.memory.versions import switches
from doctor.serve.command import CPU_KV_GIB, check_extra, option, switch
from doctor.serve.environment import VllmEnvironment, locate
from doctor.smoke import preflight
from doctor.smoke.model import ModelInfo, inspect
from doctor.smoke.options import DEFAULT_UTILIZATION
from doctor.sweep.forecast import Forecast, Judge
from doctor.sweep.options import SweepOptions
from doctor.sweep.plan import BASE_BATCHED, Point, Setup, Subject, key, points
from doctor.sweep.store import NAME, read

#: What every point sets itself; anything else may follow ``--``.
SWEPT = {
    "--max-model-len": "--context",
    "--max-num-seqs": "--sequences",
    "--max-num-batched-tokens": "--batched",
    "--speculative-config": "--mtp",
    "--gpu-memory-utilization": "--util",
    "--language-model-only": "--images to leave it out",
}

#: A card of which less is free may be given memory back; looked at in steps, in seconds.
_IDLE, _STEP_S, _SETTLE_S = 0.9, 2.0, 30.0


@dataclass(frozen=True)
class Item:
    """One point, its key in the file of rows, and what is predicted of it."""

    point: Point
    key: str
    forecast: Forecast


@dataclass
class Prepared:
    """``findings`` stop the sweep before its first start; ``notes`` are for the user."""

    environment: VllmEnvironment
    card: Card | None
    setup: Setup
    items: tuple[Item, ...]
    findings: list[Finding]
    notes: list[str]


def prepare(
    options: SweepOptions, host: Host, card: Card | None, say: Callable[[str], None], *, plan: bool = False
) -> Prepared:
    """Reads models and predicts every point. ``card`` replaces this machine's; nothing is started.

    ``plan``: nothing will be, so that where no vLLM is one is assumed, which the notes say.
    Raises DoctorError for misuse and for a machine without a card whose vLLM needs one.
    """
    check_extra(options.serve_args)
    for name, instead in SWEPT.items():
        if any(a.partition("=")[0].replace("_", "-") == name for a in options.serve_args):
            raise DoctorError(f"{name} cannot be given after --: the sweep sets it; use {instead}")
    findings: list[Finding] = []
    notes: list[str] = []
    given = card is not None
    environment = _elsewhere(host, options) if card else locate(host, options.python)
    if plan and not given and not environment.vllm:
        environment, card = _assumed(host, environment, notes)
    say("reading the models")
    found = [_look(host, given, say) for given in options.models]
    for info, model in found:
        if model is None and (info.problem is None or given):
            notes.append(f"{info.given}: its layout is not known, so nothing is predicted")
    if not given:
        # what is needed to start; a plan for another card needs none of it, any other plan no vLLM
        causes = [] if plan else [preflight.vllm_missing(environment)]
        causes += [preflight.model_invalid(info) for info, _ in found]
        causes += [preflight.weights_damaged(host, info) for info, _ in found if info.problem is None]
        findings += [c for c in causes if c]
        if card is None and environment.vllm and not environment.cpu:
            card = _own_card(host)
    utilization = _utilization(options, environment, card, notes)
    setup = _as_before(_setup(host, environment, card, utilization, options), options, notes)
    judge = Judge(
        card=card,
        version=switches(environment.vllm.partition("+")[0] or None),
        utilization=setup.utilization,
        vision=options.images,
        eager=switch(options.serve_args, "--enforce-eager") or environment.cpu,
        prefix_caching=switch(options.serve_args, "--enable-prefix-caching") is not False,
        kv_cache_dtype=option(options.serve_args, "--kv-cache-dtype"),
        env=host.env,
    )
    models = {info.path or info.given: model for info, model in found}
    subjects = [_subject(info, model, judge, options) for info, model in found]
    items = tuple(
        Item(point, key(point, setup), judge.forecast(models[point.model], point))
        for point in points(subjects, options.values)
    )
    return Prepared(environment, card, setup, items, findings, notes)


def has_vision(host: Host, model: str) -> bool:
    """Whether the checkpoint has an image encoder, by its configuration."""
    return "vision_config" in inspect(host, model).config


def _elsewhere(host: Host, options: SweepOptions) -> VllmEnvironment:
    """For a plan of another card: the version of --python where given, else the image's; never a CPU build."""
    given = locate(host, options.python).vllm if options.python else ""
    return VllmEnvironment("", "", "--gpu", given.partition("+")[0] or switches(None).version)


def _assumed(host: Host, environment: VllmEnvironment, notes: list[str]) -> tuple[VllmEnvironment, Card | None]:
    """For a plan without vLLM: the image's version, on this machine's card or else on its CPU."""
    from doctor.smoke.profile import card_in, look

    version, card = switches(None).version, card_in(look(host))
    where = f"{environment.prefix} ({environment.chosen_by})"
    notes.append(f"{where} has no vLLM; {version}, the version of the image, is assumed")
    if card is None:
        notes.append(
            f"no NVIDIA card answers here; a server on the CPU with its {CPU_KV_GIB} GiB of KV cache is assumed "
            "(--gpu NAME predicts for a card)"
        )
    return replace(environment, vllm=version if card else f"{version}+cpu"), card


def _own_card(host: Host) -> Card:
    from doctor.smoke.profile import card_in, look

    card = card_in(look(host))
    if card is None:
        raise DoctorError(
            "no NVIDIA card answers here, and this vLLM needs one; `vllm-doctor check` says why, "
            "--plan --gpu NAME predicts for another card",
            exit_code=2,
        )
    deadline = time.monotonic() + _SETTLE_S
    # a server that was killed just now gives its memory back a little later
    while card.free_bytes is not None and card.free_bytes < _IDLE * card.total_bytes:
        time.sleep(_STEP_S)
        now = card_in(look(host))
        grown = now is not None and now.free_bytes is not None and now.free_bytes > card.free_bytes + (64 << 20)
        if now is None or not grown or time.monotonic() > deadline:
            break
        card = now
    return card


def _look(host: Host, given: str, say: Callable[[str], None]) -> tuple[ModelInfo, Model | None]:
    info = inspect(host, given)
    try:
        model = open_model(info.path if info.problem is None else given, host.env, say)
    except ConfigError:
        model = None
    return info, model


def _utilization(
    options: SweepOptions, environment: VllmEnvironment, card: Card | None, notes: list[str]
) -> float | None:
    if environment.cpu:
        if options.utilization is not None:
            notes.append("--util means nothing on a CPU and was left out")
        return None
    if options.utilization is not None:
        return options.utilization
    return recommended(card) if card else DEFAULT_UTILIZATION


def _setup(
    host: Host, environment: VllmEnvironment, card: Card | None, utilization: float | None, options: SweepOptions
) -> Setup:
    from doctor.host import system
    from doctor.host.examine import Options

    facts = system.probe(host, Options()).get("system")
    return Setup(
        vllm=environment.vllm,
        card=card.name if card else "",
        card_bytes=card.total_bytes if card else None,
        cpu=(facts.cpu_model if facts else "") or "",
        cpus=facts.cpu_count if facts else None,
        utilization=utilization,
        serve_args=options.serve_args,
        images=options.images,
    )


def _as_before(setup: Setup, options: SweepOptions, notes: list[str]) -> Setup:
    """The share of memory that the rows of this setup were measured with, unless one is given.

    What is recommended follows from what is free now, which a desktop changes from day to day: a sweep that is
    resumed must not begin anew for that.
    """
    if options.utilization is not None or setup.utilization is None:
        return setup
    for row in reversed(read(options.out / NAME).rows):
        share = (row.get("setup") or {}).get("utilization")
        before = replace(setup, utilization=share)
        if isinstance(share, float) and before.id == row.get("setup_id"):
            if share != setup.utilization:
                notes.append(
                    f"--gpu-memory-utilization {share:g} as in the rows that are there; now "
                    f"{setup.utilization:g} would be recommended (--util {setup.utilization:g} measures anew)"
                )
            return before
    return setup


def _subject(info: ModelInfo, model: Model | None, judge: Judge, options: SweepOptions) -> Subject:
    longest = model.shape.max_positions if model else None
    drafts = options.values.drafts if info.has_mtp is not False else (0,)
    edges = {k: judge.edge(model, k, BASE_BATCHED, longest) for k in drafts} if longest else {}
    return Subject(
        path=info.path or info.given,
        fingerprint=fingerprint(Path(info.path)) if info.problem is None else info.given,
        name=Path(info.path or info.given).name,
        longest=longest,
        has_mtp=model.shape.has_mtp if model and info.has_mtp is None else info.has_mtp,
        edges={k: edge for k, edge in edges.items() if edge is not None},
    )


def fingerprint(folder: Path) -> str:
    """16 hex digits over the configuration and the names and sizes of the weight files: quick, and enough to
    tell another quantisation or a replaced checkpoint."""
    digest = hashlib.sha256()
    try:
        digest.update((folder / "config.json").read_bytes())
        for file in sorted(folder.glob("*.safetensors")):
            digest.update(f"\0{file.name}\0{file.stat().st_size}".encode())
    except OSError as error:
        raise DoctorError(f"cannot read {folder}: {error.strerror}") from None
    return digest.hexdigest()[:16]


def left_out(items: Sequence[Item], *, edges: bool) -> tuple[Item, ...]:
    """Points that are predicted not to fit and therefore not started."""
    return () if edges else tuple(i for i in items if i.forecast.refused)
