"""Lifetimes and curve of a source that tells both itself (memory snapshots), brought into our form.

Its memory_events are in the allocator's order, which its microseconds do not tell; so blocks are tied to the rows of
their birth and end, and what was alive is asked by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.blocks import ALIVE, BEFORE, ROW, Blocks
from zeropeak.parse.curve import FIRST, LAST, Edges, edges
from zeropeak.parse.lookup import ints

if TYPE_CHECKING:
    from zeropeak.parse.stats import StatsScope

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
    Rows = np.ndarray[tuple[int], np.dtype[np.int32]]


def recorded(moves: pa.Table, rows: pa.Table, stats: StatsScope) -> tuple[Blocks, Edges]:
    """Blocks and order of one device.

    Args:
        moves: its memory_events with action alloc or free, in the allocator's order, with ``allocated_bytes``.
        rows: its memory_blocks.
        stats: takes a count when the two do not tie up.
    """
    born, gone = ints(rows["born_ns"], BEFORE), ints(rows["free_requested_ns"], ALIVE)
    address, size = ints(rows["address"]), ints(rows["size_bytes"])
    alloc = pc.equal(moves["action"], "alloc").to_numpy(zero_copy_only=False)
    # Let go before the history, ended in it: no longer allocated when it begins, and no row of ours.
    lingering = (born == BEFORE) & (gone <= (ints(moves["ts_ns"])[0] if moves.num_rows else ALIVE - 1))
    ends = gone != ALIVE
    birth_row = _tie(ints(moves["address"]), np.flatnonzero(alloc), address, born, born != BEFORE)
    end_row = _tie(ints(moves["address"]), np.flatnonzero(~alloc), address, gone, ends)
    if end_row is None:
        end_row = _tie(ints(moves["address"]), np.flatnonzero(~alloc), address, gone, ends & ~lingering)
    else:
        lingering &= False
    nothing = np.full(len(born), -1, ROW)
    blocks = Blocks(
        address, size, born, gone, np.zeros(len(born), np.int8),
        nothing if birth_row is None else birth_row, nothing if end_row is None else end_row,
    )  # fmt: skip
    if birth_row is None or end_row is None:
        stats.count("blocks_not_tied_to_events", 1, "mended", "blocks are placed by time, which ties within 1 us")
        return blocks, edges(blocks)
    block = np.empty(len(alloc), ROW)
    block[birth_row[birth_row >= 0]] = np.flatnonzero(birth_row >= 0)
    block[end_row[end_row >= 0]] = np.flatnonzero(end_row >= 0)
    allocated = ints(moves["allocated_bytes"])
    first = int(allocated[0]) - int(size[block[0]]) * (1 if alloc[0] else -1) if len(alloc) else int(size.sum())
    return blocks, Edges(
        ints(moves["ts_ns"]), block, alloc, allocated, first,
        np.where(born == BEFORE, FIRST, birth_row),
        np.where(gone == ALIVE, LAST, np.where(lingering, FIRST, end_row)),
    )  # fmt: skip


def _tie(
    row_address: Ints, rows: Ints, address: Ints, ts: Ints, some: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Rows | None:
    """Row of each block's birth (or end), -1 for none: the n-th row at an address is that of its n-th block."""
    wanted = np.flatnonzero(some)
    if len(wanted) != len(rows):
        return None
    by_row = rows[np.lexsort((rows, row_address[rows]))]
    by_block = wanted[np.lexsort((wanted, ts[wanted], address[wanted]))]
    if not np.array_equal(row_address[by_row], address[by_block]):
        return None
    tied = np.full(len(address), -1, ROW)
    tied[by_block] = by_row
    return tied
