"""Scanning in other processes gives what scanning in this one gives."""

import gzip
import json
import os
from pathlib import Path

import pytest

from zeropeak.parse.kineto import reader as kineto
from zeropeak.parse.kineto import workers as kineto_workers
from zeropeak.parse.kineto.part import Limits, Part
from zeropeak.parse.kineto.workers import Workers, parts
from zeropeak.parse.sink import MemorySink, Source
from zeropeak.profile.errors import TraceError, ZeropeakError

EVENTS = [
    {
        "ph": "X",
        "cat": "kernel",
        "name": f"k{n % 7}",
        "pid": 0,
        "tid": 7,
        "ts": n + 0.125,
        "dur": 1,
        "args": {"correlation": n, "x": [{"name": 1}, {"ph": 2}]},
    }
    for n in range(1, 4000)
]
TRACE = json.dumps(
    {
        "baseTimeNanoseconds": 0,
        "distributedInfo": {"rank": 2},
        "traceEvents": EVENTS,
        "deviceProperties": [{"id": 0}, {"id": 1}],
    },
    indent=1,
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_workers, "START_BYTES", 100_000)
    monkeypatch.setattr(kineto_workers, "HEAD_START_BYTES", 50_000)
    monkeypatch.setattr(kineto_workers, "MEMORY_BYTES", 10_000)


def read(path: Path, workers: Workers | None = None) -> tuple[list[dict[str, object]], dict[str, int], Source]:
    sink = MemorySink()
    source = kineto.read(path, sink, scanner=workers) if workers else kineto.read(path, sink)
    return sink.rows("kernels"), {what: line.count for what, line in sink.counts.items()}, source


def written(folder: Path, text: str, packed: bool = False) -> Path:
    path = folder / "trace.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_several_processes_give_the_same_rows_in_the_same_order(tmp_path: Path, packed: bool) -> None:
    path = written(tmp_path, TRACE, packed)
    with Workers(path, 3) as workers:
        assert len(workers.running) == 2
        assert read(path, workers) == read(path)


def test_damage_that_no_part_begins_after_is_read_through_by_the_part_before(tmp_path: Path) -> None:
    text = TRACE.replace('"tid": 7,', '"tid": 7, "bad": "}, {"ph": "X",', 1)
    path = written(tmp_path, text)
    with Workers(path, 2) as workers:
        assert read(path, workers) == read(path)


def test_a_part_that_would_begin_within_an_event_is_left_to_the_one_before(tmp_path: Path) -> None:
    inner = [{"ph": n} for n in range(40_000)]
    deep = [{"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 1, "args": {"x": inner}}]
    path = written(tmp_path, json.dumps({"baseTimeNanoseconds": 0, "traceEvents": EVENTS[:9] + deep + EVENTS[9:20]}))
    with Workers(path, 4) as workers:
        assert len(workers.running) == 3
        assert read(path, workers) == read(path)


def test_the_reason_for_a_refusal_comes_through(tmp_path: Path) -> None:
    path = written(tmp_path, '{"schema": "1", "nodes": []}')
    with Workers(path, 2) as workers, pytest.raises(TraceError, match="an execution trace"):
        read(path, workers)


def test_limits_are_kept_in_the_processes(tmp_path: Path) -> None:
    path = written(tmp_path, TRACE)
    limits = Limits(max_bytes=1000)
    with Workers(path, 2, limits) as workers, pytest.raises(TraceError, match="more than 1,000 bytes"):
        kineto.read(path, MemorySink(), max_bytes=1000, scanner=workers)
    with Workers(path, 2) as workers, pytest.raises(ValueError, match="started for another"):
        kineto.read(path, MemorySink(), max_bytes=1000, scanner=workers)


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, TRACE)
    with Workers(path, 2) as workers:
        os.kill(workers.running[0].pid, 9)
        with pytest.raises(ZeropeakError, match="ended with status -9"):
            read(path, workers)


def test_leaving_the_context_leaves_no_process(tmp_path: Path) -> None:
    path = written(tmp_path, TRACE)
    with Workers(path, 3) as workers:
        processes = list(workers.running)
    assert all(process.ended for process in processes)


def test_short_files_bare_lists_and_xz_are_not_divided(tmp_path: Path) -> None:
    assert parts(written(tmp_path, TRACE[:50_000]), 8) == ([], Part())
    assert parts(written(tmp_path, "[" + " " * 900_000), 8) == ([], Part())
    path = tmp_path / "x"
    path.write_bytes(b"\xfd7zXZ\0" + b" " * 900_000)
    assert parts(path, 8) == ([], Part())
    assert parts(written(tmp_path, TRACE), 1) == ([], Part())


def test_the_last_part_is_this_process_s_and_shorter_by_its_head_start(tmp_path: Path) -> None:
    assert parts(written(tmp_path, "{" + " " * 899_999), 3) == (
        [Part(0, 316667), Part(316667, 633334)],
        Part(633334, None),
    )
    assert parts(written(tmp_path, "{" + " " * 249_999), 2) == ([Part(0, 150000)], Part(150000, None))


def test_a_file_that_is_done_before_this_process_is_ready_is_left_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_workers, "HEAD_START_BYTES", 50_000_000)
    path = written(tmp_path, TRACE)
    assert parts(path, 2) == ([Part(0, None)], None)
    with Workers(path, 2) as workers:
        assert read(path, workers) == read(path)
