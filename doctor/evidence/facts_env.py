"""Reports of ``vllm collect-env``, vLLM's ``collect_env.py`` and torch's ``collect_env.py`` -> facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from doctor.catalogue import table
from doctor.catalogue.gpus import lookup
from doctor.evidence.builder import FactBuilder
from doctor.evidence.strip import Line
from doctor.snapshot import Event

_PAIR = re.compile(r"([A-Za-z][A-Za-z0-9 /.]{1,40}?)[ \t]*:[ \t]*(.*)")
_GPU = re.compile(r"GPU (\d{1,3}): (.{2,100}?)(?: \(UUID: .*)?$")
_PIP = re.compile(r"\[pip3?\] ([A-Za-z0-9_.-]{1,80})==([^\s]{1,60})")
_CONDA = re.compile(r"\[conda\] ([A-Za-z0-9_.-]{1,80})\s+(\d[^\s]{0,60})(?:\s|$)")
_VARIABLE = re.compile(r"(?:export )?([A-Z][A-Z0-9_]{2,60})=(.{0,400})$")
_NONE = {"", "n/a", "no cuda", "could not collect", "none", "not set", "command not found"}


def read(lines: Iterable[Line], name: str, facts: FactBuilder) -> list[Event]:
    """Facts of all lines that have the form of such a report; rules get the availability of CUDA as an event."""
    events: list[Event] = []
    for line in lines:
        text = line.text.strip()
        source = f"{name}:{line.number}"
        if text.startswith("["):
            package = _PIP.match(text) or _CONDA.match(text)
            if package:
                add_package(package[1], package[2], source, facts)
            continue
        if text.startswith("GPU models and configuration"):
            text = text.partition(":")[2].strip()  # older reports put the first card on the same line
        card = _GPU.match(text)
        if card:
            add_gpu(int(card[1]), card[2].strip(), source, facts)
            continue
        pair = _PAIR.match(text)
        if pair:
            reader = _READERS.get(pair[1].strip().lower())
            value = pair[2].strip()
            if reader and value.lower() not in _NONE:
                reader(value, source, facts)
            event = _event(pair[1].strip().lower(), value, text, source, line.number)
            if event:
                events.append(event)
    return events


def _event(key: str, value: str, text: str, source: str, number: int) -> Event | None:
    if key == "is cuda available" and value in ("True", "False"):
        return Event("report.cuda-available", source, text, number, {"value": value})
    if key == "gcc version" and (gcc := re.findall(r"(\d+)\.\d+\.\d+", value)):
        return Event("shell.gcc", source, text, number, {"major": gcc[-1]})
    if key == "nvidia driver version" and value.lower() in _NONE:
        return Event("report.no-driver-version", source, text, number)
    if key == "gpu models and configuration" and value.lower() in _NONE:
        return Event("report.no-gpu", source, text, number)
    return None


def add_package(name: str, version: str, source: str, facts: FactBuilder) -> None:
    """One installed distribution."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    facts.merge("python", "packages", {normal: version}, source)
    if normal == "vllm":
        add_vllm(version, source, facts)
    if normal in ("torch", "transformers", "triton"):
        facts.put("python", normal, version, source)
    if normal in ("flashinfer-python", "flashinfer"):
        facts.put("python", "flashinfer", version, source)
    if normal == "torch" and "+" in version:
        add_torch(version, source, facts)


def add_torch(version: str, source: str, facts: FactBuilder) -> None:
    """The version of torch and the CUDA release that its local part names."""
    facts.put("python", "torch", version, source)
    local = re.search(r"\+cu(\d{2,3})(?:$|[^\d])", version)
    if local:
        facts.put("python", "torch_cuda", f"{local[1][:-1]}.{local[1][-1]}", source)
    elif version.endswith("+cpu"):
        facts.put("python", "torch_cuda", "", source)


def add_gpu(index: int, name: str | None, source: str, facts: FactBuilder) -> None:
    """One card by its name; the capability comes from the table of cards."""
    facts.gpu(index, source, name=name)
    known = lookup(name)
    if known:
        facts.gpu(index, f"{source} (by the name of the card)", compute_capability=known.capability)


def add_kernel(release: str, source: str, facts: FactBuilder) -> None:
    """A kernel release as ``uname -r`` prints it, and what it says about WSL."""
    release = re.split(r"-(?:x86_64|aarch64)-with", release)[0]
    release = re.sub(r"\.(?:x86_64|aarch64)$|-(?:x86_64|aarch64)$", "", release)
    facts.put("system", "kernel", release, source)
    lower = release.lower()
    if "microsoft" in lower:
        # WSL 1 pretends to be 4.4.0-19041-Microsoft; WSL 2 kernels are 4.19 and newer
        version = 2 if "wsl2" in lower or "standard" in lower or not lower.startswith("4.4.") else 1
        facts.put("wsl", "version", version, source)
        facts.put("wsl", "kernel", release, source)
    else:
        facts.put("wsl", "version", 0, source)


