"""The fast path (chunks decoded at once, most events skipped) gives what going through the events one by one gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zeropeak.parse.kineto import events as kineto_events
from zeropeak.parse.kineto import reader as kineto
from zeropeak.parse.kineto import split as kineto_split
from zeropeak.parse.kineto import window as kineto_window
from zeropeak.parse.kineto.events import KEPT
from zeropeak.parse.sink import MemorySink, Source

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(0, 9)
    | st.floats(-1e9, 1e9)
    | st.text(max_size=3)
    | st.sampled_from(["7", "0x10", "stream 7", "[140, 2]"])
)
TIMES = st.integers(-5, 2**45) | st.decimals(0, 2**45, places=3).map(float) | SCALARS
NAMES = st.sampled_from(["[memory]", "[OutOfMemory]", "record_param_comms", "zeropeak::fetch a", "aten::mul"]) | SCALARS
ARGUMENTS = [
    "Bytes",
    "Addr",
    "Device Type",
    "Device Id",
    "Total Allocated",
    "device",
    "stream",
    "correlation",
    "bytes",
    "event_id",
    "Collective name",
    "In msg nelems",
    "dtype",
    "Process Group Name",
    "Seq",
    "Input Tensors start",
]
ARGS = st.dictionaries(st.sampled_from(ARGUMENTS), SCALARS, max_size=8) | SCALARS | st.lists(SCALARS, max_size=2)
CATEGORIES = st.sampled_from([*KEPT, "ac2g", "cuda_runtime", "invented"]) | st.none() | st.integers(0, 3)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.sampled_from("XisfM")},
        optional={
            "cat": CATEGORIES,
            "name": NAMES,
            "ts": TIMES,
            "dur": TIMES,
            "pid": SCALARS,
            "tid": SCALARS,
            "args": ARGS,
        },
    )
    | SCALARS,
    max_size=25,
)

Everything = tuple[dict[str, list[dict[str, object]]], dict[str, int], Source]


def read(path: Path) -> Everything:
    sink = MemorySink()
    source = kineto.read(path, sink)
    rows = {table: sorted(sink.rows(table), key=repr) for table in sink.tables}
    return rows, {what: line.count for what, line in sink.counts.items()}, source


def one_by_one(path: Path) -> Everything:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_events.Events, "attempt", lambda self, array: False)
        return read(path)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_split, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(kineto_window, "BUFFER_BYTES", 3000)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EVENTS, st.integers(0, 2**60))
def test_both_paths_agree(tmp_path: Path, events: list[Any], base: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": base, "traceEvents": events}))
    fast = read(path)
    assert fast == one_by_one(path)
    assert fast[1]["events"] + fast[1].get("events_dropped", 0) == len(events)
    assert sum(count for what, count in fast[1].items() if what.startswith("events.")) == fast[1]["events"]


def test_a_sound_trace_takes_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "ts": 1, "dur": 1, "args": {"External id": n}}
        for n in range(500)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    singles = 0
    single = kineto_events.Events.single

    def counted(self: kineto_events.Events, text: bytes) -> bool:
        nonlocal singles
        singles += 1
        return single(self, text)

    monkeypatch.setattr(kineto_events.Events, "single", counted)
    assert read(path)[1]["events"] == 500
    assert singles <= 1


def test_a_category_is_learned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [{"ph": "X", "cat": "new"}] * 3000}))
    learned: list[str] = []
    learn = kineto_events.Events._learn

    def noted(self: kineto_events.Events, category: str) -> None:
        learned.append(category)
        learn(self, category)

    monkeypatch.setattr(kineto_events.Events, "_learn", noted)
    assert read(path)[1] == {"events": 3000, "events.new": 3000}
    assert learned.count("new") == 1


def test_categories_without_end_are_counted_together(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": f"c{n}"} for n in range(500)]}))
    counts = read(path)[1]
    assert counts["events"] == 500
    assert counts["events.other"] > 300
    assert len(counts) <= kineto_events.MAX_LABELS + 2
