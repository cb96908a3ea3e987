"""Millions of rows in little memory: texts as dictionaries, columns in buffers of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Ints = np.ndarray[tuple[int], np.dtype[np.integer]]

ROWS: Final = 1 << 18
"""Rows that are copied at once. Until then they share the buffers that their batches were read into, which hold all
columns."""

_CODE: Final = pa.dictionary(pa.int32(), pa.string())


def gather(batches: Iterable[pa.Table], key: str) -> dict[str | None, pa.Table]:
    """All rows of some batches by the values of a text column, texts as dictionaries.

    Args:
        batches: rows with any subset of the columns.
        key: the text column; it stays. Values come in the order of their first rows.
    """
    gathered: dict[str | None, _Gathered] = {}
    for rows in batches:
        for value, part in _split(rows, key):
            gathered.setdefault(value, _Gathered()).add(part)
    return {value: parts.table() for value, parts in gathered.items()}


class _Gathered:
    """Rows that come one batch after the other."""

    def __init__(self) -> None:
        self._whole: list[pa.Table] = []
        self._some: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        self._some.append(_coded(rows))
        if sum(part.num_rows for part in self._some) >= ROWS:
            self._copy()

    def table(self) -> pa.Table:
        if self._some:
            self._copy()
        return pa.concat_tables(self._whole, promote_options="default").unify_dictionaries()

    def _copy(self) -> None:
        self._whole.append(_copied(self._some))
        self._some = []


def _split(rows: pa.Table, key: str) -> Iterator[tuple[str | None, pa.Table]]:
    if key not in rows.schema.names:
        yield None, rows
        return
    for value in pc.unique(rows[key]).to_pylist():
        mine = pc.is_null(rows[key]) if value is None else pc.equal(rows[key], value)
        yield value, kept(rows, mine)


def kept(rows: pa.Table, keep: pa.ChunkedArray) -> pa.Table:
    """The rows to keep; not copied when that is all of them."""
    return rows if pc.all(pc.fill_null(keep, False)).as_py() else rows.filter(keep)


def words(codes: Ints, values: Sequence[str | None]) -> pa.DictionaryArray:
    """A column of ``values[codes]`` with codes of one byte, a value of None being null."""
    missing = [code for code, value in enumerate(values) if value is None]
    mask = np.isin(codes, missing) if missing else None
    known = pa.array(["" if value is None else value for value in values], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8, copy=False), mask=mask), known)


def same(value: str | None, count: int) -> pa.DictionaryArray:
    """A column of one text."""
    return words(np.zeros(count, np.int8), [value])


def plain(rows: pa.Table) -> pa.Table:
    """Rows with texts as texts again."""
    return _cast(rows, pa.types.is_dictionary, pa.string())


def _coded(rows: pa.Table) -> pa.Table:
    return _cast(rows, pa.types.is_string, _CODE)


def _cast(rows: pa.Table, some: Callable[[pa.DataType], bool], new: pa.DataType) -> pa.Table:
    fields: list[Any] = [field.with_type(new) if some(field.type) else field for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _copied(parts: Sequence[pa.Table]) -> pa.Table:
    """Rows in one piece."""
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries().combine_chunks()
