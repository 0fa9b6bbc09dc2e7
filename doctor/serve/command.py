"""The command line and environment of the server that is tried."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doctor.errors import DoctorError
from doctor.serve.container import PORT
from doctor.serve.environment import VllmEnvironment

#: Flags the doctor sets itself: the server must listen where the doctor asks, and nowhere else.
RESERVED = {
    "--host": "it listens on 127.0.0.1 only",
    "--port": "use the doctor's own --port",
    "--uds": "it is asked over 127.0.0.1",
    "--served-model-name": "the doctor names it",
    "--api-key": "it listens on 127.0.0.1 and lives for the test only",
    "--ssl-keyfile": "it is asked over plain HTTP on 127.0.0.1",
    "--root-path": "it is asked at the root",
    "--headless": "it must answer requests",
}

SERVED_NAME = "smoke"
#: vLLM's CPU block size, so that the hybrid block of a small Qwen3.5 is the GPU's (528, or 544 with MTP 2).
CPU_BLOCK_SIZE = 32
#: Whole GiB of KV cache for a CPU server.
CPU_KV_GIB = 1


@dataclass(frozen=True)
class Settings:
    """What is tried. ``utilization`` is the share of the card's memory and means nothing on a CPU.

    ``max_num_seqs`` and ``max_num_batched_tokens`` None leave it to vLLM, as does ``dtype`` "". ``text_only``:
    the image encoder is not loaded. ``extra`` are the user's own arguments, which win.
    """

    model: str
    model_is_local: bool
    mtp: int
    max_model_len: int
    utilization: float
    extra: tuple[str, ...] = ()
    caching: bool = True
    eager: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    text_only: bool = False
    dtype: str = ""

    @property
    def draft_tokens(self) -> int:
        """Draft tokens after the user's own arguments; 0 without speculative decoding."""
        given = option(self.extra, "--speculative-config")
        if given is None:
            return self.mtp
        try:
            return int(json.loads(given).get("num_speculative_tokens", 0))
        except (ValueError, TypeError, AttributeError):
            raise DoctorError(f"--speculative-config is not a JSON object: {given}") from None

    @property
    def random_weights(self) -> bool:
        """Whether the server makes weights up instead of reading them: its text then says nothing."""
        return option(self.extra, "--load-format") == "dummy"

    @property
    def prefix_caching(self) -> bool:
        """Whether prefix caching is on after the user's own arguments."""
        given = switch(self.extra, "--enable-prefix-caching")
        return self.caching if given is None else given

    @property
    def enforce_eager(self) -> bool:
        """Whether CUDA graphs and torch.compile are off."""
        given = switch(self.extra, "--enforce-eager")
        return self.eager if given is None else given


@dataclass(frozen=True)
class ServeCommand:
    """``env`` holds what is set on top of the caller's environment, ``unset`` what is taken away.

    ``after`` is run once the process has ended, however it ended: it takes a container away.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    port: int
    served_name: str = SERVED_NAME
    after: tuple[str, ...] = ()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The complete environment of the server."""
        return {**{k: v for k, v in base.items() if k not in self.unset}, **self.env}


def option(arguments: Sequence[str], name: str) -> str | None:
    """The last value of ``--name VALUE`` or ``--name=VALUE``, or None. Underscores count as dashes."""
    value = None
    for position, argument in enumerate(arguments):
        flag, equals, tail = argument.partition("=")
        if flag.replace("_", "-") == name:
            if equals:
                value = tail
            elif position + 1 < len(arguments):
                value = arguments[position + 1]
    return value


def switch(arguments: Sequence[str], name: str) -> bool | None:
    """What the last of ``--name`` and ``--no-name`` says, or None. Underscores count as dashes."""
    said = {name: True, f"--no-{name.removeprefix('--')}": False}
    given = [said[flag] for flag in (a.replace("_", "-") for a in arguments) if flag in said]
    return given[-1] if given else None


def without_switch(arguments: Sequence[str], name: str) -> tuple[str, ...]:
    """``arguments`` without ``--name`` and ``--no-name``."""
    return tuple(a for a in arguments if switch((a,), name) is None)


def without_option(arguments: Sequence[str], name: str) -> tuple[str, ...]:
    """``arguments`` without ``--name VALUE`` and ``--name=VALUE``."""
    out: list[str] = []
    skip = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if skip:
            skip = False
        elif flag.replace("_", "-") == name:
            skip = not equals
        else:
            out.append(argument)
    return tuple(out)


def check_extra(extra: Sequence[str]) -> None:
    """Refuses serve arguments that would move the server away from the doctor. Raises DoctorError."""
    for argument in extra:
        flag = argument.partition("=")[0].replace("_", "-")
        if flag in RESERVED:
            raise DoctorError(f"{flag} cannot be given after --: {RESERVED[flag]}")
    if extra and not extra[0].startswith("-"):
        raise DoctorError(f"{extra[0]!r} after --: only vLLM's own options can follow; the model is --model")


def build(environment: VllmEnvironment, settings: Settings, port: int) -> ServeCommand:
    """The command for these settings. The user's own arguments come last, so they win."""
    container = environment.container
    inside = port if container is None else PORT
    argv = [
        # inside a container every address: its port is published on this machine's loopback only
        "--host", "127.0.0.1" if container is None else "0.0.0.0",  # noqa: S104
        "--port", str(inside), "--served-model-name", SERVED_NAME,
        "--max-model-len", str(settings.max_model_len),
        "--enable-prefix-caching" if settings.caching else "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details",
    ]  # fmt: skip
    # PYTHONDONTWRITEBYTECODE makes each of vLLM's processes compile its sources anew: 153 s instead of 48 s
    # to /health, measured. VLLM_API_KEY would lock the doctor out.
    unset = ["PYTHONDONTWRITEBYTECODE", "VLLM_API_KEY"]
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if environment.cpu:
        argv += ["--enforce-eager", "--block-size", str(CPU_BLOCK_SIZE)]
        env["VLLM_CPU_KVCACHE_SPACE"] = str(CPU_KV_GIB)
    else:
        # always explicit: defaults differ between versions (0.9, 0.92)
        argv += ["--gpu-memory-utilization", f"{settings.utilization:g}"]
        if settings.eager:
            argv.append("--enforce-eager")
    for flag, value in (
        ("--max-num-seqs", settings.max_num_seqs),
        ("--max-num-batched-tokens", settings.max_num_batched_tokens),
    ):
        if value is not None:
            argv += [flag, str(value)]
    if settings.text_only:
        argv.append("--language-model-only")
    if settings.dtype:
        argv += ["--dtype", settings.dtype]
    if settings.mtp:
        config = {"method": "mtp", "num_speculative_tokens": settings.mtp}
        argv += ["--speculative-config", json.dumps(config, separators=(",", ":"))]
    if settings.model_is_local:
        env["HF_HUB_OFFLINE"] = "1"
    arguments = (*argv, *settings.extra)
    if container is None:
        return ServeCommand((*environment.command, "serve", settings.model, *arguments), env, tuple(unset), port)
    line, name = container.serve(arguments, env, settings.model, port)
    return ServeCommand(line, {}, (), port, after=container.remove(name))
