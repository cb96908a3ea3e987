"""Laws of block lifetimes, and the mends that a CPU capture needs."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropeak.parse import event_rows
from zeropeak.parse.blocks import ALIVE, BEFORE, MENDS, Blocks, Events, close_at_storage_end, match_storages, pair
from zeropeak.parse.curve import edges
from zeropeak.parse.registered import by_birth
from zeropeak.parse.writer import sorting

Move = tuple[int, int, int]
"""(ts, signed size, address)"""


def events(*moves: Move) -> Events:
    rows = np.array(moves, np.int64).reshape(len(moves), 3)
    return Events(rows[:, 0], rows[:, 1] > 0, rows[:, 2], np.abs(rows[:, 1]))


def lives(blocks: Blocks) -> list[tuple[int, int, int, int, str | None]]:
    """(address, size, born, freed, mend)"""
    columns = (blocks.address, blocks.size, blocks.born, blocks.freed, blocks.mend)
    return [(a, s, b, f, MENDS[m]) for a, s, b, f, m in zip(*(c.tolist() for c in columns), strict=True)]


def test_an_allocation_and_its_free_are_one_block() -> None:
    assert lives(pair(events((1, 64, 0x100), (5, -64, 0x100)))) == [(0x100, 64, 1, 5, None)]


def test_a_free_that_was_never_reported_is_seen_when_the_address_is_reused() -> None:
    blocks = pair(events((1, 64, 0x100), (7, 32, 0x100), (9, -32, 0x100)))
    assert lives(blocks) == [(0x100, 64, 1, 7, "address-reused"), (0x100, 32, 7, 9, None)]


def test_an_allocation_inside_an_open_block_proves_that_it_was_freed() -> None:
    blocks = pair(events((1, 4096, 0x1000), (7, 64, 0x1800)))
    assert lives(blocks) == [(0x1000, 4096, 1, 7, "address-reused"), (0x1800, 64, 7, ALIVE, None)]


def test_an_allocation_around_an_open_block_proves_that_it_was_freed() -> None:
    blocks = pair(events((1, 64, 0x1800), (7, 4096, 0x1000)))
    assert lives(blocks)[0] == (0x1800, 64, 1, 7, "address-reused")


def test_a_free_of_an_unknown_block_is_a_block_from_before() -> None:
    assert lives(pair(events((5, -64, 0x100)))) == [(0x100, 64, BEFORE, 5, None)]


def test_a_second_free_of_an_address_is_left_out_and_counted() -> None:
    blocks = pair(events((1, 64, 0x100), (2, -64, 0x100), (5, -64, 0x100)))
    assert lives(blocks) == [(0x100, 64, 1, 2, None)]
    assert blocks.unseen_frees == 1


def test_a_block_ends_with_its_storage_when_no_free_was_reported() -> None:
    blocks = pair(events((1, 64, 0x100), (2, 64, 0x200), (9, 64, 0x100)))
    owner = match_storages(blocks, np.array([0x100, 0x200]), np.array([3, 3]), 0)
    closed = close_at_storage_end(blocks, owner, np.array([6, ALIVE]))
    assert lives(closed)[0] == (0x100, 64, 1, 6, "storage-ended")
    assert lives(closed)[1] == (0x200, 64, 2, ALIVE, None)


def test_a_reported_free_is_believed_over_a_storage_end() -> None:
    blocks = pair(events((1, 64, 0x100), (8, -64, 0x100)))
    owner = match_storages(blocks, np.array([0x100]), np.array([3]), 0)
    assert lives(close_at_storage_end(blocks, owner, np.array([6]))) == [(0x100, 64, 1, 8, None)]


def test_a_storage_lies_in_the_block_that_was_open_when_it_was_registered() -> None:
    blocks = pair(events((1, 64, 0x100), (5, -64, 0x100), (6, 64, 0x100)))
    found = match_storages(blocks, np.array([0x100, 0x100, 0x100, 0x900]), np.array([2, 7, 0, 7]), 0)
    assert found.tolist() == [0, 1, -1, -1]


def test_a_storage_may_precede_its_block_by_the_error_of_the_clock_fit() -> None:
    blocks = pair(
        events(
            (10, 64, 0x100),
        )
    )
    assert match_storages(blocks, np.array([0x100]), np.array([8]), 1).tolist() == [-1]
    assert match_storages(blocks, np.array([0x100]), np.array([8]), 2).tolist() == [0]


@st.composite
def histories(draw: st.DrawFn) -> list[Move]:
    """What a profiler reports of an allocator's true history: some frees and the beginning are missing."""
    moves: list[Move] = []
    live: dict[int, int] = {}
    slots = [0x1000 + 0x40 * n for n in range(8)]
    for ts in range(draw(st.integers(0, 40))):
        slot = draw(st.sampled_from(slots))
        if slot in live:
            moves.append((ts, -live.pop(slot), slot))
        else:
            size = draw(st.integers(1, 0x40))
            live[slot] = size
            moves.append((ts, size, slot))
    missing = draw(st.sets(st.sampled_from(range(len(moves))))) if moves else set()
    start = draw(st.integers(0, 5))
    return [move for n, move in enumerate(moves) if n >= start and not (move[1] < 0 and n in missing)]


