"""Expandable segments: address space for more than the device, with memory mapped behind it page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from zeropeak.profile.allocator.blocks import Block, Pool, absorb
from zeropeak.profile.allocator.settings import SMALL_SEGMENT_BYTES, segment_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.profile.allocator.device import Device
    from zeropeak.profile.allocator.settings import Settings

UNLIMITED_SPACE_BYTES: Final = 1 << 40
"""Address space of a segment when the device has no limit."""


class Span(NamedTuple):
    """Address space of one expandable segment."""

    address: int
    size: int
    page: int

    def left(self, address: int) -> int:
        """Start of the page that an address lies in."""
        return address - (address - self.address) % self.page

    def right(self, address: int) -> int:
        """Start of the first page that does not begin before an address."""
        return address + -(address - self.address) % self.page


class ExpandableSegments:
    """Grows segments by whole pages at their lowest gap and gives back pages that are wholly free."""

    def __init__(self, settings: Settings, device: Device) -> None:
        self._settings = settings
        self._device = device

    def pick(self, pool: Pool, at: int, size: int) -> int | None:
        """Which free block to use, from the smallest that fits on; None to map more memory (``get_free_block``).

        A block before unmapped space counts with that space, so it is used after fitting blocks within the segment.
        """
        blocks = pool.blocks
        while at + 1 < len(blocks) and _reach(blocks[at + 1]) < _reach(blocks[at]):
            at += 1
        limit = self._settings.max_split_bytes
        if limit is None:
            return at
        found = blocks[at].size
        if size < limit:
            return at if found < limit else None
        return at if found < size + self._settings.max_non_split_rounding_bytes else None

    def grow(self, pool: Pool, size: int) -> Block | None:
        """Map memory until a free block holds the request; None when the device refuses.

        What was mapped before it refused stays mapped (``try_allocate_expandable_block``).
        """
        if not self._device.allows(segment_bytes(size, self._settings)):
            return None
        block = self._find_space(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            assert after is not None
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def collect(self, pools: Iterable[Pool]) -> None:
        """Do nothing: pages of expandable segments are not collected by age."""

    def release_some(self, pool: Pool, size: int) -> bool:
        """Do nothing: only segments of fixed size are freed one by one."""
        return False

    def release_all(self, pools: Iterable[Pool]) -> None:
        """Unmap every page that is wholly free, and drop segments without any (``release_blocks``)."""
        for pool in pools:
            for block in pool.blocks.copy():
                self._unmap(block)
                if not block.mapped and block.previous is None and block.next is None:
                    pool.remove_unmapped(block)
                    self._device.space.give(block.address, block.size)

    def _find_space(self, pool: Pool, size: int) -> Block:
        """The free or unmapped block at the lowest address from which ``size`` bytes are not in use."""
        for block in pool.unmapped:
            before = block.previous
            first = before if before is not None and before.free else block
            room, here = 0, first
            while room < size:
                room += here.size
                if here.next is None or not here.next.free:
                    break
                here = here.next
            if room >= size:
                return first
        page = SMALL_SEGMENT_BYTES if pool.small else self._settings.large_segment_bytes
        total = self._device.total_bytes
        # torch takes 1 1/8 of the device, to have room for pages that move.
        space = UNLIMITED_SPACE_BYTES if total is None else total + total // 8
        space = -(-max(space, size) // page) * page
        span = Span(self._device.space.take(space), space, page)
        block = Block(span.address, space, pool, span)
        block.free, block.mapped = True, False
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Put memory behind the first ``size`` bytes of an unmapped block, in whole pages, and make them free."""
        pool, span = block.pool, block.span
        assert span is not None
        mapped = span.right(block.address + size) - block.address
        if self._device.take("segment_map", block.address, mapped, pool.stream) is None:
            return False
        pool.remove_unmapped(block)
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, pool, span)
            rest.free, rest.mapped = True, False
            rest.link(block, block.next)
            pool.add_unmapped(rest)
            block.size = mapped
        block.mapped = True
        absorb(block, block.previous)
        absorb(block, block.next)
        pool.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Take the memory away from behind the whole pages of a free block; what is left at its ends stays free."""
        pool, span = block.pool, block.span
        assert span is not None
        start, end = span.right(block.address), span.left(block.address + block.size)
        if start >= end:
            return
        pool.remove(block)
        if start > block.address:
            before = Block(block.address, start - block.address, pool, span)
            before.free = True
            before.link(block.previous, block)
            pool.add(before)
        if end < block.address + block.size:
            after = Block(end, block.address + block.size - end, pool, span)
            after.free = True
            after.link(block, block.next)
            pool.add(after)
        block.address, block.size, block.mapped = start, end - start, False
        absorb(block, block.previous)
        absorb(block, block.next)
        pool.add_unmapped(block)
        self._device.give("segment_unmap", start, end - start, pool.stream)


def _reach(block: Block) -> int:
    """Bytes that a free block could grow to."""
    after = block.next
    return block.size if after is None or after.mapped else block.size + after.size
