"""A slow, plain version of the caching allocator, and random stories to tell it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

MIB = 1 << 20
T0 = 1_700_000_000_000_000


@dataclass
class Block:
    address: int
    size: int
    stream: int
    small: bool
    segment: int
    state: str = "inactive"
    requested: int = 0


@dataclass
class PlainAllocator:
    """What ``CUDACachingAllocator`` does on one device, told slowly."""

    expandable: bool = False
    max_split: int | None = None
    adjacent: bool = False
    """Segments lie side by side."""
    blocks: dict[int, Block] = field(default_factory=dict)
    segments: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    trace: list[dict[str, Any]] = field(default_factory=list)
    truth: list[tuple[int, int]] = field(default_factory=list)
    """(allocated, reserved) after each entry."""
    allocated: int = 0
    next_address: int = 1 << 40

    def record(self, action: str, address: int, size: int, stream: int) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": stream, "frames": []}
        self.trace.append({**entry, "time_us": T0 + len(self.trace) // 3})
        self.truth.append((self.allocated, sum(size for size, _, _ in self.segments.values())))

    def alloc(self, requested: int, stream: int) -> None:
        size = max(512, -(-requested // 512) * 512)
        small = size <= MIB
        block = self.find(size, stream, small)
        if block is None:
            block = self.grow(size, stream, small)
        rest = block.size - size
        splits = rest >= 512 if small or self.expandable else rest > MIB and not self.oversize(size)
        if splits:
            tail = Block(block.address + size, rest, stream, small, block.segment)
            self.blocks[tail.address] = tail
            block.size = size
        block.state, block.requested = "active_allocated", requested
        self.allocated += block.size
        self.record("alloc", block.address, requested, stream)

    def oversize(self, size: int) -> bool:
        return self.max_split is not None and size >= self.max_split

    def find(self, size: int, stream: int, small: bool) -> Block | None:
        fitting = [
            block for block in self.blocks.values()
            if block.state == "inactive" and block.small == small and block.stream == stream and block.size >= size
            and self.oversize(block.size) == self.oversize(size)
            and not (self.oversize(size) and block.size >= size + 20 * MIB)
        ]  # fmt: skip
        return min(fitting, key=lambda block: (block.size, block.address), default=None)

    def grow(self, size: int, stream: int, small: bool) -> Block:
        total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        block = Block(self.next_address, total, stream, small, self.next_address)
        self.next_address += total + (0 if self.adjacent else 64 * MIB)
        self.blocks[block.address] = block
        self.segments[block.address] = (total, stream, small)
        self.record("segment_map" if self.expandable else "segment_alloc", block.address, total, stream)
        return block

    def let_go(self, block: Block, *, pending: bool) -> None:
        self.allocated -= block.size
        block.state = "active_pending_free"
        self.record("free_requested", block.address, block.requested, block.stream)
        if not pending:
            self.complete(block)

    def complete(self, block: Block) -> None:
        self.record("free_completed", block.address, block.requested, block.stream)
        block.state = "inactive"
        for first in sorted(self.blocks):
            if first not in self.blocks or self.blocks[first].state != "inactive":
                continue
            while (
                (after := self.blocks.get(first + self.blocks[first].size))
                and after.state == "inactive"
                and (after.segment == self.blocks[first].segment)
            ):
                self.blocks[first].size += after.size
                del self.blocks[after.address]

    def empty_cache(self) -> None:
        for address, (size, stream, _) in list(self.segments.items()):
            if self.blocks[address].size == size and self.blocks[address].state == "inactive":
                del self.blocks[address], self.segments[address]
                self.record("segment_unmap" if self.expandable else "segment_free", address, size, stream)

    def held(self, state: str) -> list[Block]:
        return [block for _, block in sorted(self.blocks.items()) if block.state == state]

    def snapshot(self, first: int) -> dict[str, Any]:
        """What torch would dump when its ring has lost the entries before ``first``."""
        segments = [
            {"device": 0, "address": start, "total_size": size, "stream": stream, "is_expandable": self.expandable,
             "segment_type": "small" if small else "large", "blocks": [
                 {"address": block.address, "size": block.size, "state": block.state, "frames": []}
                 for _, block in sorted(self.blocks.items()) if block.segment == start]}
            for start, (size, stream, small) in sorted(self.segments.items())
        ]  # fmt: skip
        chosen = {"expandable_segments": self.expandable, "max_split_size": self.max_split or -1}
        return {"segments": segments, "device_traces": [self.trace[first:]], "allocator_settings": chosen}


sizes = st.one_of(
    st.sampled_from([1, 512, 513, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 512, 3 * MIB, 9 * MIB, 10 * MIB - 512,
                     10 * MIB, 19 * MIB, 20 * MIB, 21 * MIB - 512]),
    st.integers(1, 4 * MIB),
    st.integers(MIB, 24 * MIB),
)  # fmt: skip
steps = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), sizes, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 999), st.booleans()),
        st.tuples(st.just("complete"), st.integers(0, 999), st.none()),
        st.tuples(st.just("empty"), st.none(), st.none()),
    ),
    max_size=60,
)


def run(allocator: PlainAllocator, script: list[tuple[str, Any, Any]]) -> None:
    for what, number, extra in script:
        if what == "alloc":
            allocator.alloc(number, extra)
        elif what == "free" and (held := allocator.held("active_allocated")):
            allocator.let_go(held[number % len(held)], pending=extra)
        elif what == "complete" and (held := allocator.held("active_pending_free")):
            allocator.complete(held[number % len(held)])
        elif what == "empty":
            allocator.empty_cache()
