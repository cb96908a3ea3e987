"""nsys exports of all versions, whole and damaged."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from zeropeak.parse import nsys, nsys_export
from zeropeak.parse.sink import MemorySink
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

PID = 700
TID = (1 << 48) | (PID << 24) | 701
PROCESS = (1 << 48) | (PID << 24)
NVTX = "NVTX_EVENTS (start, end, eventType, category, text, textId, globalTid, domainId, int64Value)"


def export(path: Path, tables: dict[str, list[tuple[Any, ...]]]) -> Path:
    """A sqlite file; keys are ``TABLE (columns)``."""
    db = sqlite3.connect(path)
    for table, rows in tables.items():
        db.execute(f"CREATE TABLE {table}")
        db.executemany(f"INSERT INTO {table.split()[0]} VALUES ({', '.join('?' * len(rows[0]))})" if rows else "", rows)
    db.commit()
    db.close()
    return path


def read(path: Path, ranks: dict[int, int] | None = None) -> MemorySink:
    sink = MemorySink()
    nsys.read(path, sink, ranks=ranks)
    return sink


def test_ranges_of_our_domain_carry_their_event_ids(tmp_path: Path) -> None:
    file = export(tmp_path / "a.sqlite", {
        NVTX: [
            (0, None, 75, None, "zeropeak", None, TID, 3, None),
            (0, None, 33, 5, "fetch", None, TID, 3, None),
            (10, 20, 59, 5, None, 1, TID, 3, 77),
            (12, None, 34, 5, "free x", None, TID, 3, 78),
            (13, 14, 60, None, "foreign", None, TID, 0, 9),
            (15, None, 59, None, "open", None, TID, 3, 79),
        ],
        "StringIds (id, value)": [(1, "fetch layers.0")],
    })  # fmt: skip
    rows = read(file, {PID: 2}).rows("nvtx_ranges")
    assert [(r["name"], r["start_ns"], r["end_ns"], r["style"], r["event_id"], r["category"]) for r in rows] == [
        ("fetch layers.0", 10, 20, "push_pop", 77, "fetch"),
        ("free x", 12, 12, "mark", 78, "fetch"),
        ("foreign", 13, 14, "start_end", None, None),
        ("open", 15, None, "push_pop", 79, None),
    ]
    assert {(r["rank"], r["pid"], r["thread_id"]) for r in rows} == {(2, PID, 701)}
    assert [r["domain"] for r in rows] == ["zeropeak", "zeropeak", "", "zeropeak"]
    ids, starts = nsys.anchors(file)
    assert (ids.tolist(), starts.tolist()) == ([77, 78, 79], [10, 12, 15])


def test_domain_ids_belong_to_their_process(tmp_path: Path) -> None:
    other = TID + (1 << 24)
    file = export(tmp_path / "a.sqlite", {
        NVTX: [
            (0, None, 75, None, "zeropeak", None, TID, 1, None),
            (0, None, 75, None, "other", None, other, 1, None),
            (1, 2, 59, None, "a", None, TID, 1, 5),
            (1, 2, 59, None, "b", None, other, 1, 5),
        ],
    })  # fmt: skip
    rows = read(file).rows("nvtx_ranges")
    assert [(r["rank"], r["domain"], r["event_id"]) for r in rows] == [(0, "zeropeak", 5), (1, "other", None)]


def test_processes_outside_the_run_have_no_rank(tmp_path: Path) -> None:
    file = export(tmp_path / "a.sqlite", {NVTX: [(1, 2, 59, None, "a", None, TID, 0, None)]})
    sink = read(file, {999: 0})
    assert sink.rows("nvtx_ranges")[0]["rank"] is None
    assert sink.counts["nvtx_of_other_processes"].count == 1


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "NVTX_EVENTS_V2"])
def test_columns_that_a_version_lacks_are_null(tmp_path: Path, table: str) -> None:
    file = export(tmp_path / "a.sqlite", {
        f"{table} (text, eventType, globalTid, start, end)": [("r", 59, TID, 1, 2)],
        "EXPORT_META_DATA (name, value)": [("EXPORT_SCHEMA_VERSION", "2.0")],
    })  # fmt: skip
    sink = read(file)
    assert sink.rows("nvtx_ranges")[0]["name"] == "r"
    assert nsys.source(file).version == "2.0"
    assert nsys.source(file).session_start_unix_ns is None


def test_an_absent_table_says_which_option_brings_it(tmp_path: Path) -> None:
    sink = read(export(tmp_path / "a.sqlite", {"StringIds (id, value)": [(1, "x")]}))
    assert sink.counts["no_table_CUDA_GPU_MEMORY_USAGE_EVENTS"].detail == (
        "no table CUDA_GPU_MEMORY_USAGE_EVENTS; capture with nsys --cuda-memory-usage=true"
    )
    assert sink.tables == {}


def test_device_memory_gives_the_reserved_curve(tmp_path: Path) -> None:
    columns = "(start, globalPid, deviceId, address, bytes, memKind, memoryOperationType)"
    file = export(tmp_path / "a.sqlite", {
        f"CUDA_GPU_MEMORY_USAGE_EVENTS {columns}": [
            (5, PROCESS, 1, 4096, 100, 2, 0), (3, PROCESS, 1, 64, 50, 2, 0), (4, PROCESS, 1, 64, 7, 1, 0),
            (9, PROCESS, 1, 64, 50, 2, 1),
        ],
    })  # fmt: skip
    sink = read(file)
    assert [(r["ts_ns"], r["action"], r["reserved_bytes"], r["device"]) for r in sink.rows("memory_events")] == [
        (3, "segment_alloc", 50, "cuda:1"),
        (5, "segment_alloc", 150, "cuda:1"),
        (9, "segment_free", 100, "cuda:1"),
    ]
    assert sink.counts["gpu_memory_not_on_device"].count == 1


def test_kernels_copies_and_fills_are_named(tmp_path: Path) -> None:
    shared = "start, end, deviceId, streamId, correlationId, globalPid"
    row = (1, 2, 0, 7, 9, PROCESS)
    file = export(tmp_path / "a.sqlite", {
        f"CUPTI_ACTIVITY_KIND_KERNEL ({shared}, shortName)": [(*row, 1)],
        f"CUPTI_ACTIVITY_KIND_MEMCPY ({shared}, bytes, copyKind)": [(*row, 64, 8), (*row, 64, 999)],
        f"CUPTI_ACTIVITY_KIND_MEMSET ({shared}, bytes)": [(*row, 32)],
        "StringIds (id, value)": [(1, "gemm")],
    })  # fmt: skip
    rows = read(file).rows("kernels")
    assert [(r["name"], r["category"], r["size_bytes"]) for r in rows] == [
        ("gemm", "kernel", None),
        ("memcpy DtoD", "memcpy", 64),
        ("memcpy unknown", "memcpy", 64),
        ("memset", "memset", 32),
    ]


def test_text_that_is_not_utf8_is_mended(tmp_path: Path) -> None:
    file = export(tmp_path / "a.sqlite", {NVTX: [(1, 2, 59, None, None, None, TID, 0, None)]})
    db = sqlite3.connect(file)
    db.execute("UPDATE NVTX_EVENTS SET text = CAST(x'61ff62' AS TEXT)")
    db.commit()
    db.close()
    sink = read(file)
    assert sink.rows("nvtx_ranges")[0]["name"] == "a\ufffdb"
    assert sink.counts["text_not_utf8"].count == 1


def test_a_damaged_cell_is_null_and_the_rest_stays(tmp_path: Path) -> None:
    rows = [
        (1, 2, 59, None, "a", None, TID, 0, None),
        (3, "late", 59, None, "b", None, TID, 0, None),
        (None, 2, 59, None, "c", None, TID, 0, None),
    ]
    sink = read(export(tmp_path / "a.sqlite", {NVTX: rows}))
    assert [(r["start_ns"], r["end_ns"]) for r in sink.rows("nvtx_ranges")] == [(1, 2), (3, None)]
    assert sink.counts["nvtx_without_start"].count == 1


def test_many_strings_are_joined_by_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_export, "MAX_STRINGS_IN_MEMORY", 0)
    file = export(tmp_path / "a.sqlite", {
        NVTX: [(1, 2, 59, None, None, 1, TID, 0, None)], "StringIds (id, value)": [(1, "x"), (2, "y")]})  # fmt: skip
    assert read(file).rows("nvtx_ranges")[0]["name"] == "x"


def test_the_session_start_is_corrected_by_the_first_sample(tmp_path: Path) -> None:
    file = export(
        tmp_path / "a.sqlite",
        {"TARGET_INFO_SESSION_START_TIME (utcEpochNs)": [(1_000_000,)], "ANALYSIS_DETAILS (startTime)": [(400,)]},
    )
    assert nsys.source(file).session_start_unix_ns == 999_600


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00" + b"\x00" * 50, b"no database"])
def test_files_that_are_no_database_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.sqlite"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=r"bad\.sqlite: .*export"):
        read(file)
