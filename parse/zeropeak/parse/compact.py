"""Millions of rows in little memory: texts as dictionaries, columns in buffers of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Ints = np.ndarray[tuple[int], np.dtype[np.integer]]

ROWS: Final = 1 << 18
"""Rows that are copied at once. Until then they share the buffers that their batches were read into, which hold all
columns."""

_CODE: Final = pa.dictionary(pa.int32(), pa.string())


def gather(batches: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """All rows of some batches, texts as dictionaries.

    Args:
        batches: rows with any subset of the columns.
        schema: the columns, for a table without rows.
    """
    whole: list[pa.Table] = []
    some: list[pa.Table] = []
    for rows in batches:
        some.append(_coded(rows))
        if sum(part.num_rows for part in some) >= ROWS:
            whole.append(_copied(some))
            some = []
    if some or not whole:
        whole.append(_copied(some or [_coded(schema.empty_table())]))
    return pa.concat_tables(whole, promote_options="default").unify_dictionaries()


def words(codes: Ints, values: Sequence[str | None]) -> pa.DictionaryArray:
    """A column of ``values[codes]``, a value of None being null."""
    missing = [code for code, value in enumerate(values) if value is None]
    mask = np.isin(codes, missing) if missing else None
    known = pa.array(["" if value is None else value for value in values], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=mask), known)


def same(value: str | None, count: int) -> pa.DictionaryArray:
    """A column of one text."""
    return words(np.zeros(count, np.int32), [value])


def plain(rows: pa.Table) -> pa.Table:
    """Rows with texts as texts again."""
    return _cast(rows, _CODE, pa.string())


def _coded(rows: pa.Table) -> pa.Table:
    return _cast(rows, pa.string(), _CODE)


def _cast(rows: pa.Table, old: pa.DataType, new: pa.DataType) -> pa.Table:
    fields: list[Any] = [field.with_type(new) if field.type == old else field for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _copied(parts: Sequence[pa.Table]) -> pa.Table:
    """Rows in one piece."""
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries().combine_chunks()
