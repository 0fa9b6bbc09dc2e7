"""Builders for tests of compilers and Python environments: fake hosts that answer as real programs did.

Texts are captures: gcc of Debian 12 and 13 and nvcc 13.0 in containers; nvcc 12.8 and 12.4 as users posted it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from doctor.host.access import RunResult
from tests.fakes import FakeHost, Reply

GCC_VERSION = """\
{name} ({vendor}) {version}
Copyright (C) 2022 Free Software Foundation, Inc.
This is free software; see the source for copying conditions.  There is NO
warranty; not even for MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.

"""
VENDORS = {
    "12.2.0": "Debian 12.2.0-14+deb12u1",
    "12.4.0": "Debian 12.4.0-5",
    "14.2.0": "Debian 14.2.0-19",
    "13.3.0": "Ubuntu 13.3.0-6ubuntu2~24.04",
    "15.2.0": "Ubuntu 15.2.0-16ubuntu1",
}
CLANG_VERSION = (
    "Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu\nThread model: posix\nInstalledDir: /usr/bin\n"
)
NO_CC1PLUS = (
    "{name}: fatal error: cannot execute 'cc1plus': execvp: No such file or directory\ncompilation terminated.\n"
)
NO_PYTHON_H = """\
{file}:1:10: fatal error: Python.h: No such file or directory
    1 | #include <Python.h>
      |          ^~~~~~~~~~
compilation terminated.
"""
NO_CRT = "/usr/bin/ld: cannot find crti.o: No such file or directory\ncollect2: error: ld returned 1 exit status\n"
NVCC_VERSION = {
    "13.0": """\
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:58:59_PM_PDT_2025
Cuda compilation tools, release 13.0, V13.0.88
Build cuda_13.0.r13.0/compiler.36424714_0
""",
    "12.8": """\
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Fri_Feb_21_20:23:50_PST_2025
Cuda compilation tools, release 12.8, V12.8.93
Build cuda_12.8.r12.8/compiler.35583870_0
""",
    "12.4": """\
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2024 NVIDIA Corporation
Built on Thu_Mar_28_02:18:24_PDT_2024
Cuda compilation tools, release 12.4, V12.4.131
Build cuda_12.4.r12.4/compiler.34097967_0
""",
}
NVCC_NO_CC1PLUS = (
    "gcc-12: fatal error: cannot execute 'cc1plus': execvp: No such file or directory\n"
    "compilation terminated.\nnvcc fatal   : Failed to preprocess host compiler properties.\n"
)
NVCC_UNSUPPORTED = """\
In file included from /usr/local/cuda/bin/../targets/x86_64-linux/include/cuda_runtime.h:82,
                 from <command-line>:
/usr/local/cuda/bin/../targets/x86_64-linux/include/crt/host_config.h:143:2: error: #error -- unsupported GNU \
version! gcc versions later than {limit} are not supported! The nvcc flag '-allow-unsupported-compiler' can be \
used to override this version check; however, using an unsupported host compiler may cause compilation failure or \
incorrect run time execution. Use at your own risk.
  143 | #error -- unsupported GNU version! gcc versions later than {limit} are not supported! ...
      |  ^~~~~
"""
NVCC_MATH = """\
/usr/include/x86_64-linux-gnu/bits/mathcalls.h(79): error: exception specification is incompatible with that of \
previous function "cospi" (declared at line 2601 of /usr/local/cuda/bin/../targets/x86_64-linux/include/\
crt/math_functions.h)
   extern double cospi (double __x) noexcept (true); extern double __cospi (double __x) noexcept (true);
