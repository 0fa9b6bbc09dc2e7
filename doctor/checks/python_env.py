"""Checks of the area: python. Versions and builds that must fit together in the environment that runs vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterator

from doctor import catalogue
from doctor.checks.python_requirements import compare, facts_of, pip_install, reinstall, requirements, unread
from doctor.checks.registry import check, found
from doctor.facts import PythonFacts
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot


def _transformers(s: Snapshot, cause: str, direction: str) -> Finding | Skipped | None:
    p = facts_of(s)
    if p.vllm == "":
        return None
    if p.vllm is None or p.transformers is None:
        return Skipped(cause, unread(p))
    specifier, source = requirements(p).get("transformers", (None, ""))
    if specifier is None:
        return Skipped(cause, f"what vLLM {p.vllm} asks of transformers is not known")
    side = "old" if p.transformers == "" else compare(p.transformers, specifier)
    if side is None:
        return Skipped(
            cause, f"the version {p.transformers!r} of transformers cannot be compared with {specifier}"
        )
    if side != direction:
        return None
    rows = [s.evidence("python.transformers"), Evidence("vLLM requires", f"transformers{specifier}", source)]
    have = f"transformers {p.transformers} is installed" if p.transformers else "transformers is not installed"
    summary = f"vLLM {p.vllm} requires transformers{specifier}, {have}"
    fix = reinstall(p, "Install the transformers release that this vLLM asks for", f"transformers{specifier}")
    return found(cause, Confidence.PROVEN, summary, rows, fixes=(fix, *catalogue.cause(cause).remedies[-1:]))


@check("transformers-too-new-for-vllm", needs=("python",))
def transformers_too_new(s: Snapshot) -> Finding | Skipped | None:
    """Finds a transformers above (or excluded from) the range that the installed vLLM asks for.

    Signals: Requires-Dist of vLLM against the installed version. Source: the wheel's own metadata.
    """
    return _transformers(s, "transformers-too-new-for-vllm", "new")


@check("transformers-too-old-for-model", needs=("python",))
def transformers_too_old(s: Snapshot) -> Finding | Skipped | None:
    """Finds a transformers below what the installed vLLM asks for, or none at all.

    Signals: Requires-Dist of vLLM against the installed version. Source: the wheel's own metadata.
    """
    return _transformers(s, "transformers-too-old-for-model", "old")


@check("torch-abi-mismatch", needs=("python",))
def torch_abi_mismatch(s: Snapshot) -> Finding | Skipped | None:
    """Finds a torch of another version than the one vLLM was compiled against.

    Signals: the exact pin in vLLM's metadata differs from the installed torch; the compiled module
    binds to C++ symbols of that version. A source build may have been made for another torch: likely.
    """
    cause, p = "torch-abi-mismatch", facts_of(s)
    if p.vllm == "":
        return None
    if p.vllm is None or p.torch is None:
        return Skipped(cause, unread(p))
    specifier, source = requirements(p).get("torch", (None, ""))
    if specifier is None:
        return Skipped(cause, f"the torch that vLLM {p.vllm} was built against is not known")
    side = "old" if p.torch == "" else compare(p.torch, specifier)
    if side is None:
        return Skipped(cause, f"the version {p.torch!r} of torch cannot be compared with {specifier}")
    if side == "ok":
        return None
    rows = [s.evidence("python.torch"), Evidence("vLLM requires", f"torch{specifier}", source)]
    have = f"torch {p.torch} is installed" if p.torch else "torch is not installed"
    summary = f"vLLM {p.vllm} was built against torch{specifier}, {have}"
    confidence = Confidence.LIKELY if p.vllm_root or "==" not in specifier else Confidence.PROVEN
    local = (p.torch or "").partition("+")[2]
    pinned = specifier.removeprefix("==")
    wanted = (
        f"torch=={pinned}+{local}"
        if local and specifier.startswith("==") and "+" not in pinned
        else f"torch{specifier}"
    )
    text = f"Install {wanted}: of the same CUDA release as vLLM" if local else f"Install {wanted}"
    index = (f"--index-url=https://download.pytorch.org/whl/{local}",) if local else ()
    fix = reinstall(p, text, wanted, *index)
    return found(cause, confidence, summary, rows, fixes=(fix, *catalogue.cause(cause).remedies[1:]))


@check("vllm-torch-cuda-major-mismatch", needs=("python",))
def vllm_torch_cuda_major_mismatch(s: Snapshot) -> Finding | Skipped | None:
    """Finds vLLM and torch of different CUDA majors, or runtime wheels of both side by side.

    Signals: libcudart.so.N that vllm._C needs (or the local version of the wheel) against
    torch/version.py. Runtime wheels of two majors alone are a hint: another library may bring one.
    """
    cause, p = "vllm-torch-cuda-major-mismatch", facts_of(s)
    if p.vllm == "":
        return None
    if p.vllm is None or p.torch is None:
        return Skipped(cause, unread(p))
    if p.vllm_cuda == "" or p.torch_cuda == "":
        return None  # a CPU build: another cause
    if p.vllm_cuda is None or p.torch_cuda is None:
        which = "vLLM" if p.vllm_cuda is None else "torch"
        return Skipped(cause, f"the CUDA release that {which} was built for is not known")
    ours, theirs = p.vllm_cuda.partition(".")[0], p.torch_cuda.partition(".")[0]
    rows = [s.evidence("python.vllm_cuda"), s.evidence("python.torch_cuda")]
    if ours != theirs:
        summary = (
            f"vLLM {p.vllm} is built for CUDA {p.vllm_cuda}, torch {p.torch} for CUDA {p.torch_cuda}: "
            f"libcudart.so.{ours} and libcudart.so.{theirs} do not mix"
        )
        return found(cause, Confidence.PROVEN, summary, rows, fixes=catalogue.cause(cause).remedies)
    if len(p.cuda_runtimes or ()) > 1:
        rows.append(s.evidence("python.cuda_runtimes"))
        summary = f"CUDA runtime wheels of several majors are installed: {', '.join(p.cuda_runtimes or ())}"
        return found(cause, Confidence.HINT, summary, rows, severity=Severity.NOTE)
    return None


@check("nccl-library-older-than-torch", needs=("python",))
def nccl_library_older_than_torch(s: Snapshot) -> Finding | Skipped | None:
    """Finds an nvidia-nccl wheel below the version that torch's metadata requires.

    Signals: Requires-Dist nvidia-nccl-cuNN of torch against the installed wheel.
    """
    cause, p = "nccl-library-older-than-torch", facts_of(s)
    if p.torch == "" or p.torch_cuda == "":
        return None
    if p.torch is None or p.torch_requires is None or p.packages is None:
        return Skipped(cause, unread(p))
    for name, version in _nccl_pins(p.torch_requires):
        have = p.packages.get(name)
        side = compare(have, f">={version}") if have else None
        if side == "old":
            rows = [
                Evidence(name, str(have), p.sources.get("packages", "package list")),
                Evidence(
                    "torch requires", f"{name}=={version}", p.sources.get("torch_requires", "metadata of torch")
                ),
            ]
            summary = f"torch {p.torch} requires {name} {version}, {have} is installed"
            fix = reinstall(p, f"Install {name} {version}", f"{name}=={version}")
            return found(
                cause, Confidence.PROVEN, summary, rows, fixes=(fix, *catalogue.cause(cause).remedies[1:])
            )
    return None


def _nccl_pins(lines: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for line in lines:
        match = re.match(r"(nvidia-nccl-cu\d+)\s*\(?==\s*([\w.]+)", line)
        if match:
            yield match[1], match[2]


@check("cpu-only-torch", needs=("python",))
def cpu_only_torch(s: Snapshot) -> Finding | Skipped | None:
    """Finds a build of torch (or vLLM) without CUDA on a machine with an NVIDIA card.

    Signals: torch/version.py says cuda = None, or the version ends in +cpu, and NVML or the PCI bus
    shows a card.
    """
    cause, p = "cpu-only-torch", facts_of(s)
    if p.torch is None or p.torch_cuda is None:
        return None if p.torch == "" else Skipped(cause, unread(p))
    vllm_too = bool(p.vllm) and p.vllm_cuda == ""
    if p.torch_cuda != "" and not vllm_too:
        return None
    bus = s.driver.pci_nvidia if s.driver else None
    if not s.gpus and not bus:
        # under WSL the card is Windows', and no bus shows it
        absent = s.gpus == () or (bus == () and s.is_wsl is False)
        return None if absent else Skipped(cause, "whether this machine has an NVIDIA card is not known")
    card = s.gpus[0].name if s.gpus and s.gpus[0].name else "an NVIDIA card"
    what = f"torch {p.torch}" if p.torch_cuda == "" else f"vLLM {p.vllm}"
    rows = [s.evidence("python.torch"), s.evidence("python.torch_cuda", p.torch_cuda or "a CPU build")]
    rows += [s.evidence("gpus[0].name")] if s.gpus else [s.evidence("driver.pci_nvidia")]
    summary = f"{what} in {p.prefix or 'the environment'} is a CPU build, so {card} is not used"
    return found(cause, Confidence.PROVEN, summary, rows)


@check("deepgemm-not-installed", needs=("python", "serving"))
def deepgemm_not_installed(s: Snapshot) -> Finding | Skipped | None:
    """Points at a missing DeepGEMM where the model to be served needs it.

    Signals: a DeepSeek V3.2 architecture and no deep-gemm distribution. Recent vLLM wheels carry a copy
    of their own, so this is a hint only.
    """
    cause, p = "deepgemm-not-installed", facts_of(s)
    architecture = s.serving.architecture if s.serving else None
    if architecture is None or p.packages is None:
        return Skipped(cause, "the model's architecture is not known" if architecture is None else unread(p))
    if "DeepseekV32" not in architecture or not p.vllm or {"deep-gemm", "deepgemm"} & p.packages.keys():
        return None
    rows = [s.evidence("serving.architecture"), Evidence("deep-gemm", "not in the package list", str(p.prefix))]
    summary = f"{architecture} needs DeepGEMM, and no deep-gemm is in the package list"
    return found(cause, Confidence.HINT, summary, rows, severity=Severity.DEGRADES)


@check("pynvml-shim-installed", needs=("python",))
def pynvml_shim_installed(s: Snapshot) -> Finding | Skipped | None:
    """Finds the deprecated pynvml distribution beside vLLM.

    Signals: pynvml in the package list. Source: its own description on PyPI.
    """
    cause, p = "pynvml-shim-installed", facts_of(s)
    if p.packages is None:
        return Skipped(cause, unread(p))
    version = p.packages.get("pynvml")
    if version is None:
        return None
    rows = [Evidence("pynvml", version, p.sources.get("packages", "package list"))]
    have = p.packages.get("nvidia-ml-py")
    beside = f" beside nvidia-ml-py {have}" if have else " without nvidia-ml-py"
    commands = (
        *pip_install(p, "nvidia-ml-py"),
        *(((p.executable, "-m", "pip", "uninstall", "-y", "pynvml"),) if p.executable else ()),
    )
    fix = Remedy(
        "Install nvidia-ml-py and remove pynvml where nothing else needs it",
        bool(commands),
        commands,
        Risk.CAUTION,
    )
    return found(cause, Confidence.PROVEN, f"pynvml {version} is installed{beside}", rows, fixes=(fix,))


@check("vllm-doctor-name-clash", needs=("python",))
def vllm_doctor_name_clash(s: Snapshot) -> Finding | Skipped | None:
    """Finds another project's command vllm-doctor or package doctor in the way.

    Signals: the first vllm-doctor on PATH imports another package; the PyPI projects vllm-doctor or
    doctor in the same environment.
    """
    cause, p = "vllm-doctor-name-clash", facts_of(s)
    if p.doctor_clash is None:
        return Skipped(cause, unread(p))
    if p.doctor_clash == "":
        return None
    return found(cause, Confidence.PROVEN, p.doctor_clash, [s.evidence("python.doctor_clash")])


@check("vllm-not-installed", needs=("python",))
def vllm_not_installed(s: Snapshot) -> Finding | Skipped | None:
    """Says that the environment looked at holds no vLLM, and how another one is named.

    Signals: no vllm distribution on the import path of the chosen interpreter. A note, since vLLM may
    run in a container or in an environment that was not named; a blocker for the one that was.
    """
    cause, p = "vllm-not-installed", facts_of(s)
    if p.vllm is None:
        return Skipped(cause, unread(p))
    if p.vllm:
        return None
    details = [f"Python {p.version}" if p.version else "", f"chosen by: {p.chosen_by}" if p.chosen_by else ""]
    where = f"{p.executable or 'this interpreter'} ({', '.join(d for d in details if d) or 'version not known'})"
    own = "; that is the doctor's own environment, and no other was found" if p.is_doctors_own else ""
    gone = next((place for place in p.looked_at if place.endswith("has no Python that can be run")), None)
    own += f"; the activated environment is broken ({gone})" if gone else ""
    rows = [s.evidence("python.executable"), s.evidence("python.vllm", "not installed")]
    rows += [Evidence("looked at", place, "environment") for place in p.looked_at]
    name = Remedy("Name the environment that has it: vllm-doctor check --python ENV", risk=Risk.SAFE)
    python = p.executable if not p.is_doctors_own and p.executable else "python3"
    commands = ((python, "-m", "venv", "vllm-env"), ("vllm-env/bin/python", "-m", "pip", "install", "vllm"))
    new = Remedy(
        "Or install vLLM into an environment of its own",
        commands=commands,
        verify=("vllm-env/bin/vllm --version",),
    )
    summary = f"vLLM is not installed for {where}{own}"
    severity = Severity.BLOCKER if p.chosen_by == "--python" else Severity.NOTE
    return found(cause, Confidence.PROVEN, summary, rows, severity=severity, fixes=(name, new))


@check("python-version-unsupported", needs=("python",))
def python_version_unsupported(s: Snapshot) -> Finding | Skipped | None:
    """Finds a Python outside the range that vLLM supports.

    Signals: Requires-Python of the installed vLLM; without vLLM, that of the newest release in the
    table, as a note.
    """
    cause, p = "python-version-unsupported", facts_of(s)
    if p.version is None or p.vllm is None:
        return Skipped(cause, unread(p))
    newest = catalogue.table("vllm_pins")[-1]
    if p.vllm:
        wanted, release = p.vllm_requires_python, p.vllm
        source = p.sources.get("vllm_requires_python", "metadata of vLLM")
        if wanted is None:
            return Skipped(cause, f"the metadata of vLLM {p.vllm} names no Python range")
    elif p.is_doctors_own:
        return None
    else:
        wanted, release, source = newest["python"], newest["vllm"], "table vllm_pins"
    side = compare(p.version, wanted)
    if side is None or side == "ok":
        return None if side else Skipped(cause, f"Python {p.version} cannot be compared with {wanted}")
    rows = [s.evidence("python.version"), Evidence("vLLM requires Python", wanted, source)]
    summary = f"{p.executable or 'the interpreter'} is Python {p.version}, vLLM {release} needs Python {wanted}"
    severity = None if p.vllm else Severity.NOTE
    return found(cause, Confidence.PROVEN, summary, rows, severity=severity)


@check("vllm-requirements-unmet", needs=("python",))
def vllm_requirements_unmet(s: Snapshot) -> Finding | Skipped | None:
    """Finds other requirements of vLLM and torch that are not met, and FlashInfer parts of several versions.

    Signals: Requires-Dist against the package list (torch, transformers and NCCL have checks of their
    own). FlashInfer refuses to import with a flashinfer-cubin or -jit-cache of another version.
    """
    cause, p = "vllm-requirements-unmet", facts_of(s)
    if p.vllm == "":
        return None
    if p.vllm is None or p.conflicts is None or p.packages is None:
        return Skipped(cause, unread(p))
    parts = _flashinfer_parts(p)
    judged = re.compile(r"requires (torch|transformers|nvidia-nccl-cu\d+)(?![\w-])")
    lines = [*parts, *(c for c in p.conflicts if not judged.search(c))]
    if not lines:
        return None
    rows = [Evidence("requirement", line, p.sources.get("conflicts", "metadata")) for line in lines[:10]]
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    fix = reinstall(p, "Install vLLM again with its dependencies", f"vllm=={p.vllm}")
    if parts and not p.env.get("FLASHINFER_DISABLE_VERSION_CHECK"):
        return found(cause, Confidence.PROVEN, lines[0] + more, rows, severity=Severity.BLOCKER, fixes=(fix,))
    return found(cause, Confidence.LIKELY, lines[0] + more, rows, fixes=(fix,))


def _flashinfer_parts(p: PythonFacts) -> list[str]:
    """FlashInfer's own rule (flashinfer/jit/env.py): equal versions, a local part such as +cu130 allowed."""
    packages, base = p.packages or {}, p.flashinfer or ""
    lines = []
    for name in ("flashinfer-cubin", "flashinfer-jit-cache"):
        have = packages.get(name)
        if base and have and have != base and not (name.endswith("cache") and have.startswith(f"{base}+")):
            lines.append(f"{name} {have} does not match flashinfer-python {base}, so FlashInfer refuses to import")
    return lines
