"""Damaged traces: what can be mended is, what cannot is dropped event by event, and both are counted."""

import json
from pathlib import Path

import pytest

from zeropeak.parse.kineto import reader as kineto
from zeropeak.parse.sink import MemorySink, Source

HEAD = b'{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "baseTimeNanoseconds": 0,\n  "traceEvents": [\n'
TAIL = b'\n  ],\n  "traceName": "x.json"\n}\n'


def event(number: int, name: bytes = b"k", ts: bytes | None = None, dur: bytes = b"2.000", extra: bytes = b"") -> bytes:
    """A kernel as kineto prints it."""
    return (
        b'  {\n    "ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7,\n    "ts": %s, "dur": %s,\n'
        b'    "args": {\n      "device": 0, "stream": 7, "correlation": %d%s\n    }\n  }'
    ) % (name, ts or b"%d.000" % (5000 + number), dur, number, extra)


def read(folder: Path, *events: bytes, tail: bytes = TAIL, head: bytes = HEAD) -> tuple[MemorySink, Source]:
    path = folder / "trace.json"
    path.write_bytes(head + b",\n".join(events) + tail)
    sink = MemorySink()
    return sink, kineto.read(path, sink)


def ids(sink: MemorySink) -> list[object]:
    return [row["correlation_id"] for row in sink.rows("kernels")]


def counted(sink: MemorySink) -> dict[str, int]:
    return {what: line.count for what, line in sink.counts.items() if "." not in what}


