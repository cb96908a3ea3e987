"""An nsys sqlite export of any version: which tables and columns it has, and its rows as Arrow batches."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.lookup import Lookup
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BATCH_ROWS: Final = 65_536

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
        self, name: str, columns: Sequence[tuple[str, pa.DataType]], where: str = "", order: str = ""
    ) -> Iterator[pa.RecordBatch]:
        """Stream a table.

        Args:
            name: the table, without a version suffix; one that is absent has no rows.
            columns: names and Arrow types. ``a|b`` is the first of the two that is not null; ``*`` before a name reads
                the id in it as a string of ``StringIds``. The batch's column has the first plain name.
            where: SQL condition.
            order: SQL columns to order by.
        """
        real = self.table(name)
        if real is None:
            return
        joined = self._strings_in_sql()
        wanted = [self._expression(real, column, joined) for column, _ in columns]
        query = f'SELECT {", ".join(wanted)} FROM "{real}"'
        query += f" WHERE {where}" if where else ""
        query += f" ORDER BY {order}" if order else ""
        with self._errors():
            cursor = self._db.execute(query)
            cursor.arraysize = BATCH_ROWS
            while rows := cursor.fetchmany():
                arrays = []
                for (column, kind), values in zip(columns, zip(*rows, strict=True), strict=True):
                    if column.startswith("*") and not joined:
                        arrays.append(self._string_of(values))
                    else:
                        arrays.append(self._text(values) if kind == pa.string() else self._number(values, kind))
                yield pa.RecordBatch.from_arrays(arrays, [column.lstrip("*").split("|")[0] for column, _ in columns])

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
        self._strings = Lookup(pa.array([row[0] for row in rows], pa.int64())), self._text([row[1] for row in rows])
        return False

    def _string_of(self, ids: Sequence[object]) -> pa.Array:
        if self._strings is None:
            return pa.nulls(len(ids), pa.string())
        lookup, strings = self._strings
        return pc.take(strings, lookup.find(self._number(ids, pa.int64())))

    def _text(self, values: Sequence[object]) -> pa.Array:
        """Texts come as bytes, since sqlite checks nothing: decode all at once, one by one only where that fails."""
        raw = [value if value is None or isinstance(value, bytes) else str(value).encode() for value in values]
        try:
            return pc.cast(pa.array(raw, pa.binary()), pa.string())
        except pa.ArrowInvalid:
            texts = []
            for value in raw:
                text = None if value is None else value.decode("utf-8", "replace")
                self.bad_text += text is not None and text.encode() != value
                texts.append(text)
            return pa.array(texts, pa.string())

    def _number(self, values: Sequence[object], kind: pa.DataType) -> pa.Array:
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, OverflowError):
            # sqlite columns have no fixed type: one damaged cell must not lose the batch.
            whole = [value if isinstance(value, int) and abs(value) < 1 << 63 else None for value in values]
            return pa.array(whole, kind)


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
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        db.text_factory = bytes
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
