"""Real compiles in a scratch folder: what Triton, torch extensions and nvcc will do at the first request."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from doctor.facts import CompileTrial
from doctor.host.access import Host, RunResult

#: Seconds for one trial, and for the full nvcc compile of ``--deep``.
TIMEOUT = 4.0
DEEP_TIMEOUT = 45.0
#: Seconds after which all short trials have ended, also those that had to wait for an answer first.
BUDGET = 4.2

_C_PYTHON = """\
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(1); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, 0}, {0, 0, 0, 0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&module); }
"""
_CXX = "#include <new>\nint main() { return std::get_new_handler() ? 1 : 0; }\n"
_LINK = "int answer(void) { return 1; }\n"
_CU = "__global__ void kernel(float *x) { x[threadIdx.x] = cosf(x[threadIdx.x]); }\n"

_TELLING = re.compile(
    r"error|fatal|cannot|unsupported|incompatible|No such file|not found|unrecognized|unknown|Killed|denied|ld:",
    re.I,
)


@dataclass(frozen=True)
class Trial:
    """A planned compile. ``argv`` may name files of the scratch folder through ``{tmp}``."""

    name: str
    file: str
    source: str
    argv: tuple[str, ...]
    timeout: float = TIMEOUT


def c_python(cc: str, include: str) -> Trial:
    """Triton's launcher: triton/runtime/build.py, with its flags."""
    argv = (cc, "{tmp}/launcher.c", "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", "{tmp}/launcher.so")
    return Trial("c-python", "launcher.c", _C_PYTHON, (*argv, "-I{tmp}", f"-I{include}"))


def cxx(compiler: str) -> Trial:
    """A C++ program with a standard header, linked: Inductor and torch extensions."""
    return Trial("cxx", "trial.cpp", _CXX, (compiler, "{tmp}/trial.cpp", "-o", "{tmp}/trial"))


def link_cuda(cc: str, flag: str, folders: Sequence[str]) -> Trial:
    """Triton's link against the driver library."""
    argv = (cc, "{tmp}/link.c", "-shared", "-fPIC", "-o", "{tmp}/link.so", flag, *(f"-L{f}" for f in folders))
    return Trial("link-cuda", "link.c", _LINK, argv)


def nvcc_preprocess(nvcc: str, host_compiler: str | None) -> Trial:
    """The cheapest run that calls the host compiler's C++ half and the version check of host_config.h."""
    argv = (nvcc, *_ccbin(host_compiler), "-E", "{tmp}/empty.cu", "-o", "{tmp}/empty.ii")
    return Trial("nvcc-preprocess", "empty.cu", "", argv)


def nvcc_compile(nvcc: str, host_compiler: str | None) -> Trial:
    """A whole kernel to an object file: front end, code generation, assembler, host compiler."""
    argv = (nvcc, *_ccbin(host_compiler), "-c", "{tmp}/kernel.cu", "-o", "{tmp}/kernel.o")
    return Trial("nvcc", "kernel.cu", _CU, argv, DEEP_TIMEOUT)


def _ccbin(host_compiler: str | None) -> tuple[str, ...]:
    # torch.utils.cpp_extension and FlashInfer pass CC this way; nvcc reads NVCC_CCBIN by itself
    return ("-ccbin", host_compiler) if host_compiler else ()


@contextmanager
def scratch(host: Host) -> Iterator[Callable[[Trial], CompileTrial]]:
    """Gives a function that runs trials in a folder of its own, removed afterwards whatever happened."""
    try:
        wanted = host.env.get("TMPDIR")
        usable = wanted if wanted and os.access(wanted, os.W_OK | os.X_OK) else None
        folder = tempfile.mkdtemp(prefix="vllm-doctor-", dir=usable)
    except OSError as error:
        why = f"no scratch folder: {error.strerror or error}"
        yield lambda trial: CompileTrial(trial.name, error=why)
        return
    ends = time.monotonic() + BUDGET
    try:
        yield lambda trial: _run(host, trial, folder, ends)
    finally:
        # a compiler killed at its deadline may still be writing: its files go, the folder may stay for a moment
        with suppress(OSError):
            shutil.rmtree(folder, ignore_errors=True)


def _run(host: Host, trial: Trial, folder: str, ends: float) -> CompileTrial:
    place = Path(folder, trial.name)
    argv = tuple(a.replace("{tmp}", str(place)) for a in trial.argv)
    try:
        place.mkdir()
        (place / trial.file).write_text(trial.source, encoding="ascii")
    except OSError as error:
        return CompileTrial(trial.name, argv, error=f"cannot write to {folder}: {error.strerror}")
    # TMPDIR: temporary files of a compiler that is killed go with the folder
    timeout = trial.timeout
    if timeout <= TIMEOUT:
        timeout = round(max(0.5, min(timeout, ends - time.monotonic())), 1)
    result = host.run(argv, timeout=timeout, env={"TMPDIR": str(place)}, cwd=str(place))
    return _outcome(trial, argv, result, str(place), timeout)


def _outcome(trial: Trial, argv: tuple[str, ...], result: RunResult, place: str, timeout: float) -> CompileTrial:
    output = telling(f"{result.stderr}\n{result.stdout}".replace(place + "/", ""))
    error = result.error
    if result.timed_out:
        error = f"no end within {timeout:g} s"
    return CompileTrial(
        trial.name,
        argv,
        ok=result.ok if error is None else None,
        returncode=result.returncode,
        output="" if result.ok else output,
        seconds=round(result.seconds, 3),
        error=error,
    )


def telling(text: str, limit: int = 2000) -> str:
    """The lines that say what went wrong, without repetition; the last lines when none does."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    chosen = [line for line in dict.fromkeys(lines) if _TELLING.search(line)] or lines[-5:]
    return "\n".join(line[:400] for line in chosen[:20])[:limit]
