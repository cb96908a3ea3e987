"""Laws of the memory curve that can fail: asked of the blocks' own lives, and of the allocator's own counters.

The parts of a moment sum to what was measured by how they are made (:mod:`zeropeak.parse.conservation`). What is asked
here rests on another way to the same figure: births and ends of the blocks as they stand in the tables, where the curve
is a running total over events; and on GPUs ``torch.cuda.memory_allocated``, read at the marks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zeropeak.parse.blocks import ALIVE, BEFORE
from zeropeak.parse.compact import ROWS
from zeropeak.parse.lookup import ints

if TYPE_CHECKING:
    from zeropeak.parse.curve import Curve
    from zeropeak.parse.memory import Memory
    from zeropeak.parse.parts import Parts
    from zeropeak.parse.stats import StatsScope

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


class Lives:
    """What blocks sum to at some moments, by their own births and ends.

    Args:
        blocks: rows of memory_blocks of one allocator.
        times: the moments, ns; of those there are few, of blocks maybe millions, so blocks are gone through in pieces.
    """

    def __init__(self, blocks: pa.Table, times: Ints) -> None:
        self._blocks = blocks.select(["size_bytes", "born_ns", "free_requested_ns"])
        self._times = np.unique(times)
        # Bytes born, and ended, before each moment and up to it.
        births, ends = np.zeros((2, len(self._times) + 1), np.int64), np.zeros((2, len(self._times) + 1), np.int64)
        self.before_bytes = 0
        """Bytes from before the known history."""
        for begin in range(0, blocks.num_rows, ROWS):
            size, born, end = self._lives(self._blocks.slice(begin, ROWS))
            self.before_bytes += int(size[born == BEFORE].sum())
            for sums, at in ((births, born), (ends, end)):
                np.add.at(sums[0], np.searchsorted(self._times, at, "right"), size)
                np.add.at(sums[1], np.searchsorted(self._times, at, "left"), size)
        self._births, self._ends = births.cumsum(axis=1), ends.cumsum(axis=1)

    def between(self, ts: int) -> tuple[int, int]:
        """Lowest and highest sum at a moment; they differ where blocks are born or end at that very moment."""
        place = int(np.searchsorted(self._times, ts))
        (born, born_with), (gone, gone_with) = self._births[:, place], self._ends[:, place]
        return int(born - gone_with), int(born_with - gone)

    def holds(self, rows: Ints, ts: int) -> bool:
        """Whether blocks are listed once each, live at a moment, and are all that do."""
        low, high = self.between(ts)
        size, born, end = self._lives(self._blocks.take(pa.array(rows)))
        alive = (born <= ts) & (end >= ts)
        once = len(np.unique(rows)) == len(rows)
        return bool(once and alive.all() and low <= int(size.sum()) <= high)

    @staticmethod
    def _lives(blocks: pa.Table) -> tuple[Ints, Ints, Ints]:
        """Size, birth and end."""
        return ints(blocks["size_bytes"]), ints(blocks["born_ns"], BEFORE), ints(blocks["free_requested_ns"], ALIVE)


def check_lives(parts: Parts, memory: Memory, stats: StatsScope) -> None:
    """Count moments at which curve or rows are not what the blocks' own lives say.

    Nothing is counted where no allocator's blocks are known (counters alone, traces without addresses): nothing tells.

    Args:
        parts: the moments.
        memory: the rank's memory.
        stats: takes the counts: errors, so that a zero is said, too.
    """
    recorded, curve = memory.recorded_blocks, memory.curve
    if curve is None or curve.sampled or not recorded.num_rows:
        return
    moments = list(parts.moments())
    lives = Lives(recorded, np.array([ts for ts, _ in moments], np.int64))
    unseen = curve.baseline_bytes - lives.before_bytes
    curves = rows_wrong = 0
    for ts, rows in moments:
        low, high = lives.between(ts)
        curves += not low <= curve.value_at(curve.position(ts)) - unseen <= high
        rows_wrong += not lives.holds(rows[rows < recorded.num_rows], ts)
    stats.count("curve_not_of_blocks", curves, "error", "moments at which blocks and curve say different sums")
    stats.count("rows_not_alive", rows_wrong, "error", "moments whose rows are not the blocks that live then")


def check_counters(marks: pa.Table, curve: Curve | None, slack_ns: int, stats: StatsScope) -> None:
    """Count marks at which the allocator itself said another value than the curve has.

    Nothing is counted where no counters were read (CPU), or where the curve is made of them.

    Args:
        marks: rows of marks as logged.
        curve: of the same device.
        slack_ns: error of the two clocks' fit: any value that the curve has within it is right.
        stats: takes the count.
    """
    if curve is None or curve.sampled:
        return
    read = [row for row in marks.select(["ts_ns", "allocated_bytes"]).to_pylist() if row["allocated_bytes"] is not None]
    read = [row for row in read if curve.covers(row["ts_ns"], row["ts_ns"])]
    if not read:
        return
    wrong, most = 0, 0
    for row in read:
        first, last = curve.position(row["ts_ns"] - slack_ns), curve.position(row["ts_ns"] + slack_ns)
        values = np.append(curve.value[first + 1 : last + 1], curve.value_at(first)) - row["allocated_bytes"]
        apart = max(int(values.min()), -int(values.max()), 0)
        wrong, most = wrong + (apart > 0), max(most, apart)
    stats.count("counter_differs", wrong, "error", "marks at which the allocator's counter is not what the curve says")
    if most:
        stats.count("counter_differs_bytes", most, "error", "the most")
