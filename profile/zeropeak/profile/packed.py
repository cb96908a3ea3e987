"""Rows of integers, for what training records thousands of times a step.

A row costs one call that appends to a list. Text, kinds, phases and threads, which repeat, are numbers in tables of
their own; they become columns again in one go, at a flush.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from zeropeak.profile.labels import Edge, Kind, range_name

if TYPE_CHECKING:
    from collections.abc import Callable

    Ints = np.ndarray[Any, np.dtype[np.int64]]

_T = TypeVar("_T")

NONE: Final = -(1 << 63)
"""No value."""

WIDTHS: Final = {"events": 10, "event_params": 4, "storages": 9}
"""Values of a row.

events: event_id, edge, ts_ns, what, module_id, context, stream, allocated_bytes, reserved_bytes, parent_event_id.
event_params: event_id, param_id, address, storage_id.
storages: storage_id, edge, ts_ns, address, size_bytes, category, owner, param_id, event_id; category and owner are
numbers of texts.
"""

BEGIN, END, POINT = range(3)
"""Numbers of :class:`~zeropeak.profile.labels.Edge`."""

_EDGES: Final = pa.array([Edge.BEGIN.value, Edge.END.value, Edge.POINT.value])


class What(NamedTuple):
    """What an event is, and on what."""

    kind: Kind
    target: str

    @property
    def range_name(self) -> str:
        """See :func:`zeropeak.profile.labels.range_name`."""
        return range_name(self.kind, self.target)


class Context(NamedTuple):
    """Where an event happens."""

    thread_id: int
    step: int
    micro_step: int
    phase: str | None


class Numbers(Generic[_T]):
    """Numbers values from 0, in the order in which they are first asked for."""

    def __init__(self) -> None:
        self._numbers: dict[_T, int] = {}
        self._lock = threading.Lock()
        self._columns: dict[str, tuple[int, pa.Array]] = {}

    def of(self, value: _T) -> int:
        """Number of a value."""
        number = self._numbers.get(value)
        if number is None:
            with self._lock:
                number = self._numbers.setdefault(value, len(self._numbers))
        return number

    def column(self, name: str, numbers: Ints, get: Callable[[_T], Any], kind: pa.DataType) -> pa.Array:
        """What ``get`` gives for the values behind ``numbers``; null for :data:`NONE`. ``name`` is for the cache."""
        count, known = self._columns.get(name, (0, None))
        if known is None or count < len(self._numbers):
            values = list(self._numbers)
            known = pa.array([get(value) for value in values], kind)
            self._columns[name] = len(values), known
        return known.take(pa.array(numbers, mask=numbers == NONE))


def unpack(
    stream: str, rows: Ints, texts: Numbers[str], whats: Numbers[What], contexts: Numbers[Context]
) -> list[pa.Array]:
    """Columns of a stream, in the order of its schema.

    Args:
        stream: one of :data:`WIDTHS`.
        rows: one row a row, values as laid out there.
        texts, whats, contexts: what the numbers stand for.
    """
    columns = [np.ascontiguousarray(rows[:, place]) for place in range(rows.shape[1])]
    if stream == "event_params":
        event, param, address, storage = columns
        return [_int(event), _int(param, pa.int32()), _int(address), _int(storage)]
    if stream == "storages":
        number, edge, ts, address, size, category, owner, param, event = columns
        return [
            _int(number),
            _EDGES.take(pa.array(edge)),
            *(_int(values) for values in (ts, address, size)),
            *(texts.column("text", values, str, pa.string()) for values in (category, owner)),
            _int(param, pa.int32()),
            _int(event),
        ]
    event, edge, ts, what, module, context, stream_handle, allocated, reserved, parent = columns
    return [
        _int(event),
        _EDGES.take(pa.array(edge)),
        _int(ts),
        whats.column("kind", what, lambda one: one.kind.value, pa.string()),
        whats.column("target", what, lambda one: one.target, pa.string()),
        _int(module, pa.int32()),
        contexts.column("thread", context, lambda one: one.thread_id, pa.int64()),
        contexts.column("step", context, lambda one: one.step, pa.int64()),
        contexts.column("micro_step", context, lambda one: one.micro_step, pa.int64()),
        contexts.column("phase", context, lambda one: one.phase, pa.string()),
        *(_int(values) for values in (stream_handle, allocated, reserved, parent)),
    ]


def _int(values: Ints, kind: pa.DataType | None = None) -> pa.Array:
    missing = values == NONE
    if kind is None:
        return pa.array(values, mask=missing)
    return pa.array(np.where(missing, 0, values).astype(np.int32), kind, mask=missing)
