"""Evidence of the area compiler: the host compilers, headers and what links against libcuda."""

from __future__ import annotations

import re

from doctor import catalogue
from doctor.checks.evidence.common import HINT, LIKELY, PROVEN, events, first, near, rule, say, together, wsl_sign
from doctor.checks.packages import install
from doctor.checks.registry import Result
from doctor.finding import Remedy, Risk
from doctor.snapshot import Event, Snapshot


def _compiler_major(s: Snapshot, event: Event) -> tuple[int | None, Event | None]:
    """The gcc major that was called, and the line that shows it; what names it nearest counts."""
    named = re.search(r"\b(?:gcc|g\+\+|cc|c\+\+)-(\d{1,2})\b", event.text)
    if named:
        return int(named[1]), event
    used = [e for e in events(s, "compiler.gcc-used") if e.values.get("major")]
    close = near(s, event, {"compiler.gcc-used"}, before=40, after=4)
    if close and close.values.get("major"):
        return int(close.values["major"]), close
    if close and close.values.get("path"):
        return _default_major(s), close  # an unversioned gcc
    if used:
        return int(used[-1].values["major"]), used[-1]
    return _default_major(s), first(s, "shell.gcc")


def _default_major(s: Snapshot) -> int | None:
    seen = first(s, "shell.gcc", "report.gcc")
    return int(seen.values["major"]) if seen else None


def _install_gxx(s: Snapshot, major: int) -> tuple[Remedy, ...]:
    commands = install(s, "g++-major", major=major) or (("sudo", "apt-get", "install", f"g++-{major}"),)
    return (
        Remedy(
            f"Install g++-{major}, the C++ half of gcc-{major}",
            automatic=True,
            commands=commands,
            risk=Risk.SAFE,
            verify=(f"gcc-{major} -print-prog-name=cc1plus prints an absolute path",),
        ),
        *catalogue.cause("gxx12-missing" if major == 12 else "cxx-compiler-missing").remedies[1:],
    )


@rule("gxx12-missing")
def gxx12_missing(s: Snapshot) -> Result:
    """cc1plus, or g++-12 itself, could not be executed while gcc-12 was the compiler (proven).

    GCC says it in three ways, by version and by who calls it; without any sign of the compiler's version the
    cause is cxx-compiler-missing.
    """
    for event in events(s, "compiler.cc1plus"):
        major, shown = _compiler_major(s, event)
        if major == 12:
            text = "gcc-12 was called and its C++ front end (cc1plus, of g++-12) is not there"
            return say("gxx12-missing", together(s, event, shown), text, event, shown, fixes=_install_gxx(s, 12))
    for event in events(s, "compiler.gxx-not-found"):
        if event.values.get("major") == "12":
            text = "g++-12 was called and is not there"
            return say("gxx12-missing", PROVEN, text, event, fixes=_install_gxx(s, 12))
    asked = next((e for e in events(s, "compiler.no-cc1plus-shown") if e.values.get("major") == "12"), None)
    if asked:
        text = "gcc-12 is there and knows no C++ front end (cc1plus, of g++-12)"
        return say("gxx12-missing", PROVEN, text, asked, fixes=_install_gxx(s, 12))
    pinned = next((e for e in events(s, "compiler.gcc-used") if e.values.get("major") == "12"), None)
    failed = first(s, "compiler.host-preprocess")
    if pinned and failed:
        text = "nvcc was told to use gcc-12 and could not make it preprocess C++"
        return say("gxx12-missing", LIKELY, text, failed, pinned, fixes=_install_gxx(s, 12))
    return None


@rule("cxx-compiler-missing")
def cxx_compiler_missing(s: Snapshot) -> Result:
    """g++ (or the cc1plus of a gcc other than 12) could not be found by what was compiling (proven)."""
    for event in events(s, "compiler.cc1plus"):
        major, shown = _compiler_major(s, event)
        if major == 12:
            continue
        if major:
            text = f"gcc {major} was called and its C++ front end (cc1plus, of g++-{major}) is not there"
            return say(
                "cxx-compiler-missing", together(s, event, shown), text, event, shown, fixes=_install_gxx(s, major)
            )
        text = "the gcc that was called has no C++ front end (cc1plus); its version is not shown"
        return say("cxx-compiler-missing", LIKELY, text, event)
    for event in events(s, "compiler.gxx-not-found"):
        if event.values.get("major") == "12":
            continue
        name = event.values.get("program") or "a C++ compiler"
        major_text = event.values.get("major")
        fixes = _install_gxx(s, int(major_text)) if major_text else None
        if fixes is None and (commands := install(s, "g++")):
            fixes = (Remedy("Install g++", True, commands, Risk.SAFE, ("g++ --version",)),)
        return say("cxx-compiler-missing", PROVEN, f"{name} was called and is not there", event, fixes=fixes)
    asked = next((e for e in events(s, "compiler.no-cc1plus-shown") if e.values.get("major") != "12"), None)
    if asked:
        return say("cxx-compiler-missing", LIKELY, "this gcc knows no C++ front end (cc1plus)", asked)
    return None


