"""Expandable segments: how pages are mapped, used and given back, with figures worked out by hand."""

from __future__ import annotations

import pytest

from zeropeak.profile.allocator import Allocator, OutOfMemory, SegmentChange, read_conf

MIB = 1 << 20


def test_expandable_segments_grow_by_pages() -> None:
    changes: list[SegmentChange] = []
    allocator = Allocator(read_conf("expandable_segments:True"), changed=changes.append)
    first = allocator.allocate(1, 30 * MIB)
    second = allocator.allocate(2, 30 * MIB)
    small = allocator.allocate(3, 512)
    assert second == first + 30 * MIB
    assert changes == [
        ("segment_map", first, 40 * MIB, 0),
        ("segment_map", first + 40 * MIB, 20 * MIB, 0),
        ("segment_map", small, 2 * MIB, 0),
    ]
    assert [(segment.address, segment.size_bytes) for segment in allocator.segments() if not segment.small] == [
        (first, 60 * MIB)
    ]


def test_expandable_segments_split_off_every_remainder() -> None:
    allocator = Allocator(read_conf("expandable_segments:True"))
    allocator.allocate(1, 20 * MIB - 512)
    assert allocator.allocated_bytes == 20 * MIB - 512


def test_expandable_segments_give_back_whole_free_pages_and_fill_the_gap_first() -> None:
    changes: list[SegmentChange] = []
    allocator = Allocator(read_conf("expandable_segments:True"), changed=changes.append)
    start = allocator.allocate(1, 10 * MIB)
    allocator.allocate(2, 45 * MIB)
    allocator.allocate(3, 10 * MIB)
    allocator.free(2)
    allocator.empty_cache()
    # 10 to 55 MiB are free: the page from 20 to 40 MiB lies wholly within, and so does nothing behind 65 MiB of 80.
    assert changes[-1] == ("segment_unmap", start + 20 * MIB, 20 * MIB, 0)
    assert allocator.reserved_bytes == 60 * MIB
    assert [segment.size_bytes // MIB for segment in allocator.segments()] == [20, 40]
    assert allocator.allocate(4, 25 * MIB) == start + 10 * MIB
    assert allocator.reserved_bytes == 80 * MIB


def test_an_expandable_segment_without_memory_is_dropped() -> None:
    allocator = Allocator(read_conf("expandable_segments:True"))
    start = allocator.allocate(1, 30 * MIB)
    allocator.free(1)
    allocator.empty_cache()
    assert (allocator.reserved_bytes, allocator.segments()) == (0, [])
    assert allocator.allocate(2, 30 * MIB) == start


def test_pages_given_back_one_after_the_other_are_mapped_again_at_once() -> None:
    changes: list[SegmentChange] = []
    allocator = Allocator(read_conf("expandable_segments:True"), changed=changes.append)
    start = allocator.allocate(1, 20 * MIB)
    for key in (2, 3):
        allocator.allocate(key, 20 * MIB)
    for key in (1, 2):
        allocator.free(key)
        allocator.empty_cache()
    allocator.allocate(4, 40 * MIB)
    assert changes[-1] == ("segment_map", start, 40 * MIB, 0)


def test_of_equal_stretches_of_an_expandable_segment_the_lowest_is_taken() -> None:
    allocator = Allocator(read_conf("expandable_segments:True"))
    places = [allocator.allocate(key, 4 * MIB) for key in range(5)]
    for key in (1, 3):
        allocator.free(key)
    assert allocator.allocate(9, 4 * MIB) == places[1]


def test_expandable_segments_move_pages_on_a_full_device() -> None:
    allocator = Allocator(read_conf("expandable_segments:True"), device_bytes=100 * MIB)
    allocator.allocate(1, 30 * MIB)
    allocator.allocate(2, 30 * MIB)
    allocator.allocate(3, 20 * MIB, stream=7)
    allocator.free(1)
    allocator.allocate(4, 40 * MIB, stream=7)
    assert (allocator.reserved_bytes, allocator.retries) == (100 * MIB, 1)
    with pytest.raises(OutOfMemory):
        allocator.allocate(5, 40 * MIB, stream=7)


def test_the_end_of_a_segment_is_used_after_fitting_blocks_within() -> None:
    allocator = Allocator(read_conf("expandable_segments:True"))
    start = allocator.allocate(1, 24 * MIB)
    allocator.allocate(2, 4 * MIB)
    allocator.free(1)
    # Free are 24 MiB at the start and 12 MiB at the end, which could grow and so counts as the larger.
    assert allocator.allocate(3, 12 * MIB) == start
