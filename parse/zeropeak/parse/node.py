"""The nsys export of one node of a run: written by rank, and what the ranks' own tables need of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse import eventlog, nsys
from zeropeak.parse.clocks import ClockMap, base_map, fit
from zeropeak.parse.lookup import Lookup, ints
from zeropeak.parse.placing import clock_row
from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.sink import MemorySink
from zeropeak.profile.errors import TraceError
from zeropeak.profile.labels import RANK_SHIFT, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zeropeak.parse.manifest import Manifest, RankInfo
    from zeropeak.parse.stats import Stats
    from zeropeak.parse.writer import TableFiles


KEPT: Final = ("memory_events", "collectives")
"""Tables that the ranks' own tables are needed for."""


@dataclass
class NodeView:
    """What nsys saw of one rank."""

    ids: Any
    segments: pa.Table
    collectives: pa.Table
    file: str


@dataclass
class _NodeSink:
    """Puts the rows of an nsys export on the run's clock and writes them by rank; keeps those of :data:`KEPT`."""

    writer: TableFiles
    clock: ClockMap
    counts: MemorySink
    kept: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in KEPT})

    def table(self, name: str) -> pa.Table:
        """All rows that were kept of a table."""
        return pa.concat_tables([BY_NAME[name].arrow.empty_table(), *self.kept[name]], promote_options="default")

    def write(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        rows = self.clock.apply_table(rows)
        if table in KEPT:
            self.kept[table].append(rows)
            return
        for rank, part in by_rank(rows):
            self.writer.write(table, part, rank)

    def count(self, what: str, count: int, severity: Any = "info", detail: str | None = None) -> None:
        self.counts.count(what, count, severity, detail)


def by_rank(rows: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
    """Split rows by their ``rank`` column, keeping their order."""
    if not rows.num_rows:
        return
    rank = ints(rows["rank"])
    order = np.argsort(rank, kind="stable")
    found, start = np.unique(rank[order], return_index=True)
    sorted_rows = rows.take(pa.array(order)) if len(found) > 1 else rows
    for number, first, end in zip(found.tolist(), start.tolist(), [*start.tolist()[1:], len(rank)], strict=True):
        yield None if number < 0 else number, sorted_rows.slice(first, end - first)


def read_node(
    run: Path,
    export: Path,
    node: int,
    manifest: Manifest,
    infos: dict[int, RankInfo | None],
    clocks: dict[str, ClockMap],
    writer: TableFiles,
    stats: Stats,
) -> dict[int, NodeView]:
    """Write what nsys saw on one node; return what the rank's own tables need of it."""
    here = [rank for rank, info in infos.items() if info and (info.node or 0) == node]
    ranks = {info.pid: rank for rank in here if (info := infos[rank]) and info.pid is not None}
    label = str(export.relative_to(run))
    try:
        ids, starts = nsys.anchors(export)
        clock = _node_clock(run, export, ids, starts, {rank: infos[rank] for rank in here}, clocks)
        sink = _NodeSink(writer, clock, MemorySink())
        source = nsys.read(export, sink, ranks=ranks, default_rank=here[0] if len(here) == 1 else None)
    except TraceError as error:
        if manifest.status == Status.COMPLETE:
            raise
        # The export of a run that ended early may be missing its end; what the ranks logged is still good.
        stats.scope(label, "nsys").count("trace_unreadable", 1, "error", error.problem)
        return {}
    stats.merge(sink.counts.counts, label, source.reader)
    segments, calls = sink.table("memory_events"), sink.table("collectives")
    views = {}
    for rank in here:
        writer.write("clocks", clock_row("nsys", clock), rank)
        mine = segments.filter(pc.equal(segments["rank"], rank))
        called = calls.filter(pc.equal(calls["rank"], rank)).drop_columns(["rank"])
        views[rank] = NodeView(ids[(ids >> RANK_SHIFT) == rank], mine, called, label)
    return views


def _node_clock(
    run: Path, export: Path, ids: Any, starts: Any, infos: dict[int, RankInfo | None], clocks: dict[str, ClockMap]
) -> ClockMap:
    """Fit the session clock to the event logs of the node's ranks by the events that both hold."""
    log_ids, log_ns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rank, info in infos.items():
        if info and info.clock:
            some_ids, some_ns = eventlog.anchors(run / "raw" / f"rank-{rank}")
            log_ids.append(some_ids)
            log_ns.append(clocks[info.clock.boot_id].apply(some_ns))
    found = Lookup(pa.array(np.concatenate(log_ids))).find(pa.array(ids))
    shared = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
    if len(shared):
        return fit(starts[shared], np.concatenate(log_ns)[ints(found)[shared]], export.name)
    return base_map(nsys.source(export))
