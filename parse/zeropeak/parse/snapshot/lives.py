"""Lifetimes of blocks: which allocation, which request to free it and which end of it belong together.

A block is born, its owner lets go (``free_requested``; memory_allocated falls), and once the streams that used it are
done it is free (``free_completed``). The history is a ring that starts anywhere and can have gaps (recording stopped
and went on), so births and ends can be missing. Positions are indices of entries; :data:`BEFORE` stands for a moment
before the first entry, ``Lives.end`` (the number of entries) for the dump, ``Lives.never`` for what has not happened
by then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zeropeak.parse.snapshot.columns import integers
from zeropeak.parse.snapshot.entries import ALLOC, FREE_COMPLETED, FREE_REQUESTED, Entries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zeropeak.parse.snapshot.segments import Dump

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Codes = NDArray[np.uint8]

BEFORE: Final = -1

NO_MEND: Final = 0
ADDRESS_REUSED: Final = 1
GONE_AT_DUMP: Final = 2
BORN_UNSEEN: Final = 3
MENDS: Final = (None, "address-reused", "gone-at-dump", "born-unseen")
"""Why we added an end or a birth that is not in the history; words of the column ``mend``."""


COLUMNS: Final = ("address", "requested", "size", "exact", "stream", "born", "let_go", "freed", "mend")
"""Arrays of :class:`Lives`."""


@dataclass(frozen=True)
class Lives:
    """Blocks of one device; one item a block, sorted by address, then by time.

    ``born``, ``let_go`` and ``freed`` are positions; a block that is alive at the dump has ``freed == never``.
    ``size`` is what the block takes where the dump says it (then ``exact``), else what was ``requested``, to be found.
    """

    address: Ints
    requested: Ints
    size: Ints
    exact: Flags
    stream: Ints
    born: Ints
    let_go: Ints
    freed: Ints
    mend: Codes
    end: int
    """Position of the dump: the number of entries."""
    ends_recorded: bool = True
    """False when the history has no ``free_completed`` at all."""
    frees_without_alloc: int = 0
    """Frees at a known address with no allocation in between; left out."""
    ends_unseen: int = 0
    """Blocks whose ``free_completed`` is missing although others have one; they end when the address is reused."""
    state_differs: int = 0
    """Blocks whose last entry and whose state at the dump contradict each other; the dump is believed."""

    def __len__(self) -> int:
        return len(self.address)

    @property
    def never(self) -> int:
        """Position of what has not happened by the dump."""
        return self.end + 1


def by_address(address: Ints) -> Ints:
    """Stable order by address.

    A history uses few addresses again and again, so sorting 16-bit ranks of them (a radix sort) takes a tenth of the
    time of sorting the addresses.
    """
    encoded = integers(address).dictionary_encode()
    if len(encoded.dictionary) >= 1 << 16 or not len(address):
        return np.argsort(address, kind="stable")
    distinct = np.frombuffer(encoded.dictionary.buffers()[1], np.int64, len(encoded.dictionary))
    place = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(address))
    rank = np.empty(len(distinct), np.uint16)
    rank[np.argsort(distinct)] = np.arange(len(distinct), dtype=np.uint16)
    return np.argsort(rank[place], kind="stable")


def pair(entries: Entries) -> Lives:
    """Group the entries of each address into lives."""
    end = len(entries)
    never = end + 1
    moves = np.flatnonzero(entries.action <= FREE_COMPLETED)
    index = moves[by_address(entries.address[moves])]
    address, action = entries.address[index], entries.action[index]
    new_address = np.append(True, address[1:] != address[:-1])[: len(index)]
    previous = np.append(np.uint8(ALLOC), action[:-1])[: len(index)]
    first = (
        new_address
        | (action == ALLOC)
        | (previous == FREE_COMPLETED)
        | ((action == FREE_REQUESTED) & (previous == FREE_REQUESTED))
    )
    life = np.cumsum(first) - 1
    start = np.flatnonzero(first)
    count = len(start)
    unborn = action[start] != ALLOC
    let_go, freed = np.full(count, never), np.full(count, never)
    for kind, when in ((FREE_REQUESTED, let_go), (FREE_COMPLETED, freed)):
        rows = np.flatnonzero(action == kind)
        when[life[rows]] = index[rows]
    # torch can be told to leave out either kind (skip_actions); then the other one stands for both.
    alone = (let_go == never) & (freed != never)
    if (alone & ~unborn).any() and not (action == FREE_REQUESTED).any():
        let_go = freed.copy()
    # A free_completed alone: the request to free it lies before the history.
    let_go[unborn & (let_go == never) & (freed != never)] = BEFORE
    ends_recorded = bool((action == FREE_COMPLETED).any())

    followed = np.append(~new_address[start][1:], False)[:count]
    follower = np.append(index[start][1:], end)[:count]
    unfinished = followed & (freed == never)
    forgotten = unfinished & (let_go == never)
    stray = unborn & ~new_address[start]
    lives = Lives(
        address=address[start],
        requested=entries.size[index[start]],
        size=entries.size[index[start]],
        exact=np.zeros(count, np.bool_),
        stream=entries.stream[index[start]],
        born=np.where(unborn, BEFORE, index[start]),
        let_go=np.where(forgotten, follower, let_go),
        freed=np.where(unfinished, follower if ends_recorded else np.minimum(let_go, follower), freed),
        mend=np.where(forgotten, ADDRESS_REUSED, NO_MEND).astype(np.uint8),
        end=end,
        ends_recorded=ends_recorded,
        frees_without_alloc=int(stray.sum()),
        ends_unseen=int((unfinished & ~forgotten & ~stray).sum()) if ends_recorded else 0,
    )
    if not stray.any():
        return lives
    return replace(lives, **{name: getattr(lives, name)[~stray] for name in COLUMNS})


def meet_nothing(lives: Lives) -> Lives:
    """The history's blocks where there is no dump to compare them with."""
    if lives.ends_recorded:
        return lives
    return replace(lives, freed=np.where(lives.let_go != lives.never, lives.let_go, lives.freed))


