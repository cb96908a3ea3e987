"""Arrow columns made from buffers.

``pyarrow.array`` and ``pyarrow.scalar`` would import pandas, which takes as long as reading a hundred thousand entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Codes = NDArray[np.uint8]


def integers(values: Ints, missing: Flags | None = None) -> pa.Array:
    """An int64 column, null where ``missing``.

    >>> integers(np.array([7, 8]), np.array([False, True])).to_pylist()
    [7, None]
    """
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def texts(values: Sequence[str]) -> pa.Array:
    """A text column.

    >>> texts(["a", "", "bc"]).to_pylist()
    ['a', '', 'bc']
    """
    # A lone surrogate, which a pickle can hold, is no text that Arrow could store.
    encoded = [value.encode("utf-8", "replace") for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def words(codes: Codes, names: Sequence[str | None]) -> pa.Array:
    """A text column from places in ``names``; of these, the first may be None.

    >>> words(np.array([1, 0], np.uint8), (None, "oom")).to_pylist()
    ['oom', None]
    """
    indices = pa.Array.from_buffers(pa.int8(), len(codes), [None, pa.py_buffer(codes.astype(np.int8))])
    column = texts([name or "" for name in names])
    if names[0] is None:
        column = pa.concat_arrays([pa.nulls(1, pa.string()), column[1:]])
    return column.take(indices)


def constant(value: str, count: int) -> pa.Array:
    """A text column that is the same in every row."""
    return words(np.zeros(count, np.uint8), (value,))


def table(columns: dict[str, pa.Array]) -> pa.Table:
    """A table of columns."""
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))
