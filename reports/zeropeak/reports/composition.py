"""What was alive on each rank at a moment, by category; a rank's parts sum to what was measured as allocated."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from zeropeak.parse.composition import Composition as Attribution
from zeropeak.parse.parts import Parts
from zeropeak.parse.timeline import Timeline
from zeropeak.reports.alive import COLUMNS, Alive
from zeropeak.reports.columns import ABSENT, NEVER, ints
from zeropeak.reports.curve import allocated, of_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from zeropeak.reports.run import Run


@dataclass(frozen=True)
class Composition:
    """One rank at one moment.

    Attributes:
        measured_bytes: allocated, as measured; None when that is not known.
        parts: bytes by category, ``unattributed`` included.
    """

    rank: int
    measured_bytes: int | None
    parts: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Sum of the parts."""
        return sum(self.parts.values())

    @property
    def gap_bytes(self) -> int:
        """Measured minus the sum of the parts; 0 when it adds up."""
        return 0 if self.measured_bytes is None else self.measured_bytes - self.total_bytes


def at_peaks(run: Run) -> list[Composition]:
    """Every rank at its own peak of the run, in order of rank; ranks without one are left out."""
    peaks = run.arrow("peaks", columns=["rank", "scope", "allocated_bytes"])
    table = run.arrow("peak_composition", columns=["rank", "scope", "category", "size_bytes"])
    return _compositions(*(rows.filter(pc.equal(rows["scope"], "run")) for rows in (peaks, table)))


def at_mark(run: Run, step: int, mark: str) -> list[Composition]:
    """Every rank at the first mark of this name in a step."""
    marks = run.arrow("marks", columns=["rank", "step", "micro_step", "mark", "allocated_bytes"])
    table = run.arrow("mark_composition", columns=["rank", "step", "micro_step", "mark", "category", "size_bytes"])
    found = []
    for rows in (marks, table):
        here = rows.filter(pc.and_(pc.equal(rows["step"], step), pc.equal(rows["mark"], mark)))
        found.append(here.filter(pc.equal(pc.fill_null(here["micro_step"], 0), 0)))
    return _compositions(*found)


def at_moment(run: Run, ts_ns: int) -> tuple[list[Composition], list[Alive]]:
    """Every rank that has blocks and was running at a moment of run time: by category, and block by block."""
    found, blocks = [], []
    for rank in run.rank_ids:
        rows = of_device(run.arrow("memory_blocks", rank), run, rank)
        facts = run.arrow("ranks", rank, ["first_ns", "last_ns", "memory_source"]).to_pylist()[0]
        if facts["memory_source"] != "counters":
            # Registered storages are named within the allocator's blocks; as rows of their own they would count twice.
            rows = rows.filter(pc.fill_null(pc.not_equal(rows["source"], "log"), True))
        if not rows.num_rows or not (facts["first_ns"] or 0) <= ts_ns <= (facts["last_ns"] or NEVER):
            continue
        timeline = Timeline(*(run.arrow(name, rank) for name in ("zero_events", "module_ranges", "phases")))
        attribution = Attribution(rows, timeline, run.arrow("zero_event_params", rank), run.arrow("params", rank))
        born, gone = ints(rows, "born_ns", ABSENT), ints(rows, "free_requested_ns", NEVER)
        total = int(allocated(run, rank).at(np.array([ts_ns], dtype=np.int64))[0])
        parts = Parts("peak", rows, attribution)
        parts.add({"scope": "moment"}, ts_ns, np.flatnonzero((born <= ts_ns) & (gone > ts_ns)), total)
        summed = parts.composition()
        sizes = dict(zip(summed["category"].to_pylist(), summed["size_bytes"].to_pylist(), strict=True))
        found.append(Composition(rank, total, sizes))
        blocks.append(Alive(rank, parts.blocks().select(list(COLUMNS))))
    return found, blocks


def _compositions(measured: pa.Table, table: pa.Table) -> list[Composition]:
    totals = dict(zip(measured["rank"].to_pylist(), measured["allocated_bytes"].to_pylist(), strict=True))
    parts: defaultdict[int, dict[str, int]] = defaultdict(dict)
    rows = zip(ints(table, "rank"), table["category"].to_pylist(), ints(table, "size_bytes"), strict=True)
    for rank, category, size_bytes in rows:
        parts[int(rank)][category] = parts[int(rank)].get(category, 0) + int(size_bytes)
    return [Composition(rank, totals.get(rank), parts[rank]) for rank in sorted(parts)]
