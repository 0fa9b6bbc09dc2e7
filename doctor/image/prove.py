"""``python -m doctor.image.prove DIR``: in an image's build: would this image work? Ends the build if not.

DIR holds ``python-lock.txt`` and ``image.json``; the proof is written to ``proof.json`` there. Everything is
judged before a failure ends it, so that one build says all that is wrong.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from doctor.image.sbom import read_lock

#: Seconds for one step; the first import of torch and vLLM reads gigabytes.
_DEADLINE_S = 300.0
#: Distributions that are in the environment without being in the lock: the one that installs, and the doctor.
_BESIDE_THE_LOCK = {"pip", "vllm-env-doctor"}

_IMPORT = """
import ctypes, glob, json, os, sys
import torch
out = {"torch": torch.__version__, "cuda": torch.version.cuda, "arches": torch._C._cuda_getArchFlags().split()}
import triton, vllm
out |= {"triton": triton.__version__, "vllm": vllm.__version__, "extensions": 0, "broken": []}
for path in sorted(glob.glob(os.path.dirname(vllm.__file__) + "/*.so")):
    try:
        ctypes.CDLL(path)
        out["extensions"] += 1
    except OSError as error:
        # the driver's own library is lent by the host when the container starts
        if "libcuda.so.1" not in str(error):
            out["broken"].append(str(error))
print(json.dumps(out))
"""

_EXTENSION = """
#include <Python.h>
#include <vector>
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "proof", nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr};
static std::vector<int> headers_of_the_right_compiler{1};
PyMODINIT_FUNC PyInit_proof() { return PyModule_Create(&def); }
"""

_KERNEL = "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\n"

#: What is said while it runs, and what it tries.
Step = tuple[str, Callable[[], None]]


@dataclass
class Proof:
    """What was tried: ``facts`` for proof.json, ``problems`` in words; none means the image is good."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def prove(folder: Path) -> Proof:
    """Tries everything. Raises nothing for what the image lacks: that is a problem in the proof."""
    proof = Proof()
    path = folder / "python-lock.txt"
    locked = read_lock(path.read_text(encoding="utf-8"), str(path))
    lock: dict[str, str] = {canonicalize_name(one.name): one.version for one in locked}
    image = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    steps: list[Step] = [
        ("packages", lambda: _packages(proof, lock)),
        ("dependencies", lambda: _dependencies(proof)),
        ("compilers", lambda: _compilers(proof)),
        ("check", lambda: _check(proof, lock)),
    ]
    if "torch" in lock:
        steps.insert(2, ("imports", lambda: _imports(proof, image)))
    attempt(proof, steps)
    return proof


def attempt(proof: Proof, steps: Iterable[Step]) -> None:
    """Every step in turn; one that cannot be tried is a problem too."""
    for name, step in steps:
        print(f"prove: {name}", flush=True)  # noqa: T201
        try:
            step()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            proof.problems.append(f"{name}: {error}")


def compare(lock: dict[str, str], installed: dict[str, str]) -> list[str]:
    """What differs between the lock and the environment, in words."""
    out = [
        f"{name} {version} is in the lock, {installed.get(name) or 'nothing'} is installed"
        for name, version in sorted(lock.items())
        if installed.get(name) != version
    ]
    unlocked = sorted(set(installed) - set(lock) - _BESIDE_THE_LOCK)
    return out + [f"{name} {installed[name]} is installed and not in the lock" for name in unlocked]


def _packages(proof: Proof, lock: dict[str, str]) -> None:
    installed: dict[str, str] = {
        canonicalize_name(d.metadata["Name"]): d.version
        for d in importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])
    }
    proof.facts["packages"] = len(installed)
    proof.problems += compare(lock, installed)


def _dependencies(proof: Proof) -> None:
    done = run([sys.executable, "-m", "pip", "--disable-pip-version-check", "check"])
    proof.facts["pip_check"] = done.stdout.strip().splitlines()[-1:]
    if done.returncode:
        proof.problems += [f"pip check: {line}" for line in done.stdout.strip().splitlines()]


