"""Evidence of the area driver: what CUDA and NVML answered."""

from __future__ import annotations

import re

from doctor.catalogue.gpus import branch_driver, minimum_driver
from doctor.checks.evidence.common import (
    HINT,
    LIKELY,
    PROVEN,
    container_sign,
    events,
    file_of,
    first,
    has,
    near,
    rule,
    say,
    together,
    wsl_sign,
)
from doctor.checks.evidence.remedies import cuda12
from doctor.checks.registry import Result
from doctor.finding import Evidence, Remedy
from doctor.snapshot import Event, Snapshot


@rule("driver-too-old-for-cuda-build")
def too_old(s: Snapshot) -> Result:
    """torch refused the driver and named the CUDA level it serves (proven); CUDA's own refusals are likely."""
    cause = "driver-too-old-for-cuda-build"
    event = first(s, "driver.too-old")
    if event:
        level = _level(event.values["found"])
        build = _build(s)
        need = f"CUDA {build}" if build else "a newer release"
        text = f"the driver serves CUDA {level} at most; torch is built for {need}"
        driver = s.evidence("driver.version") if s.driver and s.driver.version else None
        return say(cause, PROVEN, text, event, driver, fixes=_update(s, build, level))
    plain = first(s, "driver.insufficient")
    if plain:
        return say(
            cause,
            LIKELY,
            "CUDA says that the driver is older than its runtime",
            plain,
            fixes=_update(s, None, None),
        )
    ptx = first(s, "driver.unsupported-ptx")
    if ptx:
        return say(cause, LIKELY, "the driver is older than the compiler that made this PTX code", ptx)
    symbol = first(s, "driver.undefined-symbol")
    if symbol:
        text = f"libcuda lacks {symbol.values['symbol']}, which a newer driver has"
        return say(cause, LIKELY, text, symbol)
    return None


def _build(s: Snapshot) -> str | None:
    """The CUDA release of torch as shown, or that of the plain wheel of this vLLM, which pins torch."""
    if s.python is None:
        return None
    return s.python.torch_cuda or (s.python.vllm_cuda if "." in (s.python.vllm_cuda or "") else None)


def _level(found: str) -> str:
    """ "12080" -> "12.8"."""
    value = int(found)
    return f"{value // 1000}.{value % 1000 // 10}"


def _update(s: Snapshot, build: str | None, level: str | None) -> list[Remedy]:
    windows = wsl_sign(s) is not None
    branch = branch_driver(build) if build else None
    minimum = minimum_driver(build, windows=windows) if build else None
    wanted = f" to {branch} or newer ({minimum} is the lowest for CUDA {build})" if branch else ""
    where = (
        "the NVIDIA driver in Windows"
        if windows
        else "the driver of the host"
        if container_sign(s)
        else "the driver"
    )
    after = ", then run `wsl --shutdown` there" if windows else ", then restart"
    first_fix = Remedy(f"Update {where}{wanted}{after}", verify=("nvidia-smi",))
    older = level is None or int(level.split(".")[0]) < 12
    second = (
        Remedy(f"Or a vLLM of the time of this driver (CUDA {level}); it is too old for CUDA 12 builds")
        if older and level
        else cuda12()
    )
    return [first_fix, second]


@rule("driver-library-version-mismatch")
def mismatch(s: Snapshot) -> Result:
    """NVML or the kernel module says that library and module differ (proven on a host of its own).

    In a report: no driver version, no GPU and no CUDA although torch is a CUDA build is a hint.
    """
    cause = "driver-library-version-mismatch"
    event = first(s, "driver.nvml-mismatch", "driver.kernel-mismatch")
    if event:
        upgrade = first(s, "driver.apt-upgrade", "driver.unattended")
        text = "the driver's libraries and the loaded kernel module have different versions"
        if upgrade and "new" in upgrade.values:
            text += (
                f"; the packages went from {upgrade.values['old']} to {upgrade.values['new']} without a restart"
            )
        sure = LIKELY if wsl_sign(s) else PROVEN
        return say(cause, sure, text, event, upgrade)
    module, library = first(s, "driver.module-version"), _userland(s)
    if module and library:
        loaded, installed = module.values["version"], library.values["version"].split("-")[0]
        if loaded != installed:
            text = f"the loaded module is {loaded}, {library.values['name']} is {installed}"
            return say(cause, LIKELY, text, module, library)
    upgraded = first(s, "driver.apt-upgrade")
    if upgraded and "new" in upgraded.values and not wsl_sign(s):
        text = (
            f"the driver packages went from {upgraded.values['old']} to {upgraded.values['new']}; until a restart "
            "the old module stays loaded"
        )
        return say(cause, HINT, text, upgraded)
    if _blind_report(s) and not wsl_sign(s):
        text = "CUDA is not available and no driver version can be read, although torch is a CUDA build"
        rows = events(s, "report.cuda-available", "report.no-driver-version", "report.no-gpu")
        return say(cause, HINT, text, *rows)
    return None


