"""What was alive at a moment as rows, and the law that they obey."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeropeak.parse.alive import Alive
from zeropeak.parse.composition import Composition
from zeropeak.parse.conservation import check
from zeropeak.parse.curve import Curve
from zeropeak.parse.memory import Memory
from zeropeak.parse.parts import Parts
from zeropeak.parse.saved import saved_tensors
from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.stats import Stats
from zeropeak.parse.timeline import Timeline

Row = dict[str, Any]
KEY = ["scope", "step", "phase"]
RUN = {"scope": "run", "step": None, "phase": None}
FORWARD = {"phase": "forward", "step": 0, "start_ns": 0, "end_ns": 100}
RANGE = {"event_id": 90, "module_id": 1, "module": "a", "direction": "forward", "start_ns": 10, "end_ns": 40}
BLOCKS = (
    {"block_id": 0, "size_bytes": 30, "category": "input", "owner": "ids", "address": 100, "born_ns": 5},
    {"block_id": 1, "size_bytes": 5, "module": "a", "stream": 7, "address": 200, "born_ns": 20, "born_event_id": 90},
)


def table(name: str, *rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=BY_NAME[name].unranked)


def attribution(blocks: pa.Table) -> Composition:
    timeline = Timeline(table("zero_events"), table("module_ranges", RANGE), table("phases", FORWARD))
    return Composition(blocks, timeline, table("zero_event_params"), table("params"))


def test_every_block_is_a_row_and_the_rest_one_more() -> None:
    blocks = table("memory_blocks", *BLOCKS)
    parts = Parts("peak", blocks, attribution(blocks))
    parts.add(RUN, 60, np.array([0, 1]), 42)
    parts.add({"scope": "step", "step": 0, "phase": None}, 60, np.array([1]), 5)
    rows = parts.blocks().to_pylist()
    told = [(row["scope"], row["block_id"], row["category"], row["size_bytes"], row["module"]) for row in rows]
    assert told == [
        ("run", 0, "inputs", 30, None),
        ("run", 1, "activations", 5, "a"),
        ("step", 1, "activations", 5, "a"),
        ("run", None, "unattributed", 7, None),
    ]
    assert [row["stream"] for row in rows] == [None, 7, 7, None]
    sums = {(row["scope"], row["category"]): row["size_bytes"] for row in parts.composition().to_pylist()}
    assert sums["run", "unattributed"] == 7
    assert sums["step", "unattributed"] == 0


def test_no_moment_no_rows() -> None:
    parts = Parts("mark", table("memory_blocks"), attribution(table("memory_blocks")))
    assert (parts.blocks().num_rows, parts.composition().num_rows) == (0, 0)
    assert parts.blocks().schema == BY_NAME["mark_blocks"].unranked


def counted(measured: int, parts: Parts) -> dict[str, int]:
    stats = Stats()
    scope = stats.scope("f", "kineto", 0)
    peaks = table("peaks", {**RUN, "allocated_bytes": measured})
    check(peaks, parts.composition(), parts.blocks(), KEY, scope)
    return {what: line.count for what, line in scope.counts.items()}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 1 << 40), max_size=6), st.integers(0, 1 << 40))
def test_parts_sum_to_what_was_measured_whatever_that_is(sizes: list[int], gap: int) -> None:
    blocks = table("memory_blocks", *({"block_id": i, "size_bytes": size} for i, size in enumerate(sizes)))
    parts = Parts("peak", blocks, attribution(blocks))
    parts.add(RUN, 60, np.arange(len(sizes)), sum(sizes) + gap)
    found = counted(sum(sizes) + gap, parts)
    assert not any(found[what] for what in ("composition_sum_differs", "blocks_sum_differs", "category_negative"))
    assert found["more_attributed_than_measured"] == 0


def test_a_sum_that_differs_and_blocks_that_exceed_what_was_measured_are_counted() -> None:
    blocks = table("memory_blocks", *BLOCKS)
    parts = Parts("peak", blocks, attribution(blocks))
    parts.add(RUN, 60, np.array([0, 1]), 20)
    found = counted(20, parts)
    assert (found["composition_sum_differs"], found["more_attributed_than_measured"]) == (0, 1)
    assert found["more_attributed_than_measured_bytes"] == 15
    assert counted(21, parts)["composition_sum_differs"] == 1
    assert counted(21, parts)["blocks_sum_differs"] == 1


@pytest.mark.parametrize(("measured", "much"), [(3535, 0), (36, 1)])
def test_more_than_a_hundredth_unattributed_is_counted(measured: int, much: int) -> None:
    blocks = table("memory_blocks", BLOCKS[0] | {"size_bytes": measured - 1})
    parts = Parts("peak", blocks, attribution(blocks))
    parts.add(RUN, 60, np.array([0]), measured)
    assert counted(measured, parts)["unattributed_above_1_percent"] == much


def test_a_saved_tensor_finds_its_block_and_what_that_was() -> None:
    blocks = table("memory_blocks", *BLOCKS)
    some = Alive(np.array([0, 1]), np.array([9, 9]))
    none = np.empty(0, np.int64)
    curve = Curve(np.array([5, 20]), np.array([30, 35]), 0, 0, 100)
    memory = Memory("kineto", "cpu", curve, blocks, (), blocks, some, Alive(none, none), 2)
    saved = table("saved_tensors", *({"ts_ns": 60, "address": at, "size_bytes": 5} for at in (200, 100, 999)))
    rows = saved_tensors(saved, memory, attribution(blocks)).to_pylist()
    assert [(row["block_id"], row["category"]) for row in rows] == [(1, "activations"), (0, "inputs"), (None, None)]
    blind = replace(memory, curve=None)
    assert saved_tensors(saved, blind, attribution(blocks))["category"].to_pylist() == [None] * 3
