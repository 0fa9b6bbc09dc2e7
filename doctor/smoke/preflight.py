"""What can be known before the start: a cause found here saves minutes of loading."""

from __future__ import annotations

import errno
import socket

from doctor.checks.registry import found
from doctor.checks.storage import model_files_incomplete
from doctor.finding import Confidence, Evidence, Finding, Remedy
from doctor.host import Host, listeners, storage
from doctor.host.examine import Options
from doctor.serve.environment import VllmEnvironment
from doctor.smoke.model import ModelInfo
from doctor.snapshot import Snapshot

#: A hub may be out of reach with a name that resolves, and hides private models behind the same answer.
_LESS_SURE = {"hub-name-resolution-failed": Confidence.LIKELY, "hub-access-denied": Confidence.LIKELY}


def vllm_missing(environment: VllmEnvironment) -> Finding | None:
    """The environment has no vLLM."""
    if environment.vllm and environment.command:
        return None
    what = "no vllm distribution" if not environment.vllm else f"vllm {environment.vllm} but no way to start it"
    return found(
        "vllm-not-installed",
        Confidence.PROVEN,
        f"{environment.prefix} ({environment.chosen_by}) has {what}.",
        [Evidence("python.vllm", environment.vllm or "none", environment.prefix)],
    )


def model_invalid(model: ModelInfo) -> Finding | None:
    """The model is not there, cannot be fetched, or has no usable configuration."""
    if model.problem is None:
        return None
    return found(
        model.cause,
        _LESS_SURE.get(model.cause, Confidence.PROVEN),
        f"{model.problem[0].upper()}{model.problem[1:]}.",
        [Evidence("storage.model_path", model.given, "--model")],
    )


def weights_damaged(host: Host, model: ModelInfo) -> Finding | None:
    """Weight files are missing or cut off: the loader would find that out minutes later."""
    facts = storage.probe(host, Options(model=model.path)).get("storage")
    result = model_files_incomplete(Snapshot(storage=facts))
    return result if isinstance(result, Finding) else None


def mtp_missing(model: ModelInfo, draft_tokens: int) -> Finding | None:
    """MTP is asked for and the checkpoint has no mtp.* tensors."""
    if not draft_tokens or model.has_mtp is not False:
        return None
    return found(
        "mtp-weights-missing",
        Confidence.PROVEN,
        f"{model.mtp_source} names no mtp.* tensor, so MTP with {draft_tokens} draft tokens has nothing to draft "
        "with; the server is tried without MTP.",
        [Evidence("model.mtp_tensors", "none", model.mtp_source)],
    )


def port_taken(host: Host, port: int) -> Finding | None:
    """Somebody listens on the port."""
    if port_free(port):
        return None
    listener, pid, age, source = _listener(host, port)
    who = f" by {listener}" + (f" (pid {pid}" + (f", {age / 3600:.1f} h old)" if age else ")") if pid else "")
    return found(
        "port-in-use",
        Confidence.PROVEN,
        f"Port {port} is taken{who if listener else '; by whom this user cannot see'}.",
        [
            Evidence("network.port_taken", "yes", f"bind 127.0.0.1:{port}"),
            *([Evidence("network.port_listener", listener, source)] if listener else []),
        ],
        fixes=[Remedy("Leave --port out: the smoke test takes a free one", automatic=True)]
        + ([Remedy(f"Or end the earlier server, pid {pid}", commands=(("kill", str(pid)),))] if pid else []),
    )


def port_free(port: int) -> bool:
    """True when a server could listen on the loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as test:
        # as uvicorn does it: a port in TIME_WAIT is free
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            test.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as test:
        test.bind(("127.0.0.1", 0))
        return int(test.getsockname()[1])


def _listener(host: Host, port: int) -> tuple[str, int | None, float | None, str]:
    """(program, pid, age in seconds, source) of whoever listens, as far as this user may know."""
    facts = {name: (read.value, read.source) for name, read in listeners.facts(host, port).items()}
    name, source = facts.get("port_listener", ("", ""))
    return (
        str(name),
        facts.get("port_listener_pid", (None,))[0],
        facts.get("port_listener_age_s", (None,))[0],
        source,
    )
