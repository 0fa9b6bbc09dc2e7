"""Compares the doctor's figures of a real GPU with those of torch, NVML and nvidia-smi.

    python3 tests/gpu/measure_check.py [FOLDER]

Needs a machine with an NVIDIA card, torch and nvidia-ml-py; run from anywhere inside a checkout. Totals
must be equal to the byte, free memory within 64 MiB. Writes snapshot.json, check.json and agree.json to
FOLDER (default: $OUT, else the current folder), prints a table, ends with 0 when all agree, else 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
FREE_TOLERANCE = 64 * MIB

TORCH = """
import json, torch
rows = []
for i in range(torch.cuda.device_count()):
    free, total = torch.cuda.mem_get_info(i)
    rows.append({"name": torch.cuda.get_device_name(i), "free": free, "total": total,
                 "capability": "%d.%d" % torch.cuda.get_device_capability(i)})
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": rows}))
"""
QUERY = ("index", "name", "driver_version", "memory.total", "memory.used", "memory.free", "compute_cap")


def run(argv: list[str], seconds: float = 120.0, **env: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=seconds, cwd=ROOT, env={**os.environ, **env}, check=False
    )
    return done, time.monotonic() - began


def torch_figures() -> dict[str, Any]:
    done, _ = run([sys.executable, "-c", TORCH], CUDA_DEVICE_ORDER="PCI_BUS_ID")
    if done.returncode:
        raise SystemExit(f"torch cannot be asked: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def nvml_figures() -> list[dict[str, Any]]:
    import pynvml

    pynvml.nvmlInit()
    rows = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        rows.append({"total": memory.total, "reserved": memory.reserved, "free": memory.free, "used": memory.used})
    pynvml.nvmlShutdown()
    return rows


def smi_figures() -> list[dict[str, str]]:
    done, _ = run(["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"], 30)
    return [
        dict(zip(QUERY, (v.strip() for v in line.split(",")), strict=False)) for line in done.stdout.splitlines()
    ]


class Table:
    """Rows of figure, ours, theirs; remembers whether all agreed."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def compare(self, figure: str, ours: Any, theirs: Any, tolerance: int = 0) -> None:
        if tolerance and isinstance(ours, int) and isinstance(theirs, int):
            agree = abs(ours - theirs) <= tolerance
        else:
            agree = ours is not None and ours == theirs
        self.rows.append(
            {"figure": figure, "doctor": ours, "other": theirs, "tolerance": tolerance, "agree": agree}
        )

    @property
    def agree(self) -> bool:
        return bool(self.rows) and all(r["agree"] for r in self.rows)

    def show(self) -> None:
        width = max(len(r["figure"]) for r in self.rows)
        for r in self.rows:
            mark = "ok " if r["agree"] else "BAD"
            print(f"{mark} {r['figure']:<{width}}  {r['doctor']!s:>22}  {r['other']!s:>22}")


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("OUT") or ".").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "snapshot.json"
    _, plain_s = run([sys.executable, "-m", "doctor", "check", "--json"])
    argv = [sys.executable, "-m", "doctor", "check", "--deep", "--json", "--save", str(saved)]
    done, deep_s = run(argv)
    (folder / "check.json").write_text(done.stdout, encoding="utf-8")
    if not saved.exists():
        print(done.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"the doctor ended with {done.returncode} and saved no snapshot")
    snapshot = json.loads(saved.read_text(encoding="utf-8"))
    answer = json.loads(done.stdout)
    torch, nvml, smi = torch_figures(), nvml_figures(), smi_figures()

    table = Table()
    gpus = snapshot.get("gpus") or []
    table.compare("cards", len(gpus), len(torch["gpus"]))
    for gpu, by_torch, by_nvml, by_smi in zip(gpus, torch["gpus"], nvml, smi, strict=False):
        at = f"gpu {gpu['index']}"
        table.compare(f"{at} name, torch", gpu.get("name"), by_torch["name"])
        table.compare(f"{at} name, nvidia-smi", gpu.get("name"), by_smi["name"])
        table.compare(f"{at} capability", gpu.get("compute_capability"), by_torch["capability"])
        table.compare(f"{at} NVML total bytes", gpu.get("total_bytes"), by_nvml["total"])
        table.compare(f"{at} NVML reserved bytes", gpu.get("reserved_bytes", 0), by_nvml["reserved"])
        rule = gpu.get("total_bytes", 0) - gpu.get("reserved_bytes", 0)
        table.compare(f"{at} total - reserved = CUDA total", rule, by_torch["total"])
        table.compare(f"{at} CUDA total bytes (--deep)", gpu.get("cuda_total_bytes"), by_torch["total"])
        table.compare(
            f"{at} CUDA free bytes (--deep)", gpu.get("cuda_free_bytes"), by_torch["free"], FREE_TOLERANCE
        )
        table.compare(f"{at} NVML free bytes", gpu.get("free_bytes"), by_nvml["free"], FREE_TOLERANCE)
        mib = round(gpu.get("total_bytes", 0) / MIB)
        table.compare(f"{at} total MiB, nvidia-smi", mib, int(float(by_smi["memory.total"])), 1)
    driver = snapshot.get("driver", {})
    if smi:
        table.compare("driver version", driver.get("version"), smi[0]["driver_version"])
    table.compare("torch's CUDA", (snapshot.get("python") or {}).get("torch_cuda"), torch["cuda"])
    fraction = [f["summary"] for f in answer["findings"] if f["id"] == "usable-vram-fraction"]
    table.show()
    context = [round(g.get("cuda_context_bytes", 0) / MIB) for g in gpus]
    print(f"context MiB {context}; check {plain_s:.2f} s, --deep {deep_s:.2f} s; verdict {answer['verdict']}")
    print("\n".join(fraction))
    result = {
        "agree": table.agree, "rows": table.rows, "check_s": round(plain_s, 3), "deep_s": round(deep_s, 3),
        "verdict": answer["verdict"], "findings": [f["id"] for f in answer["findings"]], "fraction": fraction,
        "context_mib": context, "torch": torch, "nvml": nvml, "nvidia_smi": smi,
        "probes": snapshot.get("probes"),
    }  # fmt: skip
    (folder / "agree.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if table.agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
