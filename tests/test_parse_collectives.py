"""Collectives find the event that launched them, or none."""

from __future__ import annotations

import gzip
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.captures import h200, needs_captures, unpack

from zeropeak.parse import nsys
from zeropeak.parse.collectives import join, of_log
from zeropeak.parse.foreign import parse_files
from zeropeak.parse.pipeline import parse_run
from zeropeak.parse.sink import MemorySink, unranked
from zeropeak.parse.stats import Stats

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeRun

Row = dict[str, Any]


def event(number: int, kind: str | None, start: int, end: int | None, **more: Any) -> Row:
    return {"event_id": number, "kind": kind, "start_ns": start, "end_ns": end, "thread_id": 7, **more}


def gather(launched: int | None, start: int | None = None, **more: Any) -> Row:
    """An all-gather; ``start`` is that of its kernel."""
    where = {"launched_ns": launched, "thread_id": 7 if launched is not None else None}
    return {"name": "_allgather_base", "start_ns": start or launched, **where, **more}


def joined(
    calls: list[Row], events: list[Row], buffers: list[Row] | None = None
) -> tuple[list[int | None], dict[str, int]]:
    """Event of each call, and the counts."""
    log = {
        name: unranked(name, [pa.Table.from_pylist(rows)] if rows else [])
        for name, rows in (
            ("zero_events", events),
            ("memory_blocks", buffers or []),
            ("zero_event_params", []),
            ("params", []),
        )
    }
    stats = Stats()
    rows = join(unranked("collectives", [pa.Table.from_pylist(calls)]), log, stats.scope("f", "kineto", 0))
    counts = {row["what"].removeprefix("collectives_"): row["count"] for row in stats.table().to_pylist()}
    return rows["event_id"].to_pylist(), counts


def buffer(number: int, address: int, size: int = 64) -> Row:
    return {"born_event_id": number, "address": address, "size_bytes": size, "category": "gather_buffer"}


def test_a_call_is_of_the_innermost_open_gather_of_its_thread() -> None:
    events = [
        event(1, "gather", 0, 100),
        event(2, "fetch", 10, 20),
        event(3, "wait", 30, 40),
        event(4, "reduce", 50, 60),
        event(5, "prefetch", 14, 30, thread_id=8),
    ]
    reduced = {"name": "_reduce_scatter_base", "launched_ns": 55, "start_ns": 90, "thread_id": 7}
    calls = [gather(15), gather(35), gather(150), gather(16) | {"thread_id": 8}, reduced]
    assert joined(calls, events) == ([2, 1, None, 5, 4], {"joined": 4, "outside_events": 1})


def test_broadcasts_are_of_no_event() -> None:
    call = gather(15) | {"name": "broadcast"}
    assert joined([call], [event(1, "fetch", 10, 20)]) == ([None], {})


def test_ranges_of_deepspeed_without_a_kind_gather() -> None:
    assert joined([gather(15)], [event(1, None, 10, None)])[0] == [1]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ({"out_bytes": 400, "in_bytes": 100, "group_size": 4}, 1),
        ({"out_bytes": 408, "in_bytes": 102, "group_size": 4}, 1),  # padded
        ({"out_bytes": 396, "in_bytes": 99, "group_size": 4}, None),
        ({"out_bytes": 800, "in_bytes": 200, "group_size": 4}, None),
        ({}, 1),
    ],
)
def test_sizes_must_agree_with_the_events_parameters(size: Row, expected: int | None) -> None:
    events = [event(1, "fetch", 10, 20, full_bytes=400, shard_bytes=100, param_count=2)]
    found, counts = joined([gather(15, **size)], events)
    assert found == [expected]
    assert counts == ({"joined": 1} if expected else {"size_differs": 1})


def test_all_calls_of_an_event_move_its_parameters_together() -> None:
    events = [event(1, "fetch", 10, 20, full_bytes=400, shard_bytes=200, param_count=2)]
    calls = [gather(15, in_bytes=150), gather(16, in_bytes=50)]
    assert joined(calls, events)[0] == [1, 1]
    assert joined([*calls, gather(17, in_bytes=50)], events)[1] == {"size_differs": 3}


