"""DeepSpeed's own ranges as ZeRO events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from zeropeak.parse.deepspeed_ranges import deepspeed_events, deepspeed_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

COORDINATOR = "PartitionedParameterCoordinator"
FETCH, GATHER = f"{COORDINATOR}.fetch_sub_module", f"{COORDINATOR}.__all_gather_params"
WAIT = "AllGatherCoalescedHandle.wait"

Range = tuple[str, int, int]


def events(ranges: Sequence[Range], *, has_waits: bool = True) -> dict[str, list[tuple[object, ...]]]:
    names, starts, ends = zip(*ranges, strict=True)
    rows = pa.table({"thread_id": [1] * len(names), "name": names, "start_ns": starts, "end_ns": ends})
    found: dict[str, list[tuple[object, ...]]] = {"zero_events": [], "phases": []}
    for table, batch in deepspeed_events([deepspeed_rows(rows)], 0, "nsys", has_waits=has_waits):
        for row in batch.to_pylist():
            label = row["kind"] if table == "zero_events" else row["phase"]
            found[table].append((label, row["start_ns"], row["end_ns"], row["step"]))
    return found


def test_a_gather_that_is_waited_for_in_its_module_is_a_fetch_and_one_after_the_waits_a_prefetch() -> None:
    found = events([(FETCH, 0, 100), (GATHER, 10, 20), (WAIT, 30, 40), ("X.wait", 32, 38), (GATHER, 50, 60)])
    assert [row[:3] for row in found["zero_events"]] == [("fetch", 10, 20), ("wait", 30, 40), ("prefetch", 50, 60)]


def test_a_gather_alone_is_a_prefetch() -> None:
    found = events([(FETCH, 0, 100), (GATHER, 10, 20), (FETCH, 200, 300), (WAIT, 210, 220)])
    assert [row[0] for row in found["zero_events"]] == ["prefetch", "wait"]


def test_without_any_wait_the_kind_stays_unknown() -> None:
    assert events([(FETCH, 0, 100), (GATHER, 10, 20)], has_waits=False)["zero_events"][0][0] is None


def test_gathers_outside_the_schedule_and_the_rest_have_their_kinds() -> None:
    found = events([
        ("Init._all_gather", 0, 5), (f"{COORDINATOR}.release_sub_module", 10, 20), ("free_param", 12, 14),
        ("DeepSpeedZeroOptimizer_Stage3.__reduce_and_partition_ipg_grads", 30, 40),
        ("get_all_parameters", 50, 60), ("DeepSpeedZeroOptimizer_Stage3.step", 70, 80),
    ])  # fmt: skip
    assert [row[:3] for row in found["zero_events"]] == [
        ("gather", 0, 5),
        ("release", 10, 20),
        ("free", 12, 12),
        ("reduce", 30, 40),
        ("step", 70, 80),
    ]


def test_the_engines_calls_are_phases_and_its_steps_are_counted() -> None:
    found = events([
        ("free_param", 1, 2), ("DeepSpeedEngine.forward", 10, 20), ("free_param", 11, 12),
        ("DeepSpeedEngine.backward", 30, 40), ("DeepSpeedZeroOptimizer_Stage3.step", 50, 60),
        ("DeepSpeedEngine.forward", 70, 80), ("free_param", 71, 72),
    ])  # fmt: skip
    assert found["phases"] == [
        ("forward", 10, 20, 0),
        ("backward", 30, 40, 0),
        ("step", 50, 60, 0),
        ("forward", 70, 80, 1),
    ]
    assert [(row[1], row[3]) for row in found["zero_events"]] == [(1, None), (11, 0), (50, 0), (71, 1)]
