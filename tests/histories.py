"""Memory snapshots as what was asked of the allocator, and what it then did."""

from __future__ import annotations

import bisect
import gzip
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zeropeak.parse.sink import MemorySink
from zeropeak.parse.snapshot.reader import read
from zeropeak.parse.snapshot.unpickle import PlainUnpickler
from zeropeak.profile.allocator import HeldBlock, HeldSegment, Settings, Step, read_conf
from zeropeak.profile.allocator.settings import SMALL_SEGMENT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

SIDE_STREAM = -1
"""Stands for whichever other stream used a block: the history does not name it."""


@dataclass
class History:
    """Steps for the model, and the truth after each of them."""

    start: list[HeldSegment] = field(default_factory=list)
    """Segments and blocks from before the first entry."""
    settings: Settings = field(default_factory=Settings)
    steps: list[Step] = field(default_factory=list)
    address: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    story: list[tuple[str, int, int]] = field(default_factory=list)
    """(action, address, size) of every segment and allocation, in order."""
    lags: list[int] = field(default_factory=list)
    """Allocations between a free that waited for another stream and its end: 0 if the next one saw it ended."""


def read_history(path: Path, device: int) -> History:
    """Everything that was asked of the allocator of one device, from a memory snapshot."""
    content = path.read_bytes()
    packed = content.startswith(b"\x1f\x8b")
    snapshot = PlainUnpickler(io.BytesIO(gzip.decompress(content) if packed else content)).load()
    trace = [entry for entry in snapshot["device_traces"][device] if entry["action"] not in ("snapshot", "oom")]
    sink = MemorySink()
    read(path, sink)
    older = {
        int(str(row["address"])): int(str(row["size_bytes"]))
        for row in sink.rows("memory_blocks")
        if row["device"] == f"cuda:{device}" and row["born_ns"] is None
    }
    history = retell(trace, _start(snapshot["segments"], trace, device, older))
    history.settings = read_conf(snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"])
    return history


def places(start: list[HeldSegment], story: list[tuple[str, int, int]]) -> list[tuple[int, int]]:
    """Of every allocation the segment, counted in the order of their making, and the offset in it."""
    starts = sorted(segment.address for segment in start)
    number = {address: place for place, address in enumerate(starts)}
    made, found = len(starts), []
    for action, address, _ in story:
        if action == "segment":
            bisect.insort(starts, address)
            number[address] = made
            made += 1
        elif action == "gone":
            starts.remove(address)
        else:
            first = starts[bisect.bisect_right(starts, address) - 1]
            found.append((number[first], address - first))
    return found


def retell(trace: list[dict[str, Any]], start: list[HeldSegment]) -> History:
    """The entries of a history, in torch's words, as steps for the model."""
    history = History(start)
    keys = {block.address: block.key for segment in start for block in segment.blocks if block.key is not None}
    reserved = sum(segment.size_bytes for segment in start)
    waiting: dict[int, tuple[int, int]] = {}
    born = 0

    def step(*what: Any, address: int = 0) -> None:
        history.steps.append(Step(*what))
        history.address.append(address)
        history.reserved.append(reserved)

    for index, entry in enumerate(trace):
        action, address = entry["action"], entry["addr"]
        after = trace[index + 1] if index + 1 < len(trace) else {"action": "end", "addr": 0}
        if action in ("segment_alloc", "segment_map"):
            reserved += entry["size"]
            history.story.append(("segment", address, entry["size"]))
        elif action in ("segment_free", "segment_unmap"):
            reserved -= entry["size"]
            history.story.append(("gone", address, entry["size"]))
            if after["action"] != action:
                step("empty_cache")
        elif action == "alloc":
            born += 1
            keys[address] = born
            history.story.append(("alloc", address, entry["size"]))
            step("alloc", born, entry["size"], entry["stream"], address=address)
        elif action == "free_requested":
            key = keys.pop(address)
            if (after["action"], after["addr"]) != ("free_completed", address):
                waiting[address] = key, born
                step("record_stream", key, 0, SIDE_STREAM)
            step("free", key, address=address)
        elif action == "free_completed" and address in waiting:
            key, before = waiting.pop(address)
            history.lags.append(born - before)
            step("complete", key)
    return history


def _start(
    dump: list[dict[str, Any]], trace: list[dict[str, Any]], device: int, older: dict[int, int]
) -> list[HeldSegment]:
    """Segments that are older than the history: of the dump or freed since; their blocks, and free space between."""
    seen: set[int] = set()
    found = {}
    for entry in trace:
        if entry["action"].startswith("segment") and entry["addr"] not in seen:
            seen.add(entry["addr"])
            if entry["action"] == "segment_free":
                found[entry["addr"]] = entry["size"], entry["stream"], entry["size"] == SMALL_SEGMENT_BYTES
    for segment in dump:
        if segment["device"] == device and segment["address"] not in seen:
            found[segment["address"]] = segment["total_size"], segment["stream"], segment["segment_type"] == "small"
    held, number = [], 0
    for address, (size, stream, small) in sorted(found.items()):
        blocks, end = [], address
        for at in sorted(at for at in older if address <= at < address + size):
            if at > end:
                blocks.append(HeldBlock(end, at - end, None))
            number -= 1
            blocks.append(HeldBlock(at, older[at], number))
            end = at + older[at]
        if end < address + size:
            blocks.append(HeldBlock(end, address + size - end, None))
        held.append(HeldSegment(address, size, stream, small, tuple(blocks)))
    return held