def test_a_registered_buffer_contradicts_or_supports() -> None:
    events = [event(1, "fetch", 10, 20), event(2, "fetch", 30, 40)]
    buffers = [buffer(1, 1000), buffer(2, 2000)]
    calls = [gather(15, out_address=1016), gather(35, out_address=1000)]
    assert joined(calls, events, buffers) == ([1, None], {"joined": 1, "unclear": 1})


def test_a_call_of_another_thread_is_known_by_its_buffer() -> None:
    call = gather(15, out_address=1000) | {"thread_id": 9}
    assert joined([call], [event(1, "fetch", 10, 20)], [buffer(1, 1000)])[0] == [1]
    assert joined([call], [event(1, "fetch", 10, 20)], [buffer(1, 5000)])[1] == {"outside_events": 1}


def test_kernels_without_launch_are_of_the_events_that_used_their_address_in_turn() -> None:
    events = [event(n, "fetch", 10 * n, 10 * n + 5) for n in (1, 2, 3)]
    buffers = [buffer(1, 1000), buffer(2, 2000), buffer(3, 1000)]
    calls = [gather(None, 50, out_address=1000), gather(None, 60, out_address=2000), gather(None, 70, out_address=1000)]
    assert joined(calls, events, buffers)[0] == [1, 2, 3]
    # Two events used the address, one kernel was seen: which of them is not known.
    assert joined(calls[:2], events, buffers) == ([None, 2], {"joined": 1, "unclear": 1})


def test_kernels_without_launch_or_address_run_in_the_order_of_the_events() -> None:
    events = [event(n, "fetch", 10 * n, 10 * n + 5, shard_bytes=n * 8) for n in (1, 2, 3, 4)]
    calls = [gather(None, 100 + n, in_bytes=n * 8) for n in (2, 3)]
    assert joined(calls, events)[0] == [2, 3]
    assert joined([gather(None, 100, in_bytes=9)], events) == ([None], {"unclear": 1})
    # A kernel does not run before its launch.
    assert joined([gather(None, 15, in_bytes=16)], events)[0] == [None]
    # Without sizes only the same number on both sides tells.
    assert joined([gather(None, 100 + n) for n in range(4)], events)[0] == [1, 2, 3, 4]
    assert joined([gather(None, 100)], events)[0] == [None]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.booleans()), max_size=20), st.randoms())
def test_the_order_of_rows_does_not_matter(spans: list[tuple[int, int, bool]], random: Any) -> None:
    events = [event(n, "fetch" if f else "reduce", s, s + d) for n, (s, d, f) in enumerate(spans, 1)]
    if len({(e["start_ns"], e["end_ns"]) for e in events}) < len(events):
        return  # equal spans have no innermost
    calls = [gather(ts) for ts in range(0, 70, 7)]
    found, _ = joined(calls, events)
    order = list(range(len(calls)))
    random.shuffle(order)
    random.shuffle(events)
    assert joined([calls[at] for at in order], events)[0] == [found[at] for at in order]


def test_the_log_tells_of_collectives_by_their_buffers(make_run: MakeRun) -> None:
    run = make_run(ranks=1)
    parse_run(run)
    calls = pd.read_parquet(run / "tables" / "collectives")
    events = pd.read_parquet(run / "tables" / "zero_events").set_index("event_id")
    assert set(calls["source"]) == {"log"}
    assert set(events.loc[calls["event_id"], "kind"]) == {"fetch", "prefetch"}
    assert len(calls) == events["kind"].isin(["fetch", "prefetch"]).sum()
    assert (calls["out_bytes"] == 4608).all()


def test_a_run_without_any_storage_has_no_collectives() -> None:
    empty = {name: unranked(name, []) for name in ("memory_blocks", "zero_events")}
    assert of_log(empty).num_rows == 0


PID = 700
TID = (1 << 48) | (PID << 24) | 701


