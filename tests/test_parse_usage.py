"""Which modules use which parameters, and searches in groups of moments."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from zeropeak.parse.holdings import Moves
from zeropeak.parse.series import Series
from zeropeak.parse.sink import unranked
from zeropeak.parse.timeline import Timeline
from zeropeak.parse.usage import Runs, uses

small = st.integers(0, 4)
rows = st.lists(st.tuples(small, small), max_size=12)


@settings(max_examples=60, deadline=None)
@given(rows, rows)
def test_a_series_finds_what_a_loop_finds(members: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    group, ts = (np.array([row[i] for row in members], np.int64) for i in (0, 1))
    wanted, at = (np.array([row[i] for row in asked], np.int64) for i in (0, 1))
    series = Series(group, ts)
    for row, found in zip(asked, series.last(wanted, at).tolist(), strict=True):
        before = [one for one in members if one[0] == row[0] and one[1] <= row[1]]
        assert members[found] == max(before) if before else found == -1
    for row, found in zip(asked, series.following(wanted, at).tolist(), strict=True):
        after = [one for one in members if one[0] == row[0] and one[1] > row[1]]
        assert members[found] == min(after) if after else found == -1


def pairs(*events: tuple[str, int | None, tuple[int, ...]]) -> list[tuple[int, int]]:
    """``events``: kind, module, parameters; modules 1 and 2 own parameters 7 and 8."""
    told = [
        {"event_id": number, "kind": kind, "module_id": module, "start_ns": number, "end_ns": number}
        for number, (kind, module, _) in enumerate(events)
    ]
    moved = [{"event_id": number, "param_id": one} for number, (*_, params) in enumerate(events) for one in params]
    owned = [{"param_id": 7, "module_id": 1}, {"param_id": 8, "module_id": 2}]
    zero, ep, params, ranges, phases = (
        unranked(name, [pa.Table.from_pylist(members)] if members else [])
        for name, members in (
            ("zero_events", told), ("zero_event_params", moved), ("params", owned), ("module_ranges", []),
            ("phases", []),
        )
    )  # fmt: skip
    timeline = Timeline(zero, ranges, phases)
    return list(zip(*(one.tolist() for one in uses(timeline, Moves.of(timeline, ep), params)), strict=True))


def test_a_parameter_is_used_by_its_owner_and_by_who_fetched_it() -> None:
    assert pairs(("fetch", 3, (7,)), ("prefetch", 4, (8,)), ("fetch", None, (8,))) == [(7, 1), (7, 3), (8, 2)]


def test_what_travelled_in_the_gather_of_another_is_not_used_by_who_waits() -> None:
    assert pairs(("wait", 1, (7, 8))) == [(7, 1), (8, 2)]


def test_who_waits_for_nothing_of_its_own_uses_what_it_waits_for() -> None:
    assert pairs(("wait", 3, (7,))) == [(7, 1), (7, 3), (8, 2)]


def test_runs_of_modules_without_an_id_use_nothing() -> None:
    empty = {name: unranked(name, []) for name in ("zero_events", "phases")}
    ranges = unranked("module_ranges", [pa.Table.from_pylist([{"event_id": 1, "start_ns": 5, "end_ns": 6}])])
    nothing = np.empty(0, np.int64)
    runs = Runs(Timeline(empty["zero_events"], ranges, empty["phases"]), (nothing, nothing))
    assert runs.numel_before(nothing).tolist() == [0, 0]
