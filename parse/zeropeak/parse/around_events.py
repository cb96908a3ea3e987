"""What was allocated at the begin and the end of each event, where the capture read no counters: from the curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.lookup import ints

if TYPE_CHECKING:
    from zeropeak.parse.curve import Curve

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

_SIDES: Final = (("allocated_before_bytes", "start_ns", "left"), ("allocated_after_bytes", "end_ns", "right"))
"""Column, the time it is for, and on which side of that time: a block that begins with an event is not before it."""


def with_allocated(events: pa.Table, curve: Curve | None) -> pa.Table:
    """The events (zero_events or module_ranges) with allocated bytes filled in where they are null.

    They stay null where the curve does not speak for the time, and where it is of samples, which are these very
    counters.
    """
    if curve is None or curve.sampled:
        return events
    for column, time, side in _SIDES:
        ts = ints(events[time])
        known = np.asarray(pc.is_valid(events[time])) & (curve.start_ns <= ts) & (ts <= curve.end_ns)
        told = pa.array(_at(curve, ts, side), mask=~known)
        place = events.schema.get_field_index(column)
        events = events.set_column(place, column, pc.coalesce(events[column], told))
    return events


def _at(curve: Curve, ts: Ints, side: str) -> Ints:
    place = np.searchsorted(curve.ts, ts, "left" if side == "left" else "right") - 1
    if not len(curve.value):
        return np.full(len(ts), curve.baseline_bytes)
    return np.where(place < 0, curve.baseline_bytes, curve.value[np.maximum(place, 0)])
