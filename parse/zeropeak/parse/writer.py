"""The only place that writes tables: checks every batch against the schema and writes one parquet file a rank."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zeropeak.parse.lean import give_back
from zeropeak.parse.schema import BY_NAME, TABLES, Table
from zeropeak.profile.errors import ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    Ints = np.ndarray[tuple[int], np.dtype[np.integer]]
    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

WAITING_BYTES: Final = 32 << 20
"""Rows wait in memory up to this size, over all open files together; then those of the largest are written. A file
that never had to be written early is sorted as a whole, another one within each row group only."""

ROWS_AT_ONCE: Final = 1 << 17
"""Rows that come in order are brought to their schema by so many, which may be several times as large as before."""

GIVE_BACK_BYTES: Final = 128 << 20
"""Rows that are written between two calls of :func:`zeropeak.parse.lean.give_back`."""

SCRATCH: Final = ".scratch"

COUNTERS: Final = ("event_id", "block_id", "correlation_id")
"""Columns of numbers that go up by little from row to row, as times (``*_ns``) do."""


def conform(table: Table, rows: pa.RecordBatch | pa.Table, rank: int | None = None, *, some: bool = False) -> pa.Table:
    """Bring rows to a table's exact schema.

    Args:
        table: the declared table.
        rows: any subset of its columns, in any order.
        rank: fills a ``rank`` column that is missing.
        some: leave columns out that are missing.

    Returns:
        The rows with all columns in the declared order; columns that were missing are null.

    Raises:
        KeyError: ``rows`` has a column that the table does not declare.
        ValueError: a column that may not be null holds nulls, or a value does not fit the column's type.
    """
    names = set(rows.schema.names)
    if unknown := names - {column.name for column in table.columns}:
        raise KeyError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    arrays, fields = [], []
    for column, declared in zip(table.columns, table.arrow, strict=True):
        if some and column.nullable and column.name not in names:
            continue
        if column.name in names:
            values = rows.column(column.name)
            if values.type != column.type:
                values = pc.cast(values, column.type)
        elif column.name == "rank" and rank is not None:
            values = pa.repeat(pa.scalar(rank, column.type), rows.num_rows)
        else:
            values = pa.nulls(rows.num_rows, column.type)
        if not column.nullable and values.null_count:
            raise ValueError(f"{table.name}.{column.name}: {values.null_count} nulls in a column that has none")
        arrays.append(values)
        fields.append(declared)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def sorting(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> pa.Array | None:
    """What brings rows into ascending order of some columns, equal ones as they were, nulls last; None: nothing to do.

    Many readers give rows in order, and finding that out takes a twentieth of the time of sorting them.
    """
    if not names or not rows.num_rows:
        return None
    keys = rows.select(names)
    keys = keys.combine_chunks() if isinstance(keys, pa.Table) else pa.Table.from_batches([keys])
    if _in_order(keys, names):
        return None
    return pc.sort_indices(keys, [(name, "ascending") for name in names])


def in_one_piece(column: pa.ChunkedArray, order: pa.Array | None) -> pa.Array:
    """A column in some order: where its pieces end decides where parquet's pages do."""
    if order is not None:
        column = column.take(order)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _in_order(rows: pa.Table, names: Sequence[str]) -> bool:
    """Whether a stable sort would leave the rows as they are; False also where a column is not int64.

    Args:
        rows: at least one, each column in one piece.
        names: columns to sort by.
    """
    if any(rows.schema.field(name).type != pa.int64() for name in names):
        return False
    # Where a row belongs before the one ahead of it, by the columns from the last to the first.
    early = np.zeros(rows.num_rows - 1, bool)
    for name in reversed(names):
        column = rows.column(name).chunk(0)
        here = slice(column.offset, column.offset + len(column))
        bits, numbers = column.buffers()
        values = np.frombuffer(numbers, np.int64)[here]
        if not column.null_count:
            early = _before(values, early)
            continue
        valid = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[here]
        values = np.where(valid, values, 0)  # what lies under a null is anything
        early = _before(valid == 0, _before(values, early))
    return not early.any()