def _userland(s: Snapshot) -> Event | None:
    """The installed package of the driver's libraries or programs, as dpkg and its like list them."""
    known = re.compile(
        r"(?:nvidia-smi|libnvidia-ml1|libcuda1|(?:nvidia-utils|libnvidia-compute)(?:-\d{3})?(?:-server)?)$"
    )
    return next(
        (
            e
            for e in events(s, "shell.package")
            if known.match(e.values["name"])
            and re.match(r"\d{3}\.\d", e.values["version"])
            and not e.text.startswith("rc")
        ),
        None,
    )


def _blind_report(s: Snapshot) -> bool:
    off = any(e.values["value"] == "False" for e in events(s, "report.cuda-available"))
    cuda = bool(s.python and s.python.torch_cuda)
    return off and cuda and has(s, "report.no-driver-version")


@rule("nvidia-driver-missing")
def missing(s: Snapshot) -> Result:
    """torch found no driver at all on what looks like a host of its own (likely); weaker signs are hints."""
    cause = "nvidia-driver-missing"
    if wsl_sign(s):
        return None
    inside = container_sign(s)
    none = next((e for e in events(s, "driver.no-cuda-gpus") if "nodriver" in e.values), None)
    program = first(s, "driver.smi-not-found")
    if none:
        text = "torch found no NVIDIA driver on this system"
        return say(cause, HINT if inside else LIKELY, text, none, program)
    library = first(s, "driver.libcuda-missing")
    if library and has(
        s, "driver.no-platform", "driver.infer-device", "driver.smi-not-found", "driver.nvml-library"
    ):
        text = "libcuda.so.1 cannot be loaded and vLLM finds no platform"
        return say(
            cause, HINT if inside else LIKELY, text, library, first(s, "driver.no-platform", "driver.infer-device")
        )
    if program and not inside and not (s.driver and s.driver.version):
        return say(cause, HINT, "there is no nvidia-smi", program)
    if _blind_report(s):
        text = "CUDA is not available and no driver version can be read, although torch is a CUDA build"
        return say(cause, HINT, text, *events(s, "report.cuda-available", "report.no-driver-version"))
    hook = first(s, "container.load-library")
    windows = first(s, "shell.windows", "container.docker-desktop") or (s.wsl and s.wsl.windows_build)
    if hook and not windows and not (s.driver and s.driver.version):
        return say(cause, HINT, "the container hook finds no driver library on the host of the daemon", hook)
    unknown = first(s, "driver.infer-device", "driver.no-platform")
    other = has(s, "python.cpu-torch", "driver.nvml-mismatch", "driver.nvml-not-loaded", "wsl.blocked-by-os")
    works = any(e.values["value"] == "True" for e in events(s, "report.cuda-available"))
    if unknown and not (s.driver and s.driver.version) and not other and not works:
        return say(cause, HINT, "vLLM finds no GPU platform", unknown)
    return None


@rule("nvidia-kernel-module-not-loaded")
def not_loaded(s: Snapshot) -> Result:
    """NVML answers that the driver is not loaded; why the module is not there proves it."""
    cause = "nvidia-kernel-module-not-loaded"
    event = first(s, "driver.nvml-not-loaded")
    why = first(s, "driver.modprobe", "driver.nouveau")
    if wsl_sign(s) or not (event or first(s, "driver.modprobe")):
        return None
    inside = container_sign(s)
    if event and why:
        text = "the driver's libraries are there, its kernel module is not running"
        return say(cause, together(s, event, why), text, event, why)
    if event:
        text = "NVML reaches no driver: its kernel module is not running"
        return say(cause, HINT if inside and not has(s, "container.on-host") else LIKELY, text, event)
    return say(cause, LIKELY, "the kernel module nvidia cannot be loaded", why)


@rule("nvml-library-missing")
def library_missing(s: Snapshot) -> Result:
    """NVML's library was not found; likely only where CUDA itself works."""
    cause = "nvml-library-missing"
    event = first(s, "driver.nvml-library", "driver.smi-no-library")
    if event is None or first(s, "container.load-library"):
        return None
    works = (s.driver and s.driver.version) or any(
        e.values["value"] == "True" for e in events(s, "report.cuda-available")
    )
    if works or event.signal == "driver.smi-no-library":
        return say(cause, LIKELY, "libnvidia-ml.so.1 is not found, so vLLM cannot tell the platform", event)
    return say(cause, HINT, "libnvidia-ml.so.1 is not found; whether libcuda is there is not shown", event)


