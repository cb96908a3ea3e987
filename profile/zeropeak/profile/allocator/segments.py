"""Segments of fixed size, each from one ``cudaMalloc``."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from zeropeak.profile.allocator.blocks import ADDRESS_BITS, Block, Pool
from zeropeak.profile.allocator.settings import segment_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.profile.allocator.device import Device
    from zeropeak.profile.allocator.settings import Settings


class FixedSegments:
    """Takes whole segments from the device and gives back those that are wholly free."""

    def __init__(self, settings: Settings, device: Device) -> None:
        self._settings = settings
        self._device = device
        self._max_split = settings.max_split_bytes
        self._collects = settings.garbage_collection_threshold > 0 and device.allowed_bytes is not None

    def pick(self, pool: Pool, at: int, size: int) -> int | None:
        """Which free block to use, from the smallest that fits on; None for a new segment (``get_free_block``)."""
        if self._max_split is None:
            return at
        found = pool.blocks[at].size
        if size < self._max_split:
            return at if found < self._max_split else None
        return at if found < size + self._settings.max_non_split_rounding_bytes else None

    def grow(self, pool: Pool, size: int) -> Block | None:
        """A new segment as one block that no pool holds; None when the device refuses (``alloc_block``)."""
        total = segment_bytes(size, self._settings)
        if not self._device.allows(total):
            return None
        address = self._device.take("segment_alloc", None, total, pool.stream)
        return None if address is None else Block(address, total, pool)

    def collect(self, pools: Iterable[Pool]) -> None:
        """Free old cached segments once the threshold is passed (``garbage_collect_cached_blocks``).

        Those go that were free for longer than the others on average; then the average is that of the rest.
        """
        if not self._collects:
            return
        assert self._device.allowed_bytes is not None
        threshold = int(self._settings.garbage_collection_threshold * self._device.allowed_bytes)
        wanted = self._device.reserved_bytes - threshold
        whole = [block for pool in pools for block in pool.blocks if _is_whole(block)]
        while wanted > 0 and whole:
            ages = {id(block): block.pool.searches.count - block.since for block in whole}
            average = sum(ages.values()) / len(whole)
            old = [block for block in whole if ages[id(block)] >= average]
            for block in old:
                wanted -= block.size
                self._release(block)
            whole = [block for block in whole if ages[id(block)] < average]

    def release_some(self, pool: Pool, size: int) -> bool:
        """Free cached blocks too large to be split, enough for a request (``release_available_cached_blocks``)."""
        if self._max_split is None:
            return False
        wanted = max(size, self._max_split)
        at = bisect_left(pool.keys, wanted << ADDRESS_BITS)
        if at < len(pool.blocks):
            self._release(pool.blocks[at])
            return True
        released = 0
        for block in reversed(pool.blocks.copy()):
            if released >= wanted or block.size < self._max_split:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def release_all(self, pools: Iterable[Pool]) -> None:
        """Free every segment that is wholly free (``release_blocks``)."""
        for pool in pools:
            for block in [block for block in pool.blocks if _is_whole(block)]:
                self._release(block)

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self._device.space.give(block.address, block.size)
        self._device.give("segment_free", block.address, block.size, block.pool.stream)


def _is_whole(block: Block) -> bool:
    return block.previous is None and block.next is None
