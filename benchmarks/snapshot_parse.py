"""What ``snapshot.py`` measures of zeropeak: ``python benchmarks/snapshot_parse.py FILE [TABLES]``.

Reads a snapshot and prints the peak; with a folder TABLES, the product's own writer puts the tables there as parquet.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from zeropeak.parse.sink import MemorySink
from zeropeak.parse.snapshot.columns import integers
from zeropeak.parse.snapshot.reader import read
from zeropeak.parse.writer import TableWriter


class Rank0(MemorySink):
    """Hands rows on to a writer as those of rank 0."""

    def __init__(self, writer: TableWriter) -> None:
        super().__init__()
        self._writer = writer

    def write(self, table: str, batch: Any) -> None:
        """Add the rank and pass the rows on."""
        rank = integers(np.zeros(batch.num_rows, np.int64))
        self._writer.write(table, batch.append_column("rank", rank), 0)


def main() -> None:
    """Read and print."""
    path = Path(sys.argv[1])
    if len(sys.argv) > 2:
        with TableWriter(Path(sys.argv[2])) as writer:
            sink: MemorySink = Rank0(writer)
            read(path, sink)
    else:
        sink = MemorySink()
        read(path, sink)
    for what, line in sink.counts.items():
        if what.startswith("peak_allocated_bytes"):
            print(what, line.count, line.detail)


if __name__ == "__main__":
    main()