@given(histories())
def test_live_is_allocated_minus_freed_and_never_negative(moves: list[Move]) -> None:
    order = edges(pair(events(*moves)))
    assert (order.allocated >= 0).all()
    steps = np.diff(order.allocated, prepend=order.baseline_bytes)
    blocks = pair(events(*moves))
    assert (np.abs(steps) == blocks.size[order.block]).all()


@given(histories())
def test_each_byte_is_live_once(moves: list[Move]) -> None:
    blocks = pair(events(*moves))
    order = edges(blocks)
    for position in range(-1, len(order.ts)):
        alive = (order.birth_position <= position) & (position < order.end_position)
        total = order.baseline_bytes if position < 0 else order.allocated[position]
        assert blocks.size[alive].sum() == total
        spans = sorted(zip(blocks.address[alive].tolist(), blocks.size[alive].tolist(), strict=True))
        assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))


@given(histories(), st.randoms())
def test_the_order_of_input_does_not_matter(moves: list[Move], random: object) -> None:
    shuffled = list(moves)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert lives(pair(events(*shuffled))) == lives(pair(events(*moves)))


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_rows_of_events_are_the_same_in_pieces_of_any_size(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_rows, "ROWS", at_once)
    blocks = pair(events((1, 64, 0x100), (7, 32, 0x100), (9, -32, 0x100)))
    threads = pa.table({"thread_id": [11, None, 13]})
    rows = event_rows.EventRows(threads, blocks, edges(blocks), "cpu", "kineto")
    for _ in range(2):  # they can be asked for again
        found = [row for piece in rows for row in piece.to_pylist()]
        assert [
            (row["ts_ns"], row["action"], row["allocated_bytes"], row["thread_id"], row["mend"]) for row in found
        ] == [
            (1, "alloc", 64, 11, None),
            (7, "free", 0, None, "address-reused"),
            (7, "alloc", 32, None, None),
            (9, "free", 0, 13, None),
        ]
        assert {(row["address"], row["device"], row["source"]) for row in found} == {(0x100, "cpu", "kineto")}


def test_blocks_from_before_come_last_and_leave_nothing_to_sort() -> None:
    blocks = pa.table({"block_id": [0, 1, 2, 3], "born_ns": pa.array([None, None, 5, 7])})
    known, before = by_birth(blocks)
    assert (known["block_id"].to_pylist(), before["block_id"].to_pylist()) == ([2, 3], [0, 1])
    assert sorting(pa.concat_tables([known, before]), ["born_ns"]) is None
    mixed = pa.table({"born_ns": pa.array([5, None, 7])})
    assert [part.num_rows for part in by_birth(mixed)] == [3, 0]


def test_millions_of_events_take_few_bytes_each() -> None:
    count = 200_000
    row = np.arange(count)
    moves = Events(row, row % 2 == 0, row // 2 % 500 * 4096, np.full(count, 512))
    peaks = []
    tracemalloc.start()
    for made in (lambda: pair(moves), lambda: edges(pair(moves))):
        tracemalloc.reset_peak()
        assert made()
        peaks.append(tracemalloc.get_traced_memory()[1] / count)
    tracemalloc.stop()
    # Kept are 21 bytes of blocks and 25 of their edges; what they are made with comes on top.
    assert max(peaks) < 70
