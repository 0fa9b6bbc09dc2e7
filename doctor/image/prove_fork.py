"""``python -m doctor.image.prove_fork DIR ENV``: in the build of the Turing fork's image: would this image work?

DIR holds ``image.json``; ENV is the fork's environment, which the doctor is not in. The proof is written to
``proof.json`` in DIR. Nothing here needs a card. Everything is judged before a failure ends the build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from doctor.image.prove import Proof, Step, attempt, conclude, first, last, run, take_check

#: The only architecture that the fork is built for.
ARCH = "7.5"
_SEEN = """
import importlib, importlib.metadata, json, os, sysconfig, torch
importlib.import_module("flash_qla.ops.gated_delta_rule.legacy.sm_legacy")
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "arches": torch._C._cuda_getArchFlags().split(),
    "fork": importlib.metadata.version("vllm"),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
}))
"""
_KERNEL = "#include <vector>\n__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\n"


def prove(folder: Path, environment: Path) -> Proof:
    """Tries everything. Raises nothing for what the image lacks: that is a problem in the proof."""
    proof = Proof()
    image = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    steps: list[Step] = [
        ("imports", lambda: _imports(proof, image, environment)),
        ("compilers", lambda: _compilers(proof, image)),
        ("check", lambda: _check(proof, environment)),
    ]
    attempt(proof, steps)
    return proof


def _imports(proof: Proof, image: dict[str, str], environment: Path) -> None:
    done = run([str(environment / "bin" / "python"), "-c", _SEEN])
    if done.returncode:
        proof.problems.append(f"torch and FlashQLA cannot be imported: {last(done.stderr)}")
        return
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    proof.facts |= seen
    for name in ("torch", "cuda"):
        have = str(seen[name]).partition("+")[0]
        if have != image[name]:
            proof.problems.append(f"{name} is {have}, the image was planned with {image[name]}")
    if f"sm_{ARCH.replace('.', '')}" not in seen["arches"]:
        proof.problems.append(f"this torch has no code for {ARCH}, only {', '.join(seen['arches'])}")
    if not seen["headers"]:
        proof.problems.append("the fork's Python has no Python.h, which FlashQLA needs to compile")


def _compilers(proof: Proof, image: dict[str, str]) -> None:
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if ARCH not in re.split(r"[;\s]+", wanted):
        proof.problems.append(f"TORCH_CUDA_ARCH_LIST is {wanted!r}, without {ARCH}")
    if shutil.which("ninja") is None:
        proof.problems.append("ninja is not on PATH, and FlashQLA is compiled with it at run time")
    cc, cxx = os.environ.get("CC", "gcc-12"), os.environ.get("CXX", "g++-12")
    front_end = run([cc, "-print-prog-name=cc1plus"]).stdout.strip()
    proof.facts["cc1plus"] = front_end
    if not os.path.isabs(front_end):  # a compiler that has none answers with the bare name
        proof.problems.append(f"{cc} has no cc1plus: g++ of the same version is missing")
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        proof.problems.append("nvcc is not on PATH, and FlashQLA is compiled at run time")
        return
    release = re.search(r"release (\d+\.\d+)", run([nvcc, "--version"]).stdout)
    proof.facts["nvcc"] = release[1] if release else None
    if proof.facts["nvcc"] != image["cuda"]:
        proof.problems.append(f"nvcc is of CUDA {proof.facts['nvcc']}, torch of {image['cuda']}")
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "proof.cu"
        source.write_text(_KERNEL, encoding="utf-8")
        done = run([nvcc, "-ccbin", cxx, "-arch=sm_75", "-c", str(source), "-o", f"{place}/proof.o"])
    if done.returncode:
        proof.problems.append(f"nvcc cannot compile a kernel with {cxx}: {last(done.stderr)}")
    proof.facts["host_compiler"] = first(run([cxx, "--version"]).stdout)


def _check(proof: Proof, environment: Path) -> None:
    program = str(Path(sys.executable).with_name("vllm-doctor"))
    done = run([program, "check", "--inside-image", "--json", "--python", str(environment)])
    take_check(proof, done)


def main(argv: Sequence[str]) -> int:
    """Returns 0 when the image is good, 1 when it is not; the reasons are on standard output."""
    folder, environment = Path(argv[0]), Path(argv[1])
    return conclude(prove(folder, environment), folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
