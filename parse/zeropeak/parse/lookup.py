"""Joining columns on an id: row numbers by key, as Arrow indices that are null where the key is not found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def ints(column: pa.ChunkedArray | pa.Array, null: int = -1) -> Ints:
    """An int64 column as a numpy array, nulls replaced."""
    values: Ints = pc.fill_null(pc.cast(column, pa.int64()), null).to_numpy().astype(np.int64, copy=False)
    return values


class Lookup:
    """Finds rows by an int64 key; where a key occurs more than once the first row wins.

    >>> Lookup(pa.array([7, 9, 7])).find(pa.array([9, 7, 8, None])).to_pylist()
    [1, 0, None, None]
    """

    def __init__(self, keys: pa.ChunkedArray | pa.Array) -> None:
        self._sorted, self._row = np.unique(ints(pc.drop_null(keys)), return_index=True)
        if keys.null_count:
            self._row = np.flatnonzero(pc.is_valid(keys).to_numpy(zero_copy_only=False))[self._row]

    def find(self, values: pa.ChunkedArray | pa.Array) -> pa.Array:
        """Row of each value, for ``pc.take``: taking with a null index gives null."""
        wanted = ints(values)
        place = np.searchsorted(self._sorted, wanted)
        if not len(self._sorted):
            return pa.nulls(len(wanted), pa.int64())
        place = np.minimum(place, len(self._sorted) - 1)
        missing = self._sorted[place] != wanted
        if values.null_count:
            missing |= np.asarray(pc.is_null(values))
        return pa.array(self._row[place], pa.int64(), mask=missing)


def take(values: np.ndarray, rows: Ints) -> np.ndarray:
    """``values[rows]``, where a row of -1, or any row of nothing, gives a value that the caller masks out."""
    return values[rows] if len(values) else np.zeros(len(rows), values.dtype)


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """All places of ranges of places, one after the other: (which range, place).

    >>> [places.tolist() for places in spread(np.array([5, 0, 8]), np.array([2, 0, 1]))]
    [[0, 0, 2], [5, 6, 8]]
    """
    place = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    return np.repeat(np.arange(len(count)), count), place
