"""Which releases did not end a parameter's memory, and why."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from zeropeak.parse.delayed_frees import CAUSES, delayed_frees
from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.timeline import Timeline

Row = dict[str, Any]
PARAMS = (
    {"param_id": 7, "name": "a.weight", "module_id": 1, "numel": 32, "full_bytes": 64, "persistent": False},
    {"param_id": 8, "name": "b.weight", "module_id": 2, "numel": 32, "full_bytes": 64, "persistent": False},
)
PHASES = (
    {"phase": "forward", "step": 0, "micro_step": 0, "start_ns": 0, "end_ns": 100},
    {"phase": "backward", "step": 0, "micro_step": 0, "start_ns": 100, "end_ns": 200},
)
WHERE = {"step": 0, "micro_step": 0, "thread_id": 5}
FETCH = {**WHERE, "event_id": 1, "kind": "fetch", "module_id": 1, "start_ns": 10, "end_ns": 12}
RELEASE = {
    **WHERE, "event_id": 3, "kind": "release", "module_id": 1, "module": "a", "start_ns": 40, "end_ns": 50,
    "phase": "forward",
}  # fmt: skip
FREE = {**WHERE, "event_id": 4, "kind": "free", "start_ns": 45, "end_ns": 45, "parent_event_id": 3, "phase": "forward"}
LATER = {**RELEASE, "event_id": 13, "module_id": 1, "start_ns": 140, "end_ns": 150, "phase": "backward"}
LATER_FREE = {**FREE, "event_id": 14, "start_ns": 145, "end_ns": 145, "parent_event_id": 13}
FULL = {"storage_id": 30, "category": "param_full", "param_id": 7, "size_bytes": 64, "born_ns": 12, "freed_ns": 46}


def run_of(event_id: int, module_id: int, direction: str, start_ns: int, end_ns: int) -> Row:
    about = {"event_id": event_id, "module_id": module_id, "direction": direction}
    return {**WHERE, **about, "start_ns": start_ns, "end_ns": end_ns}


RUNS = (
    run_of(90, 1, "forward", 20, 50),
    run_of(91, 2, "forward", 60, 70),
    run_of(92, 2, "backward", 110, 120),
    run_of(93, 1, "backward", 130, 150),
)


def table(name: str, rows: tuple[Row, ...]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=BY_NAME[name].unranked)


def moved(event: Row, param: int = 7, storage: int | None = None) -> Row:
    return {"event_id": event["event_id"], "param_id": param, "storage_id": storage}


def delayed(
    events: tuple[Row, ...],
    event_params: tuple[Row, ...],
    storages: tuple[Row, ...] = (FULL,),
    *,
    runs: tuple[Row, ...] = RUNS,
    params: tuple[Row, ...] = PARAMS,
    retained: tuple[Row, ...] = (),
    blocks: tuple[Row, ...] = (),
    knob: int | None = None,
) -> list[Row]:
    timeline = Timeline(table("zero_events", events), table("module_ranges", runs), table("phases", PHASES))
    log = {
        "zero_event_params": table("zero_event_params", event_params),
        "params": table("params", params),
        "retained": table("retained", retained),
        "memory_blocks": table("memory_blocks", storages),
    }
    found = delayed_frees(log, timeline, table("memory_blocks", blocks), 200, max_reuse_distance=knob)
    rows: list[Row] = found.to_pylist()
    assert all(row["cause"] is None or row["cause"] in CAUSES for row in rows)
    return rows


LET_GO = (FETCH, RELEASE, FREE)
LET_GO_PARAMS = (moved(FETCH), moved(FREE, storage=30))


def test_a_release_that_ends_the_memory_is_no_delay() -> None:
    assert delayed(LET_GO, LET_GO_PARAMS) == []


def test_what_the_search_found_holds_it() -> None:
    held = FULL | {"freed_ns": None}
    holder = {"storage_id": 30, "holder": "MmBackward0._saved_mat2", "holder_module": "a"}
    (row,) = delayed(LET_GO, LET_GO_PARAMS, (held,), retained=(holder,))
    expected = {
        "event_id": 3, "free_event_id": 4, "module": "a", "param": "a.weight", "cause": "autograd-held",
        "holder": "MmBackward0._saved_mat2", "holder_module": "a", "decided_ns": 40, "freed_ns": None,
        "held_ns": 160, "until_module": None,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert row["byte_seconds"] == pytest.approx(64 * 160e-9)


def test_let_go_in_forward_and_ended_in_its_backward_is_what_autograd_does() -> None:
    (row,) = delayed(LET_GO, LET_GO_PARAMS, (FULL | {"freed_ns": 135},))
    assert (row["cause"], row["held_ns"], row["holder"]) == ("autograd-held", 95, None)


def test_what_outlives_its_backward_unheld_has_no_known_cause() -> None:
    (row,) = delayed(LET_GO, LET_GO_PARAMS, (FULL | {"freed_ns": 200},))
    assert (row["cause"], row["freed_ns"]) == (None, 200)


def test_the_allocator_returned_it_later() -> None:
    block = {"storage_id": 30, "size_bytes": 64, "free_requested_ns": 46, "freed_ns": 80}
    (row,) = delayed(LET_GO, LET_GO_PARAMS, blocks=(block,))
    assert (row["cause"], row["freed_ns"], row["held_ns"]) == ("record-stream", 80, 40)
    assert delayed(LET_GO, LET_GO_PARAMS, blocks=(block | {"freed_ns": 46},)) == []


def test_a_buffer_lives_as_long_as_the_last_parameter_in_it() -> None:
    buffer = FULL | {"category": "gather_buffer", "param_id": None, "size_bytes": 200, "freed_ns": 146}
    later = LATER | {"module_id": 2}
    (row,) = delayed((*LET_GO, later, LATER_FREE), (*LET_GO_PARAMS, moved(LATER_FREE, 8, 30)), (buffer,))
    assert (row["cause"], row["param_id"], row["size_bytes"], row["held_ns"]) == ("shared-buffer", 7, 64, 106)


KEPT = (FETCH, RELEASE, LATER, LATER_FREE)
KEPT_PARAMS = (moved(FETCH), moved(LATER_FREE, storage=30))
UNTIL_LATER = (FULL | {"freed_ns": 146},)


@pytest.mark.parametrize(("knob", "cause"), [(65, "reuse-distance"), (64, None), (None, None)])
def test_reuse_is_near_when_what_runs_in_between_is_smaller_than_the_knob(knob: int | None, cause: str | None) -> None:
    # Between this release and the next use run the forward and the backward of b: 64 elements.
    (row,) = delayed(KEPT, KEPT_PARAMS, UNTIL_LATER, knob=knob)
    expected = (cause, None, "a", 106)
    assert (row["cause"], row["free_event_id"], row["until_module"], row["held_ns"]) == expected


def test_the_next_step_is_no_reuse() -> None:
    runs = (*RUNS[:3], RUNS[3] | {"step": 1})
    (row,) = delayed(KEPT, KEPT_PARAMS, UNTIL_LATER, runs=runs, knob=10**9)
    assert row["cause"] is None


def test_a_persistent_parameter_stays() -> None:
    small = (PARAMS[0] | {"persistent": True}, PARAMS[1])
    (row,) = delayed(KEPT, KEPT_PARAMS, UNTIL_LATER, params=small, knob=10**9)
    assert row["cause"] == "persistence"


def test_another_module_that_runs_still_uses_it() -> None:
    tied = run_of(94, 2, "forward", 5, 60)
    fetch = FETCH | {"event_id": 5, "module_id": 2, "start_ns": 6, "end_ns": 8}
    both = (fetch, *KEPT), (moved(fetch), *KEPT_PARAMS)
    (row,) = delayed(*both, UNTIL_LATER, runs=(tied, *RUNS))
    assert row["cause"] == "in-use-by-module"
    (row,) = delayed(*both, UNTIL_LATER)
    assert row["cause"] is None, "module 2 does not run at the release"


@pytest.mark.parametrize(("runs", "count"), [(RUNS[1:], 1), (RUNS, 0)])
def test_gathered_ahead_and_freed_unused(runs: tuple[Row, ...], count: int) -> None:
    prefetch = FETCH | {"kind": "prefetch"}
    rows = delayed((prefetch, RELEASE | {"module_id": None}, FREE), LET_GO_PARAMS, runs=runs[:2])
    assert len(rows) == count
    for row in rows:
        assert (row["cause"], row["decided_ns"], row["held_ns"]) == ("prefetched-unused", 10, 36)


def test_a_free_outside_a_release_is_its_own_decision() -> None:
    alone = FREE | {"parent_event_id": None}
    soon = {**WHERE, "event_id": 6, "kind": "step", "start_ns": 47, "end_ns": 48}
    assert delayed((FETCH, alone, soon), LET_GO_PARAMS) == []
    (row,) = delayed((FETCH, alone, soon), LET_GO_PARAMS, (FULL | {"freed_ns": 135},))
    assert (row["event_id"], row["free_event_id"], row["decided_ns"]) == (None, 4, 45)


def test_a_shard_that_is_the_whole_parameter_is_no_delay() -> None:
    whole = FULL | {"category": "param_shard", "freed_ns": None}
    assert delayed(LET_GO, (moved(FETCH), moved(FREE)), (whole,)) == []


def test_no_events_no_rows() -> None:
    assert delayed((), (), ()) == []
    assert delayed(LET_GO, (), ()) == []