def nccl_export(path: Path, *, kernels: bool = True) -> Path:
    """Two all-gathers and a reduce-scatter within ranges of ours; the second gather is in a group."""
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE NVTX_EVENTS (start, end, eventType, text, textId, globalTid, domainId, int64Value, jsonText);
        CREATE TABLE StringIds (id, value);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId, globalTid);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, shortName, correlationId, globalPid, deviceId);
        INSERT INTO StringIds VALUES (1, 'ncclAllGather'), (2, 'ncclDevKernel_AllGather_RING_LL'), (3, 'gemm');
    """)
    told = '{{"NCCL communicator ID":77,"Message size [bytes]":{}}}'
    db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [
        (0, None, 75, "NCCL", None, TID, 1, None, None),
        (100, 120, 59, None, 1, TID, 1, None, told.format(256)),
        (200, 210, 59, None, 1, TID, 1, None, None),
        (300, 320, 59, "ncclReduceScatter", None, TID, 1, None, told.format(128)),
        (110, 111, 59, "ncclGroupStart", None, TID, 1, None, None),
    ])  # fmt: skip
    if kernels:
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", [
            (105, 106, 1, TID), (230, 231, 2, TID), (310, 311, 3, TID), (312, 313, 4, TID)])  # fmt: skip
        process = TID & ~0xFFFFFF
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", [
            (500, 600, 17, 2, 1, process, 0), (600, 700, 17, 2, 2, process, 0), (700, 800, 25, 2, 3, process, 0),
            (800, 900, 7, 3, 4, process, 0)])  # fmt: skip
    db.commit()
    db.close()
    return path


def test_ranges_of_nccl_have_their_kernels_and_sizes(tmp_path: Path) -> None:
    sink = MemorySink()
    nsys.read(nccl_export(tmp_path / "a.sqlite"), sink, ranks={PID: 3})
    names = ("rank", "name", "launched_ns", "start_ns", "end_ns", "stream", "in_bytes", "out_bytes", "group")
    assert [tuple(row[name] for name in names) for row in sink.rows("collectives")] == [
        (3, "ncclAllGather", 100, 500, 600, 17, 256, None, "77"),
        (3, "ncclAllGather", 200, 200, 210, None, None, None, None),
        (3, "ncclReduceScatter", 300, 700, 800, 25, None, 128, "77"),
    ]
    assert sink.counts["collectives_with_kernel"].count == 2


def test_ranges_of_nccl_without_kernels_are_launches(tmp_path: Path) -> None:
    sink = MemorySink()
    nsys.read(nccl_export(tmp_path / "a.sqlite", kernels=False), sink, ranks={PID: 0})
    assert [row["start_ns"] for row in sink.rows("collectives")] == [100, 200, 300]
    assert {row["stream"] for row in sink.rows("collectives")} == {None}


def probed_gathers(log: list[Row]) -> list[Row]:
    """Events of the probe's own log, with the bytes of what they gathered where the wait after them tells.

    The probe notes all parameters of a launch, those included that were there already; the wait notes what came.
    """
    rows: list[Row] = []
    for line in log:
        if line["kind"] == "all_gather_params":
            rows.append({"params": set(line["params"]), **event(len(rows) + 1, "fetch", line["t0"], line["t1"])})
        if line["kind"] == "gather_wait":
            launch = next(row for row in reversed(rows) if set(line["params"]) <= row["params"])
            launch |= {"full_bytes": sum(line["bytes"]), "param_count": len(line["bytes"])}
    return [{name: value for name, value in row.items() if name not in {"params", "thread_id"}} for row in rows]


@needs_captures
@pytest.mark.h200
@pytest.mark.parametrize("case", ["s3m0", "s3m1"])
def test_gathers_of_full_size_runs_are_joined_to_their_launch(case: str, tmp_path: Path) -> None:
    unpack(h200(case), tmp_path / "in")
    parse_files(sorted((tmp_path / "in").rglob("kineto_r*")), tmp_path / "out")
    for rank in (0, 1):
        calls = pq.read_table(tmp_path / "out" / "tables" / "collectives" / f"rank-{rank}.parquet")
        assert calls["launched_ns"].null_count == 0
        events = probed_gathers(json.loads(gzip.decompress((tmp_path / "in" / f"events_r{rank}.json.gz").read_bytes())))
        found, counts = joined(calls.to_pylist(), events)
        # The probe saw the 1,200 gathers that the coordinator launched; the other 3 x 194 restore small parameters
        # after each step, and 3 reductions and 6 all-reduces are of no gather.
        assert counts == {"joined": 1200, "outside_events": 582 + 9}
        assert sum("full_bytes" in row for row in events) == 890
        assert len(set(found) - {None}) == len(events) == 1200
