"""Blocks, and the free ones of a stream in the order in which they are tried."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from zeropeak.profile.allocator.expandable import Span

ADDRESS_BITS: Final = 48
"""Addresses are below this; sizes go above it in the sort key, so that one integer orders by size, then address."""


class Block:
    """A stretch of a segment: allocated, waiting for another stream, free, or not mapped."""

    __slots__ = ("address", "free", "key", "mapped", "next", "pool", "previous", "since", "size", "span", "streams")

    def __init__(self, address: int, size: int, pool: Pool, span: Span | None = None) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.span = span
        """The expandable segment that holds the block; None in a segment of fixed size."""
        self.previous: Block | None = None
        self.next: Block | None = None
        self.free = False
        """Free to be taken or merged; the pool of free blocks holds exactly these, if they are mapped."""
        self.mapped = True
        self.key = 0
        """Who allocated it, while it is not free."""
        self.streams: set[int] | None = None
        """Other streams that use it."""
        self.since = 0
        """Searches of the pool before it became free."""

    def link(self, before: Block | None, after: Block | None) -> None:
        """Put the block between two neighbours."""
        self.previous = before
        if before is not None:
            before.next = self
        self.next = after
        if after is not None:
            after.previous = self


class Searches:
    """How often a free block was looked for, over all streams: the clock by which free blocks age."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Pool:
    """Free blocks of one stream, of small or of large requests: smallest first, then lowest address."""

    __slots__ = ("blocks", "keys", "searches", "small", "stream", "unmapped")

    def __init__(self, small: bool, stream: int, searches: Searches) -> None:
        self.small = small
        self.stream = stream
        self.searches = searches
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []
        """Address space without memory behind it, lowest address first."""

    def add(self, block: Block) -> None:
        """Hold a free block."""
        key = block.size << ADDRESS_BITS | block.address
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)
        block.since = self.searches.count

    def remove(self, block: Block) -> None:
        """Let go of a free block that is held, before its address or size changes."""
        at = bisect_left(self.keys, block.size << ADDRESS_BITS | block.address)
        del self.keys[at], self.blocks[at]

    def add_unmapped(self, block: Block) -> None:
        """Hold address space."""
        at = bisect_left(self.unmapped, block.address, key=_address)
        self.unmapped.insert(at, block)

    def remove_unmapped(self, block: Block) -> None:
        """Let go of address space, before its address changes."""
        del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]


def _address(block: Block) -> int:
    return block.address


def absorb(block: Block, other: Block | None) -> None:
    """Make a free neighbour that is mapped alike a part of ``block``, which no pool holds at the moment.

    Args:
        block: what remains.
        other: its neighbour on either side, if any; nothing happens when it is in use.
    """
    if other is None or not other.free or other.mapped != block.mapped:
        return
    if other.mapped:
        other.pool.remove(other)
    else:
        other.pool.remove_unmapped(other)
    block.size += other.size
    if other is block.previous:
        block.address = other.address
        block.link(other.previous, block.next)
    else:
        block.link(block.previous, other.next)
