"""An nsys sqlite export of any version: which tables and columns it has, and its rows as Arrow batches."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.lookup import Lookup
from zeropeak.parse.nsys_rows import fetch, fetch_ahead, open_read_only, pack
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from zeropeak.parse.nsys_rows import Column

AHEAD_ROWS: Final = 200_000
"""A table of fewer rows is read in the time that a process takes to start and to be heard."""

MAX_STRINGS_IN_MEMORY: Final = 1_000_000
"""Larger string tables are joined by sqlite, row by row, to keep memory constant."""


@dataclass
class Export:
    """One open export. Columns are asked for by name; one that this version does not have reads as null.

    Attributes:
        path: the file, for messages.
        columns: column names by table.
        bad_text: texts that were not UTF-8 and had characters replaced.
    """

    path: Path
    _db: sqlite3.Connection
    columns: dict[str, frozenset[str]]
    bad_text: int = 0
    _strings: tuple[Lookup, pa.Array] | None = field(default=None, repr=False)

    def table(self, name: str) -> str | None:
        """A table's real name: newer exports may suffix it (``NVTX_EVENTS_V2``); None when it is absent."""
        found = [real for real in self.columns if real == name or real.startswith(f"{name}_V")]
        return max(found, key=lambda real: (len(real), real), default=None)

    def has(self, name: str, column: str) -> bool:
        """Whether a table is there and has a column."""
        real = self.table(name)
        return real is not None and column in self.columns[real]

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a small query; texts are bytes."""
        with self._errors():
            return self._db.execute(query, values).fetchall()

    def batches(
        self,
        name: str,
        columns: Sequence[tuple[str, pa.DataType]],
        where: str = "",
        order: str = "",
        *,
        most: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Stream a table.

        Args:
            name: the table, without a version suffix; one that is absent has no rows.
            columns: names and Arrow types. ``a|b`` is the first of the two that is not null; ``*`` before a name reads
                the id in it as a string of ``StringIds``. The batch's column has the first plain name.
            where: SQL condition.
            order: SQL columns to order by.
            most: most rows meet the condition, so that another process may be worth its start.
        """
        real = self.table(name)
        if real is None:
            return
        joined = self._strings_in_sql()
        wanted = [self._expression(real, column, joined) for column, _ in columns]
        query = f'SELECT {", ".join(wanted)} FROM "{real}"'
        query += f" WHERE {where}" if where else ""
        query += f" ORDER BY {order}" if order else ""
        names = [column.lstrip("*").split("|")[0] for column, _ in columns]
        with self._errors():
            ahead = most and self._rows_at_most(real) >= AHEAD_ROWS and (os.cpu_count() or 1) > 1
            for batch in fetch_ahead(self.path, query) if ahead else fetch(self._db, query):
                arrays = []
                for (column, kind), pieces in zip(columns, batch, strict=True):
                    if column.startswith("*") and not joined:
                        arrays.append(self._string_of(_joined([self._numbers(piece) for piece in pieces])))
                    else:
                        read = self._texts if kind == pa.string() else self._numbers
                        arrays.append(_joined([read(piece) for piece in pieces]))
                yield pa.RecordBatch.from_arrays(arrays, names)

    def _rows_at_most(self, real: str) -> int:
        """Upper bound on the rows of a table, without counting them; 0 where there is none."""
        if not self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND CAST(name AS BLOB) = ?", real.encode()):
            return 0
        return int(self.rows(f'SELECT max(rowid) FROM "{real}"')[0][0] or 0)

    def _expression(self, real: str, column: str, joined: bool) -> str:
        """SQL for a column that may be absent."""
        plain = [f'"{name}"' for name in column.lstrip("*").split("|") if name in self.columns[real]]
        if not plain:
            return "NULL"
        value = plain[0] if len(plain) == 1 else f"coalesce({', '.join(plain)})"
        return f"(SELECT value FROM StringIds WHERE id = {value})" if column.startswith("*") and joined else value

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise TraceError(
                self.path, f"damaged or half-written sqlite file ({error}); export it again: nsys export --type sqlite"
            ) from error

    def _strings_in_sql(self) -> bool:
        if "StringIds" not in self.columns or self._strings is not None:
            return False
        if self.rows("SELECT count(*) FROM StringIds")[0][0] > MAX_STRINGS_IN_MEMORY:
            return True
        rows = self.rows("SELECT id, value FROM StringIds")
        ids, texts = (pack([row[place] for row in rows]) for place in (0, 1))
        self._strings = Lookup(self._numbers(ids)), self._texts(texts)
        return False

    def _string_of(self, ids: pa.Array) -> pa.Array:
        if self._strings is None:
            return pa.nulls(len(ids), pa.string())
        lookup, strings = self._strings
        return pc.take(strings, lookup.find(ids))

    def _texts(self, column: Column) -> pa.Array:
        if column.odd is not None:
            return self._text(column.odd)
        if column.numbers is None:
            return pa.nulls(column.length, pa.string())
        if column.text is None:
            return pc.cast(self._numbers(column), pa.string())
        offsets = np.zeros(column.length + 1, np.int32)
        np.cumsum(np.frombuffer(column.numbers, np.int64), out=offsets[1:])
        buffers = [_bitmap(column.valid), pa.py_buffer(offsets), pa.py_buffer(column.text)]
        raw = pa.Array.from_buffers(pa.binary(), column.length, buffers)
        try:
            return pc.cast(raw, pa.string())
        except pa.ArrowInvalid:
            return self._text(raw.to_pylist())

    def _text(self, values: Sequence[object]) -> pa.Array:
        """Texts come as bytes, since sqlite checks nothing: here where not all of them are bytes, or UTF-8."""
        texts = []
        for value in values:
            raw = value if value is None or isinstance(value, bytes) else str(value).encode()
            text = None if raw is None else raw.decode("utf-8", "replace")
            self.bad_text += text is not None and text.encode() != raw
            texts.append(text)
        return pa.array(texts, pa.string())

    def _numbers(self, column: Column) -> pa.Array:
        if column.odd is not None:
            return self._number(column.odd)
        if column.numbers is None or column.text is not None:
            return pa.nulls(column.length, pa.int64())
        return pa.Array.from_buffers(pa.int64(), column.length, [_bitmap(column.valid), pa.py_buffer(column.numbers)])

    def _number(self, values: Sequence[object]) -> pa.Array:
        try:
            return pa.array(values, pa.int64())
        except (pa.ArrowException, TypeError, OverflowError):
            # sqlite columns have no fixed type: one damaged cell must not lose the batch.
            whole = [value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None for value in values]
            return pa.array(whole, pa.int64())


def _bitmap(valid: bytes | None) -> pa.Buffer | None:
    if valid is None:
        return None
    return pa.py_buffer(np.packbits(np.frombuffer(valid, np.uint8), bitorder="little"))


def _joined(pieces: list[pa.Array]) -> pa.Array:
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """Open an export read-only.

    Raises:
        TraceError: it is empty, no sqlite database, or damaged.
    """
    if path.stat().st_size == 0:
        raise TraceError(
            path, "the file is empty: the export failed half-way; run it again: nsys export --type sqlite <report>"
        )
    db = open_read_only(path)
    try:
        export = Export(path, db, {})
        names = export.rows("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        for (name,) in names:
            table = name.decode("utf-8", "replace")
            quoted = table.replace('"', '""')
            found = export.rows(f'PRAGMA table_info("{quoted}")')
            export.columns[table] = frozenset(row[1].decode("utf-8", "replace") for row in found)
        yield export
    finally:
        db.close()
