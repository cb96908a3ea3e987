"""A small trace of each kind and the rows that it becomes."""

import json
from pathlib import Path
from typing import Any

import pytest

from zeropeak.parse.kineto import reader as kineto
from zeropeak.parse.sink import MemorySink, Source

BASE = 1790857026000000000
HEAD = {
    "schemaVersion": 1,
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "baseTimeNanoseconds": BASE,
}


def read(folder: Path, events: list[dict[str, Any]], **head: Any) -> tuple[MemorySink, Source]:
    path = folder / "trace.json"
    path.write_text(json.dumps({**HEAD, **head, "traceEvents": events}))
    sink = MemorySink()
    return sink, kineto.read(path, sink)


def memory(ts: float, size: int, address: int = 4096, kind: int = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 723,
        "tid": 764,
        "ts": ts,
        "args": {
            "Total Reserved": 9000,
            "Total Allocated": 512,
            "Bytes": size,
            "Device Id": kind - 1,
            "Device Type": kind,
            "Addr": address,
            **args,
        },
    }


def test_a_memory_event_is_an_alloc_or_a_free_by_its_sign(tmp_path: Path) -> None:
    sink, _ = read(tmp_path, [memory(5199832495665.066, 512), memory(5199832495665.067, -512)])
    assert sink.rows("memory_events") == [
        {
            "device": "cuda:0",
            "ts_ns": BASE + 5199832495665066,
            "action": "alloc",
            "address": 4096,
            "size_bytes": 512,
            "allocated_bytes": 512,
            "reserved_bytes": 9000,
            "thread_id": 764,
            "source": "kineto",
        },
        {
            "device": "cuda:0",
            "ts_ns": BASE + 5199832495665067,
            "action": "free",
            "address": 4096,
            "size_bytes": 512,
            "allocated_bytes": 512,
            "reserved_bytes": 9000,
            "thread_id": 764,
            "source": "kineto",
        },
    ]


def test_totals_of_the_cpu_are_not_taken(tmp_path: Path) -> None:
    sink, source = read(tmp_path, [memory(1.5, 64, kind=0)])
    row = sink.rows("memory_events")[0]
    assert (row["device"], row["allocated_bytes"], row["reserved_bytes"]) == ("cpu", None, None)
    assert source.device == "cpu"


def test_an_out_of_memory_event_is_kept_with_what_was_asked_for(tmp_path: Path) -> None:
    sink, _ = read(tmp_path, [memory(1.5, 1 << 30) | {"name": "[OutOfMemory]"}])
    assert [(row["action"], row["size_bytes"]) for row in sink.rows("memory_events")] == [("oom", 1 << 30)]


def test_memory_events_without_category_and_address_are_read(tmp_path: Path) -> None:
    old = {
        "ph": "i",
        "s": "t",
        "name": "[memory]",
        "pid": 25738,
        "tid": 25738,
        "ts": 1623142623460121,
        "args": {"Device Type": 0, "Device Id": -1, "Bytes": 4},
    }
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [old]}))
    sink = MemorySink()
    kineto.read(path, sink)
    row = sink.rows("memory_events")[0]
    assert (row["device"], row["ts_ns"], row["address"], row["size_bytes"]) == ("cpu", 1623142623460121000, None, 4)
    assert sink.counts["events.none"].count == 1


def test_other_instant_events_are_passed_over(tmp_path: Path) -> None:
    sink, _ = read(tmp_path, [memory(1.5, 8) | {"name": "[other]"}, memory(2.5, 8) | {"args": None, "name": "[x]"}])
    assert "memory_events" not in sink.tables


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("kernel", "kernel"),
        ("Kernel", "kernel"),
        ("gpu_memcpy", "memcpy"),
        ("Memcpy", "memcpy"),
        ("gpu_memset", "memset"),
        ("Memset", "memset"),
    ],
)
def test_device_activity_of_every_generation_is_a_kernel_row(tmp_path: Path, category: str, expected: str) -> None:
    sink, _ = read(
        tmp_path,
        [
            {
                "ph": "X",
                "cat": category,
                "name": "gemm<float, 2>",
                "pid": 0,
                "tid": "stream 7",
                "ts": 10.25,
                "dur": 2.125,
                "args": {"device": 1, "stream": 7, "correlation": 15, "bytes": 64},
            }
        ],
    )
    assert sink.rows("kernels") == [
        {
            "name": "gemm<float, 2>",
            "category": expected,
            "start_ns": BASE + 10250,
            "end_ns": BASE + 12375,
            "device": 1,
            "stream": 7,
            "correlation_id": 15,
            "size_bytes": 64,
            "source": "kineto",
        }
    ]


