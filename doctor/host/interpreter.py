"""Which Python would run vLLM, and what that Python says about itself. Asked once, in isolated mode."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from doctor.host.access import Host
from doctor.host.examine import Options

#: Prefix of the isolated environment this doctor runs in; "" when it is not installed in one.
OWN_PREFIX = sys.prefix if sys.prefix != sys.base_prefix else ""

#: The include folder follows Triton's rule (triton/runtime/build.py): Debian's posix_local means posix_prefix.
_QUESTION = """
import json, site, sys, sysconfig
get = getattr(sysconfig, "get_default_scheme", getattr(sysconfig, "_get_default_scheme", None))
scheme = get() if get else "posix_prefix"
scheme = "posix_prefix" if scheme == "posix_local" else scheme
print(json.dumps({
    "executable": sys.executable, "version": ".".join(map(str, sys.version_info[:3])),
    "implementation": sys.implementation.name, "prefix": sys.prefix, "base_prefix": sys.base_prefix,
    "include": sysconfig.get_paths(scheme=scheme)["include"],
    "path": [p for p in sys.path if p], "user_site": site.getusersitepackages(),
}))
"""
#: What is said of an activated environment whose Python is gone.
NO_PYTHON = "has no Python that can be run"
#: How the question is shown as a source of facts.
ASKED = "-I -c (sys, sysconfig, site)"


@dataclass(frozen=True)
class Interpreter:
    """The chosen interpreter. Fields after ``error`` are None when it could not be asked."""

    executable: str | None
    chosen_by: str | None
    own: bool = False  # the doctor's own isolated environment
    looked_at: tuple[str, ...] = ()
    error: str | None = None
    version: str | None = None
    implementation: str | None = None
    prefix: str | None = None
    base_prefix: str | None = None
    include: str | None = None
    sites: tuple[str, ...] = ()  # folders that may hold distributions, in import order


#: Answers of the last seconds: two probes of one examination ask the same question at the same time.
_recent: WeakKeyDictionary[Host, tuple[float, Options, Interpreter]] = WeakKeyDictionary()
_asking = threading.Lock()
_RECENT_S = 3.0


def interpreter(host: Host, options: Options, timeout: float = 3.0) -> Interpreter:
    """Chooses the interpreter and asks it. Never raises for what a host may hold."""
    with _asking:
        when, asked, answer = _recent.get(host, (0.0, None, None))
        if answer is not None and asked == options and time.monotonic() - when < _RECENT_S:
            return answer
        answer = choose(host, options)
        if answer.executable is not None:
            answer = _ask(host, answer, timeout)
        _recent[host] = (time.monotonic(), options, answer)
        return answer


def choose(host: Host, options: Options) -> Interpreter:
    """The interpreter that vLLM would use.

    Order: ``--python``, VIRTUAL_ENV, CONDA_PREFIX, the ``vllm`` script on PATH, python3 on PATH, this
    interpreter. An activated environment without vLLM gives way to one that holds it. The doctor's
    own isolated environment comes last: it runs the doctor, not vLLM.
    """
    if options.python is not None:
        return _explicit(host, options.python)
    candidates = list(_candidates(host))
    looked = (*_broken(host), *(f"{by}: {where}" for where, by, _ in candidates))
    with_vllm = [c for c in candidates if c[2]]
    others = [c for c in candidates if not is_own(host, c[0])]
    for where, by, _ in (*with_vllm, *others, *candidates):
        return Interpreter(where, by, own=is_own(host, where), looked_at=looked)
    return Interpreter(None, None, looked_at=looked, error="no Python interpreter found on this host")


def is_own(host: Host, executable: str) -> bool:
    """True for an interpreter of the doctor's own isolated environment.

    One that holds torch is more than that: somebody put the doctor beside what serves.
    """
    own = bool(OWN_PREFIX) and _prefix_of(host, executable) == host.realpath(OWN_PREFIX)
    return own and not _holds(host, executable, "torch")


def _prefix_of(host: Host, executable: str) -> str:
    """The environment folder of PREFIX/bin/python; the program itself may be a link out of it."""
    return host.realpath(os.path.dirname(os.path.dirname(executable)))


def _explicit(host: Host, given: str) -> Interpreter:
    path = os.path.expanduser(given)
    if not os.path.isabs(path):
        path = os.path.normpath(os.path.join(host.env.get("PWD") or os.getcwd(), path))
    looked = (f"--python: {path}",)
    if host.is_dir(path):
        for folder in (path, os.path.join(path, ".venv")):
            found = _python_in(host, folder)
            if found:
                return Interpreter(found, "--python", looked_at=looked)
        return Interpreter(None, "--python", looked_at=looked, error=f"no bin/python in {path}")
    if host.access(path, os.X_OK):
        return Interpreter(path, "--python", looked_at=looked)
    return Interpreter(None, "--python", looked_at=looked, error=f"{path} is not a program or a folder")


def _python_in(host: Host, prefix: str) -> str | None:
    for name in ("python", "python3"):
        path = os.path.join(prefix, "bin", name)
        if host.access(path, os.X_OK) and not host.is_dir(path):
            return path
    return None


def _holds(host: Host, executable: str, distribution: str) -> bool:
    prefix = os.path.dirname(os.path.dirname(executable))
    patterns = (f"{prefix}/lib*/python3*/{kind}-packages/{distribution}-*.dist-info" for kind in ("site", "dist"))
    return any(host.glob(pattern) for pattern in patterns)


def _candidates(host: Host) -> Iterator[tuple[str, str, bool]]:
    """(interpreter, chosen by, whether vLLM is known to be installed there)."""
    for variable, by in (("VIRTUAL_ENV", "VIRTUAL_ENV"), ("CONDA_PREFIX", "conda")):
        prefix = host.env.get(variable)
        found = _python_in(host, prefix) if prefix else None
        if found:
            yield found, by, _holds(host, found, "vllm")
    script = host.which("vllm")
    found = _interpreter_of(host, script) if script else None
    if found:
        yield found, "vllm on PATH", True
    for folder in host.env.get("PATH", os.defpath).split(os.pathsep):
        for name in ("python3", "python"):
            path = os.path.join(folder, name)
            if os.path.isabs(path) and host.access(path, os.X_OK) and not host.is_dir(path):
                yield path, "PATH", _holds(host, path, "vllm") and not is_own(host, path)
                break
    if host.exists(sys.executable):
        yield sys.executable, "this interpreter", _holds(host, sys.executable, "vllm")


def _broken(host: Host) -> Iterator[str]:
    """Activated environments without a Python: it was removed or upgraded away beneath them."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = host.env.get(variable)
        if prefix and not _python_in(host, prefix):
            yield f"{variable}: {prefix} {NO_PYTHON}"


