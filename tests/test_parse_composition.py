"""What the bytes of a moment are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zeropeak.parse.blocks import Events, pair
from zeropeak.parse.composition import Composition
from zeropeak.parse.registered import block_table
from zeropeak.parse.schema import CATEGORIES
from zeropeak.parse.sink import unranked
from zeropeak.parse.timeline import Timeline

Row = dict[str, Any]
MODULE = {"module_id": 1, "direction": "forward", "event_id": 90, "start_ns": 50, "end_ns": 60}
FORWARD = {"phase": "forward", "step": 0, "start_ns": 0, "end_ns": 100}
PREFETCH = {"event_id": 1, "kind": "prefetch", "start_ns": 10, "end_ns": 12}
WAIT = {"event_id": 2, "kind": "wait", "module_id": 1, "start_ns": 40, "end_ns": 44}
FULL = {"category": "param_full", "param_id": 7, "born_ns": 11, "size_bytes": 64}


def table(name: str, *rows: Row) -> pa.Table:
    return unranked(name, [pa.Table.from_pylist(list(rows))] if rows else [])


def at(
    ts: int,
    block: Row,
    events: tuple[Row, ...] = (),
    phases: tuple[Row, ...] = (FORWARD,),
    modules: tuple[Row, ...] = (MODULE,),
) -> str:
    """Category of one block at a moment."""
    timeline = Timeline(table("zero_events", *events), table("module_ranges", *modules), table("phases", *phases))
    moved = [{"event_id": event["event_id"], "param_id": 7} for event in events]
    parts = Composition(
        table("memory_blocks", block), timeline, table("zero_event_params", *moved),
        table("params", {"param_id": 7, "module_id": 1}),
    ).at(ts, np.array([0]), block["size_bytes"])  # fmt: skip
    (found,) = [category for category, (size, _) in parts.items() if size]
    assert found in CATEGORIES
    return found


@pytest.mark.parametrize(
    ("ts", "category"),
    [
        (20, "prefetched_ahead"),
        (42, "prefetched_ahead"),
        (46, "gathered_in_use"),
        (55, "gathered_in_use"),
        (70, "kept_for_reuse"),
        (85, "released_but_alive"),
    ],
)
def test_a_prefetched_parameter_through_its_life(ts: int, category: str) -> None:
    assert at(ts, FULL | {"released_ns": 80}, (PREFETCH, WAIT)) == category


def test_a_fetched_parameter_is_in_use_from_the_start() -> None:
    assert at(20, FULL, (PREFETCH | {"kind": "fetch"}, WAIT)) == "gathered_in_use"


def test_a_parameter_that_the_user_gathered_is_in_use_until_released() -> None:
    gather = PREFETCH | {"kind": "gather"}
    assert at(95, FULL, (gather,)) == "gathered_in_use"


@pytest.mark.parametrize(("ts", "category"), [(70, "persistent_parameters"), (85, "released_but_alive")])
def test_a_persistent_parameter_that_was_released_counts_as_any_other(ts: int, category: str) -> None:
    assert at(ts, FULL | {"category": "param_persistent", "released_ns": 80}) == category


def test_a_block_of_a_released_persistent_parameter_says_when() -> None:
    timeline = Timeline(table("zero_events"), table("module_ranges"), table("phases"))
    storage = {"category": "param_persistent", "param_id": 7, "released_ns": 80, "born_ns": 1, "size_bytes": 64}
    blocks = pair(Events(*(np.array([one]) for one in (1, True, 0x100, 64))))
    rows = block_table(blocks, np.array([0]), table("memory_blocks", storage), timeline, "cuda:0", "kineto")
    assert rows["released_ns"].to_pylist() == [80]


@pytest.mark.parametrize(
    ("stored", "category"),
    [
        ("param_shard", "parameter_shards"),
        ("optimizer_state", "optimizer_states"),
        ("input", "inputs"),
        ("something_new", "other"),
    ],
)
def test_a_registered_storage_is_what_it_was_registered_as(stored: str, category: str) -> None:
    assert at(20, {"category": stored, "born_ns": 5, "size_bytes": 8}) == category


@pytest.mark.parametrize(
    ("block", "category"),
    [
        ({"born_ns": 52, "free_requested_ns": 58}, "workspace"),
        ({"born_ns": 52, "free_requested_ns": 150}, "activations"),
        ({"born_ns": 52}, "activations"),
        ({"born_ns": 5, "free_requested_ns": 20}, "workspace"),
        ({"born_ns": 5, "free_requested_ns": 150}, "activations"),
        ({"born_ns": 41, "free_requested_ns": 43}, "gather_buffers"),
        ({}, "unattributed"),
    ],
)
def test_an_unregistered_block_is_told_by_birth_and_end(block: Row, category: str) -> None:
    assert at(57, {"size_bytes": 8, **block}, (PREFETCH, WAIT)) == category


def test_what_outlives_two_steps_is_no_activation() -> None:
    later = tuple(FORWARD | {"step": step, "start_ns": 100 * step, "end_ns": 100 * step + 90} for step in (1, 2, 3))
    assert at(57, {"size_bytes": 8, "born_ns": 52}, (), (FORWARD, *later)) == "unattributed"


def test_a_temporary_of_backward_is_workspace() -> None:
    backward = FORWARD | {"phase": "backward"}
    assert at(7, {"size_bytes": 8, "born_ns": 5, "free_requested_ns": 20}, (), (backward,)) == "workspace"
    assert at(7, {"size_bytes": 8, "born_ns": 5, "free_requested_ns": 200}, (), (backward,)) == "full_gradients"


def test_recomputation_in_a_backward_makes_activations() -> None:
    backward = FORWARD | {"phase": "backward"}
    assert at(57, {"size_bytes": 8, "born_ns": 52, "free_requested_ns": 80}, (), (backward,)) == "activations"


def test_the_parts_sum_to_what_was_measured() -> None:
    timeline = Timeline(table("zero_events"), table("module_ranges"), table("phases"))
    blocks = table("memory_blocks", {"category": "input", "size_bytes": 30}, {"size_bytes": 5})
    parts = Composition(blocks, timeline, table("zero_event_params"), table("params")).at(1, np.array([0, 1]), 100)
    assert parts == {"inputs": (30, 1), "unattributed": (70, 1)}