def test_a_kernel_without_arguments_takes_device_and_stream_from_its_track(tmp_path: Path) -> None:
    sink, _ = read(tmp_path, [{"ph": "X", "cat": "kernel", "name": "k", "pid": 2, "tid": 7, "ts": 1, "dur": 1}])
    row = sink.rows("kernels")[0]
    assert (row["device"], row["stream"], row["correlation_id"], row["size_bytes"]) == (2, 7, None, None)


def test_duplicate_correlation_ids_keep_their_rows(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"correlation": 9}}
    sink, _ = read(tmp_path, [kernel, kernel])
    assert [row["correlation_id"] for row in sink.rows("kernels")] == [9, 9]


def test_our_range_carries_its_event_id(tmp_path: Path) -> None:
    sink, source = read(
        tmp_path,
        [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "zeropeak::fetch layers.0",
                "pid": 3087,
                "tid": 3088,
                "ts": 862.301,
                "dur": 0.171,
                "args": {"External id": 9, "Record function id": 0, "event_id": (3 << 40) + 7, "Ev Idx": 8},
            }
        ],
    )
    assert sink.rows("nvtx_ranges") == [
        {
            "pid": 3087,
            "thread_id": 3088,
            "domain": "zeropeak",
            "category": "cpu_op",
            "name": "fetch layers.0",
            "start_ns": BASE + 862301,
            "end_ns": BASE + 862472,
            "style": "record_function",
            "event_id": (3 << 40) + 7,
            "source": "kineto",
        }
    ]
    assert source.pids == (3087,)


def test_annotations_of_host_and_device_are_ranges_and_other_operators_only_counted(tmp_path: Path) -> None:
    common = {"ph": "X", "name": "Optimizer.step#Adam.step", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    sink, _ = read(
        tmp_path,
        [
            {**common, "cat": "user_annotation", "pid": 5, "args": {"External id": 1, "event_id": 77}},
            {**common, "cat": "gpu_user_annotation"},
            {**common, "cat": "cpu_op"},
            {**common, "cat": "Operator"},
        ],
    )
    rows = [(row["category"], row["pid"], row["thread_id"], row["event_id"]) for row in sink.rows("nvtx_ranges")]
    assert rows == [("user_annotation", 5, 7, None), ("gpu_user_annotation", None, None, None)]
    assert {what: line.count for what, line in sink.counts.items() if what.startswith("events")} == {
        "events": 4,
        "events.cpu_op": 1,
        "events.Operator": 1,
        "events.user_annotation": 1,
        "events.gpu_user_annotation": 1,
    }


COMMS = {
    "Collective name": "_allgather_base",
    "In msg nelems": 100,
    "Out msg nelems": 800,
    "Group size": 8,
    "dtype": "Half",
    "Process Group Name": "1",
    "Process Group Description": "default_pg",
    "Seq": 4,
    "Input Tensors start": "[140000, 5]",
    "Output Tensors start": 150000,
    "Comms Id": "18446744073709551615",
}


LAUNCH = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "record_param_comms",
    "pid": 1,
    "tid": 2,
    "ts": 1,
    "dur": 2,
    "args": COMMS,
}


