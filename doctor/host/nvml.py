"""NVML, opened once and shared by the probes. Only what is asked for here is ever called.

A call into the driver can block for good, so the library is opened in a thread of its own with a
deadline. Every answer may be an error, bytes instead of text, or a value of the wrong type.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from doctor.host.access import Host

T = TypeVar("T")

#: Seconds that opening NVML may take. It wakes up the card when persistence mode is off.
CONNECT_S = 3.0

#: Error codes of nvml.h by the names that its Python binding uses.
ERROR_NAMES: dict[int, str] = {
    1: "Uninitialized", 2: "InvalidArgument", 3: "NotSupported", 4: "NoPermission", 5: "AlreadyInitialized",
    6: "NotFound", 7: "InsufficientSize", 8: "InsufficientPower", 9: "DriverNotLoaded", 10: "Timeout",
    11: "IrqIssue", 12: "LibraryNotFound", 13: "FunctionNotFound", 14: "CorruptedInforom", 15: "GpuIsLost",
    16: "ResetRequired", 17: "OperatingSystem", 18: "LibRmVersionMismatch", 19: "InUse", 20: "Memory",
    21: "NoData", 23: "InsufficientResources", 27: "NotReady", 28: "GpuNotFound", 29: "InvalidState",
    999: "Unknown",
}  # fmt: skip


@dataclass(frozen=True)
class Connection:
    """How opening NVML went.

    ``status``: "ok", an NVML error name, "NoAnswer" (deadline passed) or "BindingsMissing" (the Python
    binding is not installed); None when it was not tried. ``nodes`` are the device nodes as they were
    before: NVML run as root makes /dev/nvidiactl by itself, even in a container that was given no GPU.
    """

    lib: Any = None
    status: str | None = None
    error: str | None = None
    code: int | None = None
    nodes: tuple[str, ...] = ()


_LOCK = threading.Lock()
_CONNECTIONS: weakref.WeakKeyDictionary[Host, _Slot] = weakref.WeakKeyDictionary()


class _Slot:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None


def connect(host: Host, seconds: float = CONNECT_S) -> Connection:
    """Opens NVML on this host, once; later calls get the same answer. Never raises."""
    with _LOCK:
        slot = _CONNECTIONS.setdefault(host, _Slot())
    with slot.lock:
        if slot.connection is None:
            slot.connection = _open(host, seconds)
        return slot.connection


def device_nodes(host: Host) -> tuple[str, ...]:
    """The NVIDIA device nodes (/dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm, ...), folders left out."""
    return tuple(path for path in host.glob("/dev/nvidia*") if not host.is_dir(path))


def _open(host: Host, seconds: float) -> Connection:
    nodes = device_nodes(host)
    try:
        lib = _library(host)
    except ImportError as error:
        return Connection(None, "BindingsMissing", f"nvidia-ml-py is not installed: {error}", None, nodes)
    if lib is None:
        return Connection(nodes=nodes)
    try:
        bounded(lib.nvmlInit, seconds)
    except TimeoutError:
        return Connection(None, "NoAnswer", f"NVML did not answer within {seconds:g} s", None, nodes)
    except Exception as error:  # noqa: BLE001  whatever the driver library does is a fact about it
        name, code, message = describe(error)
        return Connection(None, name, message, code, nodes)
    return Connection(lib, "ok", None, None, nodes)


def _library(host: Host) -> Any:
    """The binding, or what a test put in its place as ``host.nvml``; None for a foreign root folder."""
    stand_in = getattr(host, "nvml", None)
    if stand_in is not None:
        return stand_in
    if getattr(host, "root", ""):
        return None  # the library of this machine says nothing about the folder that is examined
    import pynvml

    return pynvml


def bounded(function: Callable[[], T], seconds: float) -> T:
    """Runs ``function`` in a daemon thread; TimeoutError when it has not ended after ``seconds``."""
    results: list[T] = []
    errors: list[Exception] = []

    def target() -> None:
        try:
            results.append(function())
        except Exception as error:  # noqa: BLE001  raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=target, name="nvml", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]


def describe(error: Exception) -> tuple[str, int | None, str]:
    """Name, code and text of what a call raised. Not an NVML error: the type's name and no code."""
    code = getattr(error, "value", None)
    if not isinstance(code, int) or isinstance(code, bool):
        return type(error).__name__, None, str(error)[:200]
    name = ERROR_NAMES.get(code) or type(error).__name__.removeprefix("NVMLError_")
    return name, code, str(error)[:200] or name


def text(value: Any) -> str:
    """A string answer, which old bindings give as bytes. TypeError for anything else or nothing."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    value = "".join(c for c in value if c.isprintable()).strip()
    if not value:
        raise TypeError("empty text")
    return str(value[:200])


def number(value: Any) -> int:
    """A whole, non-negative number below NVML's "not available" marks. TypeError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise TypeError(f"expected a number, got {value!r:.40}")
    return value


def flag(value: Any) -> bool:
    """An NVML enable state (0 or 1). TypeError otherwise."""
    if value not in (0, 1):
        raise TypeError(f"expected 0 or 1, got {value!r:.40}")
    return bool(value)


def cuda_release(value: Any) -> str:
    """13000 as "13.0"."""
    whole = number(value)
    if not 1000 <= whole < 1_000_000:
        raise TypeError(f"not a CUDA version: {whole}")
    return f"{whole // 1000}.{whole % 1000 // 10}"
