"""A vLLM plugin for CPU servers: the two state-copy kernels that its CPU build leaves to Triton.

Prefix caching together with MTP on a hybrid model copies recurrent state between cache blocks with
``precopy_mamba_align_fused_kernel`` and ``postprocess_mamba_fused_kernel`` (vllm/v1/worker/mamba_utils.py).
Up to vLLM 0.32 the CPU platform registers no replacement, and the first request kills the engine with
"'function' object is not subscriptable". Here is the same in Python: the same decisions a request, and a
byte copy for each state tensor. Installed as an entry point of ``vllm.general_plugins``; it does nothing on
other platforms or where Triton works.
"""

import ctypes
from typing import NamedTuple

MODULE = "vllm.v1.worker.mamba_utils"


class States(NamedTuple):
    """The kernels' flattened description of all state tensors, in their argument order."""

    table_addresses: list  # of each cache group's block table, int32
    table_row: int  # its elements a request
    base: list  # address of each state tensor
    block_bytes: list
    element_bytes: list
    inner: list  # elements of a block's data, or of one token of a convolution window
    window: list  # tokens of a convolution window, 0 for a recurrent state
    group: list
    rows: list  # of a window that is stored dimension first
    row_bytes: list

    @classmethod
    def of(cls, arguments):
        return cls(*(a.tolist() if hasattr(a, "tolist") else a for a in arguments))

    def block(self, state, request, column):
        """Address of the block that a request has in a column of its block table."""
        cell = self.table_addresses[self.group[state]] + 4 * (request * self.table_row + column)
        return self.base[state] + ctypes.c_int32.from_address(cell).value * self.block_bytes[state]

    def move(self, request, source, target, shift, dimension_first):
        """Copies all states of a request from one column to another, ``shift`` accepted tokens ahead."""
        for state, window in enumerate(self.window):
            to = self.block(state, request, target)
            size = self.element_bytes[state]
            if not window:
                # each speculative token has its recurrent state in a column of its own
                ctypes.memmove(to, self.block(state, request, source + shift), self.inner[state] * size)
                continue
            start, kept = self.block(state, request, source), window - shift
            if dimension_first:
                for row in range(self.rows[state]):
                    at = row * self.row_bytes[state]
                    ctypes.memmove(to + at, start + at + shift * size, kept * size)
            else:
                token = self.inner[state] * size
                ctypes.memmove(to, start + shift * token, kept * token)


def _requests(count, mapping, mapped):
    """Rows of the batch, or the request slots they stand for; negative slots are empty."""
    rows = (int(mapping[row]) for row in range(count)) if mapped else range(count)
    return (row for row in rows if row >= 0)


def precopy(target_columns, source_columns, shifts, *arguments, **constants):
    """Before a step: brings each request's state into the block that the step writes."""
    states, (mapping, count) = States.of(arguments[:10]), arguments[10:12]
    for request in _requests(count, mapping, constants.get("HAS_IDX_MAPPING", True)):
        source, target = int(source_columns[request]), int(target_columns[request])
        if 0 <= source != target:
            states.move(request, source, target, int(shifts[request]), constants["CONV_STATE_DIM_FIRST"])


def postprocess(accepted, columns, scheduled, computed, drafted, *arguments, block_size, **constants):
    """After a step: keeps the state at the last block border that the accepted tokens crossed."""
    states, (accepted_out, mapping, count) = States.of(arguments[:10]), arguments[10:13]
    for request in _requests(count, mapping, constants.get("HAS_IDX_MAPPING", False)):
        source, good = int(columns[request]), int(accepted[request])
        if constants.get("PRECOMPUTED_NEW_COMPUTED", False):
            running = int(computed[request]) - good + 1
        else:
            running = int(computed[request]) + int(scheduled[request]) - int(drafted[request])
        border = (running + good - 1) // block_size * block_size
        if border < running:
            continue
        target, shift = border // block_size - 1, border - running
        if target == source:
            accepted_out[request] = 1
        if target != source or shift:
            states.move(request, source, target, shift, constants["CONV_STATE_DIM_FIRST"])


def register():
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    if not current_platform.is_cpu() or HAS_TRITON:
        return
    from vllm.triton_utils.dispatcher import register_kernels

    register_kernels(
        {
            f"{MODULE}.precopy_mamba_align_fused_kernel": precopy,
            f"{MODULE}.postprocess_mamba_fused_kernel": postprocess,
        }
    )
