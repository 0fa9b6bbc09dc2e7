"""nvidia-smi's table, ``-L`` and ``-q`` -> facts of the driver and the cards."""

from __future__ import annotations

import re
from collections.abc import Sequence

from doctor.evidence.builder import FactBuilder
from doctor.evidence.facts_env import add_gpu
from doctor.evidence.strip import Line
from doctor.snapshot import Event

_HEADER = re.compile(
    r"NVIDIA-SMI (\d{3}\.\d{2,3}(?:\.\d{2})?)\s+(?:Driver|KMD) Version: (\d{3}\.\d{2,3}(?:\.\d{2})?)"
    r"\s+CUDA (?:UMD )?Version: (\d{1,2}\.\d|N/A|ERR!)"
)
_ROW = re.compile(r"\|\s{1,4}(\d{1,3})\s{1,3}((?:NVIDIA|Tesla|GeForce|Quadro|TITAN|GRID|Graphics)[^|]{1,40}?)\s+"
                  r"(?:On|Off|N/A|TCC|WDDM|MCDM)?\s*\|\s*[0-9A-Fa-f]{4,8}:")  # fmt: skip
_MEMORY = re.compile(r"\|\s*(\d{1,7})MiB\s*/\s*(\d{3,7})MiB\s*\|")
_PROCESS = re.compile(
    r"\|\s{1,6}(\d{1,3})(?:\s+(?:N/A|\d+)\s+(?:N/A|\d+))?\s+(\d{1,8})\s+([CG+M]{1,5})\s+(\S[^|]{0,80}?)\s+(?:(\d{1,7})MiB|N/A)\s*\|"
)
_LIST = re.compile(r"^GPU (\d{1,3}): (\S.{1,80}?) \(UUID: GPU-")
_QUERY = re.compile(r"^\s*(Driver Version|CUDA Version|Product Name)\s*:\s*(\S.{0,80})$")
_MIB = 1 << 20


def read(lines: Sequence[Line], name: str, facts: FactBuilder) -> list[Event]:
    """Facts of every nvidia-smi output in the lines; the processes it lists become events."""
    events: list[Event] = []
    card: int | None = None
    queried = -1
    fabric = False
    for line in lines:
        text, source = line.text, f"{name}:{line.number}"
        if not (header := _HEADER.search(text)):
            header = None
        if header:
            facts.put("driver", "version", header[2], source)
            facts.put("driver", "cuda", header[3] if header[3][0].isdigit() else None, source)
            facts.put("driver", "nvidia_smi_exit", 0, source)
            if header[1] != header[2] and header[1].split(".")[0] == header[2].split(".")[0]:
                # under WSL2 the Linux program of the Windows driver shows its own build beside the driver's
                facts.put("wsl", "version", 2, f"{source} (NVIDIA-SMI {header[1]} beside driver {header[2]})")
        elif row := _ROW.search(text):
            card = int(row[1])
            add_gpu(card, _whole(row[2].strip()), source, facts)
        elif (memory := _MEMORY.search(text)) and card is not None:
            facts.gpu(card, source, used_bytes=int(memory[1]) * _MIB, total_bytes=int(memory[2]) * _MIB)
            events.append(
                Event(
                    "smi.memory",
                    source,
                    text.strip(),
                    line.number,
                    {"gpu": str(card), "used": memory[1], "total": memory[2]},
                )
            )
            card = None
        elif process := _PROCESS.search(text):
            values = {"gpu": process[1], "pid": process[2], "kind": process[3], "name": process[4].strip()}
            if process[5]:
                values["mib"] = process[5]
            events.append(Event("smi.process", source, text.strip(), line.number, values))
        elif listed := _LIST.search(text):
            add_gpu(int(listed[1]), listed[2], source, facts)
        elif asked := _QUERY.match(text):
            if asked[1] == "Product Name":
                queried += 1
                add_gpu(queried, asked[2].strip(), source, facts)
            elif asked[1] == "Driver Version" and re.match(r"\d{3}\.\d", asked[2]):
                facts.put("driver", "version", asked[2].strip(), source)
            elif asked[1] == "CUDA Version" and re.match(r"\d{1,2}\.\d$", asked[2].strip()):
                facts.put("driver", "cuda", asked[2].strip(), source)
        elif queried >= 0 and text.strip() == "Fabric":
            fabric = True
        elif fabric:
            state = re.match(r"\s*State\s*:\s*(\S.*)", text)
            if state:
                values = {"state": state[1].strip()}
                events.append(Event("smi.fabric-state", source, text.strip(), line.number, values))
            fabric = False
    return events


def _whole(name: str) -> str | None:
    """The table cuts long names ("NVIDIA GeForce RTX 208..."): a cut name is no name."""
    name = re.sub(r"\s+(?:On|Off|N/A|TCC|WDDM|MCDM)$", "", name).strip()
    return None if name.endswith("...") else name
