"""Allocated and reserved bytes over a device's history: what memory_events holds, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.parse.snapshot.entries import (
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Entries,
)
from zeropeak.parse.snapshot.lives import ADDRESS_REUSED, BEFORE, Lives

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Codes = NDArray[np.uint8]

WORDS: Final = ("alloc", "free", "segment_alloc", "segment_free", "oom")
"""Words of memory_events.action; the codes are their places."""

_BIRTH, _END, _GROWTH, _SHRINKAGE, OUT_OF_MEMORY = range(len(WORDS))
_NO_ROW: Final = 255
_CODES: Final = np.full(256, _NO_ROW, np.uint8)
"""Place in WORDS by the action of an entry that gives a row by itself."""
for _action, _code in ((SEGMENT_ALLOC, _GROWTH), (SEGMENT_MAP, _GROWTH), (SEGMENT_FREE, _SHRINKAGE),
                       (SEGMENT_UNMAP, _SHRINKAGE), (OOM, OUT_OF_MEMORY)):  # fmt: skip
    _CODES[_action] = _code


@dataclass(frozen=True)
class Curve:
    """The rows of memory_events of one device, in order.

    Attributes:
        ts_ns: time.
        action: place in WORDS.
        address: 0 for oom.
        size: bytes, positive.
        allocated: allocated after the row.
        reserved: reserved after the row; None when the file does not tell (no segments).
        stream: stream handle.
        mend: place in MENDS.
        start_allocated: allocated before the first row.
    """

    ts_ns: Ints
    action: Codes
    address: Ints
    size: Ints
    allocated: Ints
    reserved: Ints | None
    stream: Ints
    mend: Codes
    start_allocated: int

    def peak(self) -> tuple[int, int] | None:
        """Highest allocated bytes and the row that first reached them (-1: the start); None without rows."""
        if not len(self.allocated):
            return None
        row = int(self.allocated.argmax())
        if self.allocated[row] > self.start_allocated:
            return int(self.allocated[row]), row
        return self.start_allocated, -1


def draw(entries: Entries, lives: Lives, standing: Lives, reserved_at_dump: int | None) -> Curve:
    """Put births, ends, segments and out-of-memory errors in order and sum them up.

    The start is chosen so that the end is the dump: allocated starts with the blocks from before the history, reserved
    with what the dump has less what the history added.

    Args:
        entries: the history.
        lives: its blocks, sizes as taken.
        standing: blocks that only the dump knows.
        reserved_at_dump: sum of the segments; None when the file has none.
    """
    end = lives.end
    start = sum(int(some.size[(some.born == BEFORE) & (some.let_go != BEFORE)].sum()) for some in (lives, standing))
    born = np.flatnonzero(lives.born != BEFORE)
    ended = np.flatnonzero((lives.let_go != BEFORE) & (lives.let_go < end))
    other = np.flatnonzero(_CODES[entries.action] != _NO_ROW)
    # Two slots an entry: an end that we added comes before the entry that proved it. A slot holds the place of a row
    # in the columns below, so that no sorting is needed.
    slot = np.full(2 * end, -1)
    slot[2 * lives.born[born] + 1] = np.arange(len(born))
    slot[2 * lives.let_go[ended] + (lives.mend[ended] != ADDRESS_REUSED)] = len(born) + np.arange(len(ended))
    slot[2 * other + 1] = len(born) + len(ended) + np.arange(len(other))
    order = np.flatnonzero(slot >= 0)
    place = slot[order]
    # What happened in a gap is put at the dump: first what is gone by then, then what is there.
    gone = np.flatnonzero(lives.let_go == end)
    late = np.flatnonzero((standing.born == end) & (standing.let_go == standing.never))

    def laid(of_lives: Ints, of_standing: Ints, of_entries: Ints) -> Ints:
        """A column's values in the order of the rows."""
        values = np.concatenate([of_lives[born], of_lives[ended], of_entries[other]])[place]
        return np.concatenate([values, of_lives[gone], of_standing[late]]) if len(gone) or len(late) else values

    size = laid(lives.size, standing.size, entries.size)
    kinds = np.repeat(np.array([_BIRTH, _END], np.uint8), [len(born), len(ended)])
    action = np.concatenate([np.concatenate([kinds, _CODES[entries.action[other]]])[place],
                             np.repeat(np.array([_END, _BIRTH], np.uint8), [len(gone), len(late)])])  # fmt: skip
    mend = np.zeros(len(size), np.uint8)
    mend[: len(order)][order % 2 == 0] = ADDRESS_REUSED
    mend[len(order) :] = np.concatenate([lives.mend[gone], standing.mend[late]])
    moved = np.where(action == _BIRTH, size, np.where(action == _END, -size, 0))
    held = np.where(action == _GROWTH, size, np.where(action == _SHRINKAGE, -size, 0))
    return Curve(
        ts_ns=np.concatenate([entries.ts_ns[order >> 1], np.repeat(entries.ts_ns[-1:], len(gone) + len(late))]),
        action=action,
        address=laid(lives.address, standing.address, entries.address),
        size=size,
        allocated=start + np.cumsum(moved),
        reserved=None if reserved_at_dump is None else np.cumsum(held) + (reserved_at_dump - int(held.sum())),
        stream=laid(lives.stream, standing.stream, entries.stream),
        mend=mend,
        start_allocated=start,
    )