def _before(values: Ints, otherwise: Flags) -> Flags:
    """Where a value is less than the one ahead of it; ``otherwise`` decides between equal ones."""
    ahead, here = values[:-1], values[1:]
    early: Flags = (here < ahead) | ((here == ahead) & otherwise)
    return early


def _encodings(table: Table) -> dict[str, Any]:
    """Options of a parquet file of a table.

    Dictionaries are for values that come again. Of times and counters no value does: stored by their differences they
    take a third to two thirds of the space, 30 % less time to write, and less to read.
    """
    ups = [
        column.name
        for column in table.columns
        if column.type == pa.int64() and (column.name.endswith("_ns") or column.name in COUNTERS)
    ]
    return {
        "compression": "zstd",
        "use_dictionary": [column.name for column in table.columns if column.name not in ups],
        "column_encoding": dict.fromkeys(ups, "DELTA_BINARY_PACKED"),
    }


@dataclass
class _File:
    """One parquet file in the making. ``earlier`` is a file whose rows go into it, too."""

    table: Table
    path: Path
    earlier: Path | None = None
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    written_rows: int = 0
    writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        self.waiting.append(rows)
        self.waiting_bytes += rows.nbytes

    def take_earlier(self) -> Iterator[pa.Table]:
        """Rows of the earlier file, which is gone afterwards."""
        if self.earlier is not None:
            path, self.earlier = self.earlier, None
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    yield pa.Table.from_batches([batch], self.table.arrow)
            path.unlink()

    def flush(self) -> None:
        """Write what is waiting as a sorted row group; an empty file gets its schema."""
        rows = pa.concat_tables(self.waiting or [self.table.arrow.empty_table()])
        self.waiting, self.waiting_bytes = [], 0
        if self.writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(self.path, self.table.arrow, **_encodings(self.table))
        self.written_rows += rows.num_rows
        if rows.num_rows:
            order = sorting(rows, self.table.order)
            columns = []
            for _ in rows.schema.names:  # one by one, so that not all of them are in memory twice
                columns.append(in_one_piece(rows.column(0), order))
                rows = rows.remove_column(0)
            self.writer.write_table(pa.Table.from_arrays(columns, schema=self.table.arrow))

    def close(self) -> int:
        """Finish the file and return its number of rows."""
        if self.earlier is not None:
            return adopt(self.earlier, self.path)
        if self.waiting or self.writer is None:
            self.flush()
        assert self.writer is not None
        self.writer.close()
        return self.written_rows


def adopt(earlier: Path, path: Path) -> int:
    """Move a finished file into place; returns its number of rows."""
    rows: int = pq.read_metadata(earlier).num_rows
    path.parent.mkdir(parents=True, exist_ok=True)
    earlier.rename(path)
    return rows