@rule("cuda-forward-compat-unsupported")
def forward_compat(s: Snapshot) -> Result:
    """CUDA error 804 (proven)."""
    event = first(s, "driver.forward-compat")
    if event is None:
        return None
    have = (
        f" (driver {s.driver.version}, CUDA {s.driver.cuda})"
        if s.driver and s.driver.version and s.driver.cuda
        else ""
    )
    text = f"forward compatibility libraries are used on a card that does not allow them{have}"
    rows: list[Event | Evidence] = [event]
    if have:
        rows.append(s.evidence("driver.version"))
    return say("cuda-forward-compat-unsupported", PROVEN, text, *rows)


@rule("cuda-driver-combination-unsupported")
def combination(s: Snapshot) -> Result:
    """CUDA error 803: the libcuda that was loaded does not fit the kernel module (proven)."""
    event = first(s, "driver.combination")
    if event is None:
        return None
    text = "the libcuda that was loaded does not fit the driver of the kernel"
    return say("cuda-driver-combination-unsupported", PROVEN, text, event)


@rule("fabric-manager-not-running")
def fabric_manager(s: Snapshot) -> Result:
    """CUDA error 802, with a sign of NVSwitch or of the fabric's state (proven), without one (likely)."""
    event = first(s, "driver.not-initialized")
    if event is None:
        return None
    dead = first(s, "driver.fabric-dead")
    switch = first(s, "driver.nvswitch")
    sign = (
        first(s, "driver.fabric-failed", "smi.fabric-state", "driver.fabric-state")
        or (dead if switch else None)
        or switch
    )
    if sign and sign.signal == "smi.fabric-state" and sign.values["state"] == "Completed":
        sign = None
    text = "CUDA is not initialised (error 802): on NVSwitch machines the fabric manager must run first"
    return say("fabric-manager-not-running", together(s, event, sign), text, event, sign)


@rule("xid-errors-in-kernel-log", start=False)
def xid(s: Snapshot) -> Result:
    """The kernel log in the text holds Xid errors: a lost card is likely the cause, others are hints."""
    found = events(s, "driver.xid")
    lost = next((e for e in found if e.values.get("code") == "79"), None) or first(s, "driver.rm-init-failed")
    if lost:
        return say("xid-errors-in-kernel-log", LIKELY, "the driver lost the card", lost)
    if found:
        codes = ", ".join(sorted({e.values["code"] for e in found}))
        return say("xid-errors-in-kernel-log", HINT, f"the driver logged Xid {codes}", *found[:3])
    return None


def same_text(one: Event, other: Event | None) -> bool:
    """Whether two events are of one text."""
    return other is not None and file_of(one) == file_of(other)


#: Error codes of CUDA's first call that have a cause of their own: no device, stub, 500, 802, 803, 804.
_NAMED = frozenset({"34", "35", "36", "100", "500", "802", "803", "804", "999"})


@rule("cuda-visible-devices-hides-gpu")
def hidden(s: Snapshot) -> Result:
    """torch saw no GPU and the text shows a CUDA_VISIBLE_DEVICES that names none (likely) or may (a hint)."""
    none = next((e for e in events(s, "driver.no-cuda-gpus") if "nodriver" not in e.values), None)
    value = (s.python.env or {}).get("CUDA_VISIBLE_DEVICES") if s.python else None
    if none is None or value is None:
        return None
    shown = s.evidence("python.env", f"CUDA_VISIBLE_DEVICES={value}")
    first_card = value.split(",")[0].strip()
    empty = first_card in ("", "-1", "NoDevFiles")
    beyond = first_card.isdigit() and bool(s.gpus) and int(first_card) >= len(s.gpus or ())
    text = f"torch sees no GPU with CUDA_VISIBLE_DEVICES={value or '(empty)'}"
    return say("cuda-visible-devices-hides-gpu", LIKELY if empty or beyond else HINT, text, none, shown)


@rule("no-gpu-visible")
def none_visible(s: Snapshot) -> Result:
    """torch saw no GPU and the text does not say why (a hint)."""
    none = next((e for e in events(s, "driver.no-cuda-gpus") if "nodriver" not in e.values), None)
    if (
        none is None
        or container_sign(s)
        or wsl_sign(s)
        or (s.python and "CUDA_VISIBLE_DEVICES" in (s.python.env or {}))
    ):
        return None
    text = "torch has a driver and sees no GPU"
    return say("no-gpu-visible", HINT, text, none)


@rule("cuda-init-failed")
def cuda_unknown(s: Snapshot) -> Result:
    """CUDA's first call answered "unknown error", or a code that nothing else explains (a hint)."""
    cause_id = "cuda-init-failed"
    event = first(s, "driver.cuda-unknown")
    other = first(s, "driver.first-call-error")
    if event is None and other and other.values["code"] not in _NAMED:
        what = other.values["what"].partition(" (Triggered")[0]
        return say(cause_id, HINT, f"CUDA's first call answers {other.values['code']}: {what}", other)
    if event is None:
        return None
    where = near(s, event, {"container.gpu-lost"}, before=10, after=10)
    return say(cause_id, HINT, "CUDA answers with an unknown error", event, where)