def _interpreter_of(host: Host, script: str) -> str | None:
    """The Python that a console script runs under, from its first lines (pip, uv and long-path forms)."""
    lines = (host.read(script, 1024) or "").splitlines()
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words and os.path.basename(words[0]) == "env" and len(words) > 1:
        found = host.which(words[1])
        words = [found] if found else []
    if words and not os.path.basename(words[0]).startswith("python"):
        # "#!/bin/sh" and "'''exec' /very/long/path/python "$0" "$@"": or a shim, which has a python beside it
        words = lines[1].replace("'", " ").replace('"', " ").split()[1:2] if "exec" in "".join(lines[1:2]) else []
    if words and os.path.basename(words[0]).startswith("python") and host.access(words[0], os.X_OK):
        return words[0]
    beside = _python_in(host, os.path.dirname(os.path.dirname(script)))
    return beside if beside and not words else None


def _ask(host: Host, chosen: Interpreter, timeout: float) -> Interpreter:
    result = host.run([chosen.executable or "", "-I", "-c", _QUESTION], timeout=timeout)
    answer = _json(result.stdout) if result.ok else None
    if answer is None:
        if result.timed_out:
            why = f"no answer within {timeout:g} s"
        else:
            why = result.error or _last_line(result.stderr) or f"exit status {result.returncode}"
        return _with(chosen, error=f"{chosen.executable} cannot be asked: {why}")
    prefix = _text(answer, "prefix") or ""
    base = _text(answer, "base_prefix")
    return _with(
        chosen,
        executable=_text(answer, "executable") or chosen.executable,
        version=_text(answer, "version"),
        implementation=_text(answer, "implementation"),
        prefix=prefix,
        base_prefix=base,
        include=_text(answer, "include"),
        sites=_sites(host, answer, is_venv=prefix != base),
    )


def _with(chosen: Interpreter, **changes: Any) -> Interpreter:
    return Interpreter(**{**chosen.__dict__, **changes})


def _sites(host: Host, answer: Mapping[str, Any], is_venv: bool) -> tuple[str, ...]:
    """sys.path as a normal start would have it: isolated mode leaves PYTHONPATH and the user's folder out."""
    extra = [p for p in host.env.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(p)]
    user = _text(answer, "user_site")
    shared = not is_venv or _sees_system(host, _text(answer, "prefix") or "")
    if user and shared and not host.env.get("PYTHONNOUSERSITE"):
        extra.append(user)
    path = answer.get("path")
    listed = [p for p in path if isinstance(p, str)] if isinstance(path, list) else []
    return tuple(p for p in dict.fromkeys((*extra, *listed)) if host.is_dir(p))


def _sees_system(host: Host, prefix: str) -> bool:
    for line in (host.read(f"{prefix}/pyvenv.cfg", 4096) or "").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "include-system-site-packages":
            return value.strip().lower() == "true"
    return False


def _json(text: str) -> Mapping[str, Any] | None:
    for line in reversed(text.splitlines()):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def _text(answer: Mapping[str, Any], key: str) -> str | None:
    value = answer.get(key)
    return value if isinstance(value, str) and value else None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""
