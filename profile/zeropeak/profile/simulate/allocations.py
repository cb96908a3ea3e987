"""``allocations.arrows``: every allocation and free of a prediction, as an Arrow stream beside the event log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from zeropeak.profile.labels import ALLOCATIONS_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.profile.simulate.ledger import Row

SCHEMA: Final = pa.schema(
    [
        ("ts_ns", pa.int64()),
        ("action", pa.string()),
        ("device", pa.string()),
        ("address", pa.int64()),
        ("size_bytes", pa.int64()),
        ("allocated_bytes", pa.int64()),
        ("reserved_bytes", pa.int64()),
        ("stream", pa.int64()),
    ]
)

_ROWS: Final = 16_384


class Allocations:
    """Writer of the stream.

    Args:
        folder: existing folder ``raw/rank-<r>``.
    """

    def __init__(self, folder: Path) -> None:
        self._file = pa.OSFile(str(folder / ALLOCATIONS_FILE), "wb")
        self._writer = pa.ipc.new_stream(self._file, SCHEMA)
        # Frees come from callbacks, also in the middle of a write: they only append.
        self._rows: list[Row] = []

    def append(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)

    def flush(self, least: int = _ROWS) -> None:
        """Write the rows, when there are at least so many."""
        count = len(self._rows)
        if count >= max(1, least):
            columns = zip(*self._rows[:count], strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
            self._writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
            del self._rows[:count]

    def close(self) -> None:
        """Write what is left and the end of the stream."""
        self.flush(1)
        self._writer.close()
        self._file.close()