def test_a_launched_collective_is_a_row_where_no_kernel_tells_of_it(tmp_path: Path) -> None:
    wait = {**LAUNCH, "args": {**COMMS, "Collective name": "wait"}}
    unnamed = {**LAUNCH, "args": {"Input Dims": []}}
    sink, _ = read(tmp_path, [LAUNCH, wait, unnamed])
    assert sink.rows("collectives") == [
        {
            "name": "_allgather_base",
            "start_ns": BASE + 1000,
            "end_ns": BASE + 3000,
            "launched_ns": BASE + 1000,
            "thread_id": 2,
            "dtype": "float16",
            "in_numel": 100,
            "out_numel": 800,
            "in_bytes": 200,
            "out_bytes": 1600,
            "group_size": 8,
            "group": "1",
            "sequence": 4,
            "in_address": 140000,
            "out_address": 150000,
            "stream": None,
            "source": "kineto",
        }
    ]
    assert sink.counts["collectives_without_args"].count == 1


def test_a_collective_is_told_by_its_kernel_where_there_is_one(tmp_path: Path) -> None:
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "ncclDevKernel",
        "pid": 0,
        "tid": 17,
        "ts": 5,
        "dur": 4,
        "args": {"stream": 17, **COMMS},
    }
    sink, _ = read(tmp_path, [LAUNCH, kernel, LAUNCH])
    assert [(row["start_ns"], row["stream"]) for row in sink.rows("collectives")] == [(BASE + 5000, 17)]
    assert sink.counts["collective_launches"].count == 2


def test_a_kernel_knows_its_launch_by_the_external_id(tmp_path: Path) -> None:
    launches = [
        {**LAUNCH, "ts": 1 + n, "tid": 2 + n, "args": {**COMMS, "External id": number, "Seq": 40 + n}}
        for n, number in enumerate([7, 8, 8])
    ]
    kernels = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel",
            "ts": 50 + n,
            "dur": 4,
            "args": {"stream": 17, **{key: COMMS[key] for key in ("Collective name", "dtype")}, "External id": number},
        }
        for n, number in enumerate([7, 8, 9])
    ]
    sink, _ = read(tmp_path, [*launches, *kernels])
    told = [
        tuple(row[name] for name in ("start_ns", "launched_ns", "thread_id", "sequence", "out_address"))
        for row in sink.rows("collectives")
    ]
    # Two launches claim id 8, none has id 9: their kernels' launches are unknown.
    assert told == [
        (BASE + 50_000, BASE + 1000, 2, 40, 150000),
        (BASE + 51_000, None, None, None, None),
        (BASE + 52_000, None, None, None, None),
    ]


def test_rank_and_world_size_come_from_the_metadata(tmp_path: Path) -> None:
    _, source = read(tmp_path, [memory(1.5, 8)])
    assert (source.reader, source.version, source.pids) == ("kineto", "schema 1", (723,))
    assert (source.rank, source.world_size, source.clock, source.partial) == (3, 8, "unix", False)
    assert read(tmp_path, [], distributedInfo={"rank": "one", "world_size": -1})[1].rank is None


def test_metadata_may_follow_the_events(tmp_path: Path) -> None:
    path = tmp_path / "late.json"
    late = {"baseTimeNanoseconds": BASE, "distributedInfo": {"rank": 5}}
    path.write_text(json.dumps({"traceEvents": [memory(1.5, 8)], **late}))
    sink = MemorySink()
    assert kineto.read(path, sink).rank == 5
    assert sink.rows("memory_events")[0]["ts_ns"] == BASE + 1500


def test_a_bare_list_of_events_is_a_trace_on_its_own_clock(tmp_path: Path) -> None:
    path = tmp_path / "bare.json"
    path.write_text(json.dumps([memory(5205945933862.301, 8)]))
    sink = MemorySink()
    source = kineto.read(path, sink)
    assert (source.rank, source.clock, source.partial) == (None, "boot", False)
    assert sink.rows("memory_events")[0]["ts_ns"] == 5205945933862301


@pytest.mark.parametrize("events", [[], [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]])
def test_a_trace_without_rows_is_read(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    sink, source = read(tmp_path, events)
    assert (sink.tables, source.partial, sink.counts["events"].count) == ({}, False, len(events))
