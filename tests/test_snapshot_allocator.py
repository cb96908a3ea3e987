"""The reader against a plain model of the caching allocator: of any part of its history it makes the same sums."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plain_allocator import MIB, PlainAllocator, run, steps

from zeropeak.parse.sink import MemorySink
from zeropeak.parse.snapshot.reader import read

if TYPE_CHECKING:
    from pathlib import Path


def parse(snapshot: dict[str, Any], path: Path) -> MemorySink:
    path.write_bytes(pickle.dumps(snapshot, 4))
    sink = MemorySink()
    read(path, sink)
    return sink


@pytest.mark.parametrize(
    ("expandable", "max_split", "adjacent"),
    [(False, None, False), (False, None, True), (True, None, False), (False, 8 * MIB, False)],
)
@given(script=steps, lost=st.integers(0, 40))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_what_the_allocator_counted(
    tmp_path: Path, expandable: bool, max_split: int | None, adjacent: bool, script: Any, lost: int
) -> None:
    allocator = PlainAllocator(expandable, max_split, adjacent)
    run(allocator, script)
    first = min(lost, len(allocator.trace))
    if not allocator.segments and first == len(allocator.trace):
        return
    sink = parse(allocator.snapshot(first), tmp_path / "snapshot.pickle")
    shown = {"alloc", "free_requested", "segment_alloc", "segment_free", "segment_map", "segment_unmap"}
    expected = [
        (*truth, entry["addr"])
        for entry, truth in zip(allocator.trace[first:], allocator.truth[first:], strict=True)
        if entry["action"] in shown
    ]
    rows = sink.rows("memory_events")
    assert [(row["allocated_bytes"], row["reserved_bytes"], row["address"]) for row in rows] == expected
    assert not [what for what, line in sink.counts.items() if line.count and line.severity != "info"
                and not what.startswith("history_missing")]  # fmt: skip
    if first < len(allocator.trace):
        check_blocks(sink.rows("memory_blocks"), rows, allocator)


def check_blocks(blocks: list[dict[str, Any]], events: list[dict[str, Any]], allocator: PlainAllocator) -> None:
    """What holds for all lifetimes: ordered, within the dump, and each byte in one block at a time."""
    for block in blocks:
        times = [block[name] for name in ("born_ns", "free_requested_ns", "freed_ns") if block[name] is not None]
        assert times == sorted(times)
    alive = [block for block in blocks if block["freed_ns"] is None]
    assert {(block["address"], block["size_bytes"]) for block in alive} == {
        (block.address, block.size) for block in allocator.blocks.values() if block.state != "inactive"
    }
    counted = [block["size_bytes"] for block in alive if block["free_requested_ns"] is None]
    assert sum(counted) == allocator.allocated
    assert all(event["allocated_bytes"] >= 0 for event in events)
    for one, other in itertools.combinations(blocks, 2):
        low, high = sorted((one, other), key=lambda block: block["address"])
        if high["address"] < low["address"] + low["size_bytes"]:
            order = sorted((one, other), key=lambda block: (block["born_ns"] or 0, block["freed_ns"] or 1 << 62))
            first, second = order
            assert first["freed_ns"] is not None
            assert second["born_ns"] is not None
            assert first["freed_ns"] <= second["born_ns"]


def test_a_whole_history_starts_from_nothing(tmp_path: Path) -> None:
    allocator = PlainAllocator()
    run(allocator, [("alloc", 3 * MIB, 0), ("alloc", 700, 0), ("free", 0, False), ("alloc", 2 * MIB, 0)])
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot(0), 4))
    sink = MemorySink()
    assert read(path, sink).partial is False
    assert all(row["born_ns"] is not None for row in sink.rows("memory_blocks"))
