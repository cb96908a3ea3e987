"""Allocations of a prediction (``allocations.arrows``) as memory_events: what a fake run's storages did, in order.

Nothing was measured: addresses and reserved bytes are those of a model of the allocator, and time counts happenings on
the event log's own clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from zeropeak.parse.sink import Source
from zeropeak.parse.streams import read_stream

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.parse.sink import Sink

NAME = "simulated"
_COLUMNS = ("ts_ns", "action", "device", "address", "size_bytes", "allocated_bytes", "reserved_bytes", "stream")


def read(path: Path, sink: Sink) -> Source:
    """Read a stream, whole or cut.

    Args:
        path: ``raw/rank-<r>/allocations.arrows``.
        sink: takes memory_events in the order of happening, on the event log's clock.
    """
    rows, whole = read_stream(path, sink)
    if rows is not None:
        events = rows.select(_COLUMNS)
        sink.write("memory_events", events.append_column("source", pa.repeat(pa.scalar(NAME), events.num_rows)))
        sink.count("memory_events", events.num_rows, "info", "allocations and frees of the prediction")
    return Source(reader=NAME, path=path, clock="boot", partial=not whole)
