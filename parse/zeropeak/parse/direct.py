"""Sinks that write a reader's rows at once, for traces whose clock map and rank are known before they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.deepspeed_ranges import deepspeed_events, deepspeed_rows, is_wait
from zeropeak.parse.lookup import ints
from zeropeak.parse.node import by_rank
from zeropeak.parse.own_ranges import own_events
from zeropeak.parse.placing import DERIVED
from zeropeak.parse.sink import Count, add_count
from zeropeak.parse.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeropeak.parse.clocks import ClockMap
    from zeropeak.parse.sink import Severity
    from zeropeak.parse.writer import TableFiles

EVENT_TABLES: Final = ("zero_events", "phases", "module_ranges")


@dataclass
class Direct:
    """Writes a rank's rows at once; keeps those of DERIVED tables, and its ranges that are events, on disk."""

    files: TableFiles
    rank: int
    kind: str
    clock: ClockMap
    spool: Spool
    counts: dict[str, Count] = field(default_factory=dict)
    span: tuple[int, int] | None = None
    asked: bool = True
    """Whether blocks of memory or collectives will ask for the events; if not, ours are written as they come."""
    _own: bool = False
    _waits: bool = False
    _ordered: bool = True
    _last: int = 0

    def write(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        """Put rows on the run's clock and write or keep them."""
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        rows = self.clock.apply_table(rows)
        self._widen(rows)
        if table in DERIVED:
            self.spool.write(table, rows)
            return
        self.files.write(table, rows, self.rank)
        if table == "nvtx_ranges":
            self._keep_events(rows)

    def count(self, what: str, count: int, severity: Severity = "info", detail: str | None = None) -> None:
        """Add to a line of import_stats."""
        add_count(self.counts, what, count, severity, detail)

    def finish(self, *, write: bool) -> None:
        """Make zero_events, phases and module_ranges: of our own ranges, else of DeepSpeed's.

        Args:
            write: write them; they are in the spool in any case.
        """
        if not self._own:
            for table, rows in deepspeed_events(self._in_order(), self.rank, self.kind, has_waits=self._waits):
                self.spool.write(table, rows)
        if write:
            for table in EVENT_TABLES:
                for rows in self.spool.batches(table):
                    self.files.write(table, rows.drop_columns(["rank"]), self.rank)

    def _keep_events(self, rows: pa.Table) -> None:
        for name in ("thread_id", "end_ns", "event_id"):
            if name not in rows.schema.names:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
        if rows["event_id"].null_count < rows.num_rows:
            for table, events in own_events(rows, self.kind).items():
                self._own = True
                if self.asked:
                    self.spool.write(table, events)
                else:
                    self.files.write(table, events, self.rank)
        theirs = deepspeed_rows(rows)
        if theirs.num_rows and not self._own:
            self._waits |= is_wait(theirs["name"])
            start = ints(theirs["start_ns"])
            self._ordered &= bool(start[0] >= self._last and (start[1:] >= start[:-1]).all())
            self._last = int(start[-1])
            self.spool.write("nvtx_ranges", theirs)

    def _in_order(self) -> Iterator[pa.Table]:
        """DeepSpeed's ranges in order of their begin, outer before inner."""
        if self._ordered:
            yield from self.spool.batches("nvtx_ranges")
        else:
            rows = self.spool.table("nvtx_ranges")
            yield rows.sort_by([("start_ns", "ascending"), ("end_ns", "descending")])

    def _widen(self, rows: pa.Table) -> None:
        for name in rows.schema.names:
            if name.endswith("_ns") and rows.num_rows > rows[name].null_count:
                bounds = pc.min_max(rows[name]).as_py()
                first, last = self.span or (bounds["min"], bounds["max"])
                self.span = min(first, bounds["min"]), max(last, bounds["max"])


@dataclass
class DirectByRank:
    """Hands the rows of an export to one :class:`Direct` a rank; rows of no rank are written as they are."""

    files: TableFiles
    clock: ClockMap
    counts: dict[str, Count]
    asked: frozenset[int]
    _ranks: dict[int, Direct] = field(default_factory=dict)

    def of(self, rank: int) -> Direct:
        """The sink of a rank."""
        if rank not in self._ranks:
            spool = Spool(self.files.scratch / f"nsys-{rank}")
            self._ranks[rank] = Direct(self.files, rank, "nsys", self.clock, spool, asked=rank in self.asked)
        return self._ranks[rank]

    def write(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        """Split rows by rank and hand them on."""
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        for rank, part in by_rank(rows):
            if rank is None:
                self.files.write(table, self.clock.apply_table(part), None)
            else:
                self.of(rank).write(table, part)

    def count(self, what: str, count: int, severity: Any = "info", detail: str | None = None) -> None:
        """Add to a line of import_stats."""
        add_count(self.counts, what, count, severity, detail)