def meet_dump(lives: Lives, dump: Dump, taken: Ints) -> tuple[Lives, Lives]:
    """Compare what is alive after the last entry with the dump, which is always right.

    Args:
        lives: the history's blocks.
        dump: the dump of the same device; it must have segments.
        taken: bytes that each life takes at least, to see which blocks overlap.

    Returns:
        The history's blocks, their ends mended; and the blocks that only the dump knows: born before the history, or
        (``BORN_UNSEEN``) somewhere in a gap of it, where they are taken to be born at the dump.
    """
    open_ = np.flatnonzero(lives.freed == lives.never)
    place = np.searchsorted(dump.block_address, lives.address[open_])
    there = place < len(dump.block_address)
    there[there] = dump.block_address[place[there]] == lives.address[open_[there]]
    known, at, gone = open_[there], place[there], open_[~there]
    held = lives.let_go == lives.never
    size, exact = lives.size.copy(), lives.exact.copy()
    let_go, freed, mend = lives.let_go.copy(), lives.freed.copy(), lives.mend.copy()
    size[known], exact[known] = dump.block_size[at], True
    differs = dump.block_pending[at] == held[known]
    let_go[known[differs]] = np.where(held[known[differs]], lives.end, lives.never)
    let_go[gone] = np.minimum(let_go[gone], lives.end)
    freed[gone] = lives.end if lives.ends_recorded else let_go[gone]
    mend[gone[held[gone]]] = GONE_AT_DUMP
    met = replace(
        lives,
        size=size,
        exact=exact,
        let_go=let_go,
        freed=freed,
        mend=mend,
        state_differs=int(differs.sum()),
        ends_unseen=lives.ends_unseen + (int((~held[gone]).sum()) if lives.ends_recorded else 0),
    )
    rest = np.ones(len(dump.block_address), np.bool_)
    rest[at] = False
    return met, _only_in_dump(lives, dump, np.flatnonzero(rest), taken)


def _only_in_dump(lives: Lives, dump: Dump, rows: Ints, taken: Ints) -> Lives:
    """Lives of the blocks that are in the dump alone."""
    address, size = dump.block_address[rows], dump.block_size[rows]
    # A block of the history that overlapped one of these was gone before it was born.
    low = np.searchsorted(address + size, lives.address, "right")
    high = np.searchsorted(address, lives.address + np.maximum(taken, 1), "left")
    touched = np.zeros(len(rows) + 1, np.int64)
    np.add.at(touched, low[low < high], 1)
    np.add.at(touched, high[low < high], -1)
    unseen = np.cumsum(touched)[:-1] > 0
    born = np.where(unseen, lives.end, BEFORE)
    return Lives(
        address=address,
        requested=size,
        size=size,
        exact=np.ones(len(rows), np.bool_),
        stream=dump.block_stream[rows],
        born=born,
        let_go=np.where(dump.block_pending[rows], born, lives.never),
        freed=np.full(len(rows), lives.never),
        mend=np.where(unseen, BORN_UNSEEN, NO_MEND).astype(np.uint8),
        end=lives.end,
    )


def nothing(end: int) -> Lives:
    """No blocks, for a history of ``end`` entries."""
    none = np.empty(0, np.int64)
    return Lives(none, none, none, none.astype(np.bool_), none, none, none, none, none.astype(np.uint8), end)


def join(first: Lives, second: Lives) -> Lives:
    """The blocks of both; counts are the first one's."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in COLUMNS}
    return replace(first, **columns)
