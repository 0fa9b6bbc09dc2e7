"""Kernels that a server compiled while it answered, from its log: vLLM's JIT monitor (0.20 and later)."""

from __future__ import annotations

import re
from pathlib import Path

#: "Triton kernel JIT compilation during inference: _causal_conv1d_fwd_kernel. This causes a latency spike; ..."
_LINE = re.compile(rb"JIT compil\w* during inference: ([\w.]+?)(?: \(|\. |\.?\s*$)", re.M)
_ACTIVE = re.compile(rb"JIT monitor activated|jit_monitor\.py:\d+\]")
_LIMIT = 64 << 20


class JitLines:
    """Reads what was appended to a log. The monitor names each kernel once."""

    def __init__(self, log: Path | None) -> None:
        self.log = log
        self._offset = 0
        self.readable = log is not None and log.is_file()
        self.active = False

    def new(self) -> tuple[str, ...]:
        """Kernels named since the last call, in order."""
        if self.log is None or not self.readable:
            return ()
        try:
            with self.log.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_LIMIT)
        except OSError:
            self.readable = False
            return ()
        # the last line may be half written
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        self.active = self.active or _ACTIVE.search(data) is not None
        return tuple(dict.fromkeys(m.decode("ascii", "replace") for m in _LINE.findall(data)))
