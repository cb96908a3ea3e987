"""Snapshots of other people and of real H200 runs, counted a second time in plain Python."""

from __future__ import annotations

import bisect
import gzip
import json
import lzma
import pickle
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from tests.captures import CAPTURES, cases, needs, needs_captures

from zeropeak.parse.sink import MemorySink
from zeropeak.parse.snapshot.reader import read
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

CASES = cases("snapshots", "*.pickle")
BIG = [(name, rank) for name in ("s2m0", "s3m0", "s3m1") for rank in (0, 1)]
GIB = 1 << 30
MIB = 1 << 20

needs_cases = needs(CASES)


def parse(path: Path) -> MemorySink:
    sink = MemorySink()
    read(path, sink)
    return sink


class Replay:
    """The allocator's bookkeeping, one entry after the other, from the blocks that are older than the history."""

    def __init__(self, snapshot: dict[str, Any], device: int) -> None:
        self.trace = snapshot["device_traces"][device]
        self.segments = {s["address"]: s["total_size"] for s in snapshot["segments"] if s["device"] == device}
        self.fall = "free_requested" if any(e["action"] == "free_requested" for e in self.trace) else "free_completed"
        older: dict[int, int] = {}
        seen = set()
        for entry in self.trace:
            if entry["action"].startswith("segment"):
                self.segments.setdefault(entry["addr"], entry["size"])
            elif entry["addr"] not in seen and entry["action"] != "alloc":
                older[entry["addr"]] = entry["size"]
            seen.add(entry["addr"])
        self.at_dump = {
            block["address"]: block["size"]
            for segment in snapshot["segments"]
            if segment["device"] == device
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }
        older |= {address: size for address, size in self.at_dump.items() if address not in seen}
        self.starts = sorted(self.segments)
        self.live = sorted(older)
        self.size = {address: self.taken(address, size) for address, size in older.items()}

    def taken(self, address: int, requested: int) -> int:
        size = max(512, (requested + 511) // 512 * 512)
        place = bisect.bisect_right(self.starts, address) - 1
        if size <= MIB or place < 0 or address >= (end := self.starts[place] + self.segments[self.starts[place]]):
            return size
        after = bisect.bisect_right(self.live, address)
        if after < len(self.live):
            end = min(end, self.live[after])
        return end - address if 0 <= end - address - size <= MIB else size

    def run(self) -> list[tuple[int, int]]:
        """(address, allocated after it) of every birth and every end."""
        allocated, rows = sum(self.size.values()), []
        for entry in self.trace:
            address = entry.get("addr", 0)
            if entry["action"] == "alloc":
                self.size[address] = self.taken(address, entry["size"])
                bisect.insort(self.live, address)
                allocated += self.size[address]
                rows.append((address, allocated))
            if entry["action"] == self.fall:
                allocated -= self.size[address]
                rows.append((address, allocated))
            if entry["action"] == "free_completed":
                self.live.remove(address)
        return rows


def check(path: Path, content: bytes) -> MemorySink:
    """Compare the reader with the replay, entry by entry."""
    snapshot = pickle.loads(content)
    sink = parse(path)
    events, blocks = sink.rows("memory_events"), sink.rows("memory_blocks")
    for device, trace in enumerate(snapshot["device_traces"]):
        if not trace:
            continue
        name = f"cuda:{device}"
        replay = Replay(snapshot, device)
        expected = replay.run()
        mine = [row for row in events if row["device"] == name]
        moves = [(row["address"], row["allocated_bytes"]) for row in mine if row["action"] in ("alloc", "free")]
        assert moves == expected
        assert sink.counts[f"entries:{name}"].count == len(trace)
        assert sink.counts[f"peak_allocated_bytes:{name}"].count == max(allocated for _, allocated in expected)
        dump = [segment for segment in snapshot["segments"] if segment["device"] == device]
        assert mine[-1]["reserved_bytes"] == sum(segment["total_size"] for segment in dump)
        alive = [b for b in blocks if b["device"] == name and b["freed_ns"] is None]
        assert {(b["address"], b["size_bytes"]) for b in alive} == set(replay.at_dump.items())
        assert expected[-1][1] == sum(replay.at_dump.values())
    return sink


@needs_cases
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_other_peoples_snapshots(path: Path) -> None:
    sink = check(path, path.read_bytes())
    wrong = {what for what, line in sink.counts.items() if line.count and line.severity != "info"}
    synthetic = {"sizes_outside_segments:cuda:0", "dump_contradicts_itself:cuda:0"}
    assert wrong == (synthetic if path.name == "mosaic_output.pickle" else set())


@needs_cases
def test_what_is_no_snapshot_is_refused() -> None:
    for folder in ("kineto", "nsys", "logs", "configs"):
        for path in cases(folder):
            with pytest.raises(TraceError, match="not a pickle"):
                parse(path)


def member(capture: str, name: str) -> bytes:
    with tarfile.open(CAPTURES / capture) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


@needs_captures
@pytest.mark.parametrize("rank", range(4))
def test_small_captures(tmp_path: Path, rank: int) -> None:
    path = tmp_path / f"snap_r{rank}.pickle.gz"
    path.write_bytes(member("torch2.11_small_4ranks.tar", path.name))
    sink = check(path, gzip.decompress(path.read_bytes()))
    assert not {what for what, line in sink.counts.items() if line.count and line.severity != "info"}


def kineto_moves(content: bytes) -> list[tuple[int, int, int, int]]:
    """(address, signed size, allocated, reserved) of torch.profiler's CUDA memory events, in order of time."""
    events = [
        event for event in json.loads(content)["traceEvents"]
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 1
    ]  # fmt: skip
    events.sort(key=lambda event: event["ts"])
    names = ("Addr", "Bytes", "Total Allocated", "Total Reserved")
    return [tuple(event["args"][name] for name in names) for event in events]


def snapshot_moves(path: Path) -> list[tuple[int, int, int, int]]:
    found = parse(path).table("memory_events").to_pylist()
    return [
        (row["address"], row["size_bytes"] * (1 if row["action"] == "alloc" else -1), row["allocated_bytes"],
         row["reserved_bytes"])
        for row in found if row["action"] in ("alloc", "free")
    ]  # fmt: skip


@needs_captures
@pytest.mark.parametrize("rank", range(4))
def test_torch_profiler_saw_the_same(tmp_path: Path, rank: int) -> None:
    path = tmp_path / f"snap_r{rank}.pickle.gz"
    path.write_bytes(member("torch2.11_small_4ranks.tar", path.name))
    seen = kineto_moves(gzip.decompress(member("torch2.11_small_4ranks.tar", f"kin_r{rank}.json.gz")))
    told = snapshot_moves(path)
    assert seen
    assert told == seen


@pytest.mark.h200
@needs_captures
def test_torch_profiler_saw_the_same_at_full_size(tmp_path: Path) -> None:
    capture = "pythia6.9b_2xH200_s3m0.tar"
    path = tmp_path / "snapshot_r0.pickle.gz"
    path.write_bytes(member(capture, path.name))
    seen = kineto_moves(lzma.decompress(member(capture, "kineto_r0.json.xz")))
    assert len(seen) == 35_722
    assert snapshot_moves(path) == seen


@pytest.mark.h200
@needs_captures
@pytest.mark.parametrize(("name", "rank"), BIG)
def test_big_captures_agree_with_torch_at_every_mark(tmp_path: Path, name: str, rank: int) -> None:
    capture = f"pythia6.9b_2xH200_{name}.tar"
    path = tmp_path / f"snapshot_r{rank}.pickle.gz"
    path.write_bytes(member(capture, path.name))
    sink = check(path, gzip.decompress(path.read_bytes()))
    table = sink.table("memory_events")
    times, allocated, reserved = (
        table[name].to_pylist() for name in ("ts_ns", "allocated_bytes", "reserved_bytes")
    )  # fmt: skip
    log = json.loads(gzip.decompress(member(capture, f"events_r{rank}.json.gz")))
    marks = {event["name"]: event for event in log if event["kind"] == "mark"}
    truth = json.loads((CAPTURES / "truth_pythia6.9b_2xH200.json").read_text())[name]
    begin = 0
    for line in truth:
        if line["rank"] != rank or line["mark"].startswith("init"):
            continue
        at = bisect.bisect_right(times, marks[line["mark"]]["t0"])
        assert allocated[at - 1] == marks[line["mark"]]["ma0"]
        assert allocated[at - 1] / GIB == pytest.approx(line["MA"], abs=0.01)
        assert reserved[at - 1] / GIB == pytest.approx(line["CA"], abs=0.01)
        assert max(allocated[begin:at]) / GIB == pytest.approx(line["MaxMA"], abs=0.01)
        if " step " in line["mark"]:
            begin = at
