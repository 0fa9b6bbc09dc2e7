"""Which vLLM would serve: its program, version and build. Read from files; nothing is imported or run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from doctor.errors import DoctorError
from doctor.host import Host
from doctor.serve.container import Container

_SITE_PATTERNS = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",
    "lib/python3/dist-packages",
)


@dataclass(frozen=True)
class VllmEnvironment:
    """``vllm`` is the version of the installed distribution ("" = not installed).

    ``command`` starts ``vllm`` as argv; it is empty when the environment has no such program.
    """

    prefix: str
    python: str
    chosen_by: str
    vllm: str = ""
    torch: str = ""
    command: tuple[str, ...] = ()
    source: str = ""  # where the version was read
    container: Container | None = None  # the image that ``command`` is a program of

    @property
    def cpu(self) -> bool:
        """True for a vLLM that runs on the CPU: the local part of its version says so."""
        return re.search(r"\+(?:[\w.]*\.)?cpu\b", self.vllm) is not None


def locate(host: Host, wanted: str | None) -> VllmEnvironment:
    """Finds the environment: ``wanted`` (a folder or an interpreter), or the active one, or vllm on PATH.

    Raises DoctorError when ``wanted`` does not exist; an environment without vLLM is returned as such.
    """
    if wanted:
        path = os.path.abspath(os.path.expanduser(wanted))
        if not host.exists(path):
            raise DoctorError(f"--python {wanted}: no such environment; give the folder of a virtual environment")
        return _describe(host, path, "--python")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if host.env.get(name):
            return _describe(host, host.env[name], name)
    program = host.which("vllm")
    if program:
        return _describe(host, os.path.dirname(os.path.dirname(host.realpath(program))), "vllm on PATH")
    python = host.which("python3")
    if python:
        return _describe(host, python, "python3 on PATH")
    raise DoctorError("no Python environment found; give the one that has vLLM with --python ENV")


def _describe(host: Host, path: str, chosen_by: str) -> VllmEnvironment:
    if host.is_dir(path):
        prefix = path.rstrip("/")
        python = next((p for p in (f"{prefix}/bin/python", f"{prefix}/bin/python3") if host.exists(p)), "")
        if not python:
            raise DoctorError(f"{path} has no bin/python; give the folder of a virtual environment with --python")
    else:
        # the interpreter of a virtual environment is a link: its own place counts, not where it leads
        python, prefix = path, os.path.dirname(os.path.dirname(path))
    packages = _packages(host, prefix)
    vllm, source = packages.get("vllm", ("", ""))
    torch, _ = packages.get("torch", ("", ""))
    command: tuple[str, ...] = ()
    if host.access(f"{prefix}/bin/vllm", os.X_OK):
        command = (f"{prefix}/bin/vllm",)
    elif vllm:
        command = (python, "-m", "vllm.entrypoints.cli.main")
    return VllmEnvironment(prefix, python, chosen_by, vllm, torch, command if vllm else (), source)


def _packages(host: Host, prefix: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for pattern in _SITE_PATTERNS:
        for name in ("vllm", "torch"):
            for path in host.glob(f"{prefix}/{pattern}/{name}-*.dist-info/METADATA"):
                version = re.search(r"^Version:\s*(\S+)", host.read(path, 1 << 14) or "", re.M)
                if version and name not in found:
                    found[name] = (version[1], path)
    return found
