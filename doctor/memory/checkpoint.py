"""Weight bytes from a checkpoint's own index and safetensors headers. The weights themselves are not read."""

from __future__ import annotations

import json
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from doctor.memory.config import read_json
from doctor.memory.fields import ConfigError
from doctor.memory.shape import ModelShape, Part
from doctor.memory.weights import Weights, weights_from_shapes

INDEX = "model.safetensors.index.json"
#: The largest published headers (thousands of expert tensors) are a few MB.
_LARGEST_HEADER = 100 << 20
_LARGEST_INDEX = 64 << 20
#: A petabyte: no checkpoint comes near it.
_LARGEST_TOTAL = 10**15
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8,
         "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "U32": 32, "U64": 64, "F4": 4}  # fmt: skip


def weights_of(shape: ModelShape, folder: Path | None, index: Mapping[str, Any] | None = None) -> Weights:
    """The best that is known: headers in the folder, else the index alone, else shapes."""
    computed = weights_from_shapes(shape)
    if folder is not None:
        files = _files(folder)
        if files:
            return _from_tensors(shape, computed, (t for f in files for t in read_header(f).items()))
        path = folder / INDEX
        if index is None and path.is_file():
            index = read_json(path, _LARGEST_INDEX)
    return computed if index is None else _from_index(shape, computed, index)


def _files(folder: Path) -> list[Path]:
    """The safetensors files that the index names, or all of them; [] unless every one is there."""
    path = folder / INDEX
    if path.is_file():
        names = sorted(set(_weight_map(read_json(path, _LARGEST_INDEX), str(path)).values()))
        files = [folder / name for name in names]
        return files if all(f.is_file() for f in files) else []
    # consolidated.safetensors and adapters are other copies or additions, not the model
    return sorted(f for f in folder.glob("*.safetensors") if f.name.startswith("model"))


def _weight_map(index: Mapping[str, Any], name: str) -> dict[str, str]:
    entries = index.get("weight_map")
    if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
        raise ConfigError(f"{name}: has no weight_map of tensor names to files")
    if any("/" in v or "\0" in v or v.startswith(".") or len(v) > 255 for v in entries.values()):
        raise ConfigError(f"{name}: weight_map names files outside the folder, or no files at all")
    return entries


def read_header(path: Path) -> dict[str, int]:
    """Bytes of every tensor in one safetensors file. Raises :class:`ConfigError` when it is cut short."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ConfigError(f"{path} is not a regular file")
        size = about.st_size
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise ConfigError(f"{path}: cut short, {size} bytes cannot hold a safetensors header")
            (length,) = struct.unpack("<Q", start)
            if length > _LARGEST_HEADER or length + 8 > size:
                raise ConfigError(
                    f"{path}: not a whole safetensors file (header of {length:,} bytes, file of {size:,})"
                )
            data = json.loads(file.read(length))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: the safetensors header is not valid JSON") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the safetensors header is not an object")
    return {name: _tensor_bytes(path, name, t) for name, t in data.items() if name != "__metadata__"}


def _tensor_bytes(path: Path, name: str, tensor: object) -> int:
    if not isinstance(tensor, dict):
        raise ConfigError(f"{path}: tensor {name!r} has no description")
    bits, dims = _BITS.get(str(tensor.get("dtype"))), tensor.get("shape")
    if bits is None or not isinstance(dims, list) or not all(isinstance(d, int) and d >= 0 for d in dims):
        raise ConfigError(f"{path}: tensor {name!r} has no known dtype and shape")
    return -(-prod(dims) * bits // 8)


def part_of(name: str, depth: int) -> Part:
    """Which part a tensor belongs to, by its prefix."""
    if name.startswith("mtp.") or ".mtp." in name:
        return Part.DRAFT
    pieces = name.split(".")
    if any(p in ("visual", "vision_tower", "vision_model", "multi_modal_projector", "audio_tower", "embed_vision")
           for p in pieces[:3]):  # fmt: skip
        return Part.VISION
    if "layers" in pieces:
        after = pieces[pieces.index("layers") + 1 :]
        if after and after[0].isdigit() and int(after[0]) >= depth:
            return Part.DRAFT  # DeepSeek and GLM keep the MTP layer behind the last one
    return Part.LANGUAGE


def _depth(shape: ModelShape) -> int:
    """Decoder layers, counting those without a cache (Nemotron-H's MLPs) by their weights' names."""
    numbers = [int(p) for w in shape.weights if w.part is Part.LANGUAGE
               for p in w.module.split(".") if p.isdigit()]  # fmt: skip
    return max(numbers, default=-1) + 1


def _from_tensors(shape: ModelShape, computed: Weights, tensors: Iterable[tuple[str, int]]) -> Weights:
    total, depth = dict.fromkeys(Part, 0), _depth(shape)
    embedding = head = routed = 0
    for name, size in tensors:
        part = part_of(name, depth)
        total[part] += size
        if part is not Part.LANGUAGE:
            continue
        if "embed_tokens." in name or name.endswith("embeddings.weight"):
            embedding += size
        elif "lm_head." in name:
            head += size
        elif ".experts." in name:
            routed += size
    tied = shape.tied or head == 0
    if total[Part.LANGUAGE] == 0:
        raise ConfigError(f"{shape.name}: the safetensors files hold no language model weights")
    share = _read_share(shape)
    read = total[Part.LANGUAGE] - (0 if tied else embedding) - int(routed * (1 - share))
    return replace(
        computed,
        language=total[Part.LANGUAGE],
        vision=total[Part.VISION],
        draft=total[Part.DRAFT],
        embedding=0 if tied else embedding,
        head=embedding if tied else head,
        decode_read=read,
        draft_read=total[Part.DRAFT] + (embedding if tied else head) if computed.draft else computed.draft_read,
        source="safetensors headers",
    )


def _read_share(shape: ModelShape) -> float:
    """Share of routed experts that one token uses."""
    routed = [w for w in shape.weights if ".experts." in w.module and w.part is Part.LANGUAGE]
    elements = sum(w.elements for w in routed)
    return sum(w.elements * float(w.read) for w in routed) / elements if elements else 1.0


def _from_index(shape: ModelShape, computed: Weights, index: Mapping[str, Any]) -> Weights:
    """An index says the sum and the names, not each size: the parts keep their computed sizes."""
    names = _weight_map(index, f"{shape.name} ({INDEX})")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if isinstance(total, bool) or not isinstance(total, int) or not 0 < total <= _LARGEST_TOTAL:
        raise ConfigError(f"{shape.name} ({INDEX}): metadata has no total_size that could be one")
    depth = _depth(shape)
    parts = {part_of(name, depth) for name in names}
    vision = computed.vision if Part.VISION in parts else 0
    draft = computed.draft if Part.DRAFT in parts else 0
    language = total - vision - draft
    if language <= 0:
        raise ConfigError(f"{shape.name} ({INDEX}): total_size {total:,} is less than its own image encoder")
    factor = language / computed.language
    return replace(
        computed,
        language=language,
        vision=vision,
        draft=draft,
        decode_read=int(computed.decode_read * factor) if abs(factor - 1) > 0.01 else computed.decode_read,
        source="safetensors index",
    )
