"""The only place that converts time: from the clock of a source to the one clock of the run.

The run's clock is Unix time as the lowest rank of each machine paired it with CLOCK_MONOTONIC, so all event logs of one
machine differ from it by the same constant. A trace of another tool is laid onto it by the events that both recorded:
offset and drift are fitted to their begin times, and the error that is left is reported in nanoseconds. Machines whose
clocks disagree are laid onto each other by the ends of collectives that they ran together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.parse.manifest import BootClock
    from zeropeak.parse.sink import Source

    Times = np.ndarray[tuple[int], np.dtype[np.int64]]

MIN_SHARED_FOR_DRIFT: Final = 20
"""Fewer shared events than this, or less than :data:`MIN_SPAN_NS` of them, give an offset only."""

MIN_SPAN_NS: Final = 500_000_000

OUTLIER: Final = 20.0
"""An event further off than this many times the median error says nothing about the clocks: something happened between
the log's reading and the range's. (The first range of a process waits for the tool to start: 0.7 s, measured.)"""

MIN_ERROR_NS: Final = 1_000
"""Errors up to this are never outliers: both sides call their clock through Python."""

QUARTZ: Final = 1e-4
"""What two clocks of working machines drift apart at most."""

MAX_DRIFT: Final = 1e-3
"""A fit beyond this compares events that are not the same."""


TOLERANCE_NS: Final = 50_000
"""What two clocks of one machine may seem to disagree by. (On two GPUs of one machine none of 1,791 collectives ended
on one before it began on the other; their ends were 0.8 us apart in the middle, 0.1 ms at most.)"""

MOST_WRONG: Final = 0.01
"""Share of collectives that may contradict two clocks which agree."""

MOST_APART_NS: Final = 1_000_000
"""Typical distance of a collective's ends on two machines, once their clocks agree; beyond it these are not the same
collectives (steps of unequal length, say, of which two ranks recorded different ones)."""


@dataclass(frozen=True)
class ClockMap:
    """``run_ns = source_ns + offset_ns + drift * (source_ns - reference_ns)``; see table ``clocks``."""

    reference_ns: int = 0
    offset_ns: int = 0
    drift: float = 0.0
    shared_events: int = 0
    outliers: int = 0
    residual_ns: int | None = None
    residual_max_ns: int | None = None

    def apply(self, ts: Times) -> Times:
        """Convert int64 nanoseconds of the source to the run's clock."""
        moved: Times = ts + self.offset_ns
        if self.drift:
            moved += np.rint((ts - self.reference_ns) * self.drift).astype(np.int64)
        return moved

    def apply_table(self, rows: pa.Table) -> pa.Table:
        """Convert every ``*_ns`` column of a table (all of them are points in time); nulls stay null."""
        if not self.offset_ns and not self.drift:
            return rows
        for index, name in enumerate(rows.schema.names):
            if name.endswith("_ns") and pa.types.is_int64(rows.schema.field(index).type):
                column = rows.column(index).combine_chunks()
                moved = self.apply(np.asarray(pc.fill_null(column, 0)))
                mask = np.asarray(pc.is_null(column)) if column.null_count else None
                rows = rows.set_column(index, rows.schema.field(index), pa.array(moved, pa.int64(), mask=mask))
        return rows


IDENTITY: Final = ClockMap()


def boot_maps(clocks: Mapping[int, BootClock]) -> dict[str, ClockMap]:
    """Map each machine's CLOCK_MONOTONIC to the run's clock by the paired reading of its lowest rank.

    Args:
        clocks: paired readings by rank.

    Returns:
        Clock maps by boot id.
    """
    maps: dict[str, ClockMap] = {}
    for rank in sorted(clocks):
        clock = clocks[rank]
        maps.setdefault(clock.boot_id, ClockMap(clock.monotonic_ns, clock.unix_ns - clock.monotonic_ns))
    return maps


