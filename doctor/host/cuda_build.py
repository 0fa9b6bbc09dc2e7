"""CUDA release and GPU targets of installed torch and vLLM builds, read from their files. Nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable

from doctor import catalogue
from doctor.host import elf
from doctor.host.access import Host

_ARCHES = re.compile(rb"(?<![\w.])((?:sm|compute)_\d{2,3}[af]?(?: (?:sm|compute)_\d{2,3}[af]?)*)\0")
_CUDART = re.compile(r"libcudart\.so\.(\d+)")


def local_cuda(version: str) -> str | None:
    """Gives "13.0" for "2.14.1+cu130", "" for "2.13.0+cpu", None when the version does not tell."""
    local = version.partition("+")[2]
    if re.fullmatch(r"cpu(\W.*)?", local):
        return ""
    match = re.search(r"(?:^|[.\-_])cu(\d{2})(\d)(?:$|[.\-_])", local)
    return f"{match[1]}.{match[2]}" if match else None


def torch_version_file(host: Host, site: str) -> tuple[str | None, str | None]:
    """(version, CUDA release or "") as torch/version.py says; None for what it does not say."""
    text = host.read(f"{site}/torch/version.py", 16384) or ""
    version = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.M)
    cuda = re.search(r"^cuda\s*(?::[^=\n]*)?=\s*(?:['\"](\d+(?:\.\d+)*)['\"]|(None)\b)", text, re.M)
    return version and version[1], (cuda[1] or "") if cuda else None


def torch_arches(host: Host, site: str) -> tuple[str, ...] | None:
    """What torch.cuda.get_arch_list() returns: a string constant of libtorch_python.so. None if not found."""
    try:
        for piece in elf.constants(host, f"{site}/torch/lib/libtorch_python.so"):
            found = max(_ARCHES.findall(piece), key=len, default=b"")
            if found:
                return tuple(found.decode("ascii").split())
    except (OSError, elf.NotElf):
        return None
    return None


def known_arches(version: str, cuda: str | None) -> tuple[str, ...] | None:
    """The published targets of an official build; () for a CPU build, None when the table lacks it."""
    if cuda == "":
        return ()
    minor = ".".join(version.split(".")[:2])
    for row in catalogue.table("torch_arches"):
        if row["torch"] == minor and row["cuda"] == cuda:
            return tuple(row["arches"])
    return None


def extension_files(host: Host, roots: Iterable[str]) -> tuple[str, ...]:
    """Compiled modules of vLLM below the folders that may hold the package (vllm._C and its relatives)."""
    return tuple(f for root in roots for f in host.glob(f"{root}/vllm/_C*.so"))


def cudart_major(host: Host, files: Iterable[str]) -> tuple[str | None, str]:
    """(CUDA major that the modules link, which file says so); ("", file) when they were read and link none."""
    read = ""
    for path in files:
        try:
            names = elf.needed(host, path)
        except (OSError, elf.NotElf):
            continue
        read = path
        for name in names:
            match = _CUDART.match(name)
            if match:
                return match[1], path
    return ("" if read else None), read