def _imports(proof: Proof, image: dict[str, str]) -> None:
    done = run([sys.executable, "-c", _IMPORT])
    if done.returncode:
        proof.problems.append(f"torch and vllm cannot be imported: {last(done.stderr)}")
        return
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    proof.facts |= seen
    proof.problems += [f"a library of vllm cannot be loaded: {text}" for text in seen["broken"]]
    if not seen["extensions"]:
        proof.problems.append("vllm has no compiled library")
    for name in ("vllm", "torch", "cuda"):
        if seen[name].partition("+")[0] != image[name]:
            proof.problems.append(f"{name} {seen[name]} is imported, the image was planned with {image[name]}")
    if not seen["arches"]:
        proof.problems.append("this torch has no code for any GPU")


def _compilers(proof: Proof) -> None:
    cxx = os.environ.get("CXX", "g++-12")
    with tempfile.TemporaryDirectory() as folder:
        source, module = f"{folder}/proof.cpp", f"{folder}/proof.so"
        Path(source).write_text(_EXTENSION, encoding="utf-8")
        include = sysconfig.get_path("include")
        done = run([cxx, "-shared", "-fPIC", "-O2", f"-I{include}", source, "-o", module])
        if done.returncode:
            proof.problems.append(f"{cxx} cannot compile a Python extension: {last(done.stderr)}")
        elif run([sys.executable, "-c", "import proof"], cwd=folder).returncode:
            proof.problems.append(f"the extension that {cxx} compiled cannot be loaded")
        else:
            proof.facts["extension_compiled_by"] = first(run([cxx, "--version"]).stdout)
        nvcc = shutil.which("nvcc")
        proof.facts["nvcc"] = nvcc
        if nvcc is None:
            return
        Path(f"{folder}/proof.cu").write_text(_KERNEL, encoding="utf-8")
        argv = [nvcc, "-ccbin", cxx, "-arch=sm_75", "-c", f"{folder}/proof.cu", "-o", f"{folder}/proof.o"]
        done = run(argv)
        if done.returncode:
            proof.problems.append(f"nvcc cannot compile a kernel with {cxx}: {last(done.stderr)}")
        else:
            proof.facts["nvcc"] = f"{nvcc}: {last(run([nvcc, '--version']).stdout)}"


def _check(proof: Proof, lock: dict[str, str]) -> None:
    argv = [str(Path(sys.executable).with_name("vllm-doctor")), "check", "--inside-image", "--json"]
    argv += ["--python", sys.prefix]
    if "vllm" not in lock:  # an image of the doctor alone
        argv += ["--skip", "vllm-not-installed"]
    answer = take_check(proof, run(argv))
    proof.facts["check"]["passed"] = len(answer["passed"])


def take_check(proof: Proof, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What `check --json` said of the image, also returned; what it calls blocked is a problem."""
    answer: dict[str, Any] = json.loads(done.stdout)
    proof.facts["check"] = {
        "verdict": answer["verdict"],
        "findings": [f"{f['id']} ({f['confidence']}, {f['severity']})" for f in answer["findings"]],
    }
    if answer["verdict"] == "blocked":
        blockers = [f for f in answer["findings"] if f["severity"] == "blocker"]
        proof.problems += [f"check: {f['title']} [{f['id']}]" for f in blockers]
    return answer


def run(argv: list[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """A step's program to its end; raises OSError or subprocess.TimeoutExpired."""
    env = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=_DEADLINE_S, cwd=cwd, env=env, check=False)


def last(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")


def first(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def main(argv: Iterable[str]) -> int:
    """Returns 0 when the image is good, 1 when it is not; the reasons are on standard output."""
    folder = Path(next(iter(argv)))
    return conclude(prove(folder), folder)


def conclude(proof: Proof, folder: Path) -> int:
    """Says what is wrong and returns 1, or writes ``proof.json`` and returns 0."""
    for problem in proof.problems:
        print(f"prove: FAILED: {problem}")  # noqa: T201
    if proof.problems:
        print("prove: this image would not work, so it is not made")  # noqa: T201
        return 1
    (folder / "proof.json").write_text(json.dumps(proof.facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print("prove: good")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
