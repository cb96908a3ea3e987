"""Laws of clock conversion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropeak.parse.clocks import ClockMap, base_map, boot_maps, fit
from zeropeak.parse.manifest import BootClock
from zeropeak.parse.sink import Source
from zeropeak.profile.errors import TraceError

UNIX = 1_700_000_000_000_000_000


@given(
    st.integers(-(10**18), 10**18),
    st.floats(-1e-5, 1e-5),
    st.lists(st.integers(0, 10**11), min_size=30, max_size=200, unique=True),
)
def test_a_fit_finds_offset_and_drift(offset: int, drift: float, times: list[int]) -> None:
    source = np.array(times, np.int64) + UNIX
    run = source + offset + np.rint(drift * (source - UNIX)).astype(np.int64)
    found = fit(source, run)
    assert np.abs(found.apply(source) - run).max() <= max(2, 1e-5 * np.ptp(source) * (np.ptp(source) < 5e8))


def test_late_ranges_do_not_bend_the_fit() -> None:
    log = UNIX + np.arange(1000) * 1_000_000
    seen = log - 5_000_000_000 + 200
    seen[::50] += 700_000_000
    found = fit(seen, log)
    assert found.outliers == 20
    assert found.residual_ns == 0
    assert found.residual_max_ns == 0
    assert found.apply(np.array([seen[1]])).tolist() == [log[1]]


def test_one_shared_event_gives_an_offset() -> None:
    assert fit(np.array([10]), np.array([UNIX])).apply(np.array([17])).tolist() == [UNIX + 7]


def test_events_of_another_run_are_refused() -> None:
    source = np.arange(100) * 1_000_000_000
    with pytest.raises(TraceError, match="not of this run"):
        fit(source, UNIX + source * 2)


def test_ranks_of_one_machine_share_the_lowest_ranks_reading() -> None:
    maps = boot_maps({1: BootClock("a", 50, UNIX + 999), 0: BootClock("a", 10, UNIX), 2: BootClock("b", 0, UNIX)})
    assert maps["a"].apply(np.array([11])).tolist() == [UNIX + 1]
    assert maps["b"].apply(np.array([11])).tolist() == [UNIX + 11]


def test_a_clock_without_a_base_is_an_error_and_never_offset_zero() -> None:
    with pytest.raises(TraceError, match="cannot be related"):
        base_map(Source("nsys", Path("x.sqlite"), clock="session"))
    known = base_map(Source("nsys", Path("x.sqlite"), clock="session", session_start_unix_ns=UNIX))
    assert known.apply(np.array([5])).tolist() == [UNIX + 5]
    assert known.residual_ns is None


def test_all_times_of_a_table_move_and_nulls_stay() -> None:
    rows = pa.table({"start_ns": [1, 2], "end_ns": pa.array([3, None], pa.int64()), "size_bytes": [4, 5]})
    moved = ClockMap(offset_ns=UNIX).apply_table(rows)
    assert moved.to_pydict() == {"start_ns": [UNIX + 1, UNIX + 2], "end_ns": [UNIX + 3, None], "size_bytes": [4, 5]}


def test_one_late_event_far_from_the_others_does_not_tilt_the_fit() -> None:
    """The init phase's range waits for the tool to start, seconds before the first of the others."""
    source = np.array([0, *(8_000_000_000 + 10_000_000 * n for n in range(60))], dtype=np.int64)
    run = source + 5_000
    run[0] -= 700_000_000
    fitted = fit(source, run)
    assert abs(fitted.drift) < 1e-6
    assert (fitted.outliers, fitted.offset_ns) == (1, 5_000)