def fit(source_ns: Times, run_ns: Times, file: object = "trace") -> ClockMap:
    """Fit offset and drift to events seen on both clocks.

    A range is pushed a little before or after the log reads its clock, sometimes much later (a garbage collection, a
    preemption); so the fit starts from what a pure offset and quartz explain, drops the worst outliers and repeats. (A
    line through everything would follow one late event that lies far from the others, such as the first.)

    Args:
        source_ns: begin times on the source's clock, any order.
        run_ns: begin times of the same events on the run's clock.
        file: the source, for the message.

    Raises:
        TraceError: the clocks run apart by more than 0.1 %: these are not the same events.
    """
    reference = _middle(source_ns)
    offset = _middle(run_ns - source_ns)
    x = (source_ns - reference).astype(np.float64)
    y = (run_ns - source_ns - offset).astype(np.float64)
    drift, shift = 0.0, 0.0
    keep = np.abs(y) <= max(OUTLIER * float(np.median(np.abs(y))), float(MIN_ERROR_NS)) + QUARTZ * np.abs(x)
    enough = len(x) >= MIN_SHARED_FOR_DRIFT and np.ptp(x) >= MIN_SPAN_NS
    for _ in range(10):
        if enough:
            drift, shift = (float(v) for v in np.polyfit(x[keep], y[keep], 1))
        error = np.abs(y - drift * x - shift)
        again = error <= max(OUTLIER * float(np.median(error)), float(MIN_ERROR_NS))
        if (again == keep).all() or again.sum() < 2:
            break
        keep = again
    if abs(drift) > MAX_DRIFT:
        raise TraceError(file, f"the events it shares with the log drift by {drift:.2%}; it is not of this run")
    fitted = ClockMap(reference, offset + round(shift), drift)
    errors = np.abs(fitted.apply(source_ns) - run_ns)
    return replace(
        fitted,
        shared_events=int(keep.sum()),
        outliers=int((~keep).sum()),
        residual_ns=_middle(errors),
        residual_max_ns=int(errors[keep].max()),
    )


@dataclass(frozen=True)
class Ends:
    """Collectives on two machines: the last begin and the first end on each, each on its own clock."""

    our_begin: Times
    our_end: Times
    their_begin: Times
    their_end: Times

    def agree(self, slack_ns: int = TOLERANCE_NS) -> bool:
        """Whether next to none of them ends on one machine before it began on the other."""
        early = (self.their_end + slack_ns < self.our_begin) | (self.our_end + slack_ns < self.their_begin)
        return int(early.sum()) <= max(2, MOST_WRONG * len(early))


def fit_ends(ends: Ends) -> ClockMap:
    """Map their clock to ours: a collective ends on both at one moment, whoever began it last.

    Raises:
        TraceError: no map makes the two agree.
    """
    problem = "different stretches of the run, or a clock that jumped"
    try:
        fitted = fit(ends.their_end, ends.our_end, "collectives")
    except TraceError as error:
        raise TraceError("collectives", f"the collectives in common fit no clock: {problem}") from error
    typical = fitted.residual_ns or 0
    placed = Ends(ends.our_begin, ends.our_end, fitted.apply(ends.their_begin), fitted.apply(ends.their_end))
    if abs(fitted.drift) > 2 * QUARTZ or typical > MOST_APART_NS or not placed.agree(max(TOLERANCE_NS, 10 * typical)):
        raise TraceError(
            "collectives",
            f"the collectives in common end {typical:,} ns apart even with their clocks fitted: {problem}",
        )
    return fitted


def _middle(values: Times) -> int:
    """Upper median as an exact integer: Unix nanoseconds do not fit a float."""
    return int(np.partition(values, len(values) // 2)[len(values) // 2])


def base_map(source: Source) -> ClockMap:
    """Map a source that shares no events with the run, by the base time in its file.

    Raises:
        TraceError: the file does not say when its clock was zero.
    """
    if source.clock == "unix":
        return IDENTITY
    if source.session_start_unix_ns is not None:
        return ClockMap(offset_ns=source.session_start_unix_ns)
    raise TraceError(
        source.path,
        "its clock cannot be related to the run's: no events of ours in it and no session start; "
        "capture it together with the event log, or parse it alone",
    )
