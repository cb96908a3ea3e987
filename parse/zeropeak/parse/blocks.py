"""Lifetimes of allocations from a profiler's alloc and free events, with the mends that CPU captures need.

A profiler misses events: torch.profiler never reports a free made on one of gloo's threads, nor knows a block that was
born before it started. What follows from the events that it did report:

* An allocation over the address range of a block that is still open proves that the block was freed before
  (``address-reused``; the moment is unknown, the block is closed when its address is reused).
* A block whose registered storage died (the event log's weak reference) was freed then (``storage-ended``).
* A free of a block never seen is a block born before the known history (its birth is null), unless an allocation seen
  earlier overlaps it: then it was born unseen later on, and the free is left out and counted.

Everything is an array; a block that is alive at the end has ``freed == ALIVE``, one from before ``born == BEFORE``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.parse.lean import give_back_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
    Rows = np.ndarray[tuple[int], np.dtype[np.int32]]
    Codes = np.ndarray[tuple[int], np.dtype[np.int8]]
    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

BEFORE: Final = int(np.iinfo(np.int64).min)
"""Birth of a block from before the known history."""

ALIVE: Final = int(np.iinfo(np.int64).max)
"""End of a block that was never freed."""

NO_MEND: Final = 0
REUSED: Final = 1
STORAGE_ENDED: Final = 2
COLLECTIVE_ENDED: Final = 3
MENDS: Final = (None, "address-reused", "storage-ended", "collective-ended")
"""Words of the codes above, for the column ``mend``."""

ROW: Final = np.int32
"""Numbers of rows, of which there are as many as events: half the memory of int64, and enough for what fits in it."""

_PAIRS_AT_ONCE: Final = 100_000
"""Bounds the memory of the overlap search: a few arrays of this many int64."""


@dataclass(frozen=True)
class Events:
    """Alloc and free events of one device, any order; equal times keep the order given.

    Attributes:
        ts: int64 ns.
        alloc: True for an allocation, False for a free.
        address: int64.
        size: int64 bytes, positive.
    """

    ts: Ints
    alloc: Flags
    address: Ints
    size: Ints


@dataclass(frozen=True)
class Blocks:
    """Blocks, in order of birth (those from before the known history first).

    Attributes:
        address: int64.
        size: int64 bytes.
        born: int64 ns or BEFORE.
        freed: int64 ns or ALIVE.
        mend: int8 code of MENDS.
        alloc_row: row of the allocation in Events (ROW), -1 if not seen.
        free_row: row of the free in Events (ROW), -1 if not seen.
        unseen_frees: frees of blocks that were born unseen after the history began; left out.
        size_differs: frees that reported another size than their allocation (the allocation's is used).
    """

    address: Ints
    size: Ints
    born: Ints
    freed: Ints
    mend: Codes
    alloc_row: Rows
    free_row: Rows
    unseen_frees: int = 0
    size_differs: int = 0


def pair(events: Events) -> Blocks:
    """Pair allocations with frees, and close blocks whose addresses were allocated again."""
    # What is as long as the events is let go of as soon as it was used: there may be millions.
    if (events.ts[1:] >= events.ts[:-1]).all():  # as most readers give them: nothing to copy
        time_order = np.arange(len(events.ts), dtype=ROW)
        ts, alloc, address, size = events.ts, events.alloc, events.address, events.size
    else:
        time_order = np.argsort(events.ts, kind="stable").astype(ROW)
        ts, alloc = events.ts[time_order], events.alloc[time_order]
        address, size = events.address[time_order], events.size[time_order]
    group = np.argsort(address, kind="stable").astype(ROW)
    grouped = address[group]
    same_next = grouped[1:] == grouped[:-1]
    del grouped
    leader, follower = group[:-1][same_next], group[1:][same_next]
    del group, same_next
    follows_alloc = np.zeros(len(alloc), bool)
    follows_alloc[follower] = alloc[leader]
    unknown = np.flatnonzero(~alloc & ~follows_alloc)
    next_row = np.full(len(alloc), -1, ROW)
    next_row[leader] = follower
    del leader, follower, follows_alloc
    give_back_of(len(alloc))

    born_at = np.flatnonzero(alloc).astype(ROW)
    after = next_row[born_at]
    del next_row
    closed = (after >= 0) & ~alloc[after]
    reused = (after >= 0) & alloc[after]
    seen = Blocks(
        address[born_at],
        size[born_at],
        ts[born_at],
        np.where(after >= 0, ts[after], ALIVE),
        np.where(reused, np.int8(REUSED), np.int8(NO_MEND)),
        time_order[born_at],
        np.where(closed, time_order[after], ROW(-1)),
        size_differs=int((closed & (size[after] != size[born_at])).sum()),
    )
    del born_at, after, closed, reused
    seen = _close_overlapped(seen)

    first = _first_overlap(address[unknown], size[unknown], np.full(len(unknown), BEFORE), seen)
    older = unknown[first > ts[unknown]]
    count = len(older)
    if not count:
        return replace(seen, unseen_frees=len(unknown))
    before = Blocks(
        address[older],
        size[older],
        np.full(count, BEFORE),
        ts[older],
        np.zeros(count, np.int8),
        np.full(count, -1, ROW),
        time_order[older],
    )
    joined = {
        name: np.concatenate([getattr(before, name), getattr(seen, name)])
        for name in ("address", "size", "born", "freed", "mend", "alloc_row", "free_row")
    }
    return Blocks(**joined, unseen_frees=len(unknown) - count, size_differs=seen.size_differs)


def close_at_storage_end(blocks: Blocks, block_of_storage: Ints, ended: Ints) -> Blocks:
    """Close blocks that have no reported free where their registered storages ended.

    Args:
        blocks: the blocks.
        block_of_storage: block of each registered storage, -1 for none.
        ended: end of each storage, ALIVE when it was never seen.
    """
    matched = block_of_storage >= 0
    last = np.full(len(blocks.born), BEFORE)
    np.maximum.at(last, block_of_storage[matched], ended[matched])
    closes = (blocks.free_row < 0) & (last != BEFORE) & (last < blocks.freed)
    return replace(
        blocks,
        freed=np.where(closes, np.maximum(last, blocks.born), blocks.freed),
        mend=np.where(closes, np.int8(STORAGE_ENDED), blocks.mend),
    )


def close_at_collective_end(blocks: Blocks, block_of_storage: Ints, event_end: Ints) -> Blocks:
    """Close unregistered blocks without a reported free where the communication that they were born in ended.

    gloo copies what it reduces, and drops the copy on a thread whose frees no profiler reports. Such a copy belongs to
    the collective; a tensor that stays, such as a gradient's shard, is registered.

    Args:
        blocks: the blocks.
        block_of_storage: block of each registered storage, -1 for none.
        event_end: end of the innermost event at each block's birth when it is a communication, else ALIVE.
    """
    registered = np.zeros(len(blocks.born), bool)
    registered[block_of_storage[block_of_storage >= 0]] = True
    closes = (blocks.free_row < 0) & ~registered & (blocks.born != BEFORE) & (event_end < blocks.freed)
    return replace(
        blocks,
        freed=np.where(closes, np.maximum(event_end, blocks.born), blocks.freed),
        mend=np.where(closes, np.int8(COLLECTIVE_ENDED), blocks.mend),
    )


def match_storages(blocks: Blocks, address: Ints, born: Ints, slack_ns: int) -> Ints:
    """Find the block that each registered storage lies in.

    A storage is registered after its block was born. Two clocks meet here, so a storage that finds no open block at its
    address may take one that is born up to ``slack_ns`` later.

    Args:
        blocks: the blocks.
        address: start of each storage.
        born: when each storage was registered.
        slack_ns: error of the clock fit.

    Returns:
        Index of the block, -1 for none.
    """
    found = np.full(len(address), -1)
    if not len(address):
        return found
    order = np.lexsort((blocks.born, blocks.address))
    for slack in (0, slack_ns):
        open_ = np.flatnonzero(found < 0)
        place = _last_at_or_before(blocks, order, address[open_], born[open_] + slack)
        block = order[np.maximum(place, 0)] if len(order) else np.full(len(open_), -1)
        if len(order):
            fits = (place >= 0) & (blocks.address[block] == address[open_]) & (blocks.freed[block] > born[open_])
            found[open_[fits]] = block[fits]
    return found


def _last_at_or_before(blocks: Blocks, order: Ints, address: Ints, ts: Ints) -> Ints:
    """Position in ``order`` of the last block with (address, born) <= (address, ts); -1 for none.

    Blocks and questions are sorted together, blocks first among equals; the running maximum of block positions at a
    question is its answer.
    """
    count = len(order)
    both_address = np.concatenate([blocks.address[order], address])
    both_ts = np.concatenate([blocks.born[order], ts])
    is_question = np.concatenate([np.zeros(count, np.int64), np.ones(len(address), np.int64)])
    sorting = np.lexsort((is_question, both_ts, both_address))
    position = np.where(sorting < count, sorting, -1)
    running = np.maximum.accumulate(position) if len(position) else position
    answer = np.empty(count + len(address), np.int64)
    answer[sorting] = running
    return answer[count:]


def _close_overlapped(blocks: Blocks) -> Blocks:
    """Close blocks without a reported free where any later allocation overlaps them."""
    open_ = np.flatnonzero(blocks.free_row < 0)
    first = _first_overlap(blocks.address[open_], blocks.size[open_], blocks.born[open_], blocks)
    earlier = first < blocks.freed[open_]
    freed, mend = blocks.freed.copy(), blocks.mend.copy()
    freed[open_[earlier]] = first[earlier]
    mend[open_[earlier]] = REUSED
    return replace(blocks, freed=freed, mend=mend)


def _first_overlap(address: Ints, size: Ints, after: Ints, blocks: Blocks) -> Ints:
    """Birth of the first block born later than ``after`` that overlaps each range; ALIVE for none."""
    result = np.full(len(address), ALIVE)
    if not len(address) or not len(blocks.address):
        return result
    # Either the block starts inside the range, or the range starts inside the block.
    by_address = np.argsort(blocks.address, kind="stable").astype(ROW)
    starts = blocks.address[by_address]
    low = np.searchsorted(starts, address, "left")
    high = np.searchsorted(starts, address + size, "left")
    for question, row in _expand(low, high):
        born = blocks.born[by_address[row]]
        later = born > after[question]
        np.minimum.at(result, question[later], born[later])
    by_range = np.argsort(address, kind="stable")
    starts = address[by_range]
    for begin in range(0, len(blocks.address), _PAIRS_AT_ONCE):
        some = slice(begin, begin + _PAIRS_AT_ONCE)
        low = np.searchsorted(starts, blocks.address[some], "right")
        high = np.searchsorted(starts, blocks.address[some] + blocks.size[some], "left")
        for block, row in _expand(low, high):
            question = by_range[row]
            born = blocks.born[some][block]
            later = born > after[question]
            np.minimum.at(result, question[later], born[later])
    return result


def _expand(low: Ints, high: Ints) -> Iterator[tuple[Ints, Ints]]:
    """All (i, j) with low[i] <= j < high[i], in pieces of bounded size."""
    width = np.maximum(high - low, 0)
    some = np.flatnonzero(width)
    if not len(some):
        return
    edges = np.cumsum(width[some])
    cuts = np.unique(np.searchsorted(edges, np.arange(_PAIRS_AT_ONCE, edges[-1] + _PAIRS_AT_ONCE, _PAIRS_AT_ONCE)))
    for part in np.split(some, cuts[cuts < len(some)]):
        count = width[part]
        first = np.repeat(low[part], count)
        step = np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count)
        yield np.repeat(part, count), first + step