@pytest.mark.parametrize(
    ("damaged", "mended", "what"),
    [
        (event(2, b"a\xff\xfeb"), "a\ufffd\ufffdb", "utf8"),
        (event(2, b"a\nb\x01c"), "a b c", "control_characters"),
        (event(2, b"C:\\temp\\"), "C:\temp\\", "quotes"),
        (event(2, b"f\\(x)"), "f\\(x)", "escapes"),
        (event(2, b"\\ud800"), "\ufffd", "escapes"),
        (event(2, b'say "hi" to "x", y'), 'say "hi" to "x", y', "quotes"),
        (event(2).replace(b'"kernel"', b'"kernel'), "k", "quotes"),
        (event(2).replace(b'"kernel"', b'kernel"'), "k", "quotes"),
        (event(2).replace(b'"name"', b'"name'), "k", "quotes"),
        (event(2, extra=b', "memory bandwidth (GB/s)": inf, "x": [-nan, NaN]'), "k", "not_a_number"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_event_is_mended(tmp_path: Path, damaged: bytes, mended: str, what: str, place: int) -> None:
    events = [event(1), event(3)]
    events.insert(place, damaged)
    sink, source = read(tmp_path, *events)
    assert [row["name"] for row in sink.rows("kernels") if row["correlation_id"] == 2] == [mended]
    assert sorted(map(str, ids(sink))) == ["1", "2", "3"]
    assert counted(sink) == {"events": 3, "events_mended": 1, f"mended_{what}": 1}
    assert not source.partial


@pytest.mark.parametrize(
    "damaged",
    [
        b'  {\n    "ph": "X", "cat": }',
        b'  {\n    "ph": "X", "cat": "kernel", "args": {\n  }',
        b"  {{}",
        b"  17",
        b"  null",
        b"  [1, 2]",
        b'  "text"',
        b"  nothing",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_cannot_be_mended_is_dropped_alone(tmp_path: Path, damaged: bytes, place: int) -> None:
    events = [event(1), event(3)]
    events.insert(place, damaged)
    sink, source = read(tmp_path, *events)
    assert ids(sink) == [1, 3]
    assert counted(sink) == {"events": 2, "events_dropped": 1}
    assert not source.partial


def test_an_event_without_its_end_does_not_take_the_next_with_it(tmp_path: Path) -> None:
    for length in (20, 60, 100, 150):
        sink, _ = read(tmp_path, event(1), event(2)[:length] + b"\n" + event(3), event(4))
        assert ids(sink) == [1, 3, 4]
        assert counted(sink) == {"events": 3, "events_dropped": 1}


def test_missing_and_doubled_commas_are_seen_past(tmp_path: Path) -> None:
    sink, _ = read(tmp_path, event(1) + event(2), b"", event(3))
    assert ids(sink) == [1, 2, 3]
    assert counted(sink) == {"events": 3, "commas_missing": 1}


@pytest.mark.parametrize("tail", [b"", b",", b"\n"])
def test_a_list_without_its_end_is_legal_when_bare_and_cut_when_not(tmp_path: Path, tail: bytes) -> None:
    assert read(tmp_path, event(1), event(2), tail=tail, head=b"[")[1].partial is False
    sink, source = read(tmp_path, event(1), event(2), tail=tail)
    assert (ids(sink), source.partial) == ([1, 2], True)


def test_every_cut_gives_the_events_before_it(tmp_path: Path) -> None:
    whole = HEAD + b",\n".join([event(1), event(2, b'na\\"me'), event(3)]) + TAIL
    path = tmp_path / "cut.json"
    ends = [len(HEAD) + len(event(1)), len(HEAD) + len(event(1)) + 2 + len(event(2, b'na\\"me'))]
    for length in range(len(HEAD), len(whole) - len(TAIL) + 1):
        path.write_bytes(whole[:length])
        sink = MemorySink()
        source = kineto.read(path, sink)
        whole_events = sum(length >= end for end in ends) + (length == len(whole) - len(TAIL))
        assert (ids(sink), source.partial) == ([1, 2, 3][:whole_events], True), length


@pytest.mark.parametrize(
    ("ts", "what"),
    [
        (b"0", "times_zero"),
        (b"0.000", "times_zero"),
        (b'"soon"', "times_unreadable"),
        (b"null", "times_unreadable"),
        (b"9" * 30, "times_unreadable"),
        (b"4500000000000000", "times_on_another_clock"),
    ],
)
def test_an_event_whose_time_cannot_be_right_is_dropped(tmp_path: Path, ts: bytes, what: str) -> None:
    sink, _ = read(tmp_path, event(1), event(2), event(3, ts=ts))
    assert ids(sink) == [1, 2]
    assert sink.counts[what].count == 1
    assert sink.counts[what].severity == "lost"


@pytest.mark.parametrize("dur", [b"-5.000", b"7450000000000000", b"9" * 25, b"null"])
def test_a_duration_that_cannot_be_right_leaves_the_end_unknown(tmp_path: Path, dur: bytes) -> None:
    sink, _ = read(tmp_path, event(1), event(2, dur=dur))
    assert [row["end_ns"] for row in sink.rows("kernels")] == [5003000, None]


def test_numbers_beyond_64_bits_are_unknown(tmp_path: Path) -> None:
    sink, _ = read(tmp_path, event(1, extra=b', "bytes": 18446744073709551616'), event(2, extra=b', "bytes": 1.5e300'))
    assert [row["size_bytes"] for row in sink.rows("kernels")] == [None, None]
    assert counted(sink)["integers_too_large"] == 2


def test_arguments_that_are_no_object_cost_only_themselves(tmp_path: Path) -> None:
    odd = event(2).replace(b'"args": {\n      "device": 0, "stream": 7, "correlation": 2\n    }', b'"args": [1, 2]')
    sink, _ = read(tmp_path, event(1), odd)
    assert [(row["correlation_id"], row["stream"]) for row in sink.rows("kernels")] == [(1, 7), (None, 7)]
    assert counted(sink)["args_unreadable"] == 1


def test_damage_in_the_metadata_does_not_cost_the_events(tmp_path: Path) -> None:
    head = HEAD.replace(b'"schemaVersion": 1', b'"schemaVersion": oops, "who": "me"').replace(b"0,\n", b"7000,\n")
    sink, source = read(tmp_path, event(1), head=head, tail=b'], "broken" }')
    assert [row["start_ns"] for row in sink.rows("kernels")] == [5001000 + 7000]
    assert source.rank == 0
    assert counted(sink)["metadata_damaged"] == 2


def test_a_memory_event_without_a_size_is_dropped(tmp_path: Path) -> None:
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 5, "args": {"Addr": 1, "Device Type": 0}}
    sized = {**memory, "args": {"Bytes": 8, "Addr": 1 << 63, "Device Type": 20, "Device Id": 3}}
    events = [memory, {**memory, "args": None}, {**memory, "args": {"Bytes": -(1 << 63), "Device Type": 0}}, sized]
    sink, _ = read(tmp_path, *(json.dumps(one).encode() for one in events))
    assert [(row["device"], row["address"], row["size_bytes"]) for row in sink.rows("memory_events")] == [
        ("privateuseone:3", None, 8)
    ]
    assert counted(sink) == {"events": 4, "memory_events_unreadable": 3, "integers_too_large": 1}
