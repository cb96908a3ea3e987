"""Allocated memory over time as a step function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.parse.blocks import ALIVE, BEFORE, REUSED, ROW, Blocks

if TYPE_CHECKING:
    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
    Rows = np.ndarray[tuple[int], np.dtype[np.int32]]

FIRST: Final = -1
"""Position of a birth from before the known history."""

LAST: Final = int(np.iinfo(ROW).max)
"""Position of an end that was never seen."""


@dataclass(frozen=True)
class Edges:
    """Births and ends of blocks in time order, with the running total. Positions count these edges.

    Positions, not times, tell what was alive: a profiler's microsecond can hold many edges.

    Attributes:
        ts: int64 ns.
        block: row of the block (ROW).
        birth: True for a birth.
        allocated: bytes allocated after the edge.
        baseline_bytes: allocated before the first edge.
        birth_position: by block (ROW); FIRST for one from before the known history.
        end_position: by block (ROW); LAST for one that never ended.
    """

    ts: Ints
    block: Rows
    birth: Flags
    allocated: Ints
    baseline_bytes: int
    birth_position: Rows
    end_position: Rows


def edges(blocks: Blocks, baseline_bytes: int | None = None) -> Edges:
    """Order the births and ends of blocks and sum them up.

    Args:
        blocks: the blocks; those from before the known history count as allocated from the start.
        baseline_bytes: allocated at the start, where the source says so; never below what the blocks prove.
    """
    before = blocks.born == BEFORE
    born = np.flatnonzero(~before).astype(ROW)
    gone = np.flatnonzero(blocks.freed != ALIVE).astype(ROW)
    # Among equal times: blocks that must have been gone by then, then as recorded, then ends seen by the event log.
    # A block whose birth and mended end share a time ends right after its birth.
    end_row = blocks.free_row[gone]
    unseen = np.flatnonzero(end_row < 0)
    mended = gone[unseen]
    reused = np.where(blocks.born[mended] == blocks.freed[mended], blocks.alloc_row[mended], FIRST)
    end_row[unseen] = np.where(blocks.mend[mended] == REUSED, reused, LAST)
    row = np.concatenate([blocks.alloc_row[born], end_row])
    ts = np.concatenate([blocks.born[born], blocks.freed[gone]])
    birth = np.arange(len(ts)) < len(born)
    order = np.lexsort((~birth, row, ts)).astype(ROW)
    del end_row, row
    ts, birth, block = ts[order], birth[order], np.concatenate([born, gone])[order]
    del born, gone, order
    proven = int(blocks.size[before].sum())
    baseline = proven if baseline_bytes is None else max(proven, baseline_bytes)
    allocated = blocks.size[block]
    np.negative(allocated, out=allocated, where=~birth)
    np.cumsum(allocated, out=allocated)
    allocated += baseline
    birth_position = np.full(len(blocks.born), FIRST, ROW)
    birth_position[block[birth]] = np.flatnonzero(birth)
    end_position = np.full(len(blocks.born), LAST, ROW)
    end_position[block[~birth]] = np.flatnonzero(~birth)
    return Edges(ts, block, birth, allocated, baseline, birth_position, end_position)


@dataclass(frozen=True)
class Peak:
    """A maximum: where in the curve (position -1: before its first step), when, and how high."""

    position: int
    ts_ns: int
    allocated_bytes: int


@dataclass(frozen=True)
class Curve:
    """Allocated bytes: ``value[i]`` from ``ts[i]`` up to ``ts[i + 1]``; ``baseline_bytes`` before.

    Attributes:
        ts: int64 ns, ascending; several steps can share a time.
        value: int64 bytes.
        baseline_bytes: value before the first step.
        start_ns: first moment that the curve speaks for.
        end_ns: last moment that the curve speaks for.
        sampled: True when these are samples (counters at events), so that a peak can lie between two of them.
    """

    ts: Ints
    value: Ints
    baseline_bytes: int
    start_ns: int
    end_ns: int
    sampled: bool = False

    def covers(self, start: int, end: int) -> bool:
        """Whether the curve speaks for all of ``[start, end]``."""
        return self.start_ns <= start and end <= self.end_ns

    def position(self, ts: int) -> int:
        """Position of the last step at or before ``ts``, -1 before the first."""
        return int(np.searchsorted(self.ts, ts, "right")) - 1

    def value_at(self, position: int) -> int:
        """Allocated after the step at a position."""
        return self.baseline_bytes if position < 0 else int(self.value[position])

    def peak(self, start: int, end: int) -> Peak:
        """First maximum in ``[start, end]``; what was allocated at ``start`` counts."""
        low, high = self.position(start), self.position(end)
        best = Peak(low, start, self.value_at(low))
        if low < high:
            top = low + 1 + int(np.argmax(self.value[low + 1 : high + 1]))
            if self.value[top] > best.allocated_bytes:
                best = Peak(top, int(self.ts[top]), int(self.value[top]))
        return best
