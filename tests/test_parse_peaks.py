"""Peaks and marks say nothing about times that the curve does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from zeropeak.parse.alive import Alive
from zeropeak.parse.composition import Composition
from zeropeak.parse.curve import Curve
from zeropeak.parse.memory import Memory
from zeropeak.parse.peaks import mark_tables, peak_tables
from zeropeak.parse.sink import unranked
from zeropeak.parse.timeline import Timeline

Row = dict[str, Any]
PHASES = [
    {"event_id": 10 + step, "phase": "forward", "step": step, "start_ns": 100 * step, "end_ns": 100 * step + 90}
    for step in range(3)
]
EVENTS = [
    {"event_id": 1, "kind": "free", "start_ns": 155, "end_ns": 155},
    {"event_id": 2, "kind": "wait", "start_ns": 160, "end_ns": 190},
]


def table(name: str, *rows: Row) -> pa.Table:
    return unranked(name, [pa.Table.from_pylist(list(rows))] if rows else [])


def memory() -> Memory:
    """A curve that is known from 150 on, at 40 bytes; 60 at 170, 10 at 250."""
    none = np.empty(0, np.int64)
    curve = Curve(np.array([170, 250]), np.array([60, 10]), 40, start_ns=150, end_ns=300)
    blocks = table("memory_blocks")
    return Memory("snapshot", "cuda:0", curve, blocks, (), blocks, Alive(none, none), Alive(none, none), 0)


def timeline() -> Timeline:
    return Timeline(table("zero_events", *EVENTS), table("module_ranges"), table("phases", *PHASES))


def composition() -> Composition:
    return Composition(memory().blocks, timeline(), table("zero_event_params"), table("params"))


def test_a_step_before_the_known_history_has_no_peak() -> None:
    peaks, parts = peak_tables(memory(), composition(), timeline(), table("marks"), (0, 290))
    steps = {row["step"]: row for row in peaks.to_pylist() if row["scope"] == "step"}
    assert {step: (row["ts_ns"], row["allocated_bytes"], row["partial"]) for step, row in steps.items()} == {
        1: (170, 60, True),
        2: (200, 60, False),
    }
    assert set(parts.composition()["step"].to_pylist()) == {None, 1, 2}


def test_the_last_event_is_another_than_the_one_in_flight() -> None:
    peaks, _ = peak_tables(memory(), composition(), timeline(), table("marks"), (0, 290))
    assert (peaks["event_id"][0].as_py(), peaks["last_event_id"][0].as_py()) == (2, 1)


def test_a_mark_before_the_known_history_stays_unknown() -> None:
    rows = [{"mark": "forward", "step": step, "micro_step": 0, "ts_ns": 100 * step + 95} for step in range(3)]
    marks, parts = mark_tables(memory(), composition(), table("marks", *rows))
    assert marks["allocated_bytes"].to_pylist() == [None, 60, 10]
    # Of the window up to the second mark only a part is known.
    assert marks["max_allocated_bytes"].to_pylist() == [None, None, 60]
    assert set(parts.composition()["step"].to_pylist()) == {1, 2}