@rule("c-compiler-missing")
def c_compiler_missing(s: Snapshot) -> Result:
    """Triton, Inductor, distutils or CMake found no C compiler (proven)."""
    event = first(s, "compiler.no-c")
    if event is None:
        return None
    commands = install(s, "gcc", "g++") or (("sudo", "apt-get", "install", "gcc", "g++"),)
    fixes = (
        Remedy("Install a C and a C++ compiler", True, commands, Risk.SAFE, ("gcc --version",)),
        *catalogue.cause("c-compiler-missing").remedies[1:],
    )
    name = event.values.get("program")
    text = (
        f"{name} was called and is not there" if name else "Triton builds a small C helper and found no C compiler"
    )
    return say("c-compiler-missing", PROVEN, text, event, fixes=fixes)


@rule("python-headers-missing")
def python_headers_missing(s: Snapshot) -> Result:
    """A compiler stopped at Python.h (proven), or CMake found no headers (likely).

    The include folder on the compiler's command line tells the version.
    """
    folder = first(s, "compiler.python-include")
    event = first(s, "compiler.python-h", "compiler.python-h-cmake")
    if (
        event is None
        and (helper := _unexplained_helper(s))
        and folder
        and folder.values["path"].startswith("/usr/include")
    ):
        text = "gcc failed on the helper that Triton builds and its message is not here; missing headers are usual"
        return say("python-headers-missing", HINT, text, helper, folder)
    if event is None:
        return None
    version = (folder.values.get("version") if folder else None) or (s.python.version if s.python else None)
    minor = ".".join((version or "").split(".")[:2])
    fixes = catalogue.cause("python-headers-missing").remedies
    if minor:
        commands = install(s, "python-headers", python=minor) or (
            ("sudo", "apt-get", "install", f"python{minor}-dev"),
        )
        first_fix = Remedy(
            f"Install the headers of Python {minor}, the one that runs vLLM", True, commands, Risk.SAFE,
            (f"ls /usr/include/python{minor}/Python.h",),
        )  # fmt: skip
        fixes = (first_fix, *fixes[1:])
    if stopped := first(s, "compiler.python-h"):
        text = f"what is compiled includes Python.h{f' of Python {minor}' if minor else ''}, which is not there"
        return say("python-headers-missing", PROVEN, text, stopped, folder, fixes=fixes)
    return say("python-headers-missing", LIKELY, "CMake finds no headers of this Python", event, fixes=fixes)


def _unexplained_helper(s: Snapshot) -> Event | None:
    """Triton's small C helper failed to compile, and what the compiler said is not in the text."""
    known = ("compiler.helper-failed", "compiler.python-include", "compiler.gcc-used")
    if any(e.signal.startswith("compiler.") and e.signal not in known for e in s.events):
        return None
    return first(s, "compiler.helper-failed")


@rule("wsl2-libcuda-link-name-missing")
def libcuda_link_name(s: Snapshot) -> Result:
    """The linker did not find -lcuda under WSL (proven)."""
    event = first(s, "compiler.lcuda")
    sign = wsl_sign(s)
    if event is None or sign is None:
        return None
    text = "the linker does not find libcuda by its plain name; under WSL2 it lies in /usr/lib/wsl/lib"
    return say("wsl2-libcuda-link-name-missing", together(s, event, sign), text, event, sign)


