"""Arrow columns as NumPy arrays, with an explicit stand-in for null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from zeropeak.parse import lookup

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

Ints: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"

NEVER: Final = int(np.iinfo(np.int64).max)
"""Stand-in for the null of an end that was not seen: later than any time."""
ABSENT: Final = int(np.iinfo(np.int64).min)
"""Stand-in for any other null."""


def ints(table: pa.Table, name: str, null: int = ABSENT) -> Ints:
    """An int64 column, nulls replaced by ``null``."""
    return lookup.ints(table[name], null)
