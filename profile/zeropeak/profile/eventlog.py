"""The event log of one rank: Arrow IPC streams that a killed process leaves readable.

Each stream (:data:`zeropeak.profile.labels.STREAMS`) is one file ``<folder>/<stream>.arrows``. Rows are buffered and
written as whole record batches, straight to the kernel: after a SIGKILL only the rows since the last flush are gone.
A flush happens at marks, and with the first event :data:`FLUSH_NS` after the last one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from zeropeak.profile.packed import WIDTHS, Context, Numbers, What, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

FLUSH_ROWS: Final = 4096
FLUSH_VALUES: Final = 4 * FLUSH_ROWS
"""Values of packed ``event_params`` that make a flush due before its time."""
FLUSH_NS: Final = 200_000_000

_I64 = pa.int64()
_I32 = pa.int32()
_STR = pa.string()
_BOOL = pa.bool_()

SCHEMAS: Final = {
    "events": pa.schema(
        [
            ("event_id", _I64),
            ("edge", _STR),
            ("ts_ns", _I64),
            ("kind", _STR),
            ("target", _STR),
            ("module_id", _I32),
            ("thread_id", _I64),
            ("step", _I64),
            ("micro_step", _I64),
            ("phase", _STR),
            ("stream", _I64),
            ("allocated_bytes", _I64),
            ("reserved_bytes", _I64),
            ("parent_event_id", _I64),
        ]
    ),
    "event_params": pa.schema([("event_id", _I64), ("param_id", _I32), ("address", _I64), ("storage_id", _I64)]),
    "params": pa.schema(
        [
            ("param_id", _I32),
            ("name", _STR),
            ("module_id", _I32),
            ("shape", pa.list_(_I64)),
            ("dtype", _STR),
            ("numel", _I64),
            ("full_bytes", _I64),
            ("shard_bytes", _I64),
            ("trainable", _BOOL),
            ("persistent", _BOOL),
        ]
    ),
    "modules": pa.schema(
        [("module_id", _I32), ("name", _STR), ("class_name", _STR), ("parent_module_id", _I32)],
    ),
    "marks": pa.schema(
        [
            ("ts_ns", _I64),
            ("step", _I64),
            ("micro_step", _I64),
            ("mark", _STR),
            ("allocated_bytes", _I64),
            ("max_allocated_bytes", _I64),
            ("reserved_bytes", _I64),
            ("released_alive_bytes", _I64),
            ("released_alive_count", _I64),
            ("device_used_bytes", _I64),
        ]
    ),
    "retained": pa.schema(
        [
            ("ts_ns", _I64),
            ("step", _I64),
            ("micro_step", _I64),
            ("mark", _STR),
            ("param_id", _I32),
            ("size_bytes", _I64),
            ("address", _I64),
            ("storage_id", _I64),
            ("release_event_id", _I64),
            ("holder", _STR),
            ("holder_module", _STR),
        ]
    ),
    "storages": pa.schema(
        [
            ("storage_id", _I64),
            ("edge", _STR),
            ("ts_ns", _I64),
            ("address", _I64),
            ("size_bytes", _I64),
            ("category", _STR),
            ("owner", _STR),
            ("param_id", _I32),
            ("event_id", _I64),
        ]
    ),
    "saved": pa.schema(
        [
            ("ts_ns", _I64),
            ("step", _I64),
            ("micro_step", _I64),
            ("address", _I64),
            ("size_bytes", _I64),
            ("storage_id", _I64),
            ("holder", _STR),
            ("holder_module", _STR),
        ]
    ),
}
"""Columns of each stream, in the order that :meth:`EventLog.append` takes them. Times are CLOCK_MONOTONIC ns."""


class EventLog:
    """Append-only writer of one rank's streams; safe to call from several threads.

    The streams that training fills thousands of times a step (:data:`zeropeak.profile.packed.WIDTHS`) take integers
    only, through :meth:`adder`: text, events and threads as numbers from :attr:`texts`, :attr:`whats` and
    :attr:`contexts`, no value as :data:`~zeropeak.profile.packed.NONE`. The rest take rows of plain values.

    Args:
        folder: existing folder ``raw/rank-<r>``; files in it are overwritten.
        clock: returns monotonic nanoseconds.

    Attributes:
        packed: values of each packed stream that wait for a flush.
        due_ns: when the next flush is due; whoever has just read the clock calls :meth:`flush`.
    """

    def __init__(self, folder: Path, clock: Callable[[], int]) -> None:
        self.folder = folder
        self.texts: Numbers[str] = Numbers()
        self.whats: Numbers[What] = Numbers()
        self.contexts: Numbers[Context] = Numbers()
        self._clock = clock
        self._lock = threading.RLock()
        self._rows: dict[str, list[Sequence[object]]] = {name: [] for name in SCHEMAS if name not in WIDTHS}
        self.packed: dict[str, list[int]] = {name: [] for name in WIDTHS}
        self._files = {name: pa.OSFile(str(folder / f"{name}.arrows"), "wb") for name in SCHEMAS}
        self._writers = {name: pa.ipc.new_stream(self._files[name], schema) for name, schema in SCHEMAS.items()}
        self._before: list[Callable[[], None]] = []
        self.due_ns = clock() + FLUSH_NS
        self.closed = False

    def before_flush(self, call: Callable[[], None]) -> None:
        """Have ``call`` add the rows that it holds back whenever the log is about to be flushed."""
        self._before.append(call)

    def append(self, stream: str, row: Sequence[object]) -> None:
        """Add one row of a stream that is not packed (values in the order of the stream's schema)."""
        self._rows[stream].append(row)
        if len(self._rows[stream]) >= FLUSH_ROWS:
            self.flush()

    def adder(self, stream: str) -> Callable[[tuple[int, ...]], None]:
        """What adds one row to a packed stream: values in the order of :data:`zeropeak.profile.packed.WIDTHS`."""
        # One call into C: rows of several threads stay whole.
        return self.packed[stream].extend

    def flush(self) -> None:
        """Hand every buffered row to the kernel."""
        with self._lock:
            if self.closed:
                return
            for call in self._before:
                call()
            self.due_ns = self._clock() + FLUSH_NS
            # Rows that other threads append meanwhile stay for the next flush; rows leave when they are written.
            for name, values in self.packed.items():
                count = len(values) // WIDTHS[name] * WIDTHS[name]
                if count:
                    packed = np.array(values[:count], np.int64).reshape(-1, WIDTHS[name])
                    self._write(name, unpack(name, packed, self.texts, self.whats, self.contexts))
                    del values[:count]
            for name, rows in self._rows.items():
                taken = rows[:]
                if taken:
                    self._write(name, list(zip(*taken, strict=True)))
                    del rows[: len(taken)]

    def _write(self, name: str, columns: Sequence[Any]) -> None:
        schema = SCHEMAS[name]
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        self._writers[name].write_batch(pa.record_batch(arrays, schema=schema))

    def close(self) -> None:
        """Flush and write the end-of-stream markers; later rows are ignored."""
        with self._lock:
            if self.closed:
                return
            self.flush()
            self.closed = True
            for name, writer in self._writers.items():
                writer.close()
                self._files[name].close()