"""
HOST_CONFIG = """\
#if __GNUC__ > {0}
#error -- unsupported GNU version! gcc versions later than {0} are not supported! ...
#endif /* __GNUC__ > {0} */
"""
#: The lines of crt/math_functions.h that differ between releases.
MATH_FUNCTIONS = {
    "12.8": "double rsqrt(double x);\ndouble sinpi(double x);\ndouble cospi(double x);\n",
    "13.0": "double rsqrt(double x);\ndouble cospi(double x) __NV_IEC_60559_FUNCS_EXCEPTION_SPECIFIER;\n",
    "13.2": "double rsqrt(double x) _NV_RSQRT_SPECIFIER;\ndouble cospi(double x) __NV_IEC_60559_X;\n",
}


def failed(text: str, code: int = 1) -> Callable[[tuple[str, ...]], RunResult]:
    """A program that fails with this text on stderr."""
    return lambda argv: RunResult(argv, returncode=code, stderr=text)


def hangs(argv: tuple[str, ...]) -> RunResult:
    """A program that is killed at its deadline."""
    return RunResult(argv, timed_out=True)


def gcc(
    version: str = "13.3.0", *, cplusplus: bool = True, python_h: bool = True, fails: str | None = None
) -> Callable[[tuple[str, ...]], RunResult | str]:
    """A gcc or g++ of one version, with or without its C++ half, that compiles or says why not."""

    def reply(argv: tuple[str, ...]) -> RunResult | str:
        name = argv[0].rpartition("/")[2]
        if argv[1:] == ("--version",):
            return GCC_VERSION.format(name=name, vendor=VENDORS[version], version=version)
        if argv[1:] == ("-print-prog-name=cc1plus",):
            major = version.partition(".")[0]
            return f"/usr/lib/gcc/x86_64-linux-gnu/{major}/cc1plus\n" if cplusplus else "cc1plus\n"
        source = argv[1]
        if fails:
            return RunResult(argv, returncode=1, stderr=fails)
        if source.endswith(".cpp") and not cplusplus:
            return RunResult(argv, returncode=1, stderr=NO_CC1PLUS.format(name=name))
        if source.endswith("launcher.c") and not python_h:
            return RunResult(argv, returncode=1, stderr=NO_PYTHON_H.format(file=source))
        return ""

    return reply


def clang(argv: tuple[str, ...]) -> RunResult | str:
    """clang 14, which has its C++ half built in."""
    return CLANG_VERSION if argv[1:] == ("--version",) else ""


def nvcc(
    release: str = "13.0", preprocess: Reply = "", compile_: Reply = ""
) -> Callable[[tuple[str, ...]], RunResult | str]:
    """An nvcc of one release; what its trial runs print."""

    def reply(argv: tuple[str, ...]) -> RunResult | str:
        if argv[1:] == ("--version",):
            return NVCC_VERSION[release]
        answer = preprocess if "-E" in argv else compile_
        return answer(argv) if callable(answer) else answer

    return reply


def add_toolkit(
    host: FakeHost,
    release: str = "13.0",
    *,
    root: str = "/usr/local/cuda",
    gcc_max: int = 15,
    math: str | None = None,
    curand: bool = True,
    preprocess: Reply = "",
    compile_: Reply = "",
) -> None:
    """A CUDA toolkit folder with the files that are read."""
    host.program(f"{root}/bin/nvcc", nvcc(release, preprocess, compile_))
    host.write(f"{root}/include/crt/host_config.h", HOST_CONFIG.format(gcc_max))
    host.write(f"{root}/include/crt/math_functions.h", MATH_FUNCTIONS[math or release])
    host.write(f"{root}/lib64/libcudart_static.a", "!<arch>\n")
    if curand:
        host.write(f"{root}/include/curand_kernel.h", "")


def python_answer(prefix: str, *, version: str = "3.12.3", base: str = "/usr", sites: Sequence[str] = ()) -> str:
    """What the child prints."""
    minor = ".".join(version.split(".")[:2])
    return json.dumps(
        {
            "executable": f"{prefix}/bin/python",
            "version": version,
            "implementation": "cpython",
            "prefix": prefix,
            "base_prefix": base,
            "include": f"{base}/include/python{minor}",
            "path": [f"{base}/lib/python{minor}", *sites],
            "user_site": "/home/u/.local/lib/python3.12/site-packages",
        }
    )


def add_python(
    host: FakeHost, prefix: str = "/opt/venv", *, version: str = "3.12.3", base: str = "/usr", headers: bool = True
) -> str:
    """An interpreter with an empty environment; returns its site-packages."""
    minor = ".".join(version.split(".")[:2])
    site = f"{prefix}/lib/python{minor}/site-packages"
    host.program(f"{prefix}/bin/python", python_answer(prefix, version=version, base=base, sites=(site,)))
    host.write(f"{site}/README.txt", "")
    if headers:
        host.write(f"{base}/include/python{minor}/Python.h", "")
    return site


def add_dist(host: FakeHost, site: str, name: str, version: str, *requires: str, python: str | None = None) -> str:
    """Metadata of one installed distribution; returns its folder."""
    folder = f"{site}/{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Python: {python}"] if python else []
    lines += [f"Requires-Dist: {r}" for r in requires]
    host.write(f"{folder}/METADATA", "\n".join([*lines, "", "A description.", "Requires-Dist: not-a-field"]))
    return folder


def add_torch(
    host: FakeHost, site: str, version: str = "2.11.0+cu130", *requires: str, arches: str = "sm_75 sm_80 sm_120"
) -> None:
    """torch as its PyPI wheel lies on disk: the metadata has no local version, version.py has."""
    public, _, local = version.partition("+")
    cuda = f"'{local[2:-1]}.{local[-1]}'" if local.startswith("cu") else "None"
    add_dist(host, site, "torch", public if local.startswith("cu") else version, *requires)
    text = (
        f"from typing import Optional\n\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\n"
    )
    host.write(f"{site}/torch/version.py", text)
    if local.startswith("cu"):
        host.write(f"{site}/torch/lib/libtorch_python.so", elf(rodata=b"x\0" + arches.encode() + b"\0y"))


def add_vllm(
    host: FakeHost, site: str, version: str = "0.26.0", *, requires: Sequence[str] = (), cudart: str | None = "13"
) -> str:
    """vLLM with its compiled module; returns the metadata folder."""
    needs = ("libc10.so", *((f"libcudart.so.{cudart}",) if cudart else ()), "libc.so.6")
    host.write(f"{site}/vllm/_C.abi3.so", elf(needed=needs))
    return add_dist(host, site, "vllm", version, *requires, python="<3.15,>=3.10")


def elf(needed: Sequence[str] = (), rodata: bytes = b"") -> bytes:
    """A minimal 64-bit shared object: PT_LOAD, PT_DYNAMIC with DT_NEEDED, and a .rodata section."""
    strings = b"\0" + b"".join(n.encode() + b"\0" for n in needed)
    names = b"\0.rodata\0.shstrtab\0"
    text_at = 64 + 2 * 56
    offsets = [1 + sum(len(m) + 1 for m in needed[:i]) for i in range(len(needed))]
    dynamic = b"".join(struct.pack("<qQ", 1, o) for o in offsets)
    dynamic_at = text_at + len(strings)
    dynamic += struct.pack("<qQqQ", 5, 0x10000 + text_at, 0, 0)
    rodata_at = dynamic_at + len(dynamic)
    names_at = rodata_at + len(rodata)
    sections_at = names_at + len(names)
    header = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 2, 64, 3, 2)
    loads = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x10000, 0x10000, sections_at, sections_at, 4096)
    loads += struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, 0x10000 + dynamic_at, 0, len(dynamic), len(dynamic), 8)
    sections = bytes(64)
    for name, at, size in ((1, rodata_at, len(rodata)), (9, names_at, len(names))):
        sections += struct.pack("<IIQQQQIIQQ", name, 1, 2, 0, at, size, 0, 0, 1, 0)
    return header + loads + strings + dynamic + rodata + names + sections


LDCONFIG_NO_CUDA = (
    "1 libs found in cache `/etc/ld.so.cache'\n\tlibz.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libz.so.1\n"
)
LDCONFIG_CUDA = LDCONFIG_NO_CUDA + "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1\n"


def machine(
    root: Path,
    *,
    compilers: Mapping[str, Reply] | None = None,
    env: Mapping[str, str] | None = None,
    python: bool = True,
) -> FakeHost:
    """A host with an activated environment in /opt/venv and the given compilers (path -> reply)."""
    settings = {
        "VIRTUAL_ENV": "/opt/venv",
        "PATH": "/opt/venv/bin:/usr/local/cuda/bin:/usr/bin:/bin",
        **(env or {}),
    }
    host = FakeHost(root, env=settings, programs={"/sbin/ldconfig -p": LDCONFIG_NO_CUDA})
    if python:
        add_python(host)
    for path, reply in (compilers if compilers is not None else pair()).items():
        host.program(path, reply)
    return host


def pair(version: str = "13.3.0") -> dict[str, Reply]:
    """A complete default pair, as Ubuntu 24.04 has it."""
    return {f"/usr/bin/{name}": gcc(version) for name in ("gcc", "g++", "cc", "c++")}
