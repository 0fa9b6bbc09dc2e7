"""The settings that passed, as files to start a server with: a script, a compose file, a profile of the fork."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from doctor.errors import DoctorError
from doctor.memory import emit
from doctor.memory.layout import KvOptions
from doctor.memory.model import Model, open_model
from doctor.memory.overhead import Compile
from doctor.memory.predict import Start
from doctor.report.redact import Redactor
from doctor.serve.command import Settings, option
from doctor.serve.container import mounted
from doctor.smoke.result import SmokeResult

#: Where the server listens when it is started from these files.
PORT = "8000"


@dataclass(frozen=True)
class Launch:
    """As much of a launch profile as :mod:`doctor.memory.emit` needs."""

    options: KvOptions
    start: Start
    dtype: str


def files(result: SmokeResult, redactor: Redactor, env: Mapping[str, str]) -> dict[str, str]:
    """Content by file name; empty when nothing passed. Paths are real ones, secrets are taken out."""
    best = result.best
    if best is None or best.settings is None or best.command is None:
        return {}
    arguments = _arguments(best, redactor)
    lost = "".join(f"# given up: {text}\n" for text in (result.ladder.gave_up if result.ladder else ()))
    head = f"# passed `vllm-doctor smoke` with vLLM {best.environment.vllm}\n{lost}"
    out = {"serve.sh": _script(best, head, arguments)}
    if best.environment.cpu and best.environment.container is None:
        return out  # the other two are for a card
    container = best.environment.container
    image = container.image if container else f"vllm/vllm-openai:v{best.environment.vllm.partition('+')[0]}"
    source, inside = mounted(best.settings.model)
    gpus = 0 if best.environment.cpu else int(option(best.settings.extra, "--tensor-parallel-size") or 1)
    entry = () if container and container.own else ("vllm", "serve")
    out["compose.yaml"] = head + emit.compose(image, source, inside, arguments, gpus, entry)
    profile = None if best.environment.cpu else _profile(best, env)
    if profile is not None:
        out["settings.env"] = head + profile
    return out


def _arguments(best: SmokeResult, redactor: Redactor) -> list[str]:
    """What follows ``serve MODEL``, without what the doctor set for its own purposes."""
    assert best.command is not None  # noqa: S101  checked by the caller
    argv = list(best.command.argv)
    shown = redactor.value_of(best.command).argv
    # a path is kept, or the server would not start; a word that held a secret is not
    words = [s if "<secret>" in s else a for a, s in zip(argv, shown, strict=True)]
    words = words[words.index("serve") + 2 :]
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("--host", "--port", "--served-model-name"):
            skip = True
        else:
            kept.append(word)
    return kept


def _script(best: SmokeResult, head: str, arguments: Sequence[str]) -> str:
    settings, command = best.settings, best.command
    assert settings is not None  # noqa: S101  checked by the caller
    assert command is not None  # noqa: S101
    address = ["--host", "127.0.0.1", "--port", PORT]
    if best.environment.container is None:
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in command.env.items())
        words = [*best.environment.command, "serve", settings.model, *arguments, *address]
    else:
        exports = ""
        line = list(command.argv)
        at = line.index("--name")
        line[at : at + 4] = []  # name and label of the test
        line[line.index("-p") + 1] = f"127.0.0.1:{PORT}:8000"
        end = line.index("serve") + 2
        words = [*line[:end], *arguments, "--host", "0.0.0.0", "--port", "8000"]  # noqa: S104  inside only
    return f'#!/bin/sh\n{head}{exports}exec {_lines(words)} "$@"\n'


def _lines(words: Sequence[str]) -> str:
    """One option a line, as a person reads it."""
    out = shlex.quote(words[0])
    for word in words[1:]:
        out += (" \\\n  " if word.startswith("--") else " ") + shlex.quote(word)
    return out


def _profile(best: SmokeResult, env: Mapping[str, str]) -> str | None:
    """The fork's profile; None when a value that it needs was left to vLLM, or the model cannot be read."""
    settings = best.settings
    assert settings is not None  # noqa: S101  checked by the caller
    seqs = settings.max_num_seqs or _whole(settings, "--max-num-seqs")
    batched = settings.max_num_batched_tokens or _whole(settings, "--max-num-batched-tokens")
    if seqs is None or batched is None:
        return None
    try:
        model = _model(best, env)
    except DoctorError:
        return None
    options = KvOptions(
        max_model_len=_whole(settings, "--max-model-len") or settings.max_model_len,
        draft_tokens=settings.draft_tokens,
        prefix_caching=settings.prefix_caching,
        kv_cache_dtype=option(settings.extra, "--kv-cache-dtype") or "auto",
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        tp=_whole(settings, "--tensor-parallel-size") or 1,
    )
    fraction = option(settings.extra, "--gpu-memory-utilization")
    compiled = Compile.EAGER if settings.enforce_eager else Compile.WARM
    utilization = settings.utilization if fraction is None else float(fraction)
    start = Start(utilization, compiled, vision=not settings.text_only)
    return emit.env_text(model, Launch(options, start, settings.dtype))


def _model(best: SmokeResult, env: Mapping[str, str]) -> Model:
    assert best.settings is not None  # noqa: S101  checked by the caller
    model = best.fit.model if best.fit else open_model(best.settings.model, env, lambda _: None)
    return replace(model, given=best.model.given)


def _whole(settings: Settings, name: str) -> int | None:
    value = option(settings.extra, name)
    return int(value) if value and value.isdigit() else None
