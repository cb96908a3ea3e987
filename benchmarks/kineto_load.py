"""One trace to tables on disk: what ``benchmarks/kineto.py`` times, from the start of the process.

    python benchmarks/kineto_load.py trace.json.gz out/ --rank 0 --processes 2

Other scanning processes are started first, so that they work while this one imports numpy and pyarrow.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from zeropeak.parse.lean import end_lean, start_lean

if TYPE_CHECKING:
    import pyarrow as pa

    from zeropeak.parse.kineto.workers import Workers
    from zeropeak.parse.writer import TableWriter


class RankSink:
    """Puts the rows of one trace into the tables of a rank."""

    def __init__(self, writer: TableWriter, rank: int) -> None:
        self._writer, self._rank = writer, rank

    def write(self, table: str, rows: pa.RecordBatch) -> None:
        import numpy as np

        from zeropeak.parse.kineto.columns import int_column

        # Given here and not filled in by the writer, whose pyarrow.scalar would import pandas.
        rank = int_column(np.full(rows.num_rows, self._rank))
        self._writer.write(table, rows.append_column("rank", rank), self._rank)

    def count(self, what: str, count: int, severity: str = "info", detail: str | None = None) -> None:
        if severity in ("lost", "error"):
            print(f"{severity}: {count} {what}", file=sys.stderr)


def load(path: str, out: str, rank: int, workers: Workers | None) -> dict[str, int]:
    """Read a trace into ``out/tables``; rows by table."""
    from pathlib import Path

    from zeropeak.parse.kineto import reader as kineto
    from zeropeak.parse.writer import TableWriter

    with TableWriter(Path(out) / "tables") as writer:
        sink = RankSink(writer, rank)
        if workers is None:
            kineto.read(Path(path), sink)
        else:
            kineto.read(Path(path), sink, scanner=workers)
    return writer.rows


def main() -> None:
    start_lean()
    path, out, rank, processes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if processes == 1:
        print(load(path, out, rank, None))
        end_lean()
        return
    from pathlib import Path

    from zeropeak.parse.kineto.workers import Workers

    with Workers(Path(path), processes) as workers:
        print(load(path, out, rank, workers))
    end_lean()


if __name__ == "__main__":
    main()
