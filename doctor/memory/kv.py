"""The KV pool: how many blocks a number of bytes makes and what vLLM prints about them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

from doctor.memory.layout import KvOptions, Layout, lay_out
from doctor.memory.shape import ModelShape
from doctor.memory.versions import Switches


@dataclass(frozen=True)
class KvPool:
    """A pool of ``available_bytes`` as vLLM would report it.

    ``fits``: one request of ``max_model_len`` fits, else ``refusal`` says by how much it does not.
    ``needed_bytes``: the smallest pool that would pass. ``prefix_hit_step`` is None when nothing is cached.
    """

    layout: Layout
    available_bytes: int
    num_blocks: int
    capacity_tokens: int
    max_concurrency: float
    fits: bool
    needed_bytes: int
    prefix_hit_step: int | None
    smallest_prefix_hit: int | None
    refusal: str = ""
    _longest: Callable[[], int] = field(default=lambda: 0, repr=False, compare=False)

    @cached_property
    def highest_context(self) -> int:
        """The longest ``max_model_len`` that this pool can serve once; a search, so only done when asked."""
        return self._longest()

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.layout.block_size


def size_pool(shape: ModelShape, available_bytes: int, options: KvOptions, version: Switches) -> KvPool:
    """What vLLM makes of ``available_bytes`` (per GPU)."""
    layout = lay_out(shape, options, version)
    blocks = max(0, available_bytes // layout.bytes_per_block)
    concurrency = blocks / layout.blocks_per_request
    needed = needed_bytes(layout, version)
    fits = available_bytes > 0 and available_bytes >= needed
    step = hit_step(shape, layout, options, version)
    return KvPool(
        layout=layout,
        available_bytes=available_bytes,
        num_blocks=blocks,
        capacity_tokens=_capacity(blocks, layout, concurrency, options, version),
        max_concurrency=concurrency,
        fits=fits,
        needed_bytes=needed,
        prefix_hit_step=step,
        # with MTP the last whole block is computed again, so two are needed for one to hit
        smallest_prefix_hit=None if step is None else step * (2 if options.draft_tokens else 1) + 1,
        refusal="" if fits else _refusal(available_bytes, needed, layout, options, version),
        _longest=partial(highest_context, shape, available_bytes, options, version),
    )


def needed_bytes(layout: Layout, version: Switches) -> int:
    """The smallest pool in which vLLM accepts one request of full length."""
    return (layout.blocks_per_request + (1 if version.checks_null_block else 0)) * layout.bytes_per_block


def _capacity(blocks: int, layout: Layout, concurrency: float, options: KvOptions, version: Switches) -> int:
    if version.capacity_rule == "blocks":
        return blocks // len(layout.groups) * layout.block_size
    return int(concurrency * options.max_model_len)


def hit_step(shape: ModelShape, layout: Layout, options: KvOptions, version: Switches) -> int | None:
    """Tokens of one step of a prefix hit, None when prefix caching is off."""
    from doctor.memory.layout import default_prefix_caching

    caching = options.prefix_caching
    if caching is None:
        caching = default_prefix_caching(shape, version)
    return math.lcm(*(group.block for group in layout.groups)) if caching else None


def highest_context(shape: ModelShape, available_bytes: int, options: KvOptions, version: Switches) -> int:
    """The longest ``max_model_len`` that this pool can serve once, 0 when not even one token.

    vLLM searches the same way between 1 and the length asked for; here the model's own maximum is the end.
    """
    from dataclasses import replace

    def fits(length: int) -> bool:
        layout = lay_out(shape, replace(options, max_model_len=length), version)
        return needed_bytes(layout, version) <= available_bytes

    low, high = 0, max(shape.max_positions, options.max_model_len)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _refusal(available: int, needed: int, layout: Layout, options: KvOptions, version: Switches) -> str:
    if available <= 0:
        return "no memory is left for the KV cache"
    return (
        f"one request of {options.max_model_len:,} tokens needs {layout.blocks_per_request} blocks"
        f"{' and one spare' if version.checks_null_block else ''} = {needed / 2**30:.2f} GiB, "
        f"the pool has {available / 2**30:.2f} GiB"
    )
