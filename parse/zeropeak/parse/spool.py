"""Rows of a reader on disk, until the clock map that they need is known."""

from __future__ import annotations

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
    """A sink that keeps rows in Arrow IPC files, one a table; bounded memory.

    Attributes:
        folder: an empty folder of its own.
        counts: what the reader counted.
    """

    folder: Path
    counts: dict[str, Count] = field(default_factory=dict)
    _writers: dict[str, pa.ipc.RecordBatchStreamWriter | None] = field(default_factory=dict)

    def write(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows."""
        rows = conform(BY_NAME[table], batch, UNKNOWN_RANK)
        if table not in self._writers:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._writers[table] = pa.ipc.new_stream(str(self.folder / f"{table}.arrows"), rows.schema)
        writer = self._writers[table]
        assert writer is not None, "a spool that was closed"
        writer.write_table(rows)

    def count(self, what: str, count: int, severity: Severity = "info", detail: str | None = None) -> None:
        """Add to a line of import_stats."""
        add_count(self.counts, what, count, severity, detail)

    def closed(self) -> Spool:
        """The same rows for reading only, in any process that sees the folder."""
        for writer in self._writers.values():
            if writer is not None:
                writer.close()
        return Spool(self.folder, {}, dict.fromkeys(self._writers))

    def tables(self) -> list[str]:
        """Tables that hold rows."""
        return sorted(self._writers)

    def batches(self, table: str) -> Iterator[pa.Table]:
        """The rows of a table in the order written, batch by batch; ends writing to it."""
        if table not in self._writers:
            return
        if (writer := self._writers[table]) is not None:
            writer.close()
        with pa.OSFile(str(self.folder / f"{table}.arrows")) as file:
            for batch in pa.ipc.open_stream(file):
                yield pa.Table.from_batches([batch])

    def table(self, name: str) -> pa.Table:
        """All rows of a table."""
        return pa.concat_tables([BY_NAME[name].arrow.empty_table(), *self.batches(name)])
