"""Traces from other people's projects and from H200s: what a plain JSON parser counts is what the tables hold."""

import gzip
import json
import lzma
import tarfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.captures import CAPTURES, cases, needs, needs_captures

from zeropeak.parse.kineto import reader as kineto
from zeropeak.parse.sink import MemorySink, Source
from zeropeak.profile.errors import TraceError

CASES = {path.name: path for path in cases("kineto")}
REFUSED = {"hta_memory_timeline.raw.json.gz": "a memory timeline", "hta_et_simple_add_et.json.gz": "an execution trace"}
NAMES = list(CASES) or ["none"]
DEVICE_ACTIVITY = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}

needs_cases = needs(list(CASES.values()))


def ns(trace: dict[str, Any], value: Any) -> int:
    return int(trace.get("baseTimeNanoseconds", 0)) + round(Decimal(value) * 1000)


def compare(trace: dict[str, Any], sink: MemorySink, source: Source) -> None:
    """Counts, memory sums, kernel times and ranks of the reader against the parsed JSON."""
    events = trace["traceEvents"]
    by_category = Counter(str(event.get("cat", "none")) for event in events)
    counted = {what.partition(".")[2]: line.count for what, line in sink.counts.items() if what.startswith("events.")}
    assert counted == by_category
    assert sink.counts["events"].count == len(events)
    assert not [what for what, line in sink.counts.items() if line.severity in ("lost", "error")]

    memory = [event for event in events if event.get("name") == "[memory]"]
    if memory:
        rows = sink.table("memory_events").to_pydict()
        assert rows["ts_ns"] == [ns(trace, event["ts"]) for event in memory]
        assert rows["address"] == [event["args"].get("Addr") for event in memory]
        signed = [
            -size if action == "free" else size for size, action in zip(rows["size_bytes"], rows["action"], strict=True)
        ]
        assert signed == [event["args"]["Bytes"] for event in memory]
    else:
        assert "memory_events" not in sink.tables

    activity = [event for event in events if event.get("cat") in DEVICE_ACTIVITY]
    if activity:
        kernels = sink.table("kernels").to_pydict()
        found = Counter(zip(*(kernels[name] for name in ("name", "start_ns", "end_ns", "stream")), strict=True))
        assert found == Counter(
            (
                event["name"],
                ns(trace, event["ts"]),
                ns(trace, event["ts"]) + round(Decimal(event["dur"]) * 1000),
                event["args"]["stream"],
            )
            for event in activity
        )
    annotations = [event for event in events if str(event.get("cat")).endswith("user_annotation")]
    assert sink.table("nvtx_ranges").num_rows == len(annotations)
    told = [event for event in activity if "Collective name" in event["args"]]
    launched = [
        event
        for event in events
        if event.get("name") == "record_param_comms" and event["args"].get("Collective name", "wait") != "wait"
    ]
    assert sink.table("collectives").num_rows == len(told or launched)
    assert not source.partial
    assert source.rank == trace.get("distributedInfo", {}).get("rank")
    assert source.world_size == trace.get("distributedInfo", {}).get("world_size")


@needs_cases
@pytest.mark.parametrize("name", NAMES)
def test_public_traces_agree_with_plain_json(name: str) -> None:
    path = CASES[name]
    sink = MemorySink()
    if name in REFUSED:
        with pytest.raises(TraceError, match=REFUSED[name]):
            kineto.read(path, sink)
        return
    source = kineto.read(path, sink)
    with gzip.open(path) as file:
        compare(json.load(file, parse_float=Decimal), sink, source)


@pytest.mark.h200
@pytest.mark.slow
@needs_captures
@pytest.mark.parametrize(
    ("capture", "ranks"),
    [
        ("pythia6.9b_2xH200_s2m0", 2),
        ("pythia6.9b_2xH200_s3m0", 2),
        ("pythia6.9b_2xH200_s3m1", 2),
        ("torch2.11_small_4ranks", 4),
    ],
)
def test_h200_traces_agree_with_plain_json(tmp_path: Path, capture: str, ranks: int) -> None:
    with tarfile.open(CAPTURES / f"{capture}.tar") as tar:
        members = sorted(member.name for member in tar if member.name.startswith("kin"))
        assert len(members) == ranks
        for name in members:
            tar.extract(name, tmp_path, filter="data")
            path = tmp_path / name
            sink = MemorySink()
            source = kineto.read(path, sink)
            opener = lzma.open if path.suffix == ".xz" else gzip.open
            with opener(path) as file:
                compare(json.load(file, parse_float=Decimal), sink, source)
            path.unlink()