def _platform(value: str, source: str, facts: FactBuilder) -> None:
    found = re.match(r"Linux-(\S{3,100})", value)
    if found:
        add_kernel(found[1], source, facts)
    libc = re.search(r"with-glibc(\d+\.\d+)", value)
    if libc:
        facts.put("system", "glibc", libc[1], source)


def _os(value: str, source: str, facts: FactBuilder) -> None:
    facts.put("system", "os_name", re.sub(r" \((?:x86_64|aarch64)\)$", "", value), source)
    arch = re.search(r"\((x86_64|aarch64)\)$", value)
    facts.put("system", "arch", arch[1] if arch else None, source)
    known = {"ubuntu": "ubuntu", "debian": "debian", "centos": "centos", "red hat": "rhel", "rocky": "rocky",
             "almalinux": "almalinux", "fedora": "fedora", "arch": "arch", "opensuse": "opensuse"}  # fmt: skip
    for word, identity in known.items():
        if value.lower().startswith(word):
            facts.put("system", "os_id", identity, source)
            version = re.search(r"(\d+(?:\.\d+)?)", value)
            facts.put("system", "os_version", version[1] if version else None, source)
            return


def _glibc(value: str, source: str, facts: FactBuilder) -> None:
    found = re.match(r"glibc-(\d+\.\d+)", value)
    facts.put("system", "glibc", found[1] if found else None, source)


def _torch(value: str, source: str, facts: FactBuilder) -> None:
    if re.match(r"\d+\.\d+", value):
        add_torch(value, source, facts)


def _torch_cuda(value: str, source: str, facts: FactBuilder) -> None:
    if re.match(r"\d+\.\d+", value):
        facts.put("python", "torch_cuda", value, source)


def _driver(value: str, source: str, facts: FactBuilder) -> None:
    found = re.match(r"(\d{3}\.\d{2,3}(?:\.\d{2})?)", value)
    facts.put("driver", "version", found[1] if found else None, source)


def _vllm(value: str, source: str, facts: FactBuilder) -> None:
    found = re.match(r"v?(\d+\.\d+[^\s()]{0,60})", value)
    if found:
        add_vllm(found[1], source, facts)


def add_vllm(version: str, source: str, facts: FactBuilder) -> None:
    """vLLM's version, and the CUDA release of its wheel: by its suffix, else by that of the plain wheel."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    facts.put("python", "vllm", version, source)
    facts.put("serving", "vllm", version, source)
    local = re.search(r"\+cu(\d{2,3})$", version)
    if local:
        facts.put("python", "vllm_cuda", f"{local[1][:-1]}.{local[1][-1]}", source)
    elif re.fullmatch(r"\d+\.\d+\.\d+(?:\.post\d+)?", version):
        try:
            row = next(r for r in table("vllm_wheel_cuda") if SpecifierSet(r["vllm"]).contains(Version(version)))
        except (StopIteration, InvalidVersion):
            return
        facts.put("python", "vllm_cuda", row["cuda"], f"{source} (plain wheel of {version})")


def _python(value: str, source: str, facts: FactBuilder) -> None:
    found = re.match(r"(\d+\.\d+(?:\.\d+)?)", value)
    facts.put("python", "version", found[1] if found else None, source)


_READERS: dict[str, Callable[[str, str, FactBuilder], None]] = {
    "os": _os,
    "libc version": _glibc,
    "pytorch version": _torch,
    "cuda used to build pytorch": _torch_cuda,
    "python version": _python,
    "python platform": _platform,
    "nvidia driver version": _driver,
    "vllm version": _vllm,
}


def add_variable(text: str, source: str, facts: FactBuilder) -> bool:
    """An environment variable as ``NAME=value`` that matters to vLLM. True when it was one."""
    found = _VARIABLE.match(text.strip())
    if not found or not found[1].startswith(_MATTER):
        return False
    value = found[2].strip().strip("'\"")
    if re.search(r"TOKEN|KEY|SECRET|PASSWORD", found[1]):
        value = "(set)"
    facts.merge("python", "env", {found[1]: value}, source)
    facts.merge("serving", "env", {found[1]: value}, source)
    return True


_MATTER = ("VLLM_", "PYTORCH_", "TORCH", "TRITON_", "NCCL_", "CUDA_", "LD_LIBRARY_PATH", "LIBRARY_PATH", "HF_",
           "FLASHINFER_", "NVIDIA_", "WSL_", "CC", "CXX", "CUDAHOSTCXX", "NVCC_", "MAX_JOBS", "GPU_DEVICES",
           "TP_SIZE", "TRANSFORMERS_")  # fmt: skip
