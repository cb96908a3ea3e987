"""Laws of the memory curve that can fail: each one does when something is wrong, and holds where all is right."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeropeak.parse.composition import Composition
from zeropeak.parse.curve import Curve
from zeropeak.parse.lives import check_counters, check_lives
from zeropeak.parse.memory import Memory, from_allocator
from zeropeak.parse.peaks import mark_tables
from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.stats import Stats, StatsScope
from zeropeak.parse.timeline import Timeline

if TYPE_CHECKING:
    from zeropeak.parse.parts import Parts

TIMELINE = Timeline(*(BY_NAME[name].unranked.empty_table() for name in ("zero_events", "module_ranges", "phases")))


def scope() -> StatsScope:
    return Stats().scope("f", "kineto", 0)


def counts(stats: StatsScope) -> dict[str, int]:
    return {what: line.count for what, line in stats.counts.items()}


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=BY_NAME[name].unranked)


def recorded(*events: tuple[int, str, int, int]) -> Memory:
    """A rank's memory from (time, action, address, size)."""
    names = ("ts_ns", "action", "address", "size_bytes")
    rows = [{"device": "cpu", **dict(zip(names, event, strict=True))} for event in events]
    none = BY_NAME["memory_blocks"].unranked.empty_table()
    by_device: dict[str | None, pa.Table] = {"cpu": table("memory_events", rows)}
    return from_allocator(by_device, none, "kineto", none, TIMELINE, "cpu", (0, 100), 0, scope())


def moments(memory: Memory, *times: int) -> Parts:
    nothing = (BY_NAME[name].unranked.empty_table() for name in ("zero_event_params", "params"))
    composition = Composition(memory.blocks, TIMELINE, *nothing)
    return mark_tables(memory, composition, table("marks", [{"mark": "forward", "ts_ns": ts} for ts in times]))[1]


def found(parts: Parts, memory: Memory) -> tuple[int, int]:
    stats = scope()
    check_lives(parts, memory, stats)
    return counts(stats)["curve_not_of_blocks"], counts(stats)["rows_not_alive"]


WHOLE = ((10, "alloc", 1000, 64), (20, "alloc", 2000, 32), (30, "free", 1000, 64), (40, "alloc", 1000, 8))


def test_blocks_that_live_as_the_curve_says_are_right() -> None:
    memory = recorded(*WHOLE)
    assert found(moments(memory, 5, 10, 25, 30, 50), memory) == (0, 0)


@pytest.mark.parametrize(
    ("column", "value", "wrong"),
    [
        ("size_bytes", 63, (2, 0)),  # at 10 and 25, where it lives; its rows are it all the same
        ("born_ns", 15, (1, 1)),  # at 10
        ("free_requested_ns", 22, (1, 1)),  # at 25
        ("free_requested_ns", None, (1, 1)),  # at 50
    ],
)
def test_one_corrupted_block_is_seen(column: str, value: int | None, wrong: tuple[int, int]) -> None:
    memory = recorded(*WHOLE)
    parts = moments(memory, 10, 25, 50)
    rows = memory.blocks.to_pylist()
    assert rows[0]["address"] == 1000
    rows[0][column] = value
    corrupted = replace(memory, blocks=pa.Table.from_pylist(rows, schema=memory.blocks.schema))
    assert found(parts, corrupted) == wrong


@pytest.mark.parametrize("rows", [[0], [0, 1, 1], [0, 2], [0, 1, 2]])
def test_a_moment_with_other_blocks_than_those_alive_is_seen(rows: list[int]) -> None:
    memory = recorded(*WHOLE)
    parts = moments(memory)
    parts.add({"step": 0, "micro_step": 0, "mark": "forward", "ts_ns": 25}, 25, np.array(rows), 96)
    assert found(parts, memory) == (0, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(1, 1000)), max_size=12), st.data())
def test_what_was_read_obeys_the_laws_at_any_moment(lives: list[tuple[int, int, int]], data: st.DataObject) -> None:
    events = []
    for place, (born, lasts, size) in enumerate(lives):
        events += [(born, "alloc", 10_000 * place, size), (born + lasts, "free", 10_000 * place, size)]
    memory = recorded(*sorted(events, key=lambda event: event[0])) if events else None
    if memory is not None:
        times = sorted(data.draw(st.lists(st.integers(0, 100), min_size=1, max_size=5)))
        assert found(moments(memory, *times), memory) == (0, 0)


def test_counters_alone_have_no_blocks_to_ask() -> None:
    memory = recorded(*WHOLE)
    assert memory.curve is not None
    stats = scope()
    check_lives(moments(memory, 10), replace(memory, curve=replace(memory.curve, sampled=True)), stats)
    assert not counts(stats)


@pytest.mark.parametrize(
    ("said", "slack_ns", "wrong"),
    [
        (50, 0, {"counter_differs": 0}),
        (90, 0, {"counter_differs": 1, "counter_differs_bytes": 40}),
        (90, 10, {"counter_differs": 0}),  # the clocks may be so far apart
        (95, 10, {"counter_differs": 1, "counter_differs_bytes": 5}),
        (None, 0, {}),  # CPU
    ],
)
def test_an_allocator_that_says_another_value_is_seen(said: int | None, slack_ns: int, wrong: dict[str, int]) -> None:
    stats = scope()
    curve = Curve(np.array([10, 40]), np.array([50, 90]), 0, 0, 100)
    check_counters(table("marks", [{"mark": "init", "ts_ns": 35, "allocated_bytes": said}]), curve, slack_ns, stats)
    assert counts(stats) == wrong
