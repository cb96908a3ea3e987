"""Traces put on the run's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.clocks import IDENTITY, ClockMap, base_map, fit
from zeropeak.parse.compact import gather
from zeropeak.parse.lookup import Lookup, ints
from zeropeak.parse.schema import BY_NAME

if TYPE_CHECKING:
    from zeropeak.parse.sink import Source
    from zeropeak.parse.spool import Spool
    from zeropeak.parse.writer import TableFiles

GRACE_NS: Final = 100_000_000
"""A whole trace speaks for this long before its first and after its last row: starting and stopping a profiler takes
time, and nothing need happen in it. (A cut trace speaks for nothing past its last row.)"""

DERIVED: Final = frozenset({"marks", "memory_events", "memory_blocks", "collectives"})
"""Tables of readers that are not written as they come."""


@dataclass
class Trace:
    """A trace of this rank.

    Attributes:
        source: what the reader said about its file.
        spool: the reader's rows; only those of DERIVED tables when ``clock`` is given.
        file: the file's name in import_stats.
        clock: the clock map that the rows have gone through; None: still to be found.
        span: first and last time of all rows, when ``clock`` is given.
        machine: the clock map of the rank's machine, for a source whose own clock is the machine's.
    """

    source: Source
    spool: Spool
    file: str
    clock: ClockMap | None = None
    span: tuple[int, int] | None = None
    machine: ClockMap | None = None


@dataclass(frozen=True)
class Placed:
    """A trace on the run's clock; its plain tables are written."""

    trace: Trace
    clock: ClockMap
    span: tuple[int, int]

    def table(self, name: str) -> pa.Table:
        """A DERIVED table, without its rank column."""
        rows = self.trace.spool.table(name).drop_columns(["rank"])
        return self._moved(rows)

    def memory_events(self) -> dict[str | None, pa.Table]:
        """The table of that name by device, of which there may be millions of rows: compact, the columns there are."""
        batches = (rows.drop_columns(["rank"]) for rows in self.trace.spool.written("memory_events"))
        return gather((self._moved(rows) for rows in batches), "device")

    def _moved(self, rows: pa.Table) -> pa.Table:
        return rows if self.trace.clock is not None else self.clock.apply_table(rows)


def place(trace: Trace, begun: tuple[Any, Any], writer: TableFiles, rank: int) -> Placed:
    """Find a trace's clock map, and write the tables that need nothing else."""
    if trace.clock is not None:
        shared = np.empty(0, np.int64)
        return Placed(trace, trace.clock, _spoken_for(trace.span or (0, 0), shared, trace.source))
    clock, shared = _clock_of(trace, begun)
    span = _write_plain(trace, clock, writer, rank)
    return Placed(trace, clock, _spoken_for(span, shared, trace.source))


def _clock_of(trace: Trace, begun: tuple[Any, Any]) -> tuple[ClockMap, Any]:
    """Fit the trace's clock to the log by shared events; without any, by the base time in the file.

    Returns:
        The map, and the log's begin times of the shared events.
    """
    if trace.source.clock == "boot" and trace.machine is not None:
        return trace.machine, np.empty(0, np.int64)
    ids, starts = begun
    seen_ids, seen_starts = [], []
    for rows in trace.spool.batches("nvtx_ranges"):
        ours = rows.filter(pc.is_valid(rows["event_id"]))
        seen_ids.append(ints(ours["event_id"]))
        seen_starts.append(ints(ours["start_ns"]))
    if seen_ids and len(ids):
        found = Lookup(pa.array(ids)).find(pa.array(np.concatenate(seen_ids)))
        shared = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        if len(shared):
            known = starts[ints(found)[shared]]
            return fit(np.concatenate(seen_starts)[shared], known, trace.file), known
    return base_map(trace.source), np.empty(0, np.int64)


def _spoken_for(span: tuple[int, int], shared: Any, source: Source) -> tuple[int, int]:
    """First and last moment that a trace speaks for.

    A profiler that recorded an event was on when the event began by the log, even if its own range began later (the
    first one waits for the profiler to start). A whole trace also speaks for a little time around its rows.
    """
    grace = 0 if source.partial else GRACE_NS
    first, last = span[0] - grace, span[1] + grace
    return (min(first, int(shared.min())), last) if len(shared) else (first, last)


def clock_row(source: str, clock: ClockMap) -> pa.Table:
    """A row of the table clocks."""
    return pa.table(
        {
            "source": [source],
            "reference_ns": pa.array([clock.reference_ns], pa.int64()),
            "offset_ns": pa.array([clock.offset_ns], pa.int64()),
            "drift": [clock.drift],
            "shared_events": [clock.shared_events],
            "outliers": [clock.outliers],
            "residual_ns": pa.array([clock.residual_ns], pa.int64()),
            "residual_max_ns": pa.array([clock.residual_max_ns], pa.int64()),
        }
    )


def _write_plain(trace: Trace, clock: ClockMap, writer: TableFiles, rank: int) -> tuple[int, int]:
    """Write the tables that need nothing but the clock; return first and last time of all rows."""
    first, last = [], []
    for table in trace.spool.tables():
        times = [c.name for c in BY_NAME[table].columns if c.name.endswith("_ns")]
        for rows in trace.spool.batches(table):
            moved = clock.apply_table(rows) if clock != IDENTITY else rows
            bounds = [pc.min_max(moved[name]).as_py() for name in times]
            first += [b["min"] for b in bounds if b["min"] is not None]
            last += [b["max"] for b in bounds if b["max"] is not None]
            if table not in DERIVED:
                writer.write(table, _with_rank(moved, rank), rank)
    return min(first, default=0), max(last, default=0)


def _with_rank(rows: pa.Table, rank: int) -> pa.Table:
    return rows.set_column(0, "rank", pa.repeat(pa.scalar(rank, pa.int64()), rows.num_rows))
