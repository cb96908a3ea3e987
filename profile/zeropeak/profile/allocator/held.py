"""What the allocator holds, as seen from outside: segments and the blocks in them."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from zeropeak.profile.allocator.blocks import Block

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from zeropeak.profile.allocator.blocks import Pool


@dataclass(frozen=True)
class HeldBlock:
    """A stretch of a segment."""

    address: int
    size_bytes: int
    key: int | None
    """Who allocated it; None: free."""
    waiting: bool = False
    """Freed, but another stream still uses it: not allocated, not free."""


@dataclass(frozen=True)
class HeldSegment:
    """Contiguous memory that the allocator holds, with all blocks in it, lowest address first."""

    address: int
    size_bytes: int
    stream: int
    small: bool
    blocks: tuple[HeldBlock, ...]


def show(blocks: Iterable[Block], waiting: Container[int]) -> list[HeldSegment]:
    """Segments of all mapped blocks, lowest address first.

    Args:
        blocks: all that are mapped, in any order.
        waiting: keys of those that are freed but still used by another stream.
    """
    found: list[HeldSegment] = []
    for head in sorted(blocks, key=attrgetter("address")):
        if head.previous is not None and head.previous.mapped:
            continue
        parts: list[HeldBlock] = []
        block: Block | None = head
        while block is not None and block.mapped:
            key = None if block.free else block.key
            parts.append(HeldBlock(block.address, block.size, key, key in waiting))
            block = block.next
        size = sum(part.size_bytes for part in parts)
        found.append(HeldSegment(head.address, size, head.pool.stream, head.pool.small, tuple(parts)))
    return found


def build(segment: HeldSegment, pool: Pool) -> Iterator[tuple[Block, HeldBlock]]:
    """Blocks of a segment, linked to their neighbours, beside what they were made from.

    Raises:
        ValueError: they do not lie side by side from the segment's start to its end.
    """
    end, before = segment.address, None
    for part in segment.blocks:
        if part.address != end:
            raise ValueError(f"the blocks of the segment at {segment.address:#x} do not lie side by side")
        block = Block(part.address, part.size_bytes, pool)
        block.link(before, None)
        end, before = end + part.size_bytes, block
        yield block, part
    if end != segment.address + segment.size_bytes:
        raise ValueError(f"the blocks of the segment at {segment.address:#x} do not fill it")
