"""What a snapshot's reader makes of small histories, row by row."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.sink import MemorySink, Source
from zeropeak.parse.snapshot.reader import rank_in_name, read
from zeropeak.parse.writer import conform
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
SEGMENT = 1 << 40


def entry(action: str, address: int, size: Any, time_us: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 7, "time_us": time_us, "frames": [], **more}


def segment(blocks: list[tuple[int, int, str]], address: int = SEGMENT, total: int = 2 * MIB, device: int = 0) -> Any:
    rows = [{"address": address + place, "size": size, "state": state} for place, size, state in blocks]
    return {"device": device, "address": address, "total_size": total, "stream": 7, "blocks": rows}


def parse(tmp_path: Path, snapshot: dict[str, Any], **options: Any) -> tuple[MemorySink, Source]:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    sink = MemorySink()
    source = read(path, sink, **options)
    for name, tables in sink.tables.items():
        for rows in tables:
            conform(BY_NAME[name], rows, 0)
    return sink, source


def events(sink: MemorySink) -> list[tuple[Any, ...]]:
    names = ("ts_ns", "action", "size_bytes", "allocated_bytes", "reserved_bytes", "mend")
    return [tuple(row.get(name) for name in names) for row in sink.rows("memory_events")]


def blocks(sink: MemorySink) -> list[tuple[Any, ...]]:
    names = ("size_bytes", "born_ns", "free_requested_ns", "freed_ns", "mend")
    return [tuple(row[name] for name in names) for row in sink.rows("memory_blocks")]


def counts(sink: MemorySink) -> dict[str, int]:
    return {what: line.count for what, line in sink.counts.items() if line.count and line.severity != "info"}


def test_allocated_falls_when_the_owner_lets_go(tmp_path: Path) -> None:
    trace = [
        entry("segment_alloc", SEGMENT, 2 * MIB, 1),
        entry("alloc", SEGMENT, 100, 1),
        entry("alloc", SEGMENT + 512, 600, 2),
        entry("free_requested", SEGMENT, 100, 3),
        entry("free_completed", SEGMENT, 100, 4),
    ]
    dump = segment([(0, 512, "inactive"), (512, 1024, "active_allocated")])
    sink, source = parse(tmp_path, {"segments": [dump], "device_traces": [trace]})
    assert events(sink) == [
        (1000, "segment_alloc", 2 * MIB, 0, 2 * MIB, None),
        (1000, "alloc", 512, 512, 2 * MIB, None),
        (2000, "alloc", 1024, 1536, 2 * MIB, None),
        (3000, "free", 512, 1024, 2 * MIB, None),
    ]
    assert blocks(sink) == [(512, 1000, 3000, 4000, None), (1024, 2000, None, None, None)]
    assert (source.partial, source.clock, source.device) == (False, "unix", "cuda:0")
    assert sink.counts["peak_allocated_bytes:cuda:0"].count == 1536
    assert counts(sink) == {}


def test_what_is_older_than_the_history_counts_from_its_start(tmp_path: Path) -> None:
    trace = [
        entry("free_completed", SEGMENT + 1024, 512, 1),
        entry("free_requested", SEGMENT + 512, 300, 2),
        entry("free_completed", SEGMENT + 512, 300, 2),
        entry("alloc", SEGMENT + 512, 200, 3),
    ]
    dump = segment([(0, 512, "active_allocated"), (512, 512, "active_allocated"), (1024, 512, "inactive")])
    sink, source = parse(tmp_path, {"segments": [dump], "device_traces": [trace]})
    assert [row[3] for row in events(sink)] == [512, 1024]
    assert blocks(sink) == [
        (512, 3000, None, None, None),
        (512, None, 2000, 2000, None),
        (512, None, 1000, 1000, None),
        (512, None, None, None, None),
    ]
    assert source.partial
    start = sink.counts["history_starts_ns:cuda:0"]
    assert (start.count, start.severity) == (1000, "info")
    assert "3 blocks of 1536 bytes are older" in str(start.detail)


def test_a_large_block_keeps_a_remainder_of_up_to_a_mebibyte(tmp_path: Path) -> None:
    trace = [
        entry("segment_alloc", SEGMENT, 4 * MIB, 1),
        entry("alloc", SEGMENT, 3 * MIB, 1),
        entry("free_requested", SEGMENT, 3 * MIB, 2),
        entry("free_completed", SEGMENT, 3 * MIB, 2),
        entry("alloc", SEGMENT, 3 * MIB - 512, 3),
        entry("free_requested", SEGMENT, 3 * MIB - 512, 4),
    ]
    dump = segment([(0, 3 * MIB - 512, "active_pending_free")], total=4 * MIB)
    sink, _ = parse(tmp_path, {"segments": [dump], "device_traces": [trace]})
    assert [row[2] for row in events(sink)][1:] == [4 * MIB, 4 * MIB, 3 * MIB - 512, 3 * MIB - 512]


def test_expandable_segments_grow_and_shrink(tmp_path: Path) -> None:
    trace = [
        entry("segment_map", SEGMENT, 20 * MIB, 1),
        entry("alloc", SEGMENT, 19 * MIB + MIB // 2, 1),
        entry("free_requested", SEGMENT, 19 * MIB + MIB // 2, 2),
        entry("free_completed", SEGMENT, 19 * MIB + MIB // 2, 2),
        entry("segment_unmap", SEGMENT, 20 * MIB, 3),
    ]
    snapshot = {"segments": [], "device_traces": [trace], "allocator_settings": {"expandable_segments": True}}
    sink, _ = parse(tmp_path, snapshot)
    assert [row[1:5] for row in events(sink)] == [
        ("segment_alloc", 20 * MIB, 0, 20 * MIB),
        ("alloc", 19 * MIB + MIB // 2, 19 * MIB + MIB // 2, 20 * MIB),
        ("free", 19 * MIB + MIB // 2, 0, 20 * MIB),
        ("segment_free", 20 * MIB, 0, 0),
    ]


def test_out_of_memory_is_a_row_without_address(tmp_path: Path) -> None:
    oom = {"action": "oom", "device_free": 4096, "size": 80 * MIB, "stream": 7, "time_us": 5, "frames": []}
    sink, _ = parse(tmp_path, {"segments": [segment([(0, 512, "active_allocated")])], "device_traces": [[oom]]})
    row = sink.rows("memory_events")[0]
    assert (row["action"], row["address"], row["size_bytes"]) == ("oom", None, 80 * MIB)
    assert (row["allocated_bytes"], row["reserved_bytes"]) == (512, 2 * MIB)
    assert "4096" in str(sink.counts["out_of_memory:cuda:0"].detail)


def test_without_history_the_dump_is_all_there_is(tmp_path: Path) -> None:
    dump = segment([(0, 512, "active_allocated"), (512, 512, "active_pending_free")])
    sink, source = parse(tmp_path, {"segments": [dump], "device_traces": [[]]})
    assert "memory_events" not in sink.tables
    assert blocks(sink) == [(512, None, None, None, None)]
    assert source.partial
    assert "torch.cuda.memory._record_memory_history()" in str(sink.counts["history_missing:cuda:0"].detail)


def test_without_times_the_order_is_kept(tmp_path: Path) -> None:
    trace = [entry("alloc", SEGMENT, 512, 0), entry("alloc", SEGMENT + 512, 512, 0)]
    for item in trace:
        del item["time_us"]
    dump = segment([(0, 512, "active_allocated"), (512, 512, "active_allocated")])
    annotations = [{"name": "a", "stage": "START", "device": 0, "time_us": 5}]
    snapshot = {"segments": [dump], "device_traces": [trace], "external_annotations": annotations}
    sink, source = parse(tmp_path, snapshot)
    assert [row[0] for row in events(sink)] == [0, 1]
    assert (source.clock, source.session_start_unix_ns) == ("session", None)
    assert counts(sink) == {"entries_without_times": 2}
    assert "nvtx_ranges" not in sink.tables


def test_times_are_put_in_order_and_counted(tmp_path: Path) -> None:
    trace = [entry("alloc", SEGMENT + 512 * place, 512, time) for place, time in enumerate((0, 9, 8, 10))]
    dump = segment([(512 * place, 512, "active_allocated") for place in range(4)])
    sink, _ = parse(tmp_path, {"segments": [dump], "device_traces": [trace]})
    assert [row[0] for row in events(sink)] == [9000, 9000, 9000, 10000]
    assert counts(sink) == {"entries_retimed:cuda:0": 2}


def test_without_segments_the_history_stands_alone(tmp_path: Path) -> None:
    trace = [entry("alloc", SEGMENT, 512, 1), entry("free_requested", SEGMENT + 512, 512, 2)]
    sink, source = parse(tmp_path, {"device_traces": [trace]})
    assert events(sink) == [(1000, "alloc", 512, 1024, None, None), (2000, "free", 512, 512, None, None)]
    assert counts(sink) == {"segments_missing:cuda:0": 1}
    assert source.partial


def test_several_devices_in_one_file(tmp_path: Path) -> None:
    dumps = [segment([(0, 512, "active_allocated")], device=device) for device in (0, 3)]
    traces = [[entry("alloc", SEGMENT, 512, 1)], [], [], [entry("alloc", SEGMENT, 8, 2), entry("oom", 0, 8, 3)]]
    sink, source = parse(tmp_path, {"segments": dumps, "device_traces": traces})
    found = [(row["device"], row["block_id"]) for row in sink.rows("memory_blocks")]
    assert found == [("cuda:0", 0), ("cuda:3", 1)]
    assert source.device == "cuda:3"
    assert sink.counts["peak_allocated_bytes:cuda:0"].count == sink.counts["peak_allocated_bytes:cuda:3"].count == 512


def test_an_address_allocated_twice_had_been_freed(tmp_path: Path) -> None:
    trace = [entry("alloc", SEGMENT, 512, 1), entry("alloc", SEGMENT, 1024, 2)]
    sink, _ = parse(tmp_path, {"segments": [segment([(0, 1024, "active_allocated")])], "device_traces": [trace]})
    assert events(sink)[1:] == [
        (2000, "free", 512, 0, 2 * MIB, "address-reused"),
        (2000, "alloc", 1024, 1024, 2 * MIB, None),
    ]
    assert counts(sink) == {"mend_address_reused:cuda:0": 1, "mend_address_reused_bytes:cuda:0": 512}


def test_the_dump_settles_what_a_gap_left_open(tmp_path: Path) -> None:
    trace = [entry("alloc", SEGMENT, 512, 1), entry("free_requested", SEGMENT + 4096, 8, 2)]
    trace += [entry("free_completed", SEGMENT + 4096, 8, 2), entry("free_requested", SEGMENT + 4096, 8, 3)]
    dump = segment([(4096, 512, "active_allocated"), (8192, 512, "active_allocated")])
    sink, source = parse(tmp_path, {"segments": [dump], "device_traces": [trace]})
    assert events(sink)[-2:] == [
        (3000, "free", 512, 512, 2 * MIB, "gone-at-dump"),
        (3000, "alloc", 512, 1024, 2 * MIB, "born-unseen"),
    ]
    assert counts(sink) == {
        "mend_gone_at_dump:cuda:0": 1, "mend_gone_at_dump_bytes:cuda:0": 512, "frees_without_alloc:cuda:0": 1,
        "mend_born_unseen:cuda:0": 1, "mend_born_unseen_bytes:cuda:0": 512}  # fmt: skip
    assert source.partial


@pytest.mark.parametrize(("left_out", "freed_ns"), [("free_requested", 4000), ("free_completed", 3000)])
def test_either_kind_of_free_can_be_left_out(tmp_path: Path, left_out: str, freed_ns: int) -> None:
    trace = [
        entry("alloc", SEGMENT, 512, 1),
        entry("free_requested", SEGMENT, 512, 3),
        entry("free_completed", SEGMENT, 512, 4),
    ]
    kept = [item for item in trace if item["action"] != left_out]
    sink, _ = parse(tmp_path, {"segments": [segment([])], "device_traces": [kept]})
    assert blocks(sink) == [(512, 1000, freed_ns, freed_ns, None)]
    assert counts(sink) == {}


def test_damaged_entries_are_left_out_and_counted(tmp_path: Path) -> None:
    good = entry("alloc", SEGMENT, 512, 1)
    bad = [entry("alloc", SEGMENT, "x", 1), {"action": "alloc"}, "text", entry("alloc", SEGMENT, 1 << 60, 1),
           entry("workspace", SEGMENT, 8, 1), {"no": "action"}]  # fmt: skip
    dump = segment([(0, 512, "active_allocated")])
    dump["blocks"] += ["text", {"address": None, "size": 3}]
    sink, _ = parse(tmp_path, {"segments": [dump, 5, {}], "device_traces": [[*bad, good, 7], "text"]})
    assert [row[3] for row in events(sink)] == [512]
    assert counts(sink) == {"dump_damaged:cuda:0": 4, "entries_damaged:cuda:0": 5, "entries_unknown:cuda:0": 2}
    assert "workspace" in str(sink.counts["entries_unknown:cuda:0"].detail)


def test_blocks_without_addresses_lie_in_a_row(tmp_path: Path) -> None:
    dump = segment([(0, 512, "inactive"), (512, 1024, "active_allocated")])
    for block in dump["blocks"]:
        del block["address"]
    sink, _ = parse(tmp_path, {"segments": [dump]})
    assert sink.rows("memory_blocks")[0]["address"] == SEGMENT + 512


def test_ranges_close_the_innermost_of_their_name(tmp_path: Path) -> None:
    marks = [("step", "START", 1), ("zeropeak::fetch a", "START", 2), ("step", "START", 3), ("step", "END", 4),
             ("zeropeak::fetch a", "END", 5), ("other", "END", 6)]  # fmt: skip
    annotations = [{"name": name, "stage": stage, "device": 0, "time_us": time} for name, stage, time in marks]
    snapshot = {"segments": [segment([(0, 512, "active_allocated")])], "external_annotations": [*annotations, 5, {}]}
    sink, _ = parse(tmp_path, snapshot)
    rows = sink.rows("nvtx_ranges")
    assert [(row["domain"], row["name"], row["start_ns"], row["end_ns"]) for row in rows] == [
        ("", "step", 1000, None), ("zeropeak", "fetch a", 2000, 5000), ("", "step", 3000, 4000)]  # fmt: skip
    assert {row["style"] for row in rows} == {"record_function"}
    assert counts(sink)["annotations_unopened"] == 1
    assert counts(sink)["annotations_damaged"] == 2
    assert "recording thread" in str(sink.counts["annotations"].detail)


def test_nothing_on_the_gpu_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no segments and no history"):
        parse(tmp_path, {"segments": [], "device_traces": [[], []]})


def test_pinned_host_memory_is_counted_not_read(tmp_path: Path) -> None:
    snapshot = {"segments": [segment([(0, 512, "active_allocated")])], "host_traces": [{}, {}]}
    assert parse(tmp_path, snapshot)[0].counts["host_traces_not_read"].count == 2


def test_the_given_rank_wins(tmp_path: Path) -> None:
    snapshot = {"segments": [segment([(0, 512, "active_allocated")])]}
    assert parse(tmp_path, snapshot)[1].rank is None
    assert parse(tmp_path, snapshot, rank=5)[1].rank == 5


@pytest.mark.parametrize(
    ("name", "rank"),
    [("snap_r3.pickle.gz", 3), ("rank12_step5.pickle", 12), ("rank-2/snapshot.pickle.gz", 2), ("RANK_7.pkl", 7),
     ("memory.pickle", None), ("iter12.pickle", None), ("run3/snapshot.pickle", None), ("h200_snapshot.pickle", None)],
)  # fmt: skip
def test_rank_in_the_name(tmp_path: Path, name: str, rank: int | None) -> None:
    assert rank_in_name(tmp_path / name) == rank