class TableFiles:
    """Parquet files of tables in a folder, each open until :meth:`close`.

    What is in the folder :attr:`earlier` by then (rows that an export of several ranks gave) goes into the same files.

    Args:
        folder: existing folder; gets ``<table>/rank-<r>.parquet``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[str, int | None], _File] = {}
        self._waiting_bytes = 0
        self._flushed_bytes = 0

    def write(self, table: str, rows: pa.RecordBatch | pa.Table, rank: int | None = None) -> None:
        """Append rows; ``rank`` names the file and fills a missing ``rank`` column (None: rows of no rank)."""
        declared = BY_NAME[table]
        file = self._file(declared, rank)
        for before in file.take_earlier():
            self._wait(file, before)
        step = max(1, rows.num_rows)
        if (
            step > ROWS_AT_ONCE
            and sorting(rows, [name for name in declared.order if name in rows.schema.names]) is None
        ):
            step = ROWS_AT_ONCE
        for begin in range(0, max(1, rows.num_rows), step):
            self._wait(file, conform(declared, rows.slice(begin, step), rank))

    def _wait(self, file: _File, rows: pa.Table) -> None:
        before = file.waiting_bytes
        file.add(rows)
        self._waiting_bytes += file.waiting_bytes - before
        while self._waiting_bytes > WAITING_BYTES:
            largest = max(self._files.values(), key=lambda file: file.waiting_bytes)
            self._waiting_bytes -= largest.waiting_bytes
            self._flushed_bytes += largest.waiting_bytes
            largest.flush()
        if self._flushed_bytes >= GIVE_BACK_BYTES:
            self._flushed_bytes = 0
            give_back()

    def declare(self, ranks: Iterable[int]) -> None:
        """Make sure that every table has a file for each of these ranks, be it empty."""
        for rank in ranks:
            for table in TABLES:
                if table.name != "import_stats":
                    self._file(table, rank)

    def close(self) -> dict[str, int]:
        """Finish all files and return the rows by table."""
        rows: dict[str, int] = {}
        for (table, _), file in self._files.items():
            rows[table] = rows.get(table, 0) + file.close()
        self._files.clear()
        return rows

    def abandon(self) -> None:
        """Close open files without finishing them."""
        for file in self._files.values():
            if file.writer is not None:
                file.writer.close()
        self._files.clear()

    @property
    def scratch(self) -> Path:
        """A folder for intermediate files; gone when the tables are in place."""
        folder = self._folder / SCRATCH
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def earlier(self) -> Path:
        """A folder for rows that are there before the ranks' own."""
        folder = self.scratch / "earlier"
        folder.mkdir(exist_ok=True)
        return folder

    def _file(self, table: Table, rank: int | None) -> _File:
        key = (table.name, rank)
        if key not in self._files:
            name = f"{table.name}/rank-{'none' if rank is None else rank}.parquet"
            earlier = self._folder / SCRATCH / "earlier" / name
            self._files[key] = _File(table, self._folder / name, earlier if earlier.is_file() else None)
        return self._files[key]


class TableWriter(TableFiles):
    """Writes all tables of a run into ``<run>/tables``, replacing the old ones only when the new are complete.

    Use as a context manager: leaving it normally puts the new tables in place, an exception throws them away.

    Args:
        tables: the ``tables`` folder to (re)place.
    """

    def __init__(self, tables: Path) -> None:
        self._final = tables
        self.folder = tables.with_name(tables.name + ".tmp")
        super().__init__(self.folder)
        self.rows: dict[str, int] = {}
        """Rows by table, complete after the context ends."""

    def __enter__(self) -> TableWriter:
        if self._final.is_symlink() and not self._final.exists():
            raise ZeropeakError(f"{self._final}: a link that leads nowhere, the tables cannot go there; remove it")
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise ZeropeakError(f"{self.folder}: cannot be written ({error.strerror}); parse a copy") from error
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._finish()
            return
        self.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise ZeropeakError(f"{self.folder.parent}: no space left for the tables; free some") from error

    def declare(self, ranks: Iterable[int]) -> None:
        """Make sure that every table has a file for each of these ranks, be it empty."""
        super().declare(ranks)
        self._file(BY_NAME["import_stats"], None)

    def add_rows(self, rows: dict[str, int]) -> None:
        """Count rows that another process wrote into :attr:`folder`."""
        for table, count in rows.items():
            self.rows[table] = self.rows.get(table, 0) + count

    def _finish(self) -> None:
        self.add_rows(self.close())
        for left in self.earlier.glob("*/*.parquet"):
            self.add_rows({left.parent.name: adopt(left, self.folder / left.relative_to(self.earlier))})
        shutil.rmtree(self.folder / SCRATCH, ignore_errors=True)
        old = self._final.with_name(self._final.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        if self._final.exists():
            self._final.rename(old)
        self.folder.rename(self._final)
        shutil.rmtree(old, ignore_errors=True)


def rewrite(table: Table, path: Path, change: Callable[[pa.Table], pa.Table], more: pa.Table | None = None) -> None:
    """Change the rows of a finished file, one row group after the other, and add some; their order must stay."""
    draft = path.with_suffix(".new")
    with pq.ParquetFile(path) as file, pq.ParquetWriter(draft, table.arrow, compression="zstd") as writer:
        if more is not None:
            writer.write_table(conform(table, more))
        for group in range(file.num_row_groups):
            writer.write_table(conform(table, change(file.read_row_group(group))))
    draft.replace(path)
