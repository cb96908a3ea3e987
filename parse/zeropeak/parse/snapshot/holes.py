"""What a block takes beyond its rounded request, read off the blocks and segment ends around it.

In the large pool a remainder of up to 1 MiB is not split off. The history does not say so; but the place where the
next live block or the end of the segment lies does: free blocks of that pool are always larger than 1 MiB (whatever is
split off is, whatever is freed is, and merging only adds), so a smaller gap behind a block belongs to it, at any moment
of its life. Looking once, at its birth or at the start of the history, is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.parse.snapshot.entries import SEGMENT_ALLOC, SEGMENT_FREE, Entries
from zeropeak.parse.snapshot.lives import BEFORE, Lives
from zeropeak.parse.snapshot.sizes import MIN_BLOCK_BYTES, SMALL_BYTES, Settings, may_stay_whole, rounded, taken

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zeropeak.parse.snapshot.segments import Dump

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

UNKNOWN: Final = -1
"""End of a segment that is not known."""

MAX_OVERLAPS: Final = 64
"""Different addresses at which segments over one address may have started; there are rarely two."""


class Tenants:
    """What lay at addresses, one after the other. Sorted by address, then by time; positions as in Lives."""

    def __init__(self, address: Ints, born: Ints, freed: Ints, end: int) -> None:
        new = np.append(True, address[1:] != address[:-1])[: len(address)]
        self.distinct: Ints = address[new]
        """Addresses, each once."""
        self.number: Ints = np.cumsum(new) - 1
        """Place in ``distinct`` of each tenant."""
        self._freed = freed
        self._stride = end + 3
        self._key = self.number * self._stride + born + 1

    def at(self, place: Ints, when: Ints) -> Ints:
        """Who was at the address ``distinct[place]`` at a position; -1 for nobody."""
        last = np.searchsorted(self._key, place * self._stride + when + 1, "right") - 1
        there = (last >= 0) & (self.number[last] == place)
        there[there] = self._freed[last[there]] > when[there]
        return np.where(there, last, -1)


@dataclass(frozen=True)
class Segments:
    """Segments that are not expandable, over the history; sorted by address, then by time."""

    tenants: Tenants
    end_address: Ints

    def end_of(self, address: Ints, when: Ints) -> Ints:
        """End of the segment that held each address at a position; UNKNOWN where none did."""
        found = np.full(len(address), UNKNOWN)
        place = np.searchsorted(self.tenants.distinct, address, "right") - 1
        # No segment that starts at or before a place reaches further than this.
        reach = np.full(len(self.tenants.distinct), UNKNOWN)
        np.maximum.at(reach, self.tenants.number, self.end_address)
        reach = np.maximum.accumulate(reach)
        searching = np.flatnonzero(place >= 0)
        for _ in range(MAX_OVERLAPS):
            searching = searching[reach[place[searching]] > address[searching]]
            if not len(searching):
                break
            segment = self.tenants.at(place[searching], when[searching])
            fits = (segment >= 0) & (self.end_address[segment] > address[searching])
            found[searching[fits]] = self.end_address[segment[fits]]
            # Segments that were freed and allocated anew can overlap; one further down may be the right one.
            searching = searching[~fits & (place[searching] > 0)]
            place[searching] -= 1
        return found


def segments(entries: Entries, dump: Dump) -> Segments:
    """Segments from the history and from the dump."""
    end = len(entries)
    open_: dict[int, tuple[int, int]] = {}
    rows: list[tuple[int, int, int, int]] = []
    for index in np.flatnonzero((entries.action == SEGMENT_ALLOC) | (entries.action == SEGMENT_FREE)).tolist():
        address, size = int(entries.address[index]), int(entries.size[index])
        if entries.action[index] == SEGMENT_ALLOC:
            open_[address] = (size, index)
        else:
            rows.append((address, open_.pop(address, (size, BEFORE))[1], size, index))
    for address, size, expandable in zip(
        dump.segment_address.tolist(), dump.segment_size.tolist(), dump.segment_expandable.tolist(), strict=True
    ):
        if not expandable:
            rows.append((address, open_.pop(address, (size, BEFORE))[1], size, end + 1))
    rows.sort()
    table = np.array(rows, np.int64).reshape(len(rows), 4)
    return Segments(Tenants(table[:, 0], table[:, 1], table[:, 3], end), table[:, 0] + table[:, 2])


@dataclass(frozen=True)
class Sizes:
    """Bytes that each life takes, and how they were found."""

    size: Ints
    outside: int
    """Large blocks in no known segment; their rounded request is used."""
    contradictions: int
    """Blocks that reach into their neighbour; their rounded request is used."""
    misjudged: int
    """Blocks for which the dump has another size than the allocator's rules give; the dump's is used."""


def find_sizes(lives: Lives, standing: Lives, known: Segments, settings: Settings) -> Sizes:
    """Bytes that each of ``lives`` takes.

    Args:
        lives: blocks of the history, sorted by address and time.
        standing: blocks that only the dump knows, sorted by address.
        known: segments over the history.
        settings: the allocator's.
    """
    size = rounded(lives.requested, settings)
    asked = np.flatnonzero(may_stay_whole(size, settings))
    when = np.where(lives.born[asked] == BEFORE, BEFORE, lives.born[asked] - 1)
    address, least = lives.address[asked], size[asked]
    segment_end = known.end_of(address, when)
    limit = np.where(segment_end == UNKNOWN, address + least, segment_end)
    limit = np.minimum(limit, _next_standing(standing, address))
    hole = _next_live(lives, address, least, when, limit) - address
    size[asked] = taken(least, hole, settings)
    guessed = ~lives.exact[asked]
    return Sizes(
        np.where(lives.exact, lives.size, size),
        outside=int((guessed & (segment_end == UNKNOWN)).sum()),
        contradictions=int((guessed & (hole < least)).sum()),
        misjudged=int((lives.exact & (size != lives.size)).sum()),
    )


def _next_standing(standing: Lives, address: Ints) -> Ints:
    """Address of the next block above that was there all along."""
    always = standing.address[standing.born == BEFORE]
    place = np.searchsorted(always, address, "right")
    return np.append(always, np.iinfo(np.int64).max)[place]


def _next_live(lives: Lives, address: Ints, least: Ints, when: Ints, limit: Ints) -> Ints:
    """Address of the next block of the history that was alive at a position, within ``limit``; else ``limit``.

    Looks at the addresses that any block ever had from the end of the rounded request on, up to 1 MiB further: beyond
    that the block was split, wherever the next one is. One address after the other for all questions at once.
    """
    tenants = Tenants(lives.address, lives.born, lives.freed, lives.end)
    result = limit.copy()
    # One more at the end, so that every place has an address.
    distinct = np.append(tenants.distinct, np.iinfo(np.int64).max)
    place = np.searchsorted(tenants.distinct, address + least, "left")
    farthest = np.minimum(limit, address + least + SMALL_BYTES + 1)
    searching = np.arange(len(address))
    # Addresses are multiples of 512, so there are at most so many to look at.
    for _ in range(SMALL_BYTES // MIN_BLOCK_BYTES + 1):
        searching = searching[distinct[place[searching]] < farthest[searching]]
        if not len(searching):
            break
        alive = tenants.at(place[searching], when[searching]) >= 0
        result[searching[alive]] = distinct[place[searching[alive]]]
        searching = searching[~alive]
        place[searching] += 1
    return result
