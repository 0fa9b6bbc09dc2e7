"""The Python environment that would run vLLM: versions, builds, pins, and what else lies beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from doctor.facts import PythonFacts
from doctor.host import cuda_build, dists, name_clash
from doctor.host.access import Host
from doctor.host.examine import Options
from doctor.host.interpreter import ASKED, Interpreter, interpreter
from doctor.host.parts import Part, Read, gather

#: Variables that change how vLLM and its libraries behave.
ENV_PREFIXES = ("VLLM_", "PYTORCH_", "TORCH_", "TRITON_", "NCCL_", "FLASHINFER_", "FLASH_QLA_", "FLASHQLA_")
ENV_NAMES = (
    "LD_LIBRARY_PATH", "LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTHONPATH",
    "CUDA_MODULE_LOADING", "CUDA_LAUNCH_BLOCKING", "TORCHINDUCTOR_CACHE_DIR", "MAX_JOBS", "VIRTUAL_ENV",
    "CONDA_PREFIX", "HF_HUB_OFFLINE", "OMP_NUM_THREADS",
)  # fmt: skip
_SECRET = re.compile(r"TOKEN|SECRET|PASS(WORD|WD)?(_|$)|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY|_KEY$", re.I)
#: Distributions that tell the CUDA major of the runtime libraries in the environment.
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu(\d+))?")


def secret(name: str) -> bool:
    """True for a variable whose value must not leave the machine."""
    return bool(_SECRET.search(name))


def environment(env: Mapping[str, str], prefixes: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    """The chosen variables; values of secret-looking names replaced, long ones cut."""
    return {
        name: "***" if secret(name) else value[:2000]
        for name, value in sorted(env.items())
        if name in names or name.startswith(prefixes)
    }


def probe(host: Host, options: Options) -> Mapping[str, Any]:
    """One child asks the interpreter about itself; the rest are files."""
    python = interpreter(host, options)
    reader = _Reader(host, python)
    values, sources = gather(reader.parts())
    env = environment(host.env, ENV_PREFIXES, ENV_NAMES)
    return {
        "python": PythonFacts(**values, env=env, error=python.error, sources={**sources, "env": "environment"})
    }


class _Reader:
    """Reads one environment. Each part stands alone: a damaged package costs only its own fields."""

    def __init__(self, host: Host, python: Interpreter) -> None:
        self.host = host
        self.python = python
        self.found: dict[str, dists.Dist] = {}
        self.twice: tuple[str, ...] = ()

    def parts(self) -> Iterator[Part]:
        yield self.interpreter
        yield self.clash
        if not self.python.sites:
            return
        self.found, self.twice = dists.scan(self.host, self.python.sites)
        yield self.packages
        yield self.vllm
        yield self.vllm_build
        yield self.torch
        yield self.torch_targets
        yield self.libraries
        yield self.pins
        yield self.fork

    def interpreter(self) -> dict[str, Read]:
        p, host = self.python, self.host
        asked = f"{p.executable} {ASKED}"
        return {
            "executable": Read(p.executable, p.chosen_by or ""),
            "chosen_by": Read(p.chosen_by, "environment"),
            "is_doctors_own": Read(p.own, "sys.prefix of the doctor"),
            "looked_at": Read(p.looked_at, "environment"),
            "version": Read(p.version, asked),
            "implementation": Read(p.implementation, asked),
            "prefix": Read(p.prefix, asked),
            "base_prefix": Read(p.base_prefix, asked),
            "is_venv": Read(p.prefix != p.base_prefix if p.prefix and p.base_prefix else None, asked),
            "is_conda": Read(
                host.is_dir(f"{p.prefix}/conda-meta") if p.prefix else None, f"{p.prefix}/conda-meta"
            ),
            "site_packages": Read(p.sites or None, asked),
        }

    def _dist(self, *names: str) -> dists.Dist | None:
        return next((self.found[name] for name in names if name in self.found), None)

    def packages(self) -> dict[str, Read]:
        where = ", ".join(s for s in self.python.sites if s.endswith("-packages")) or self.python.sites[0]
        runtimes = set()
        for name, dist in self.found.items():
            match = _RUNTIME.fullmatch(name)
            if match:
                runtimes.add(match[1] or dist.version.partition(".")[0])
        return {
            "packages": Read({name: self.found[name].version for name in sorted(self.found)}, where),
            "duplicates": Read(self.twice, where),
            "cuda_runtimes": Read(tuple(sorted(runtimes)), where),
        }

    def vllm(self) -> dict[str, Read]:
        dist = self._dist("vllm")
        if dist is None:
            where = ", ".join(self.python.sites)
            return {"vllm": Read("", where)}
        meta = dists.metadata(self.host, dist)
        return {
            "vllm": Read(dist.version, dist.path),
            "vllm_requires": Read(meta.requires, meta.path),
            "vllm_requires_python": Read(meta.requires_python, meta.path),
            "vllm_root": Read(dists.editable_root(self.host, dist), f"{dist.path}/direct_url.json"),
        }

    def vllm_build(self) -> dict[str, Read]:
        dist = self._dist("vllm")
        if dist is None:
            return {}
        root = dists.editable_root(self.host, dist)
        roots = (root, dist.site) if root else (dist.site,)
        files = cuda_build.extension_files(self.host, roots)
        reads = {"vllm_extension_ok": Read(bool(files), f"{roots[0]}/vllm/_C*.so")}
        local = cuda_build.local_cuda(dist.version)
        major, path = cuda_build.cudart_major(self.host, files)
        if local is not None:
            reads["vllm_cuda"] = Read(local, dist.path)
        elif major is not None:
            reads["vllm_cuda"] = Read(major, f"{path} (needed libraries)")
        return reads

    def torch(self) -> dict[str, Read]:
        dist = self._dist("torch")
        if dist is None:
            return {"torch": Read("", ", ".join(self.python.sites))}
        version, cuda = cuda_build.torch_version_file(self.host, dist.site)
        where = f"{dist.site}/torch/version.py"
        meta = dists.metadata(self.host, dist)
        if cuda is None:
            cuda = cuda_build.local_cuda(dist.version)
            cuda_where = dist.path
        else:
            cuda_where = where
        return {
            # metadata of PyPI's wheel leaves the local part out, version.py has it
            "torch": Read(version or dist.version, where if version else dist.path),
            "torch_cuda": Read(cuda, cuda_where),
            "torch_requires": Read(meta.requires, meta.path),
        }

    def torch_targets(self) -> dict[str, Read]:
        dist = self._dist("torch")
        if dist is None:
            return {}
        arches = cuda_build.torch_arches(self.host, dist.site)
        if arches is not None:
            return {"torch_arches": Read(arches, f"{dist.site}/torch/lib/libtorch_python.so")}
        version, cuda = cuda_build.torch_version_file(self.host, dist.site)
        version = version or dist.version
        known = cuda_build.known_arches(version, cuda if cuda is not None else cuda_build.local_cuda(version))
        return {"torch_arches": Read(known, "table torch_arches (PyTorch's support matrix)")}

    def libraries(self) -> dict[str, Read]:
        reads = {}
        for field, names in (
            ("transformers", ("transformers",)),
            ("triton", ("triton",)),
            ("flashinfer", ("flashinfer-python", "flashinfer")),
        ):
            dist = self._dist(*names)
            reads[field] = Read(dist.version if dist else "", dist.path if dist else self.python.sites[-1])
        return reads

    def pins(self) -> dict[str, Read]:
        from doctor.host.pins import conflicts

        owners = [d for d in (self._dist("vllm"), self._dist("torch")) if d is not None]
        if not owners:
            return {}
        installed = {name: dist.version for name, dist in self.found.items()}
        requires = {f"{d.name} {d.version}": dists.metadata(self.host, d).requires for d in owners}
        lines = conflicts(requires, installed, self.python.version, self.python.implementation)
        return {"conflicts": Read(lines, ", ".join(f"{d.path}/METADATA" for d in owners))}

    def clash(self) -> dict[str, Read]:
        described, where = name_clash.describe(self.host, self.python.sites)
        return {"doctor_clash": Read(described, where)}

    def fork(self) -> dict[str, Read]:
        dist = self._dist("vllm")
        root = dists.editable_root(self.host, dist) if dist else ""
        prefix = self.python.prefix or ""
        beside = prefix.rpartition("/")[0] if prefix.endswith("/.venv") else ""
        for folder in dict.fromkeys(f for f in (root, beside, self.host.env.get("PWD", "")) if f):
            release = fork_release(self.host, folder)
            if release:
                where = f"{folder}/PROJECT_RELEASE.env"
                return {"turing_fork": Read(release, where), "turing_fork_root": Read(folder, where)}
        return {"turing_fork": Read("", "no PROJECT_RELEASE.env in the source tree")}


def fork_release(host: Host, folder: str) -> str:
    """Release of the Turing fork whose tree this folder is, "" when it is none."""
    text = host.read(f"{folder}/PROJECT_RELEASE.env", 16384)
    if text is None:
        return ""
    values = dict(re.findall(r"^(?:export\s+)?([A-Z_]+)=\"?([^\"\n]*)\"?\s*$", text, re.M))
    identity = f"{values.get('PROJECT_NAME', '')} {values.get('RUNTIME_IDENTITY', '')}".lower()
    if not re.search(r"2080|turing|sm75", identity):
        return ""
    release = values.get("FORK_RELEASE", "")
    if not re.match(r"v?\d", release):  # "$(cat VERSION)"
        release = (host.read(f"{folder}/VERSION", 256) or "").strip()
    return release.removeprefix("v") or "unknown"