@rule("libcuda-link-name-missing")
def libcuda_link_name_native(s: Snapshot) -> Result:
    """The same on a machine without any sign of WSL: the link libcuda.so is missing (likely)."""
    event = first(s, "compiler.lcuda")
    if event is None and (helper := _unexplained_helper(s)):
        text = "gcc failed on the helper that Triton builds and its message is not here; it links with -lcuda"
        return say("libcuda-link-name-missing", HINT, text, helper)
    plain = first(s, "network.nccl-libcuda")
    if event is None and plain and wsl_sign(s) is None:
        return say("libcuda-link-name-missing", HINT, "NCCL did not find libcuda.so by its plain name", plain)
    if event is None or wsl_sign(s) is not None:
        return None
    text = "the linker does not find libcuda by its plain name (libcuda.so), only libcuda.so.1 is there"
    return say("libcuda-link-name-missing", LIKELY, text, event)


@rule("gcc-too-new-for-nvcc")
def gcc_too_new(s: Snapshot) -> Result:
    """CUDA's header, or torch's check before it, refused the host gcc as too new (proven)."""
    event = first(s, "compiler.gnu-version")
    if event:
        most = event.values["max"]
        commands = install(s, "g++-major", major=int(most)) or (("sudo", "apt-get", "install", f"g++-{most}"),)
        cxx = f"/usr/bin/g++-{most}"
        fixes = (
            Remedy(
                f"Install g++-{most} and build with NVCC_CCBIN={cxx} CUDAHOSTCXX={cxx} CXX={cxx} "
                f"CC=/usr/bin/gcc-{most}",
                True, commands, Risk.SAFE, (f"{cxx} --version",),
            ),
            *catalogue.cause("gcc-too-new-for-nvcc").remedies[1:],
        )  # fmt: skip
        text = f"this nvcc accepts gcc up to {most}, the host compiler is newer"
        return say("gcc-too-new-for-nvcc", PROVEN, text, event, fixes=fixes)
    bounds = first(s, "compiler.gcc-bounds")
    if bounds and bounds.values.get("how") == "greater":
        text = (
            f"{bounds.values['compiler']} {bounds.values['version']} is newer than CUDA "
            f"{bounds.values['cuda']} accepts"
        )
        return say("gcc-too-new-for-nvcc", PROVEN, text, bounds)
    clang = first(s, "compiler.clang-version")
    if clang:
        return say("gcc-too-new-for-nvcc", LIKELY, "this nvcc does not accept the host's clang", clang)
    return None


_GLIBC_241 = re.compile(
    r"^(?:a?(?:cos|sin|tan)pif?|a?tan2pif?|rsqrtf?|exp(?:2|10)m1f?|log(?:2|10)p1f?|pownf?|powrf?|rootnf?|compoundnf?)$"
)


@rule("glibc-cuda-math-header-conflict")
def math_header(s: Snapshot) -> Result:
    """nvcc rejected glibc's declaration of a math function that glibc 2.41 brought (proven with that version)."""
    event = next((e for e in events(s, "compiler.math-header") if _GLIBC_241.match(e.values["function"])), None)
    if event is None:
        return None
    glibc = s.system.glibc if s.system else None
    known = bool(glibc and tuple(int(p) for p in glibc.split(".")[:2]) >= (2, 41))
    rows = [s.evidence("system.glibc")] if known else []
    text = f"glibc declares {event.values['function']} with noexcept, the CUDA headers without"
    return say(
        "glibc-cuda-math-header-conflict", together(s, event, *rows) if known else LIKELY, text, event, *rows
    )


@rule("flashqla-stale-build-lock")
def stale_lock(s: Snapshot) -> Result:
    """A process waits in torch's file lock, or a lock file lies in the FlashQLA build folder (likely).

    That no build is running cannot be seen in a text, so it is never proven.
    """
    waiting = first(s, "compiler.lock-wait")
    lock = first(s, "compiler.lock-file")
    if lock and waiting:
        return say(
            "flashqla-stale-build-lock",
            LIKELY,
            "the start waits for a build lock that nobody releases",
            waiting,
            lock,
        )
    if lock:
        return say("flashqla-stale-build-lock", LIKELY, "a lock file lies in the FlashQLA build folder", lock)
    if waiting:
        named = near(s, waiting, {"compiler.flashqla-named"}, before=40, after=40)
        if named:
            text = "the start waits for the lock of the FlashQLA build"
            return say("flashqla-stale-build-lock", LIKELY, text, waiting, named)
        text = "a process waits for the lock of an extension build; whose build it is is not shown"
        return say("flashqla-stale-build-lock", HINT, text, waiting)
    return None
