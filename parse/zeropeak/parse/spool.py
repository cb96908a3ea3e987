"""Rows of a reader on disk, until the clock map that they need is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.sink import Count, add_count
from zeropeak.parse.writer import conform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zeropeak.parse.sink import Severity

UNKNOWN_RANK = -1
"""Stands in for a rank that is not known yet, where the schema allows no null."""


@dataclass
class Spool:
    """A sink that keeps rows in Arrow IPC files, one for each table and set of columns; bounded memory.

    Attributes:
        folder: an empty folder of its own.
        counts: what the reader counted.
    """

    folder: Path
    counts: dict[str, Count] = field(default_factory=dict)
    _files: dict[str, list[tuple[str, pa.Schema]]] = field(default_factory=dict)
    """Files of each table in the order written, with their columns."""
    rows: Counter[str] = field(default_factory=Counter)
    """How many of each table."""
    _writers: dict[str, pa.ipc.RecordBatchStreamWriter] = field(default_factory=dict)

    def write(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows."""
        rows = conform(BY_NAME[table], batch, UNKNOWN_RANK, some=True)
        files = self._files.setdefault(table, [])
        if not files or files[-1][1] != rows.schema:
            self._close(table)
            self.folder.mkdir(parents=True, exist_ok=True)
            files.append((f"{table}-{len(files)}.arrows", rows.schema))
            self._writers[table] = pa.ipc.new_stream(str(self.folder / files[-1][0]), rows.schema)
        assert table in self._writers, "a spool that was closed"
        self._writers[table].write_table(rows)
        self.rows[table] += rows.num_rows

    def count(self, what: str, count: int, severity: Severity = "info", detail: str | None = None) -> None:
        """Add to a line of import_stats."""
        add_count(self.counts, what, count, severity, detail)

    def closed(self) -> Spool:
        """The same rows for reading only, in any process that sees the folder."""
        for table in self._files:
            self._close(table)
        return Spool(self.folder, {}, self._files, self.rows)

    def tables(self) -> list[str]:
        """Tables that hold rows."""
        return sorted(self._files)

    def batches(self, table: str) -> Iterator[pa.Table]:
        """The rows of a table in the order written, batch by batch, with all its columns; ends writing to it."""
        for rows in self.written(table):
            yield conform(BY_NAME[table], rows)

    def written(self, table: str) -> Iterator[pa.Table]:
        """The same, with the columns that were written."""
        self._close(table)
        for name, _ in self._files.get(table, ()):
            with pa.OSFile(str(self.folder / name)) as file:
                for batch in pa.ipc.open_stream(file):
                    yield pa.Table.from_batches([batch])

    def table(self, name: str) -> pa.Table:
        """All rows of a table."""
        return pa.concat_tables([BY_NAME[name].arrow.empty_table(), *self.batches(name)])

    def _close(self, table: str) -> None:
        if (writer := self._writers.pop(table, None)) is not None:
            writer.close()
