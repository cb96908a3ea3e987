"""The highest allocated memory of the run, of each step and phase, with what was going on and what was alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zeropeak.parse.blocks import ALIVE
from zeropeak.parse.lookup import ints
from zeropeak.parse.parts import Parts
from zeropeak.parse.schema import BY_NAME

if TYPE_CHECKING:
    from zeropeak.parse.composition import Composition
    from zeropeak.parse.curve import Curve, Peak
    from zeropeak.parse.memory import Memory
    from zeropeak.parse.timeline import Timeline


@dataclass(frozen=True)
class Scope:
    """What a peak is the peak of: a name and the windows of time it covers, as (start, end) in ns."""

    scope: str
    step: int | None
    phase: str | None
    windows: tuple[tuple[int, int], ...]


def scopes(timeline: Timeline, first_ns: int, last_ns: int) -> list[Scope]:
    """The run, its steps (-1: before the first forward), and the phases of each step.

    Args:
        timeline: the rank's events.
        first_ns: begin of the run as far as known.
        last_ns: its end; ends phases that have none.
    """
    found = [Scope("run", None, None, ((first_ns, last_ns),))]
    rows = timeline.phases.rows
    if not rows.num_rows:
        return found
    start, end = timeline.phases.start, np.where(timeline.phases.end == ALIVE, last_ns, timeline.phases.end)
    step, phase = ints(rows["step"]), np.array(rows["phase"].to_pylist(), object)
    for number in np.unique(step).tolist():
        in_step = step == number
        found.append(Scope("step", number, None, ((int(start[in_step].min()), int(end[in_step].max())),)))
        for name in dict.fromkeys(phase[in_step].tolist()):
            at = in_step & (phase == name)
            windows = tuple(zip(start[at].tolist(), end[at].tolist(), strict=True))
            found.append(Scope("phase", number, name, windows))
    return found


def peak_tables(
    memory: Memory,
    composition: Composition,
    timeline: Timeline,
    marks: pa.Table,
    window: tuple[int, int],
    reserved: Curve | None = None,
) -> tuple[pa.Table, Parts]:
    """Rows of peaks, and what was alive at each.

    Args:
        memory: the rank's memory.
        composition: its categories.
        timeline: its events.
        marks: rows of marks.
        window: begin and end of the run as far as known, ns.
        reserved: reserved memory of the same device.
    """
    peaks: list[dict[str, Any]] = []
    parts = Parts("peak", memory.blocks, composition)
    curve = memory.curve
    for scope in scopes(timeline, *window) if curve else []:
        assert curve is not None
        peak = _highest(curve, scope)
        if peak is None:
            continue
        key = {"scope": scope.scope, "step": scope.step, "phase": scope.phase}
        in_flight = timeline.event_at(peak.ts_ns)
        peaks.append(
            {
                **key,
                "ts_ns": peak.ts_ns,
                "allocated_bytes": peak.allocated_bytes,
                "reserved_bytes": reserved.value_at(reserved.position(peak.ts_ns)) if reserved else None,
                "allocator_peak_bytes": _counter_peak(marks, scope),
                "partial": not all(curve.covers(start, end) for start, end in scope.windows),
                "event_id": in_flight,
                "last_event_id": timeline.last_event_before(peak.ts_ns, in_flight),
                "module": timeline.module_at(peak.ts_ns),
                "source": memory.source,
            }
        )
        alive = memory.alive(peak.position, peak.ts_ns)
        parts.add(key, peak.ts_ns, alive, peak.allocated_bytes)
    return _rows("peaks", peaks), parts


def mark_tables(memory: Memory, composition: Composition, marks: pa.Table) -> tuple[pa.Table, Parts]:
    """Rows of marks, with what the log left null filled in from the curve, and what was alive at each."""
    curve = memory.curve
    filled: list[dict[str, Any]] = []
    parts = Parts("mark", memory.blocks, composition)
    since: int | None = None
    lifetime: int | None = 0
    for row in sorted(marks.to_pylist(), key=lambda row: row["ts_ns"]):
        ts = row["ts_ns"]
        known = curve is not None and curve.covers(ts, ts)
        if curve is not None and known and not curve.sampled and row["allocated_bytes"] is None:
            row["allocated_bytes"] = curve.value_at(curve.position(ts))
            first = curve.start_ns if since is None else since
            if curve.covers(first, ts):
                row["max_allocated_bytes"] = curve.peak(first, ts).allocated_bytes
        # Once a window's maximum is unknown, so is that of the run up to there.
        highest = row["max_allocated_bytes"]
        lifetime = None if lifetime is None or highest is None else max(lifetime, highest)
        row["lifetime_max_allocated_bytes"] = lifetime
        if curve is not None and row["allocated_bytes"] is not None and ts >= curve.start_ns:
            key = {name: row[name] for name in ("step", "micro_step", "mark", "ts_ns")}
            parts.add(key, ts, memory.alive(curve.position(ts), ts), row["allocated_bytes"])
        filled.append(row)
        since = ts
    return _rows("marks", filled), parts


def _highest(curve: Curve, scope: Scope) -> Peak | None:
    """First of the highest points within the windows, as far as the curve is known."""
    best: Peak | None = None
    for start, end in scope.windows:
        if start > curve.end_ns or end < curve.start_ns:
            continue
        found = curve.peak(max(start, curve.start_ns), min(end, curve.end_ns))
        if best is None or found.allocated_bytes > best.allocated_bytes:
            best = found
    return best


def _counter_peak(marks: pa.Table, scope: Scope) -> int | None:
    """Highest ``max_allocated_bytes`` of the marks that close a part of the scope."""
    highest = [
        row["max_allocated_bytes"]
        for row in marks.select(["step", "mark", "max_allocated_bytes"]).to_pylist()
        if row["max_allocated_bytes"] is not None
        and (scope.step is None or row["step"] == scope.step)
        and (scope.phase is None or row["mark"] == scope.phase)
    ]
    return max(highest, default=None)


def _rows(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of a table without its rank column, which the writer fills in."""
    return pa.Table.from_pylist(rows, schema=BY_NAME[table].unranked)
