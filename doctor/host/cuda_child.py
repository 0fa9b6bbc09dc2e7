"""Asks CUDA itself, in a child process: a crash, a hang or a used context cannot hurt the doctor.

The child uses libcuda through ctypes, so neither torch nor a toolkit is needed. For each card it makes
the primary context, as vLLM does, and asks cuMemGetInfo; NVML read before and after gives what a
context costs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from doctor.host.access import Host

#: Seconds for all cards. A first context on a cold driver takes some seconds on big machines.
DEADLINE_S = 20.0

#: Codes of cuda.h that tell something about the machine.
ERRORS: dict[int, str] = {
    2: "out of memory", 3: "not initialized", 35: "driver older than the CUDA runtime", 46: "device unavailable",
    100: "no CUDA device", 101: "invalid device", 201: "invalid context", 214: "uncorrectable ECC error",
    304: "operating system call failed", 801: "not supported", 802: "system not yet initialised",
    803: "driver and library versions do not match", 804: "forward compatibility on unsupported hardware",
    805: "MPS connection failed", 999: "unknown error",
}  # fmt: skip


@dataclass(frozen=True)
class CudaDevice:
    """One card as CUDA sees it. ``free_bytes`` is after the child's own context was made."""

    uuid: str | None
    name: str | None
    capability: str | None
    total_bytes: int | None
    free_bytes: int | None
    context_bytes: int | None
    error_code: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class CudaAnswer:
    """``error`` says why there are no devices: a code of CUDA, no library, no answer in time."""

    devices: tuple[CudaDevice, ...] = ()
    error_code: int | None = None
    error: str | None = None


# Runs in the child: no import of ours, nothing but ctypes. Prints one JSON object.
PROGRAM = r"""
import ctypes, json, sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

def library(name):
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None

class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]

nvml = library("libnvidia-ml.so.1")
if nvml is not None and nvml.nvmlInit_v2() != 0:
    nvml = None

def nvml_free(uuid):
    if nvml is None:
        return None
    handle, memory = c_void_p(), Memory()
    if nvml.nvmlDeviceGetHandleByUUID(("GPU-" + uuid).encode(), byref(handle)) != 0:
        return None
    return memory.free if nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)) == 0 else None

def done(answer):
    print(json.dumps(answer))
    sys.stdout.flush()
    raise SystemExit(0)

cuda = library("libcuda.so.1")
if cuda is None:
    done({"error": "libcuda.so.1 cannot be loaded"})

def failed(call, code):
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(code, byref(text))
    said = (text.value or b"").decode("utf-8", "replace")
    return {"error_code": code, "error": (call + ": " + said).rstrip(": ")}

code = cuda.cuInit(0)
if code:
    done(failed("cuInit", code))
count = c_int()
code = cuda.cuDeviceGetCount(byref(count))
if code:
    done(failed("cuDeviceGetCount", code))
devices = []
for index in range(count.value):
    entry = {}
    devices.append(entry)
    device = c_int()
    code = cuda.cuDeviceGet(byref(device), index)
    if code:
        entry.update(failed("cuDeviceGet", code))
        continue
    raw = (c_char * 16)()
    ask = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    if ask(raw, device) == 0:
        h = bytes(raw).hex()
        entry["uuid"] = "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:]))
    name = ctypes.create_string_buffer(256)
    if cuda.cuDeviceGetName(name, 256, device) == 0:
        entry["name"] = name.value.decode("utf-8", "replace")
    major, minor = c_int(), c_int()
    ask_for = cuda.cuDeviceGetAttribute
    if not ask_for(byref(major), 75, device) and not ask_for(byref(minor), 76, device):
        entry["capability"] = "%d.%d" % (major.value, minor.value)
    before = nvml_free(entry["uuid"]) if "uuid" in entry else None
    context = c_void_p()
    code = cuda.cuDevicePrimaryCtxRetain(byref(context), device)
    if code:
        entry.update(failed("cuDevicePrimaryCtxRetain", code))
        continue
    code = cuda.cuCtxSetCurrent(context)
    free, total = c_size_t(), c_size_t()
    code = code or cuda.cuMemGetInfo_v2(byref(free), byref(total))
    if code:
        entry.update(failed("cuMemGetInfo", code))
    else:
        entry["free"], entry["total"] = free.value, total.value
        after = nvml_free(entry["uuid"]) if before is not None else None
        if after is not None and before > after:
            entry["context"] = before - after
    cuda.cuDevicePrimaryCtxRelease_v2(device)
done({"devices": devices})
"""


def ask(host: Host, seconds: float = DEADLINE_S) -> CudaAnswer:
    """Starts the child and reads its answer. Never raises."""
    result = host.run([sys.executable, "-I", "-c", PROGRAM], timeout=seconds, limit=1 << 18)
    if result.timed_out:
        return CudaAnswer(error=f"CUDA did not answer within {seconds:g} s")
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    try:
        data = json.loads(lines[-1]) if lines else None
    except ValueError:
        data = None
    if not isinstance(data, dict):
        how = result.error or f"exit status {result.returncode}"
        return CudaAnswer(error=f"the CUDA trial ended without an answer ({how})")
    rows = data.get("devices")
    devices = tuple(_device(row) for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    return CudaAnswer(devices, _integer(data.get("error_code")), _error(data))


def _device(row: dict[str, Any]) -> CudaDevice:
    return CudaDevice(
        uuid=_string(row.get("uuid")),
        name=_string(row.get("name")),
        capability=_string(row.get("capability")),
        total_bytes=_integer(row.get("total")),
        free_bytes=_integer(row.get("free")),
        context_bytes=_integer(row.get("context")),
        error_code=_integer(row.get("error_code")),
        error=_error(row),
    )


def _error(row: dict[str, Any]) -> str | None:
    said, code = _string(row.get("error")), _integer(row.get("error_code"))
    if said is None and code is None:
        return None
    known = ERRORS.get(code) if code is not None else None
    return f"{said or 'CUDA'} (error {code}{': ' + known if known else ''})" if code is not None else said


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _string(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value else None
