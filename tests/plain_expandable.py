"""Expandable segments, told slowly: a set of pages and a list of blocks, everything else worked out anew each time."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass
class PlainExpandable:
    """One stream's expandable segment for large requests; addresses count from its start."""

    page: int = 20 * MIB
    space: int = 1 << 40
    mapped: set[int] = field(default_factory=set)
    """Numbers of the pages with memory behind them."""
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(address, size) by key."""

    def reserved(self) -> int:
        """Bytes of memory."""
        return len(self.mapped) * self.page

    def gaps(self) -> list[tuple[int, int]]:
        """(start, end) of all that is in no block, with memory or without."""
        edges, found = 0, []
        for address, size in sorted(self.blocks.values()):
            if address > edges:
                found.append((edges, address))
            edges = address + size
        return [*found, (edges, self.space)]

    def pieces(self, start: int, end: int) -> list[tuple[int, int, bool]]:
        """A gap as stretches (start, end, mapped) that are mapped alike."""
        found: list[tuple[int, int, bool]] = []
        last = max(self.mapped, default=-1) + 1
        while start < end:
            number = start // self.page
            stop = end if number >= last else min((number + 1) * self.page, end)
            mapped = number in self.mapped
            if found and found[-1][2] == mapped:
                found[-1] = found[-1][0], stop, mapped
            else:
                found.append((start, stop, mapped))
            start = stop
        return found

    def allocate(self, key: int, size: int) -> int:
        """The smallest free stretch by what it could grow to; else the lowest gap, with more memory."""
        address = self.fitting(size)
        if address is None:
            address = next(start for start in self.growable(size))
            at = address
            while at < address + size:
                if at // self.page in self.mapped:
                    at = (at // self.page + 1) * self.page
                else:
                    self.mapped.add(at // self.page)
        self.blocks[key] = address, size
        return address

    def fitting(self, size: int) -> int | None:
        """Walk over the free stretches from the smallest fitting on, while the next could grow to less."""
        free = []
        for gap in self.gaps():
            pieces = self.pieces(*gap)
            for place, (start, end, mapped) in enumerate(pieces):
                if mapped:
                    more = pieces[place + 1][1] - end if place + 1 < len(pieces) else 0
                    free.append((end - start, start, end - start + more))
        free = sorted(stretch for stretch in free if stretch[0] >= size)
        if not free:
            return None
        at = 0
        while at + 1 < len(free) and free[at + 1][2] < free[at][2]:
            at += 1
        return free[at][1]

    def growable(self, size: int) -> list[int]:
        """Where a stretch without memory, or the free one before it, begins a gap that is long enough."""
        found = []
        for gap in self.gaps():
            pieces = self.pieces(*gap)
            for place, (start, _, mapped) in enumerate(pieces):
                if not mapped:
                    first = pieces[place - 1][0] if place else start
                    if gap[1] - first >= size:
                        found.append(first)
        return found

    def empty_cache(self) -> None:
        """Drop the pages that no block touches."""
        used = {
            number
            for address, size in self.blocks.values()
            for number in range(address // self.page, -(-(address + size) // self.page))
        }
        self.mapped &= used
