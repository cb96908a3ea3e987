"""The event log and the recorder, with an injected clock."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from zeropeak.profile.counters import CpuCounters, Reading
from zeropeak.profile.eventlog import FLUSH_NS, FLUSH_ROWS, SCHEMAS, EventLog
from zeropeak.profile.labels import Kind, Phase
from zeropeak.profile.packed import NONE
from zeropeak.profile.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> list[dict[str, Any]]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        rows: list[dict[str, Any]] = stream.read_all().to_pylist()
    return rows


class SpyRanges:
    """Notes every call, like nvtx would see it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def handle(self, name: str, category: str) -> str:
        return name

    def push(self, handle: str, event_id: int) -> object:
        self.calls.append(("push", handle))
        return handle

    def pop(self, token: object) -> None:
        self.calls.append(("pop", token))

    def start(self, handle: str, event_id: int) -> object:
        self.calls.append(("start", handle))
        return handle

    def end(self, token: object) -> None:
        self.calls.append(("end", token))

    def mark(self, handle: str, event_id: int) -> None:
        self.calls.append(("mark", handle))


def make(tmp_path: Path) -> tuple[Recorder, SpyRanges]:
    clock = itertools.count(1000).__next__
    spy = SpyRanges()
    return Recorder(2, EventLog(tmp_path, clock), [spy], CpuCounters(), clock), spy


def test_begin_and_end_are_separate_rows_with_one_id_and_their_parent(tmp_path: Path) -> None:
    recorder, spy = make(tmp_path)
    recorder.position.move(step=1, micro_step=0)
    recorder.position.enter(Phase.FORWARD)
    outer = recorder.begin(recorder.known(Kind.RELEASE, "layers.0"), 3, [7])
    freed = recorder.point(recorder.known(Kind.FREE, "layers.0.weight"), 7, 0xABC, 11)
    recorder.end(outer)
    recorder.log.close()
    rows = read(tmp_path / "events.arrows")
    assert [(row["edge"], row["kind"], row["parent_event_id"]) for row in rows] == [
        ("begin", "release", None),
        ("point", "free", outer[0]),
        ("end", "release", None),
    ]
    assert rows[0]["event_id"] == rows[2]["event_id"] == (2 << 40) + 1
    assert {(row["step"], row["phase"], row["thread_id"]) for row in rows} == {
        (1, "forward", threading.get_native_id())
    }
    assert [tuple(row.values()) for row in read(tmp_path / "event_params.arrows")] == [
        (outer[0], 7, None, None),
        (freed, 7, 0xABC, 11),
    ]
    assert spy.calls == [("push", "release layers.0"), ("mark", "free layers.0.weight"), ("pop", "release layers.0")]


def test_phases_do_not_become_parents(tmp_path: Path) -> None:
    recorder, spy = make(tmp_path)
    phase = recorder.begin(recorder.known(Kind.PHASE, "forward", nested=False))
    fetch = recorder.begin(recorder.known(Kind.FETCH, "layers.0"))
    recorder.end(phase)
    recorder.end(fetch)
    recorder.log.close()
    assert {row["parent_event_id"] for row in read(tmp_path / "events.arrows")} == {None}
    assert spy.calls[-2:] == [("end", "phase forward"), ("pop", "fetch layers.0")]


def test_threads_have_stacks_of_their_own(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path)
    recorder.begin(recorder.known(Kind.FETCH, "main"))
    thread = threading.Thread(target=lambda: recorder.begin(recorder.known(Kind.FETCH, "other")))
    thread.start()
    thread.join()
    recorder.log.close()
    rows = read(tmp_path / "events.arrows")
    assert [(row["target"], row["parent_event_id"]) for row in rows] == [("main", None), ("other", None)]
    assert len({row["thread_id"] for row in rows}) == 2


def test_a_log_without_an_end_keeps_what_was_flushed(tmp_path: Path) -> None:
    recorder, _ = make(tmp_path)
    recorder.begin(recorder.known(Kind.FETCH, "layers.0"))
    recorder.log.flush()
    recorder.begin(recorder.known(Kind.FETCH, "lost"))
    with pa.OSFile(str(tmp_path / "events.arrows")) as file:
        batch = pa.ipc.open_stream(file).read_next_batch()
    assert batch.column("target").to_pylist() == ["layers.0"]


@pytest.mark.parametrize("rows", [FLUSH_ROWS, FLUSH_ROWS + 1])
def test_rows_are_flushed_by_number(tmp_path: Path, rows: int) -> None:
    log = EventLog(tmp_path, lambda: 0)
    for number in range(rows):
        log.append("modules", (number, None, None, None))
    with pa.OSFile(str(tmp_path / "modules.arrows")) as file:
        assert pa.ipc.open_stream(file).read_next_batch().num_rows == FLUSH_ROWS


@pytest.mark.parametrize(("params", "now"), [(0, FLUSH_NS + 1), (FLUSH_ROWS + 1, 1)])
def test_events_are_flushed_by_time_and_by_number(tmp_path: Path, params: int, now: int) -> None:
    recorder = Recorder(2, EventLog(tmp_path, lambda: 0), [], CpuCounters(), iter([0, now]).__next__)
    recorder.end(recorder.begin(recorder.known(Kind.FETCH, "layers.0"), params=range(params)))
    with pa.OSFile(str(tmp_path / "events.arrows")) as file:
        assert pa.ipc.open_stream(file).read_next_batch().column("edge").to_pylist() == ["begin", "end"]


def test_events_wait_for_a_flush(tmp_path: Path) -> None:
    recorder = Recorder(2, EventLog(tmp_path, lambda: 0), [], CpuCounters(), iter([0, FLUSH_NS]).__next__)
    recorder.end(recorder.begin(recorder.known(Kind.FETCH, "layers.0")))
    with pa.OSFile(str(tmp_path / "events.arrows")) as file, pytest.raises(pa.ArrowInvalid):
        pa.ipc.open_stream(file).read_next_batch()


def test_counters_that_are_not_sampled_are_read_at_phases_only(tmp_path: Path) -> None:
    class Counting(CpuCounters):
        def read(self) -> Reading:
            return Reading(7, 9)

    clock = itertools.count(1000).__next__
    recorder = Recorder(2, EventLog(tmp_path, clock), [], Counting(), clock, sampled=False)
    phase = recorder.begin(recorder.known(Kind.PHASE, "forward", nested=False))
    recorder.end(recorder.begin(recorder.known(Kind.FETCH, "layers.0")))
    recorder.end(phase)
    recorder.log.close()
    rows = read(tmp_path / "events.arrows")
    assert [(row["kind"], row["allocated_bytes"], row["reserved_bytes"]) for row in rows] == [
        ("phase", 7, 9),
        ("fetch", None, None),
        ("fetch", None, None),
        ("phase", 7, 9),
    ]


def test_a_closed_log_is_a_whole_stream_for_every_name(tmp_path: Path) -> None:
    EventLog(tmp_path, lambda: 0).close()
    assert {path.stem: read(path) for path in tmp_path.glob("*.arrows")} == {name: [] for name in SCHEMAS}


def test_an_end_closes_what_an_exception_left_open_inside(tmp_path: Path) -> None:
    recorder, spy = make(tmp_path)
    outer = recorder.begin(recorder.known(Kind.RELEASE, "layers.0"))
    recorder.begin(recorder.known(Kind.GATHER, "layers.0.weight"))
    recorder.end(outer)
    assert spy.calls[-2:] == [("pop", "gather layers.0.weight"), ("pop", "release layers.0")]
    assert recorder.current() == NONE
