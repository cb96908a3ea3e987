"""What a reader is: a function of one file that hands rows to a sink and says what it read.

``read(path, sink) -> Source``. A reader writes batches for any table of :mod:`zeropeak.parse.schema`, with any subset
of the table's columns, times as absolute int64 nanoseconds on the source's own clock (``Source.clock``), and counts
what it dropped or mended. Everything else (ranks, clock mapping, missing columns, parquet) is the pipeline's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa

from zeropeak.parse.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Clock = Literal["unix", "session", "boot"]
"""unix: nanoseconds since 1970. session: since the tool's session began. boot: CLOCK_MONOTONIC of the machine."""

Severity = Literal["info", "mended", "lost", "error"]
"""Weight of a count in import_stats: info for what was read, mended for repairs, lost for rows that are gone."""


class Sink(Protocol):
    """Where a reader puts its rows."""

    def write(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows to a table.

        Args:
            table: name of a table of the schema.
            batch: rows with any subset of the table's columns; missing ones become null, ``rank`` is filled in by
                the pipeline unless given.
        """

    def count(self, what: str, count: int, severity: Severity = "info", detail: str | None = None) -> None:
        """Add ``count`` to one line of import_stats; repeated calls with the same ``what`` add up."""


@dataclass(frozen=True)
class Source:
    """What a reader learned about its file."""

    reader: str
    """log, nsys, kineto, snapshot or simulated; the ``source`` column of the rows."""
    path: Path
    rank: int | None = None
    """Global rank by the file's content; None when it does not say or holds several processes."""
    world_size: int | None = None
    pids: tuple[int, ...] = ()
    clock: Clock = "unix"
    session_start_unix_ns: int | None = None
    """Unix time at which a session clock was zero, where the file says so (good to milliseconds)."""
    partial: bool = False
    """True when the file is cut or its history has a gap: no claim about what lies past it."""
    version: str | None = None
    device: str | None = None
    """Device of the allocator whose events the file holds: cpu, cuda:0, ..."""
    host: str | None = None
    """Name of the machine where the file has it: to tell machines apart, never written anywhere."""
    backend: str | None = None
    """Backend of torch.distributed: nccl, gloo, ..."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions that the file names, by what they are of."""


@dataclass
class Count:
    """One line of import_stats before it knows its file."""

    count: int
    severity: Severity
    detail: str | None


@dataclass
class MemorySink:
    """Keeps everything in memory; for small files and for tests."""

    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    counts: dict[str, Count] = field(default_factory=dict)

    def write(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows; raises KeyError for a table or column that the schema does not have."""
        columns = {column.name for column in BY_NAME[table].columns}
        if unknown := set(batch.schema.names) - columns:
            raise KeyError(f"table {table} has no column {', '.join(sorted(unknown))}")
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        self.tables.setdefault(table, []).append(rows)

    def count(self, what: str, count: int, severity: Severity = "info", detail: str | None = None) -> None:
        """Add to a line of import_stats."""
        add_count(self.counts, what, count, severity, detail)

    def table(self, name: str) -> pa.Table:
        """All rows of one table, in the order written, with only the columns that were written."""
        return pa.concat_tables(self.tables.get(name, [BY_NAME[name].arrow.empty_table()]), promote_options="default")

    def full_table(self, name: str) -> pa.Table:
        """All rows of one table with all columns of the schema but ``rank``, missing ones null."""
        return unranked(name, self.tables.get(name, []))

    def rows(self, name: str) -> list[dict[str, object]]:
        """All rows of one table as dicts."""
        found: list[dict[str, object]] = self.table(name).to_pylist()
        return found


def unranked(table: str, parts: list[pa.Table]) -> pa.Table:
    """Rows of a table with all its columns but ``rank``; those that the parts lack are null."""
    schema = BY_NAME[table].unranked
    arrays = [
        part.select([name for name in part.schema.names if name != "rank"]).cast(
            pa.schema([schema.field(name) for name in part.schema.names if name != "rank"])
        )
        for part in parts
    ]
    return pa.concat_tables([schema.empty_table(), *arrays], promote_options="default").combine_chunks()


def add_count(counts: dict[str, Count], what: str, count: int, severity: Severity, detail: str | None) -> None:
    """Add one count to a collection; the first detail given is kept."""
    line = counts.setdefault(what, Count(0, severity, detail))
    line.count += count
    line.detail = line.detail or detail
