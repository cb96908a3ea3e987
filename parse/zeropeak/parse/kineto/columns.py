"""Plain columns to Arrow's.

``pyarrow.array`` does the same but imports pandas at its first call: 0.25 s, as long as reading a whole trace takes.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence

    Ints = np.ndarray[tuple[int], np.dtype[np.integer]]
    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

_INTEGER: Final = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,32}|[0-9]{1,32})")
_MIN, _MAX = -(1 << 63), (1 << 63) - 1


def integer(value: object, counts: Counter[str]) -> int | None:
    """An int64 from a JSON scalar, or None; counts what does not fit.

    >>> from collections import Counter
    >>> found = Counter()
    >>> [integer(value, found) for value in (7, 7.0, "0x10", "012", "stream 7", 7.5, None, 2**63)]
    [7, 7, 16, 12, None, None, None, None]
    >>> found
    Counter({'integers_too_large': 1})
    """
    if isinstance(value, str):
        value = int(value, 16 if "x" in value.lower() else 10) if _INTEGER.fullmatch(value) else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if _MIN <= value <= _MAX:
        return value
    counts["integers_too_large"] += 1
    return None


def address(value: object) -> object:
    """An address as it is, or the first of a list printed as text."""
    if isinstance(value, str):
        found = _INTEGER.search(value)
        return found[0] if found else None
    return value


def integers(values: array[int] | Sequence[object], counts: Counter[str]) -> tuple[Ints, Flags | None]:
    """int64 values (0 for null) and which are not null; None when all are."""
    if isinstance(values, array):
        return np.frombuffer(values, np.int64), None
    try:
        filled = array("q", [0 if value is None else value for value in values])  # type: ignore[type-var]
    except (TypeError, OverflowError):
        return integers([integer(value, counts) for value in values], counts)
    return np.frombuffer(filled, np.int64), np.array([value is not None for value in values], bool)


def int_column(values: Ints, valid: Flags | None = None) -> pa.Array:
    """A column of int64; null where ``valid`` is False."""
    return pa.Array.from_buffers(pa.int64(), len(values), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(values))])


def text_column(indices: Ints, values: Sequence[object]) -> pa.Array:
    """A column of strings: ``values[indices]``; null where the value is None."""
    if len(values) == 1:
        return constant(values[0], len(indices))
    encoded = [b"" if value is None else str(value).encode(errors="replace") for value in values]
    offsets = np.zeros(len(indices) + 1, np.int32)
    np.cumsum(np.array([len(one) for one in encoded], np.int32)[indices], out=offsets[1:])
    text = b"".join([encoded[index] for index in indices.tolist()])
    valid = np.array([value is not None for value in values], bool)[indices] if None in values else None
    return pa.Array.from_buffers(pa.string(), len(indices), [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(text)])


def constant(value: object, count: int) -> pa.Array:
    """A column of one string, or of nulls."""
    text = b"" if value is None else str(value).encode(errors="replace")
    offsets = np.arange(count + 1, dtype=np.int32) * len(text)
    valid = _bitmap(np.zeros(count, bool)) if value is None else None
    return pa.Array.from_buffers(pa.string(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(text * count)])


def batch(columns: Mapping[str, Any], keep: Flags) -> pa.RecordBatch:
    """Rows for which ``keep`` is True."""
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    if keep.all():
        return rows
    mask = pa.Array.from_buffers(pa.bool_(), len(keep), [None, pa.py_buffer(np.packbits(keep, bitorder="little"))])
    return rows.filter(mask)


def _bitmap(valid: Flags | None) -> pa.Buffer | None:
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
