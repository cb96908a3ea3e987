"""Each rule of the allocator on its own, with figures worked out by hand."""

from __future__ import annotations

import pickle

import pytest

from zeropeak.profile.allocator import (
    Allocator,
    HeldBlock,
    HeldSegment,
    OutOfMemory,
    SegmentChange,
    Settings,
    Step,
    read_conf,
    replay,
)
from zeropeak.profile.allocator.device import AddressSpace

MIB = 1 << 20


def sizes(allocator: Allocator) -> list[int]:
    """MiB of every segment, in the order of their making: the newest lies lowest when each fills whole chunks."""
    return sorted(segment.size_bytes // MIB for segment in allocator.segments())


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # A remainder of up to 1 MiB stays with the block.
        (11 * MIB, 12 * MIB, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(requested: int, allocated: int, reserved: int) -> None:
    allocator = Allocator()
    allocator.allocate(1, requested)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)
    assert allocator.block_bytes(1) == allocated


def test_zero_bytes_take_nothing() -> None:
    allocator = Allocator()
    assert allocator.allocate(1, 0) == allocator.block_bytes(1) == 0
    assert allocator.free(1) == 0
    assert allocator.reserved_bytes == 0


def test_small_and_large_requests_never_share_a_segment() -> None:
    allocator = Allocator()
    allocator.allocate(1, 2 * MIB)
    allocator.allocate(2, 512)
    assert sizes(allocator) == [2, 20]


def test_a_stream_takes_nothing_from_another() -> None:
    allocator = Allocator()
    allocator.allocate(1, 2 * MIB, stream=7)
    allocator.free(1)
    allocator.allocate(2, 2 * MIB, stream=0)
    assert sizes(allocator) == [20, 20]


def test_the_smallest_fitting_block_is_taken_then_the_lowest() -> None:
    allocator = Allocator()
    places = [allocator.allocate(key, size * MIB) for key, size in enumerate((32, 64, 32))]
    for key in range(3):
        allocator.free(key)
    assert places == sorted(places, reverse=True)
    assert allocator.allocate(3, 32 * MIB) == places[2]
    assert allocator.allocate(4, 30 * MIB) == places[0]
    assert allocator.allocate(5, 30 * MIB) == places[1]


def test_neighbours_merge_on_both_sides() -> None:
    allocator = Allocator()
    for key in range(5):
        allocator.allocate(key, 4 * MIB)
    for key in (0, 2, 4, 1, 3):
        allocator.free(key)
    [segment] = allocator.segments()
    assert segment.blocks == (HeldBlock(segment.address, 20 * MIB, None),)


def test_blocks_beyond_the_split_limit_stay_whole_and_among_themselves() -> None:
    allocator = Allocator(read_conf("max_split_size_mb:64"))
    big = allocator.allocate(1, 80 * MIB)
    allocator.free(1)
    allocator.allocate(2, 32 * MIB)
    assert sizes(allocator) == [32, 80]
    assert allocator.allocate(3, 64 * MIB) == big
    assert allocator.allocated_bytes == 112 * MIB
    allocator.free(3)
    allocator.allocate(4, 60 * MIB)
    assert sizes(allocator) == [32, 60, 80]


def test_a_whole_block_serves_requests_smaller_by_less_than_the_rounding() -> None:
    allocator = Allocator(read_conf("max_split_size_mb:64,max_non_split_rounding_mb:20"))
    allocator.allocate(1, 86 * MIB)
    allocator.free(1)
    allocator.allocate(2, 66 * MIB)
    assert sizes(allocator) == [66, 86]
    allocator.allocate(3, 68 * MIB)
    assert sizes(allocator) == [66, 86]


def test_requests_are_rounded_to_divisions_of_powers_of_two() -> None:
    allocator = Allocator(read_conf("roundup_power2_divisions:[2:4,>:2]"))
    allocator.allocate(1, 1100)
    assert allocator.allocated_bytes == 1536
    allocator.allocate(2, 2500)
    assert allocator.allocated_bytes == 1536 + 2560
    allocator.allocate(3, 5 * MIB)
    assert allocator.allocated_bytes == 1536 + 2560 + 6 * MIB


def test_larger_segments_on_request() -> None:
    allocator = Allocator(read_conf("large_segment_size_mb:32"))
    allocator.allocate(1, 2 * MIB)
    assert allocator.reserved_bytes == 32 * MIB


def test_a_block_that_another_stream_uses_is_free_at_the_next_allocation() -> None:
    allocator = Allocator()
    place = allocator.allocate(1, 32 * MIB)
    allocator.record_stream(1, 0)
    allocator.record_stream(1, 7)
    allocator.free(1)
    assert (allocator.allocated_bytes, allocator.waiting_bytes) == (0, 32 * MIB)
    assert allocator.segments()[0].blocks[0].waiting
    assert allocator.allocate(2, 32 * MIB) == place
    assert allocator.waiting_bytes == 0


def test_its_own_stream_does_not_make_a_block_wait() -> None:
    allocator = Allocator(lag=None)
    allocator.allocate(1, 32 * MIB, stream=7)
    allocator.record_stream(1, 7)
    allocator.free(1)
    assert allocator.waiting_bytes == 0


def test_with_a_lag_it_takes_so_many_allocations_more() -> None:
    allocator = Allocator(lag=2)
    place = allocator.allocate(1, 32 * MIB)
    allocator.record_stream(1, 7)
    allocator.free(1)
    assert [allocator.allocate(key, 32 * MIB) == place for key in (2, 3, 4)] == [False, False, True]


def test_without_a_lag_a_block_waits_until_it_is_said() -> None:
    allocator = Allocator(lag=None)
    place = allocator.allocate(1, 32 * MIB)
    allocator.record_stream(1, 7)
    allocator.free(1)
    assert allocator.allocate(2, 32 * MIB) != place
    allocator.complete(1)
    allocator.complete(1)
    assert allocator.allocate(3, 32 * MIB) == place


def test_a_key_can_be_used_again_at_once() -> None:
    allocator = Allocator(lag=1)
    place = allocator.allocate(1, 32 * MIB)
    for _ in range(2):
        allocator.record_stream(1, 7)
        allocator.free(1)
        allocator.complete(1)
        assert allocator.allocate(1, 32 * MIB) == place
    allocator.record_stream(1, 7)
    allocator.free(1)
    allocator.allocate(2, 32 * MIB)
    assert allocator.waiting_bytes == 32 * MIB


def test_waiting_blocks_do_not_merge() -> None:
    allocator = Allocator(lag=None)
    for key in range(3):
        allocator.allocate(key, 4 * MIB)
    allocator.record_stream(1, 7)
    for key in range(3):
        allocator.free(key)
    assert [block.size_bytes // MIB for block in allocator.segments()[0].blocks] == [4, 4, 12]
    allocator.synchronize()
    assert [block.size_bytes // MIB for block in allocator.segments()[0].blocks] == [20]


def test_emptying_the_cache_frees_what_is_wholly_free() -> None:
    changes: list[SegmentChange] = []
    allocator = Allocator(changed=changes.append)
    whole = allocator.allocate(1, 32 * MIB)
    allocator.allocate(2, 4 * MIB)
    allocator.allocate(3, 4 * MIB)
    allocator.free(1)
    allocator.free(2)
    allocator.empty_cache()
    assert sizes(allocator) == [20]
    assert changes[-1] == ("segment_free", whole, 32 * MIB, 0)
    assert allocator.peak_reserved_bytes == 52 * MIB
    allocator.reset_peaks()
    assert (allocator.peak_reserved_bytes, allocator.peak_allocated_bytes) == (20 * MIB, 4 * MIB)


def test_a_full_device_gets_back_what_is_cached_before_it_refuses() -> None:
    allocator = Allocator(device_bytes=100 * MIB, outside_bytes=10 * MIB)
    allocator.allocate(1, 60 * MIB)
    allocator.free(1)
    allocator.allocate(2, 80 * MIB)
    assert (sizes(allocator), allocator.retries) == ([80], 1)
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(3, 11 * MIB)
    assert (caught.value.requested_bytes, caught.value.segment_bytes) == (11 * MIB, 12 * MIB)
    assert (caught.value.allocated_bytes, caught.value.reserved_bytes) == (80 * MIB, 80 * MIB)
    assert caught.value.free_bytes == 10 * MIB
    assert str(caught.value).startswith(
        "out of memory: 11,534,336 bytes need 12,582,912 more from the device, which has"
    )
    assert pickle.loads(pickle.dumps(caught.value)).free_bytes == 10 * MIB
    allocator.free(2)
    allocator.allocate(3, 80 * MIB)


def test_what_waits_for_another_stream_is_freed_before_the_device_refuses() -> None:
    allocator = Allocator(device_bytes=64 * MIB, lag=None)
    allocator.allocate(1, 40 * MIB)
    allocator.record_stream(1, 7)
    allocator.free(1)
    allocator.allocate(2, 60 * MIB)
    assert (allocator.waiting_bytes, allocator.reserved_bytes) == (0, 60 * MIB)


def test_a_cached_block_too_large_to_split_goes_alone() -> None:
    allocator = Allocator(read_conf("max_split_size_mb:20"), device_bytes=120 * MIB)
    for key, size in enumerate((10, 50, 60)):
        allocator.allocate(key, size * MIB)
    for key in range(3):
        allocator.free(key)
    allocator.allocate(3, 28 * MIB)
    assert (sizes(allocator), allocator.retries) == ([10, 28, 60], 0)


def test_several_cached_blocks_go_when_none_is_large_enough() -> None:
    allocator = Allocator(read_conf("max_split_size_mb:20"), device_bytes=120 * MIB)
    for key, size in enumerate((30, 40, 50)):
        allocator.allocate(key, size * MIB)
    for key in range(3):
        allocator.free(key)
    allocator.allocate(3, 80 * MIB)
    assert (sizes(allocator), allocator.retries) == ([30, 80], 0)


def test_a_share_of_the_device_is_the_limit() -> None:
    allocator = Allocator(read_conf("per_process_memory_fraction:0.5"), device_bytes=100 * MIB)
    allocator.allocate(1, 40 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(2, 12 * MIB)
    assert caught.value.free_bytes == 10 * MIB


def test_rejected_early_nothing_cached_is_freed() -> None:
    allocator = Allocator(read_conf("throw_on_cudamalloc_oom:True"), device_bytes=100 * MIB)
    allocator.allocate(1, 60 * MIB)
    allocator.free(1)
    with pytest.raises(OutOfMemory):
        allocator.allocate(2, 80 * MIB)
    assert (allocator.reserved_bytes, allocator.retries) == (60 * MIB, 0)


@pytest.mark.parametrize(
    ("conf", "left"),
    [
        # 120 MiB of 180 are taken. The first was free for three searches, the second for two: first the older goes,
        # then, when that is not enough, the other.
        ("garbage_collection_threshold:0.6,per_process_memory_fraction:0.9", [40, 60, 70]),
        ("garbage_collection_threshold:0.5,per_process_memory_fraction:0.9", [60, 70]),
        ("garbage_collection_threshold:0.9,per_process_memory_fraction:0.9", [20, 40, 60, 70]),
        ("garbage_collection_threshold:0.5", [20, 40, 60, 70]),
    ],
)
def test_old_cached_segments_go_once_the_threshold_is_passed(conf: str, left: list[int]) -> None:
    allocator = Allocator(read_conf(conf), device_bytes=300 * MIB if "0.9,per" in conf else 200 * MIB)
    for key, size in enumerate((20, 40, 60)):
        allocator.allocate(key, size * MIB)
        if key < 2:
            allocator.free(key)
    allocator.allocate(3, 70 * MIB)
    assert sizes(allocator) == left


def test_begins_with_the_segments_of_another() -> None:
    first = Allocator(lag=None)
    for key, (size, stream) in enumerate([(3 * MIB, 0), (5 * MIB, 0), (700, 0), (64 * MIB, 7)], 1):
        first.allocate(key, size, stream)
    first.free(1)
    first.record_stream(4, 0)
    first.free(4)
    second = Allocator(lag=None)
    second.adopt(first.segments())
    assert second.segments() == first.segments()
    assert (second.allocated_bytes, second.waiting_bytes) == (first.allocated_bytes, first.waiting_bytes)
    assert second.reserved_bytes == second.peak_reserved_bytes == first.reserved_bytes
    assert second.allocate(9, 3 * MIB) == first.allocate(9, 3 * MIB)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([(0, 4, [(0, 2)])], "do not fill it"),
        ([(0, 4, [(0, 2), (3, 1)])], "do not lie side by side"),
        ([(0, 4, [(0, 4)]), (2, 4, [(2, 4)])], "overlap"),
    ],
)
def test_segments_that_cannot_be_are_refused(
    segments: list[tuple[int, int, list[tuple[int, int]]]], message: str
) -> None:
    held = [
        HeldSegment(
            start * MIB, size * MIB, 0, False, tuple(HeldBlock(at * MIB, part * MIB, None) for at, part in parts)
        )
        for start, size, parts in segments
    ]
    with pytest.raises(ValueError, match=message):
        Allocator().adopt(held)


def test_only_a_new_allocator_adopts() -> None:
    used = Allocator()
    used.allocate(1, 1)
    for allocator in (used, Allocator(Settings(expandable_segments=True))):
        with pytest.raises(ValueError, match="only a new allocator"):
            allocator.adopt([])
    twice = HeldSegment(0, 2 * MIB, 0, True, (HeldBlock(0, MIB, 1), HeldBlock(MIB, MIB, 1)))
    with pytest.raises(ValueError, match="two blocks have the key 1"):
        Allocator().adopt([twice])


def test_a_free_in_the_middle_of_another_call_waits_for_its_end() -> None:
    seen: list[tuple[int, int]] = []

    def changed(change: SegmentChange) -> None:
        if allocator.allocated_bytes:
            seen.append((allocator.free(2), allocator.allocated_bytes))

    allocator = Allocator(changed=changed)
    places = [allocator.allocate(key, 4 * MIB) for key in (1, 2, 3)]
    allocator.allocate(4, 64 * MIB)
    assert seen == [(places[1], 12 * MIB)]
    assert allocator.allocated_bytes == 72 * MIB
    assert allocator.allocate(5, 4 * MIB) == places[1]


def test_wrong_use_is_an_error() -> None:
    allocator = Allocator(lag=None)
    allocator.allocate(1, 8)
    with pytest.raises(ValueError, match="block 1 is allocated already"):
        allocator.allocate(1, 8)
    with pytest.raises(ValueError, match="block 2 of -1 bytes"):
        allocator.allocate(2, -1)
    for call in (allocator.free, allocator.block_bytes, lambda key: allocator.record_stream(key, 7)):
        with pytest.raises(KeyError):
            call(2)
    with pytest.raises(ValueError, match="not -1"):
        Allocator(lag=-1)
    with pytest.raises(ValueError, match="unknown action"):
        replay(allocator, [Step("move")])  # type: ignore[arg-type]


def test_the_driver_hands_out_the_lowest_hole_then_chunks_downwards() -> None:
    space = AddressSpace()
    first = space.take(394 * MIB)
    assert space.take(2 * MIB) == first + 394 * MIB
    assert space.take(176 * MIB) == first - 192 * MIB
    assert space.take(2 * MIB) == first - 16 * MIB
    space.give(first - 192 * MIB, 176 * MIB)
    assert space.take(64 * MIB) == first - 192 * MIB
    assert space.take(112 * MIB) == first - 128 * MIB


def test_a_stream_of_steps_gives_a_curve() -> None:
    steps = [
        Step("alloc", 1, 32 * MIB),
        Step("record_stream", 1, 0, 7),
        Step("free", 1),
        Step("complete", 1),
        Step("synchronize"),
        Step("empty_cache"),
    ]
    curve = replay(Allocator(lag=None), steps)
    assert curve.allocated_bytes.tolist() == [32 * MIB, 32 * MIB, 0, 0, 0, 0]
    assert curve.reserved_bytes.tolist() == [*[32 * MIB] * 5, 0]
    assert curve.address[0] == curve.address[2] != 0
