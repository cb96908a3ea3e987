"""What holds whatever is asked of the allocator; and the same answers as slower, plainer versions of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.histories import retell
from tests.plain_allocator import PlainAllocator, run, steps
from tests.plain_expandable import PlainExpandable

from zeropeak.parse.snapshot.sizes import rounded, taken
from zeropeak.profile.allocator import Allocator, OutOfMemory, SegmentChange, Settings, read_conf, replay
from zeropeak.profile.allocator.device import CHUNK_BYTES, TOP_ADDRESS, AddressSpace
from zeropeak.profile.allocator.settings import least_remainder, round_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.allocator.blocks import Pool

MIB = 1 << 20
CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:40,max_non_split_rounding_mb:30",
    "roundup_power2_divisions:[1:8,4:2,>:4]",
    "expandable_segments:True,max_split_size_mb:40,large_segment_size_mb:32",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.8",
    "expandable_segments:True,garbage_collection_threshold:0.3,per_process_memory_fraction:0.8",
    "throw_on_cudamalloc_oom:True",
)

requests = st.one_of(
    st.sampled_from([1, 512, 513, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 20 * MIB, 21 * MIB - 512, 40 * MIB]),
    st.integers(1, 3 * MIB),
    st.integers(MIB, 50 * MIB),
)
stories = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), requests, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 99), st.integers(0, 2)),
        st.tuples(st.sampled_from(["complete", "synchronize", "empty_cache"]), st.integers(0, 99), st.just(0)),
    ),
    max_size=40,
)


def attempt(allocator: Allocator, key: int, requested: int, stream: int) -> OutOfMemory | None:
    try:
        allocator.allocate(key, requested, stream)
    except OutOfMemory as refused:
        return refused
    return None


def tell(
    allocator: Allocator, story: list[tuple[str, int, int]], refusals: Callable[[OutOfMemory], None] | None = None
) -> dict[int, int]:
    """Run a story, checking everything after each step; requested bytes by key of what is left."""
    live: dict[int, int] = {}
    freed: list[int] = []
    for key, (action, number, stream) in enumerate(story):
        if action == "alloc":
            refused = attempt(allocator, key, number, stream)
            if refused is None:
                live[key] = number
            elif refusals is not None:
                refusals(refused)
        elif action == "free" and live:
            chosen = sorted(live)[number % len(live)]
            allocator.record_stream(chosen, stream)
            allocator.free(chosen)
            freed.append(chosen)
            del live[chosen]
        elif action == "complete" and freed:
            allocator.complete(freed[number % len(freed)])
        elif action == "synchronize":
            allocator.synchronize()
            assert allocator.waiting_bytes == 0
        elif action == "empty_cache":
            allocator.empty_cache()
        check(allocator, live)
    return live


def check(allocator: Allocator, live: dict[int, int]) -> None:
    """The books agree with the blocks, no two overlap, and nothing that could be one block is two."""
    segments = allocator.segments()
    for low, high in itertools.pairwise(segments):
        assert low.address + low.size_bytes <= high.address
    blocks = {}
    for segment in segments:
        end, was_free = segment.address, False
        for block in segment.blocks:
            assert block.address == end
            assert block.size_bytes > 0
            assert block.size_bytes % 512 == 0
            assert not (was_free and block.key is None), "free neighbours that are two blocks"
            end, was_free = end + block.size_bytes, block.key is None
            if block.key is not None:
                assert block.key not in blocks
                blocks[block.key] = block
        assert end == segment.address + segment.size_bytes
    allocated = {key: block for key, block in blocks.items() if not block.waiting}
    assert set(allocated) == set(live)
    assert all(allocated[key].size_bytes >= requested for key, requested in live.items())
    assert allocator.allocated_bytes == sum(block.size_bytes for block in allocated.values())
    assert allocator.waiting_bytes == sum(block.size_bytes for block in blocks.values() if block.waiting)
    assert allocator.reserved_bytes == sum(segment.size_bytes for segment in segments)
    assert allocator.reserved_bytes >= allocator.allocated_bytes + allocator.waiting_bytes
    assert allocator.peak_reserved_bytes >= allocator.reserved_bytes
    assert allocator.peak_allocated_bytes >= allocator.allocated_bytes
    free = sorted((block.size_bytes, block.address) for s in segments for block in s.blocks if block.key is None)
    pools: list[Pool] = [*allocator._small.values(), *allocator._large.values()]
    assert sorted((block.size, block.address) for pool in pools for block in pool.blocks) == free
    assert all(pool.keys == sorted(pool.keys) for pool in pools)


@pytest.mark.parametrize("conf", CONFS)
@given(story=stories, lag=st.sampled_from([0, 2, None]), device=st.sampled_from([None, 64, 150]))
@settings(max_examples=30, deadline=None)
def test_the_books_agree_with_the_blocks(
    conf: str, story: list[tuple[str, int, int]], lag: int | None, device: int | None
) -> None:
    changes: list[SegmentChange] = []
    limit = None if device is None else device * MIB
    allocator = Allocator(read_conf(conf), device_bytes=limit, outside_bytes=5 * MIB, lag=lag, changed=changes.append)
    live = tell(allocator, story)
    assert limit is None or allocator.peak_reserved_bytes <= limit - 5 * MIB
    taken = sum(c.size_bytes if c.action in ("segment_alloc", "segment_map") else -c.size_bytes for c in changes)
    assert taken == allocator.reserved_bytes
    for key in live:
        allocator.free(key)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.waiting_bytes, allocator.reserved_bytes) == (0, 0, 0)
    assert allocator.segments() == []


@given(story=stories, device=st.integers(22, 150))
@settings(max_examples=60, deadline=None)
def test_it_refuses_only_what_does_not_fit(story: list[tuple[str, int, int]], device: int) -> None:
    allocator = Allocator(device_bytes=device * MIB)

    def check_refusal(refused: OutOfMemory) -> None:
        assert allocator.reserved_bytes + refused.segment_bytes > device * MIB
        assert allocator.waiting_bytes == 0
        assert not [s for s in allocator.segments() if all(block.key is None for block in s.blocks)]
        assert refused.free_bytes == device * MIB - allocator.reserved_bytes

    tell(allocator, story, check_refusal)


class Upwards:
    """Addresses as the plain version gives them out."""

    def __init__(self, apart: int) -> None:
        self.apart = apart
        self.next = 1 << 40

    def take(self, size: int) -> int:
        self.next += size + self.apart
        return self.next - size - self.apart

    def give(self, address: int, size: int) -> None:
        pass


@pytest.mark.parametrize("max_split", [None, 8 * MIB])
@given(script=steps)
@settings(max_examples=80, deadline=None)
def test_answers_as_the_plain_version_does(max_split: int | None, script: list[tuple[str, Any, Any]]) -> None:
    plain = PlainAllocator(max_split=max_split)
    done = [("complete", 0, None)] * len(script)
    run(plain, [part for line in script for part in ([*done, line] if line[0] == "empty" else [line])])
    history = retell(plain.trace, [])
    allocator = Allocator(Settings(max_split_bytes=max_split), lag=None)
    allocator._device.space = Upwards(64 * MIB)  # type: ignore[assignment]
    curve = replay(allocator, history.steps)
    assert curve.reserved_bytes.tolist() == history.reserved
    moves = [place for place, step in enumerate(history.steps) if step.action in ("alloc", "free")]
    assert [curve.address[place] for place in moves] == [history.address[place] for place in moves]
    assert allocator.allocated_bytes == plain.allocated


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("alloc"), st.integers(2049, 160_000)),
            st.tuples(st.just("free"), st.integers(0, 99)),
            st.tuples(st.just("empty"), st.just(0)),
        ),
        max_size=40,
    )
)
@settings(max_examples=150, deadline=None)
def test_expandable_segments_are_those_of_the_plain_version(story: list[tuple[str, int]]) -> None:
    allocator, plain = Allocator(Settings(expandable_segments=True)), PlainExpandable()
    for key, (action, number) in enumerate(story):
        if action == "alloc":
            address = allocator.allocate(key, number * 512)
            block = allocator._live[key]
            assert block is not None
            assert block.span is not None
            assert address - block.span.address == plain.allocate(key, number * 512)
        elif action == "free" and plain.blocks:
            chosen = sorted(plain.blocks)[number % len(plain.blocks)]
            allocator.free(chosen)
            del plain.blocks[chosen]
        elif action == "empty":
            allocator.empty_cache()
            plain.empty_cache()
        assert allocator.reserved_bytes == plain.reserved()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=40))
def test_addresses_are_the_lowest_that_are_free(story: list[tuple[bool, int]]) -> None:
    space = AddressSpace()
    bottom, held = TOP_ADDRESS, dict[int, int]()
    for take, number in story:
        if take:
            size = number * 2 * MIB
            edges = [bottom, *itertools.chain(*((at, at + held[at]) for at in sorted(held))), TOP_ADDRESS]
            holes = [low for low, high in zip(edges[::2], edges[1::2], strict=True) if high - low >= size]
            bottom = bottom if holes else bottom - -(-size // CHUNK_BYTES) * CHUNK_BYTES
            expected = min(holes, default=bottom)
            assert space.take(size) == expected
            held[expected] = size
        elif held:
            chosen = sorted(held)[number % len(held)]
            space.give(chosen, held.pop(chosen))


@given(
    st.integers(1, 1 << 40),
    st.integers(0, 1 << 24),
    st.sampled_from([None, 20 * MIB, 64 * MIB]),
    st.one_of(st.just(()), st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=16, max_size=16).map(tuple)),
)
def test_reader_and_model_round_and_split_alike(
    requested: int, rest: int, max_split: int | None, divisions: tuple[int, ...]
) -> None:
    chosen = Settings(max_split_bytes=max_split, divisions=divisions)
    size = round_size(requested, chosen)
    assert rounded(np.array([requested]), chosen).tolist() == [size]
    if size > MIB:
        least = least_remainder(size, chosen)
        whole = least is None or rest < least
        assert taken(np.array([size]), np.array([size + rest]), chosen).tolist() == [size + rest if whole else size]
