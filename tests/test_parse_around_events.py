"""Allocated bytes at the ends of events, from the memory curve."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zeropeak.parse.around_events import with_allocated
from zeropeak.parse.curve import Curve


def curve(*, sampled: bool = False) -> Curve:
    """5 bytes before 10, 7 from 10 on, 4 from 20 on; known from 0 to 30."""
    return Curve(np.array([10, 20]), np.array([7, 4]), 5, 0, 30, sampled)


def events(*rows: tuple[int, int | None, int | None]) -> pa.Table:
    start, end, before = zip(*rows, strict=True)
    null = pa.nulls(len(rows), pa.int64())
    return pa.table(
        {
            "start_ns": pa.array(start, pa.int64()),
            "end_ns": pa.array(end, pa.int64()),
            "allocated_before_bytes": pa.array(before, pa.int64()),
            "allocated_after_bytes": null,
        }
    )


def told(table: pa.Table) -> list[tuple[int | None, int | None]]:
    return list(
        zip(table["allocated_before_bytes"].to_pylist(), table["allocated_after_bytes"].to_pylist(), strict=True)
    )


def test_what_begins_with_an_event_is_not_before_it_and_what_ends_it_is_after_it() -> None:
    assert told(with_allocated(events((10, 20, None), (5, 6, None), (20, 25, None)), curve())) == [
        (5, 4),
        (5, 5),
        (7, 4),
    ]


def test_counters_that_were_read_are_kept_and_unknown_times_stay_unknown() -> None:
    assert told(with_allocated(events((12, None, 99), (40, 41, None)), curve())) == [(99, None), (None, None)]


def test_a_curve_of_samples_tells_nothing_new() -> None:
    assert told(with_allocated(events((12, 15, None)), curve(sampled=True))) == [(None, None)]
    assert told(with_allocated(events((12, 15, None)), None)) == [(None, None)]
